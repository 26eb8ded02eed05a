"""The server of a federation: gathers the clients, and holds one round after the other.

It is fed with frames from authenticated members and answers with frames to them. The model itself is the shell's: the
machine hands out its bytes, reports every round's sum or the reason why there is none (`RoundDone`), and goes on when
the shell calls `next_round` with the new model, or `finish`.

Who breaks a rule is out for the session; who was late or lost is out of the round, and back as soon as it says hello.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import Any, Final

from tacit.protocol.aggregation_results import ServerAborted, Summed
from tacit.protocol.aggregation_server import AggregationServer
from tacit.protocol.codec import Frame, Packet, decode, encode_structure
from tacit.protocol.configuration import Configuration
from tacit.protocol.errors import DETAIL_LIMIT, Code, LocalProtocolError, RemoteProtocolError
from tacit.protocol.link import NO_SESSION, Link, Traffic
from tacit.protocol.machine import IGNORE, Entropy, Machine, Output, Report, Row, Send, Step, Table, Trigger
from tacit.protocol.members import encode_members
from tacit.protocol.messages import (
    CHUNK_BYTES,
    Abort,
    AdvertiseKeys,
    ConfirmSurvivors,
    EndRound,
    FetchModel,
    Finish,
    Hello,
    MaskedInput,
    Message,
    ModelChunk,
    Phase,
    ShareKeys,
    StartRound,
    UnmaskShares,
    VectorChunk,
    VoidRound,
    Welcome,
)
from tacit.protocol.primitives import KEY_BYTES, Label, digest
from tacit.protocol.roster import Roster
from tacit.protocol.rounds import Ended, RoundDone, Transmit, agree
from tacit.protocol.voiding import Promises, check_promise, promises_needed

AGGREGATION: Final = (AdvertiseKeys, ShareKeys, MaskedInput, VectorChunk, ConfirmSurvivors, UnmaskShares)
"""What clients say within a secure sum."""

NOT_AT_FAULT: Final = frozenset({Code.TIMEOUT, Code.LEFT, Code.LOCAL})
"""Reasons to drop a member that do not bar it from coming back."""


class SessionState(Enum):
    """What the server does."""

    GATHERING = "gather the clients"
    IN_ROUND = "hold a round"
    BETWEEN_ROUNDS = "wait for the next model"
    AWAIT_PROMISES = "wait for promises that the last round stays closed"
    ENDED = "ended"


def _table() -> Table[SessionState]:
    s = SessionState
    going = (s.GATHERING, s.IN_ROUND, s.BETWEEN_ROUNDS, s.AWAIT_PROMISES)
    table: dict[Any, Any] = {
        (s.GATHERING, Trigger.COMPLETE): Row("on_ready", (s.IN_ROUND, s.ENDED)),
        (s.GATHERING, Trigger.EXPIRE): Row("on_ready", (s.IN_ROUND, s.ENDED)),
        (s.IN_ROUND, FetchModel): Row("on_fetch_model", (s.IN_ROUND,)),
        (s.IN_ROUND, Trigger.SUM_OVER): Row("on_sum_over", (s.BETWEEN_ROUNDS,)),
        (s.BETWEEN_ROUNDS, Trigger.NEXT_ROUND): Row("on_next_round", (s.AWAIT_PROMISES,)),
        (s.BETWEEN_ROUNDS, Trigger.FINISH): Row("on_finish", (s.ENDED,)),
        (s.AWAIT_PROMISES, Trigger.COMPLETE): Row("on_ready", (s.IN_ROUND, s.ENDED)),
        (s.AWAIT_PROMISES, Trigger.EXPIRE): Row("on_no_promises", (s.ENDED,)),
    }
    for state in going:
        table[state, Hello] = Row("on_hello", (state,))
        table[state, VoidRound] = Row("on_void_round", (state,))
        table[state, Abort] = Row("on_abort", (state,))
    for state in (s.BETWEEN_ROUNDS, s.AWAIT_PROMISES):
        table.update({(state, kind): IGNORE for kind in (*AGGREGATION, FetchModel)})
    return table


TRAINING_SERVER_TABLE: Final = _table()
"""While IN_ROUND, the messages of the secure sum go to its own machine (aggregation_server.py)."""


class TrainingServer(Machine[SessionState]):
    """The server of one session.

    model: the first model, little-endian float32 bytes in the configuration's layout; join_seconds: how long to gather
    before starting with those who are there; grace: seconds for a lost link to come back; completed: rounds of earlier
    sessions, after which this one goes on counting.
    """

    def __init__(
        self,
        roster: Roster,
        configuration: Configuration,
        model: bytes,
        *,
        entropy: Entropy,
        smallest_cohort: int,
        join_seconds: float,
        grace: float,
        now: float,
        completed: int = 0,
    ) -> None:
        super().__init__(TRAINING_SERVER_TABLE, SessionState.GATHERING)
        self.session = entropy(KEY_BYTES)
        self.round = completed
        self.deadline = now + join_seconds
        self._name = roster.server.name
        self._roster = roster
        self._configuration = configuration
        self._smallest_cohort = smallest_cohort
        self._grace = grace
        self._set_model(model)
        self._links: dict[str, Link] = {}
        self._barred: set[str] = set()
        self._lost: dict[str, float] = {}
        self._in_round: set[str] = set()
        self._chunks_due: dict[str, int] = {}
        """Which chunk of the model each member of the round asks for next."""
        """Members that were told of the round and must be told of its end."""
        self._promises = Promises()
        self._promises_needed = 0
        self._promisers: tuple[str, ...] = ()
        self._sum: AggregationServer | None = None
        self._round_began = now
        self._last: RoundDone
        self._incoming_round = 0
        self.traffic = Traffic()

    @property
    def phase(self) -> Phase:
        """The phase of the round; TRAIN until the first client has advertised its keys."""
        if self._sum is None:
            return Phase.SESSION
        phase = Phase(self._sum.state.value)
        return Phase.TRAIN if phase is Phase.ADVERTISE_KEYS and not self._sum.answered else phase

    @property
    def waiting_for(self) -> tuple[str, ...]:
        """The members that the server waits for now."""
        if self._sum is not None:
            return tuple(self._sum.agreement.cohort[member] for member in sorted(self._sum.waiting))
        if self.state is SessionState.GATHERING:
            return tuple(name for name in self._roster.clients if name not in self._links)
        return ()

    @property
    def next_deadline(self) -> float | None:
        """When to call `expire`."""
        deadlines = (self.deadline, self._sum.deadline if self._sum else None, *self._lost.values())
        return min((deadline for deadline in deadlines if deadline is not None), default=None)

    def feed(self, sender: str, frames: Sequence[Frame], now: float) -> list[Output]:
        """One multipart message of a member whom the transport authenticated."""
        if self.state is SessionState.ENDED or sender in self._barred or sender not in self._roster.clients:
            self.ignored += 1
            return []
        try:
            packet = self._read(sender, frames)
        except RemoteProtocolError as error:
            return self.reject(sender, error, now)
        if packet is None:
            self.ignored += 1
            return []
        self._incoming_round = packet.envelope.round
        if self._sum is not None and self._in_sum(sender, packet):
            return self._relay(self._sum.receive(sender, packet, now), now)
        return self.receive(sender, packet, now)

    def link_lost(self, member: str, now: float) -> None:
        """The link to a member is down; the grace begins."""
        if member in self._links:
            self._lost[member] = now + self._grace

    def link_back(self, member: str) -> None:
        """The link is up again."""
        self._lost.pop(member, None)

    def next_round(self, model: bytes, now: float) -> list[Output]:
        """End the last round for its members and start the next one from this model."""
        return self.trigger(Trigger.NEXT_ROUND, now, model)

    def finish(self, now: float) -> list[Output]:
        """No more rounds: tell everybody."""
        return self.trigger(Trigger.FINISH, now)

    def expire(self, now: float) -> list[Output]:
        outputs: list[Output] = []
        for member in [member for member, until in self._lost.items() if now >= until]:
            outputs += self._leave(member, f"its link was lost for {self._grace:g} s", now)
        if self._sum is not None:
            outputs += self._relay(self._sum.expire(now), now)
        return outputs + super().expire(now)

    def complete(self) -> bool:
        if self.state is SessionState.GATHERING:
            there = self._links.keys() - self._lost.keys()
            possible = len(self._roster.clients) - len(self._barred)
            return len(there) >= min(possible, self._configuration.clients)
        return self._promises.count(self.session, self.round, self._promisers) >= self._promises_needed

    def on_hello(self, sender: str, message: Hello, payload: None, now: float) -> Step[SessionState]:
        if message.roster != self._roster.hash:
            raise RemoteProtocolError(Code.ROSTER, "it holds another roster: give all parties the same file")
        for given in message.promises:
            check_promise(self._roster, sender, given, given.signature)
        again = sender in self._links
        configuration = encode_structure(self._configuration)

        def commit() -> list[Output]:
            gone = self._leave(sender, "it started again", now) if again else []
            self._links[sender] = Link(self._name, sender, self.session, self.traffic)
            for given in message.promises:
                self._promises.add(sender, given)
            welcome = Welcome(roster=self._roster.hash, configuration=configuration)
            return [*gone, self._transmit(sender, welcome, round=0), Report("joined", {"member": sender})]

        return Step(self.state, (), commit)

    def on_ready(self, now: float) -> Step[SessionState]:
        clients = self._roster.clients
        cohort = tuple(name for name in clients if name in self._links and name not in self._lost)
        cohort = cohort[: self._configuration.clients]
        if len(cohort) < self._smallest_cohort:
            detail = f"only {len(cohort)} clients are there; a round takes at least {self._smallest_cohort}"
            return self._ended(Code.THRESHOLD, detail)
        try:
            agreement = agree(
                session=self.session,
                round=self.round + 1,
                roster=self._roster,
                configuration=self._configuration,
                cohort=cohort,
                model=self._model_hash,
                fewest_survivors=self._smallest_cohort,
            )
        except ValueError as error:
            return self._ended(Code.THRESHOLD, str(error))
        start = StartRound(
            cohort=encode_members([clients.index(name) for name in cohort], len(clients)),
            model=self._model_hash,
            model_bytes=len(self._model),
            voided=self._promises.proofs(),
        )

        def commit() -> list[Output]:
            self.round, self.deadline, self._promises_needed = agreement.round, None, 0
            self._sum, self._round_began, self._in_round = AggregationServer(agreement, now), now, set(cohort)
            self._chunks_due = dict.fromkeys(cohort, 0)
            report = Report("round", {"round": self.round, "cohort": list(cohort)})
            return [report, *(self._transmit(name, start) for name in cohort)]

        return Step(SessionState.IN_ROUND, (), commit)

    def on_fetch_model(self, sender: str, message: FetchModel, payload: None, now: float) -> Step[SessionState]:
        due = self._chunks_due.get(sender)
        if message.chunk != due:
            raise RemoteProtocolError(
                Code.UNEXPECTED,
                f"it asks for chunk {message.chunk} of the model, not for {due}: each goes out once",
            )
        start = message.chunk * CHUNK_BYTES
        if start >= len(self._model):
            raise RemoteProtocolError(Code.MODEL, f"chunk {message.chunk} is beyond the end of the model")

        def commit() -> list[Output]:
            self._chunks_due[sender] = message.chunk + 1
            chunk = memoryview(self._model)[start : start + CHUNK_BYTES]
            return [self._transmit(sender, ModelChunk(chunk=message.chunk), payload=chunk)]

        return Step(self.state, (), commit)

    def on_sum_over(self, result: Summed | ServerAborted, now: float) -> Step[SessionState]:
        finished = self._sum
        if finished is None:
            raise LocalProtocolError("a secure sum ended that was not going on")
        return Step(SessionState.BETWEEN_ROUNDS, (), lambda: self._round_done(finished, result, now))

    def on_next_round(self, model: bytes, now: float) -> Step[SessionState]:
        def commit() -> list[Output]:
            if digest(Label.MODEL, model) != self._model_hash:
                self._promises_needed = 0
            self._set_model(model)
            self.deadline = now + self._configuration.phase_seconds
            return self._end_round()

        return Step(SessionState.AWAIT_PROMISES, (), commit)

    def on_finish(self, now: float) -> Step[SessionState]:
        ended = self._ended(None, "all rounds are held")
        return Step(ended.state, (), lambda: [*self._end_round(), *(ended.commit() or ())])

    def on_void_round(self, sender: str, message: VoidRound, payload: None, now: float) -> Step[SessionState]:
        check_promise(self._roster, sender, message, message.signature)
        return Step(self.state, commit=lambda: self._promises.add(sender, message))

    def on_abort(self, sender: str, message: Abort, payload: None, now: float) -> Step[SessionState]:
        return Step(self.state, commit=lambda: self._leave(sender, f"it gave up: {message.detail}", now))

    def on_no_promises(self, now: float) -> Step[SessionState]:
        return self._ended(
            Code.REPEATED_MODEL,
            f"round {self.round} was aborted, and too few clients promised never to open its sum to repeat it",
        )

    def refuse(self, sender: str, error: RemoteProtocolError, now: float) -> Step[SessionState]:
        if sender in self._barred:
            return Step(self.state)
        refused = Report("refused", {"member": sender, "code": error.code.name, "detail": error.detail})
        return Step(self.state, (refused,), lambda: self._bar(sender, error.code, error.detail, now))

    def _read(self, sender: str, frames: Sequence[Frame]) -> Packet | None:
        """The packet; None if it belongs to a conversation that is over."""
        packet = decode(frames)
        if packet.kind is Hello:
            if sender in self._links:
                # A hello ends the conversation before it, also one that is refused: its sender expects a first answer.
                self._links[sender] = Link(self._name, sender, self.session, self.traffic)
            return Link(self._name, sender, NO_SESSION, self.traffic).packet(frames)
        if sender not in self._links:
            return None
        packet = self._links[sender].packet(frames)
        if packet.envelope.round > self.round:
            raise RemoteProtocolError(Code.SESSION, f"{packet.envelope.type} of a round that has not begun")
        stale = packet.envelope.round < self.round and packet.kind in (*AGGREGATION, FetchModel)
        gave_up = packet.kind is Abort and packet.envelope.round > 0
        over = packet.envelope.round < self.round or self._sum is None
        return None if stale or (gave_up and over) else packet

    def _in_sum(self, sender: str, packet: Packet) -> bool:
        """Whether a message is for the secure sum that goes on."""
        if self._sum is None or sender not in self._sum.agreement.cohort:
            return False
        return packet.kind in AGGREGATION or (packet.kind is Abort and packet.envelope.round == self.round)

    def _relay(self, outputs: list[Output], now: float) -> list[Output]:
        """Pass on what the secure sum says, and leave it when it is over."""
        relayed: list[Output] = []
        done: list[Output] = []
        for output in outputs:
            if isinstance(output, Send):
                if output.to in self._links:
                    relayed.append(self._transmit(output.to, output.message, payload=output.payload))
            elif isinstance(output, Summed | ServerAborted):
                done += self.trigger(Trigger.SUM_OVER, now, output)
            else:
                relayed.append(output)
        return relayed + done

    def _round_done(self, finished: AggregationServer, result: Summed | ServerAborted, now: float) -> list[Output]:
        aborted = isinstance(result, ServerAborted)
        sharers = self._promisers = finished.sharers
        agreement = finished.agreement
        needed = promises_needed(len(sharers), agreement.parameters.threshold, agreement.corrupt)
        self._promises_needed = needed if aborted and sharers else 0
        self._sum = None
        outputs: list[Output] = []
        for dropped in finished.drops:
            if dropped.code not in NOT_AT_FAULT:
                outputs += self._bar(dropped.member, dropped.code, dropped.detail, now)
        if isinstance(result, ServerAborted) and result.culprit:
            outputs += self._bar(result.culprit, result.code, result.detail, now)
        self._last = RoundDone(
            round=self.round,
            began=self._round_began,
            cohort=finished.agreement.cohort,
            survivors=result.survivors if isinstance(result, Summed) else (),
            dropped=tuple(finished.drops),
            total=result.total if isinstance(result, Summed) else None,
            code=result.code if isinstance(result, ServerAborted) else None,
            detail=result.detail if isinstance(result, ServerAborted) else "",
            culprit=result.culprit if isinstance(result, ServerAborted) else "",
        )
        return [*outputs, self._last]

    def _leave(self, member: str, detail: str, now: float, *, code: Code = Code.LEFT) -> list[Output]:
        """A member is gone from the session, and from the sum if one goes on."""
        self._lost.pop(member, None)
        self._in_round.discard(member)
        if self._links.pop(member, None) is None:
            return []
        left = Report("left", {"member": member, "detail": detail})
        if self._sum is None:
            return [left]
        return [left, *self._relay(self._sum.drop(member, code, detail, now), now)]

    def _bar(self, member: str, code: Code, detail: str, now: float) -> list[Output]:
        """A member is out for the session, and told so, even if its hello is what was wrong."""
        if member in self._barred:
            return []
        self._barred.add(member)
        link = self._links.get(member) or Link(self._name, member, self.session, self.traffic)
        abort = Abort(code=code, detail=detail[:DETAIL_LIMIT], culprit=member)
        told = Transmit(member, link.frames(abort, round=0), abort.PHASE)
        return [told, *self._leave(member, detail, now, code=code)]

    def _end_round(self) -> list[Output]:
        end = EndRound(code=self._last.code, detail=self._last.detail[:DETAIL_LIMIT])
        return [self._transmit(name, end) for name in self._last.cohort if name in self._in_round]

    def _ended(self, code: Code | None, detail: str) -> Step[SessionState]:
        def commit() -> list[Output]:
            self.deadline = None
            self._lost = {}
            message: Message = Finish() if code is None else Abort(code=code, detail=detail[:DETAIL_LIMIT], culprit="")
            return [*(self._transmit(name, message, round=0) for name in self._links), Ended(code, detail)]

        return Step(SessionState.ENDED, (), commit)

    def _set_model(self, model: bytes) -> None:
        self._model = model
        self._model_hash = digest(Label.MODEL, model)

    def _transmit(
        self, member: str, message: Message, *, payload: Frame | None = None, round: int | None = None
    ) -> Transmit:
        round = self.round if round is None else round
        return Transmit(member, self._links[member].frames(message, round=round, payload=payload), message.PHASE)
