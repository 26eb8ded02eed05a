"""An owner towards the dealer: its key for one session, its orders, and the corrections that come.

Free words of the material are drawn from a keystream that the owner and the dealer share; its key is derived from a
fresh contribution of each, so that neither a snapshot nor a reconnection can bring a used one back. Orders may be
placed ahead of need; what is ordered comes in the order of its numbers.
"""

from __future__ import annotations

from collections.abc import Sequence

from tacit.protocol.core.codec import Frame, Packet, decode
from tacit.protocol.core.errors import DETAIL_LIMIT, Code, RemoteProtocolError
from tacit.protocol.core.link import Link, Traffic
from tacit.protocol.core.machine import Entropy, Heard, Machine, Output, Step, Trigger
from tacit.protocol.core.messages import Abort, Message
from tacit.protocol.core.outputs import Transmit
from tacit.protocol.core.primitives import KEY_BYTES, Label, derive, framed
from tacit.protocol.core.roster import Roster
from tacit.protocol.inference.arrivals import Arrivals
from tacit.protocol.inference.messages import (
    INFERENCE_MESSAGES,
    Material,
    MaterialHello,
    MaterialOver,
    MaterialWelcome,
    OrderMaterial,
)
from tacit.protocol.inference.results import Agreed, InferenceEnded, MaterialArrived, MaterialKey
from tacit.protocol.inference.tables import MATERIAL_TABLE, MaterialState


def material_key(*, session: bytes, terms: bytes, owner: str, owner_contribution: bytes, contribution: bytes) -> bytes:
    """32 bytes: the key of an owner's streams of material in one session, for it and the dealer.

    terms: digest of the encoded terms; contribution: the dealer's.
    """
    info = framed(Label.MATERIAL, terms, owner.encode())
    return derive(owner_contribution + contribution, Label.MATERIAL, salt=session, info=info)


def outside_passes(packet: Packet) -> Packet:
    """The packet, which an owner and the dealer exchange; refuses one that bears the number of a pass."""
    if packet.envelope.round:
        raise RemoteProtocolError(Code.SESSION, f"{packet.kind.TYPE} of pass {packet.envelope.round} where 0 is due")
    return packet


