"""The server of a federation: gathers the clients, and holds one round after the other.

It is fed with frames from authenticated members and answers with frames to them. The model itself is the shell's: the
machine hands out its bytes, reports every round's sum or the reason why there is none (`RoundDone`), and goes on when
the shell calls `next_round` with the new model, or `finish`.

Who breaks a rule is out for the session; who was late or lost is out of the round, and back as soon as it says hello.
"""

from __future__ import annotations

from collections.abc import Sequence

from tacit.protocol.core.codec import Frame, Packet, decode
from tacit.protocol.core.errors import DETAIL_LIMIT, Code, LocalProtocolError, RemoteProtocolError
from tacit.protocol.core.link import NO_SESSION, Link
from tacit.protocol.core.machine import Entropy, Output, Report, Send, Step, Trigger
from tacit.protocol.core.messages import Abort, Message, Phase
from tacit.protocol.core.model_transfer import OutgoingModel, model_digest
from tacit.protocol.core.outputs import Ended
from tacit.protocol.core.roster import Roster
from tacit.protocol.group_key.agreement import KeyFailed
from tacit.protocol.group_key.keeper import Distributed, GroupKeyKeeper, KeyLost, KeyReady, Refused
from tacit.protocol.group_key.session_tables import TO_KEEPER
from tacit.protocol.session.attendance import SessionAttendance
from tacit.protocol.session.messages import (
    MESSAGES,
    EndRound,
    FetchLimits,
    FetchModel,
    Finish,
    Hello,
    LimitsChunk,
    ModelChunk,
    StartRound,
    StartSecondStage,
    VoidRound,
)
from tacit.protocol.session.rounds import NewModel, RoundDone, agree, sum_server
from tacit.protocol.session.tables import SUM_TO_SERVER, SessionState
from tacit.protocol.session.voiding import check_promise, promises_needed
from tacit.protocol.sum.agreement import Agreement
from tacit.protocol.sum.configuration import Configuration
from tacit.protocol.sum.counting import (
    COUNTING,
    check_second_cohort,
    counting_agreement,
    derive_limits,
    limits_digest,
    second_agreement,
)
from tacit.protocol.sum.results import Dropped, ServerAborted, Summed
from tacit.protocol.sum.server import AggregationServer


