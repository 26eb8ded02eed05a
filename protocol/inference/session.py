"""What both owners of a session of private inference have in common: the link, the rounds of a pass, and the ends.

data_owner.py and model_owner.py are the two sides. A broken rule, a lost link or a deadline ends the session: shares
under way cannot be recovered, and material serves once. Whoever ends it says why to the other side.
"""

from __future__ import annotations

from collections.abc import Sequence

from tacit.protocol.core.codec import Frame, Packet, decode
from tacit.protocol.core.errors import DETAIL_LIMIT, Code, LocalProtocolError, RemoteProtocolError
from tacit.protocol.core.link import NO_SESSION, Link, Traffic
from tacit.protocol.core.machine import Heard, Machine, Output, Step, Table, Trigger
from tacit.protocol.core.messages import Abort, Message
from tacit.protocol.core.outputs import Transmit
from tacit.protocol.core.roster import Roster
from tacit.protocol.inference.arrivals import chunks
from tacit.protocol.inference.messages import INFERENCE_MESSAGES, Opening, PassStarted, StartPass
from tacit.protocol.inference.results import Agreed, InferenceEnded, MaskedLayer, Opened, PassAsked, PassBegun
from tacit.protocol.inference.rounds import PassRounds
from tacit.protocol.inference.schedule import pass_rounds
from tacit.protocol.inference.tables import InferenceState

_OVER = (InferenceState.CLOSED, InferenceState.ABORTED)