class MaterialOwner(
    Machine[MaterialState],
    tables=(MATERIAL_TABLE,),
    outputs=Transmit | MaterialKey | MaterialArrived | InferenceEnded,
):
    """One owner in one session. dealer: its name in the roster; patience: seconds to wait for what is due."""

    def __init__(
        self, name: str, roster: Roster, *, dealer: str, agreed: Agreed, entropy: Entropy, patience: float
    ) -> None:
        super().__init__(MATERIAL_TABLE, MaterialState.READY)
        self.own = name
        self.dealer = dealer
        self.traffic = Traffic()
        self._roster = roster
        self._agreed = agreed
        self._entropy = entropy
        self._patience = patience
        self._link = Link(name, dealer, agreed.session, self.traffic, INFERENCE_MESSAGES)
        self._ordered = 0
        self._arrivals = Arrivals("the material of request")

    @property
    def over(self) -> bool:
        """Whether nothing more will come."""
        return self.state in (MaterialState.CLOSED, MaterialState.ABORTED)

    def feed(self, frames: Sequence[Frame], now: float) -> list[Output]:
        """One multipart message from the dealer; one that is of a former session still under way is ignored."""
        try:
            packet = decode(frames, INFERENCE_MESSAGES)
            if packet.envelope.session != self._agreed.session:
                self.ignored += 1
                return []
            outside_passes(self._link.accept(packet))
        except RemoteProtocolError as error:
            return [] if self.over else self.reject(self.dealer, error, now)
        return self.receive(self.dealer, packet, now)

    def start(self, now: float) -> list[Output]:
        """Come to the dealer."""
        return self.trigger(Trigger.START, now)

    def order(self, requests: bytes, count: int, corrections: Sequence[tuple[int, int]], now: float) -> list[Output]:
        """Order `count` requests; corrections: numbers of those whose corrections come to this owner, and bytes."""
        return [] if self.over else self.trigger(Trigger.ORDER, now, requests, count, corrections)

    def finish(self, now: float) -> list[Output]:
        """Order nothing more."""
        return [] if self.over else self.trigger(Trigger.FINISH, now)

    def drop(self, detail: str, now: float) -> list[Output]:
        """The link to the dealer is lost."""
        return [] if self.state is MaterialState.READY else self.trigger(Trigger.DROP, now, detail)

    def give_up(self, error: RemoteProtocolError, now: float) -> list[Output]:
        """This side cannot go on, for a reason that is not the dealer's."""
        return [] if self.over or self.state is MaterialState.READY else self.reject(self.own, error, now)

    def on_start(self, now: float) -> Step[MaterialState]:
        contribution, agreed = self._entropy(KEY_BYTES), self._agreed
        peer = agreed.peer
        hello = MaterialHello(roster=self._roster.hash, peer=peer, terms=agreed.digest, contribution=contribution)

        return Step(
            MaterialState.AWAIT_WELCOME,
            commit=lambda: [self._transmit(hello)],
            data=contribution,
            deadline=now + self._patience,
        )

    def on_welcome(self, heard: Heard[MaterialWelcome], now: float) -> Step[MaterialState]:
        key = material_key(
            session=self._agreed.session,
            terms=self._agreed.digest,
            owner=self.own,
            owner_contribution=self.at(bytes),
            contribution=heard.message.contribution,
        )
        return Step(MaterialState.SERVED, (MaterialKey(key),))

    def on_order(
        self, requests: bytes, count: int, corrections: Sequence[tuple[int, int]], now: float
    ) -> Step[MaterialState]:
        def commit() -> list[Output]:
            message = OrderMaterial(first=self._ordered, count=count, requests=requests)
            self._ordered += count
            self._arrivals.expect(corrections)
            self._wait(now)
            return [self._transmit(message)]

        return Step(MaterialState.SERVED, (), commit)

    def on_material(self, heard: Heard[Material], now: float) -> Step[MaterialState]:
        self._arrivals.check(heard.message.number, heard.message.chunk, heard.payload)

        def commit() -> list[Output]:
            complete = self._arrivals.take(heard.payload)
            self._wait(now)
            return [] if complete is None else [MaterialArrived(*complete)]

        return Step(MaterialState.SERVED, (), commit)

    def on_finish(self, now: float) -> Step[MaterialState]:
        return Step(
            MaterialState.CLOSED,
            (self._transmit(MaterialOver()), InferenceEnded(None, "no more material is wanted")),
            self.forget,
        )

    def on_abort(self, heard: Heard[Abort], now: float) -> Step[MaterialState]:
        message = heard.message
        return self._ended(InferenceEnded(message.code, message.detail, message.culprit))

    def on_expire(self, now: float) -> Step[MaterialState]:
        detail = f"no word from {self.dealer} for {self._patience:g} s: still to {self.state.value}"
        return self._failed(RemoteProtocolError(Code.TIMEOUT, detail, culprit=self.dealer))

    def on_drop(self, detail: str, now: float) -> Step[MaterialState]:
        return self._ended(InferenceEnded(Code.LEFT, detail, self.dealer))

    def refuse(self, sender: str, error: RemoteProtocolError, now: float) -> Step[MaterialState]:
        return Step(self.state) if self.over else self._failed(error)

    def forget(self) -> None:
        super().forget()
        self._arrivals.forget()

    def _wait(self, now: float) -> None:
        self.deadline = None if self._arrivals.next is None else now + self._patience

    def _failed(self, error: RemoteProtocolError) -> Step[MaterialState]:
        culprit = error.culprit or self.dealer
        abort = Abort(code=error.code, detail=error.detail[:DETAIL_LIMIT], culprit=culprit)
        return self._ended(InferenceEnded(error.code, error.detail, culprit), self._transmit(abort))

    def _ended(self, ended: InferenceEnded, *sends: Transmit) -> Step[MaterialState]:
        return Step(MaterialState.ABORTED, (*sends, ended), self.forget)

    def _transmit(self, message: Message) -> Transmit:
        return self._link.transmit(message, round=0)