class TrainingServer(SessionAttendance):
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
        super().__init__(roster, configuration, entropy=entropy, grace=grace, completed=completed)
        if completed and configuration.encrypted:
            raise LocalProtocolError("a model that is encrypted under a key of the clients ends with their session")
        self.deadline = now + join_seconds
        self._smallest_cohort = smallest_cohort
        self._set_model(model)
        self._in_round: set[str] = set()
        """Members that were told of the round and must be told of its end."""
        self._outgoing: dict[str, OutgoingModel] = {}
        """What each member of the round has fetched of the model, or in the second stage of the limits."""
        self._cohort: tuple[str, ...] = ()
        self._limits = b""
        """In the second stage of a round."""
        self._earlier: tuple[Dropped, ...] = ()
        """Who was dropped in its first stage."""
        self._keeper = GroupKeyKeeper(roster, configuration, self.session)
        self._promises_needed = 0
        self._promisers: tuple[str, ...] = ()
        self._sum: AggregationServer | None = None
        self._round_began = now
        self._last: RoundDone
        self._incoming_round = 0

    @property
    def phase(self) -> Phase:
        """The phase of the round; TRAIN until the first client has advertised its keys."""
        if self._sum is None:
            return Phase.SESSION
        return Phase.TRAIN if self._sum.training and not self._limits else Phase(self._sum.state.value)

    @property
    def waiting_for(self) -> tuple[str, ...]:
        """The members that the server waits for now."""
        if self._sum is not None:
            return tuple(self._sum.agreement.cohort[member] for member in sorted(self._sum.waiting))
        if self.state is SessionState.GATHERING:
            return tuple(name for name in self._roster.clients if name not in self._links)
        return self._keeper.waiting_for

    @property
    def next_deadline(self) -> float | None:
        """When to call `expire`."""
        parts = (self._sum.deadline if self._sum else None, self._keeper.next_deadline)
        deadlines = (self.deadline, *parts, *self._lost.values())
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
        if packet.kind in TO_KEEPER and self._configuration.group_key:
            return self._relay_key(self._keeper.receive(sender, packet, now), now)
        return self.receive(sender, packet, now)

    def next_round(self, model: bytes, now: float) -> list[Output]:
        """End the last round for its members and start the next one from this model."""
        return self.trigger(Trigger.NEXT_ROUND, now, model)

    def finish(self, model: bytes, now: float) -> list[Output]:
        """No more rounds: tell everybody. The last model is handed out where only the clients can read it."""
        return self.trigger(Trigger.FINISH, now, model)

    def expire(self, now: float) -> list[Output]:
        outputs: list[Output] = []
        for member in [member for member, until in self._lost.items() if now >= until]:
            outputs += self._leave(member, f"its link was lost for {self._grace:g} s", now)
        if self._sum is not None:
            outputs += self._relay(self._sum.expire(now), now)
        outputs += self._relay_key(self._keeper.expire(now), now)
        return outputs + super().expire(now)

    def complete(self) -> bool:
        if self.state is SessionState.GATHERING:
            there = self._links.keys() - self._lost.keys()
            possible = len(self._roster.clients) - len(self._barred)
            return len(there) >= min(possible, self._configuration.clients)
        return self._promises.count(self.session, self.round, self._promisers) >= self._promises_needed

    def on_ready(self, now: float) -> Step[SessionState]:
        there = [name for name in self._roster.clients if name in self._links and name not in self._lost]
        # Where only some can read the model, none of them gives way to others.
        first = sorted(there, key=lambda name: name not in self._keeper.readers)[: self._configuration.clients]
        return self._prepare(tuple(name for name in there if name in first), now)

    def on_key_over(self, result: KeyReady | KeyFailed | KeyLost, now: float) -> Step[SessionState]:
        if isinstance(result, KeyLost):
            return self._ended(Code.KEYS, result.detail)
        if isinstance(result, KeyFailed):
            outputs: list[Output] = []
            # The culprits go before the next cohort is drawn; nothing can refuse an internal transition any more.
            if result.code is not Code.LEFT:
                for member in result.culprits:
                    outputs += self._part_with(member, result.code, result.detail, now)
            ready = self.on_ready(now)
            return Step(ready.state, (*outputs, *ready.outputs), ready.commit)
        replaced: tuple[Output, ...] = ()
        if result.model is not None:
            self._set_model(result.model)
            replaced = (NewModel(result.model),)
        prepared = self._prepare(result.members, now)
        return Step(prepared.state, replaced + prepared.outputs, prepared.commit)

    def on_distributed(self, result: Distributed, now: float) -> Step[SessionState]:
        without = (Report("without-model", {"members": list(result.without)}),) if result.without else ()
        ended = self._ended(None, "all rounds are held")
        return Step(ended.state, without, ended.commit)

    def on_fetch_model(self, sender: str, message: FetchModel, payload: None, now: float) -> Step[SessionState]:
        if self._limits:
            raise RemoteProtocolError(Code.UNEXPECTED, "it asks for the model in the second stage of the round")
        return self._hand_out(sender, message.chunk, ModelChunk(chunk=message.chunk))

    def on_sum_over(self, result: Summed | ServerAborted, now: float) -> Step[SessionState]:
        finished = self._sum
        if finished is None:
            raise LocalProtocolError("a secure sum ended that was not going on")
        if finished.agreement.purpose == COUNTING and isinstance(result, Summed):
            try:
                return self._second_stage(finished, result, now)
            except RemoteProtocolError as error:
                result = ServerAborted(error.code, f"after the sum of counts: {error.detail}", "")
        over = result
        return Step(SessionState.BETWEEN_ROUNDS, (), lambda: self._round_done(finished, over, now))

    def on_fetch_limits(self, sender: str, message: FetchLimits, payload: None, now: float) -> Step[SessionState]:
        if not self._limits:
            raise RemoteProtocolError(Code.UNEXPECTED, "it asks for limits, and there are none yet")
        return self._hand_out(sender, message.chunk, LimitsChunk(chunk=message.chunk))

    def on_next_round(self, model: bytes, now: float) -> Step[SessionState]:
        def commit() -> list[Output]:
            if model_digest(model) != self._model_hash:
                self._promises_needed = 0
            self._set_model(model)
            self.deadline = now + self._configuration.phase_seconds
            return self._end_round()

        return Step(SessionState.AWAIT_PROMISES, (), commit)

    def on_finish(self, model: bytes, now: float) -> Step[SessionState]:
        if self._keeper.readers:
            return Step(
                SessionState.DISTRIBUTING,
                (),
                lambda: [*self._end_round(), *self._relay_key(self._keeper.distribute(model, now), now)],
            )
        ended = self._ended(None, "all rounds are held")
        return Step(ended.state, (), lambda: [*self._end_round(), *(ended.commit() or ())])

    def on_void_round(self, sender: str, message: VoidRound, payload: None, now: float) -> Step[SessionState]:
        check_promise(self._roster, sender, message, message.signature)
        return Step(self.state, commit=lambda: self._promises.add(sender, message))

    def on_no_promises(self, now: float) -> Step[SessionState]:
        return self._ended(
            Code.REPEATED_MODEL,
            f"round {self.round} was aborted, and too few clients promised never to open its sum to repeat it",
        )

    def _read(self, sender: str, frames: Sequence[Frame]) -> Packet | None:
        """The packet; None if it belongs to a conversation that is over."""
        packet = decode(frames, MESSAGES)
        if packet.kind is Hello:
            if sender in self._links:
                # A hello ends the conversation before it, also one that is refused: its sender expects a first answer.
                self._links[sender] = Link(self._name, sender, self.session, self.traffic, MESSAGES)
            return Link(self._name, sender, NO_SESSION, self.traffic, MESSAGES).packet(frames)
        if sender not in self._links:
            return None
        packet = self._links[sender].packet(frames)
        if packet.envelope.round > self.round:
            raise RemoteProtocolError(Code.SESSION, f"{packet.envelope.type} of a round that has not begun")
        stale = packet.envelope.round < self.round and packet.kind in (*SUM_TO_SERVER, FetchModel, FetchLimits)
        gave_up = packet.kind is Abort and packet.envelope.round > 0
        over = packet.envelope.round < self.round or self._sum is None
        # Of the first stage, by somebody who is not in the second.
        outside = self._sum is not None and bool(self._limits) and sender not in self._sum.agreement.cohort
        too_late = outside and packet.kind in (*SUM_TO_SERVER, FetchModel)
        return None if stale or too_late or (gave_up and over) else packet

    def _in_sum(self, sender: str, packet: Packet) -> bool:
        """Whether a message is for the secure sum that goes on."""
        if self._sum is None or sender not in self._sum.agreement.cohort:
            return False
        return packet.kind in SUM_TO_SERVER or (packet.kind is Abort and packet.envelope.round == self.round)

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

    def _hand_out(self, member: str, chunk: int, answer: Message) -> Step[SessionState]:
        """The next chunk of what the members of the round fetch now."""
        outgoing = self._outgoing.get(member)
        if outgoing is None:
            raise RemoteProtocolError(Code.UNEXPECTED, "it asks for what only the members of the round may fetch")
        outgoing.check(chunk)
        return Step(self.state, (), lambda: [self._transmit(member, answer, payload=outgoing.advance())])

    def _second_stage(self, finished: AggregationServer, counted: Summed, now: float) -> Step[SessionState]:
        """Tell the limits to those who were counted and are still there, and sum their updates."""
        try:
            limits = derive_limits(counted.total, self._configuration, counted=len(counted.survivors))
        except ValueError as error:
            raise RemoteProtocolError(Code.VECTOR, str(error)) from None
        dropped = {drop.member for drop in finished.drops}
        cohort = tuple(
            name for name in counted.survivors if name in self._links and name not in dropped | {*self._lost}
        )
        check_second_cohort(self._configuration, cohort, counted.survivors)
        try:
            first = self._agreement(cohort, self.round)
        except ValueError as error:
            raise RemoteProtocolError(Code.THRESHOLD, str(error)) from None
        agreement = second_agreement(
            first,
            self._configuration,
            counted=len(counted.survivors),
            limits=limits_digest(limits),
        )
        start = StartSecondStage(cohort=self._bitmap(cohort), limits=agreement.purpose)

        def commit() -> list[Output]:
            outputs = self._bar_culprits(finished, now)
            self._limits, self._earlier = limits, tuple(finished.drops)
            self._outgoing = {name: OutgoingModel(limits) for name in cohort}
            self._sum = sum_server(agreement, now)
            return [*outputs, *(self._transmit(name, start) for name in cohort if name in self._links)]

        return Step(SessionState.IN_ROUND, (), commit)

    def _prepare(self, cohort: tuple[str, ...], now: float) -> Step[SessionState]:
        """Start a round with these clients, or first let them agree on a key."""
        there = tuple(name for name in cohort if name in self._links and name not in self._lost)
        if len(there) < self._smallest_cohort:
            detail = f"only {len(there)} clients are there; a round takes at least {self._smallest_cohort}"
            return self._ended(Code.THRESHOLD, detail)
        if self._configuration.group_key and not self._keeper.fits(there):

            def agree_on_key() -> list[Output]:
                self.deadline = None
                return self._relay_key(self._keeper.agree(there, self._model, now), now)

            return Step(SessionState.KEYING, (), agree_on_key)
        return self._start_round(there, now)

    def _start_round(self, cohort: tuple[str, ...], now: float) -> Step[SessionState]:
        try:
            agreement = self._agreement(cohort, self.round + 1)
        except ValueError as error:
            return self._ended(Code.THRESHOLD, str(error))
        if self._configuration.enforce == "clients":
            agreement = counting_agreement(agreement, self._configuration)
        start = StartRound(
            cohort=self._bitmap(cohort),
            model=self._model_hash,
            model_bytes=len(self._model),
            voided=self._promises.proofs(),
        )

        def commit() -> list[Output]:
            self.round, self.deadline, self._promises_needed = agreement.round, None, 0
            self._sum, self._round_began, self._in_round = sum_server(agreement, now), now, set(cohort)
            self._cohort, self._earlier, self._limits = cohort, (), b""
            self._outgoing = {name: OutgoingModel(self._model) for name in cohort}
            self._keeper.round_begun()
            report = Report("round", {"round": self.round, "cohort": list(cohort)})
            return [report, *(self._transmit(name, start) for name in cohort)]

        return Step(SessionState.IN_ROUND, (), commit)

    def _agreement(self, cohort: tuple[str, ...], round: int) -> Agreement:
        return agree(
            session=self.session,
            round=round,
            roster=self._roster,
            configuration=self._configuration,
            cohort=cohort,
            model=self._model_hash,
            group_key=self._keeper.transcript,
            fewest_survivors=self._smallest_cohort,
        )

    def _relay_key(self, outputs: list[Output], now: float) -> list[Output]:
        """Pass on what the keeper of the keys says, and go on when it is done."""
        relayed: list[Output] = []
        done: list[Output] = []
        for output in outputs:
            if isinstance(output, Send):
                if output.to in self._links:
                    relayed.append(self._transmit(output.to, output.message, payload=output.payload, round=0))
            elif isinstance(output, KeyReady | KeyFailed | KeyLost | Distributed):
                done += self.trigger(Trigger.KEY_OVER, now, output)
            elif isinstance(output, Refused):
                relayed += self.reject(output.member, output.error, now)
            else:
                relayed.append(output)
        return relayed + done

    def _round_done(self, finished: AggregationServer, result: Summed | ServerAborted, now: float) -> list[Output]:
        aborted = isinstance(result, ServerAborted)
        sharers = self._promisers = finished.sharers
        agreement = finished.agreement
        needed = promises_needed(len(sharers), agreement.parameters.threshold, agreement.corrupt)
        self._promises_needed = needed if aborted and sharers and agreement.journalled else 0
        self._sum = None
        outputs = self._bar_culprits(finished, now)
        if isinstance(result, ServerAborted) and result.culprit:
            outputs += self._bar(result.culprit, result.code, result.detail, now)
        self._last = RoundDone(
            round=self.round,
            began=self._round_began,
            cohort=self._cohort,
            survivors=result.survivors if isinstance(result, Summed) else (),
            dropped=(*self._earlier, *finished.drops),
            total=result.total if isinstance(result, Summed) else None,
            code=result.code if isinstance(result, ServerAborted) else None,
            detail=result.detail if isinstance(result, ServerAborted) else "",
            culprit=result.culprit if isinstance(result, ServerAborted) else "",
            vectors=result.vectors if isinstance(result, Summed) else {},
        )
        return [*outputs, self._last]

    def _gone(self, member: str, code: Code, detail: str, now: float) -> list[Output]:
        self._in_round.discard(member)
        unkeyed = self._relay_key(self._keeper.left(member, code, detail, now), now)
        return unkeyed if self._sum is None else self._relay(self._sum.drop(member, code, detail, now), now)

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
        self._model_hash = model_digest(model)