class InferenceSession(
    Machine[InferenceState],
    outputs=Transmit | Agreed | MaskedLayer | PassAsked | PassBegun | Opened | InferenceEnded,
):
    """One owner towards one other.

    patience: seconds that this side waits for a message that is due.
    """

    def __init__(
        self,
        table: Table[InferenceState],
        state: InferenceState,
        *,
        own: str,
        peer: str,
        roster: Roster,
        patience: float,
        model_owner: bool,
    ) -> None:
        super().__init__(table, state)
        self.own = own
        self.peer = peer
        self.number = 0
        """Of the pass that is going on, or was the last; they count from 1."""
        self.traffic = Traffic()
        self._roster = roster
        self._patience = patience
        self._model_owner = model_owner
        self._link = Link(own, peer, NO_SESSION, self.traffic, INFERENCE_MESSAGES)
        self._agreed: Agreed | None = None
        self._rounds: PassRounds | None = None

    @property
    def over(self) -> bool:
        """Whether the session has come to any end."""
        return self.state in _OVER

    @property
    def session(self) -> bytes:
        """Its name, 32 bytes; zeros before the model owner has given it one."""
        return self._link.session

    @property
    def agreed(self) -> Agreed:
        """What both go by. LocalProtocolError before there is an agreement."""
        if self._agreed is None:
            raise LocalProtocolError(f"{self.own!r} and {self.peer!r} have not agreed on terms")
        return self._agreed

    def feed(self, frames: Sequence[Frame], now: float) -> list[Output]:
        """One multipart message from the peer."""
        try:
            packet = decode(frames, INFERENCE_MESSAGES)
        except RemoteProtocolError as error:
            return [] if self.over else self.reject(self.peer, error, now)
        return self.hear(packet, now)

    def hear(self, packet: Packet, now: float) -> list[Output]:
        """The same, decoded."""
        try:
            due = self._accept(packet)
        except RemoteProtocolError as error:
            return [] if self.over else self.reject(self.peer, error, now)
        if not due:
            self.ignored += 1
            return []
        return self.receive(self.peer, packet, now)

    def give(self, step: int, data: Frame, now: float) -> list[Output]:
        """What this side opens in a round of the pass; without effect if the session is over meanwhile."""
        return [] if self.over else self.trigger(Trigger.GIVE, now, step, data)

    def drop(self, detail: str, now: float) -> list[Output]:
        """The link to the peer is lost."""
        return self.trigger(Trigger.DROP, now, detail)

    def give_up(self, error: RemoteProtocolError, now: float) -> list[Output]:
        """This side cannot go on, for a reason that is not the peer's: its device, its data, the dealer."""
        return [] if self.over else self.reject(self.own, error, now)

    def on_opening(self, heard: Heard[Opening], now: float) -> Step[InferenceState]:
        rounds = self._running()
        rounds.check(heard.message.step, heard.message.chunk, heard.payload)

        def commit() -> list[Output]:
            complete = rounds.arrivals.take(heard.payload)
            self._wait(now)
            return [] if complete is None else [Opened(*complete)]

        last = rounds.owed is None and rounds.arrivals.ends_with(heard.payload)
        return Step(InferenceState.IDLE if last else InferenceState.COMPUTING, (), commit)

    def on_give(self, step: int, data: Frame, now: float) -> Step[InferenceState]:
        rounds = self._running()
        rounds.give(step, memoryview(data).nbytes)

        def commit() -> list[Output]:
            self._wait(now)
            return [self._transmit(Opening(step=step, chunk=chunk), piece) for chunk, piece in chunks(data)]

        return Step(InferenceState.IDLE if rounds.over else InferenceState.COMPUTING, (), commit)

    def on_abort(self, heard: Heard[Abort], now: float) -> Step[InferenceState]:
        message = heard.message
        return self._ended(message.code, message.detail, message.culprit)

    def on_expire(self, now: float) -> Step[InferenceState]:
        detail = f"no word from {self.peer} for {self._patience:g} s: still to {self.state.value}"
        return self._failed(RemoteProtocolError(Code.TIMEOUT, detail, culprit=self.peer))

    def on_drop(self, detail: str, now: float) -> Step[InferenceState]:
        return self._ended(Code.LEFT, detail, self.peer)

    def refuse(self, sender: str, error: RemoteProtocolError, now: float) -> Step[InferenceState]:
        return Step(self.state) if self.over else self._failed(error)

    def _accept(self, packet: Packet) -> bool:
        """Refuse a packet that is not due on the link, or whose number of a pass does not fit; False to ignore it."""
        self._link.accept(packet)
        kind, number = packet.kind, packet.envelope.round
        inside = kind in (StartPass, PassStarted, Opening)
        due = self.number + (kind is StartPass) if inside else 0
        if kind is not Abort and number != due:
            raise RemoteProtocolError(Code.SESSION, f"{kind.TYPE} of pass {number} where {due} is due")
        return True

    def _begin(self, now: float) -> list[Output]:
        """Enter the rounds of a pass."""
        agreed = self.agreed
        rounds = pass_rounds(agreed.terms.sizes, agreed.images_of(self.number), known=agreed.terms.input == "known")
        self._rounds = PassRounds(rounds, model_owner=self._model_owner)
        self._wait(now)
        return [PassBegun(self.number, rounds)]

    def _running(self) -> PassRounds:
        if self._rounds is None:
            raise LocalProtocolError("no pass is going on")
        return self._rounds

    def _wait(self, now: float) -> None:
        """Wait for the peer, unless it is this side's turn."""
        idle = (self.state, Trigger.EXPIRE) not in self.table
        computing = self.state is InferenceState.COMPUTING and not self._running().waiting
        self.deadline = None if idle or computing else now + self._patience

    def _failed(self, error: RemoteProtocolError) -> Step[InferenceState]:
        culprit = error.culprit or self.peer
        abort = Abort(code=error.code, detail=error.detail[:DETAIL_LIMIT], culprit=culprit)
        return self._ended(error.code, error.detail, culprit, self._transmit(abort, number=0))

    def _ended(self, code: Code | None, detail: str, culprit: str = "", *sends: Transmit) -> Step[InferenceState]:
        state = InferenceState.CLOSED if code is None else InferenceState.ABORTED
        return Step(state, (*sends, InferenceEnded(code, detail, culprit)), self._forget)

    def _forget(self) -> None:
        self.deadline = self._rounds = None

    def _transmit(self, message: Message, payload: Frame | None = None, *, number: int | None = None) -> Transmit:
        number = self.number if number is None else number
        return self._link.transmit(message, round=number, payload=payload)
