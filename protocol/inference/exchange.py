"""One party's exchange with a peer in private inference: their link, its deadlines, and how it ends.

A broken rule, a lost link or a deadline ends the exchange; the party that ends it sends the reason to its peer. While
anything is due, every event restarts this side's deadline.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from tacit.protocol.core.codec import Frame, Packet, decode
from tacit.protocol.core.errors import DETAIL_LIMIT, Code, RemoteProtocolError
from tacit.protocol.core.link import Link
from tacit.protocol.core.machine import Heard, Machine, Output, Send, StateT, Step, Table, Trigger
from tacit.protocol.core.messages import Abort, Kinds, Message
from tacit.protocol.inference.messages import INFERENCE_MESSAGES
from tacit.protocol.inference.results import InferenceEnded


def check_number(packet: Packet, due: int) -> None:
    """Refuse a packet whose pass number is not the one due; 0 outside of passes."""
    number = packet.envelope.round
    if number != due:
        raise RemoteProtocolError(Code.SESSION, f"{packet.kind.TYPE} of pass {number} where {due} is due")


class ExchangeSide(Machine[StateT]):
    """One side of an exchange.

    ends: its closed and aborted states; patience: seconds that this side waits for anything due.
    """

    kinds: ClassVar[Kinds] = INFERENCE_MESSAGES

    def __init__(
        self, table: Table[StateT], state: StateT, *, ends: tuple[StateT, StateT], link: Link, patience: float
    ) -> None:
        super().__init__(table, state)
        self.own = link.own
        self.peer = link.peer
        self.traffic = link.traffic
        self._ends = ends
        self._link = link
        self._patience = patience

    @property
    def session(self) -> bytes:
        """Session identifier, 32 bytes; zeros before the model owner has assigned one."""
        return self._link.session

    @property
    def over(self) -> bool:
        return self.state in self._ends

    @property
    def waiting(self) -> bool:
        raise NotImplementedError

    def feed(self, frames: Sequence[Frame], now: float) -> list[Output]:
        try:
            packet = decode(frames, self.kinds)
        except RemoteProtocolError as error:
            return self.reject(self.peer, error, now)
        return self.hear(packet, now)

    def hear(self, packet: Packet, now: float) -> list[Output]:
        try:
            due = self._accept(packet)
        except RemoteProtocolError as error:
            return self.reject(self.peer, error, now)
        if not due:
            self.ignored += 1
            return []
        return self.receive(self.peer, packet, now)

    def drop(self, detail: str, now: float) -> list[Output]:
        """The link to the peer is lost."""
        return self.trigger(Trigger.DROP, now, detail)

    def give_up(self, error: RemoteProtocolError, now: float) -> list[Output]:
        """End the exchange for a cause other than the peer: this side's device, its data, a third party."""
        return self.reject(self.own, error, now)

    def pass_on(self, part: Machine[Any], send: Send) -> Sequence[Output]:
        number = self._number_of(type(send.message))
        return (self._link.transmit(send.message, round=number, payload=send.payload),)

    def on_abort(self, heard: Heard[Abort], now: float) -> Step[StateT]:
        return self._ended(heard.message.code, heard.message.detail, heard.message.culprit)

    def on_expire(self, now: float) -> Step[StateT]:
        detail = f"no word from {self.peer} for {self._patience:g} s: still to {self.state.value}"
        return self._failed(RemoteProtocolError(Code.TIMEOUT, detail, culprit=self.peer))

    def on_drop(self, detail: str, now: float) -> Step[StateT]:
        return self._ended(Code.LEFT, detail, self.peer)

    def refuse(self, sender: str, error: RemoteProtocolError, now: float) -> Step[StateT]:
        return Step(self.state) if self.over else self._failed(error)

    def _accept(self, packet: Packet) -> bool:
        """Refuse a packet that is not due on the link or has the wrong pass number; return False to ignore it."""
        raise NotImplementedError

    def _number_of(self, kind: type[Message]) -> int:
        """Return the pass number that messages of this type must carry now; 0 outside of passes."""
        return 0

    def _take(self, step: Step[StateT], now: float) -> list[Output]:
        outputs = super()._take(step, now)
        self.deadline = now + self._patience if self.waiting else None
        return outputs

    def _failed(self, error: RemoteProtocolError) -> Step[StateT]:
        culprit = error.culprit or self.peer
        abort = Abort(code=error.code, detail=error.detail[:DETAIL_LIMIT], culprit=culprit)
        return self._ended(error.code, error.detail, culprit, self._send(abort))

    def _ended(self, code: Code | None, detail: str, culprit: str = "", *sends: Send) -> Step[StateT]:
        closed, aborted = self._ends
        return Step(closed if code is None else aborted, (*sends, InferenceEnded(code, detail, culprit)))

    def _send(self, message: Message, payload: Frame | None = None) -> Send:
        return Send(self.peer, message, payload)
