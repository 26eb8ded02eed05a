"""The server of a federation: gathers the clients, and runs one round after the other.

It receives frames from authenticated members and answers with frames to them. The shell owns the model: the machine
distributes its bytes, reports every round's sum or the reason for its failure (`RoundDone`), and continues when the
shell calls `next_round` with the new model, or `finish`. server_session.py handles joining and leaving members.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence
from math import inf
from statistics import median
from typing import Any, Final

from msgspec.structs import replace

from tacit.protocol.core.blob import OutgoingBlob
from tacit.protocol.core.codec import Frame, Packet
from tacit.protocol.core.errors import DETAIL_LIMIT, Code, LocalProtocolError, RemoteProtocolError
from tacit.protocol.core.events import Event
from tacit.protocol.core.machine import (
    IGNORE,
    Ended,
    Entropy,
    Heard,
    Inside,
    Machine,
    Output,
    Row,
    Send,
    Step,
    Table,
    Transmit,
    Trigger,
)
from tacit.protocol.core.messages import Abort, Chunk, Fetch, Resume
from tacit.protocol.core.primitives import KEY_BYTES
from tacit.protocol.core.roster import Roster
from tacit.protocol.group_key.agreement import KeyFailed
from tacit.protocol.group_key.keeper import Distributed, GroupKeyKeeper, KeyLost, KeyReady, Refused
from tacit.protocol.group_key.states import TO_KEEPER
from tacit.protocol.session.events import GatheringStarted, ModelNotReceived, RoundStarted
from tacit.protocol.session.messages import EndRound, FetchFixed, Hello, StartRound
from tacit.protocol.session.rounds import NewModel, RoundDone, ServerPart, SpendingHeld, agree, sum_server
from tacit.protocol.session.sampling import check_cohorts, drawing_order
from tacit.protocol.session.server_session import NOT_AT_FAULT, CurrentRound, Model, SessionServer, outcome
from tacit.protocol.session.states import SERVER_CONTAINS, SUM_TO_SERVER, SessionState, SessionTrigger
from tacit.protocol.session.stragglers import (
    FEWEST_TIMED,
    LEAST_PROCEED_SECONDS,
    MOST_TIMED,
    PROCEED_AFTER,
    Stragglers,
)
from tacit.protocol.sum.agreement import Agreement
from tacit.protocol.sum.configuration import Configuration
from tacit.protocol.sum.exchange import Dropped, ServerAborted, Summed
from tacit.protocol.sum.spending import SpendingSeen
from tacit.protocol.sum.states import Phase


class TrainingServer(
    SessionServer,
    outputs=Transmit | Event | SpendingHeld | NewModel | RoundDone | Ended,
    contains=SERVER_CONTAINS,
):
    """The server of one session.

    model: the first state, in the form that the configuration declares; fixed: its fixed tensors, which the
    configuration announces; join_seconds: time to gather before starting with the present clients; enough_seconds: time
    before starting with the fewest clients of a round; grace: seconds for a lost link to reconnect; completed: rounds
    of earlier sessions, from which this one continues counting; regather_seconds: time to gather again once too few are
    left, or no limit if 0. A session that continues an earlier one gathers like that from its start.

    participants: number of clients to gather, from which every round draws a cohort of at most configuration.clients;
    None: equal to these, and each round takes the first ready ones of the roster. sampling: seed of the draws, 32
    bytes; empty draws one from `entropy`. held: see SessionServer."""

    sum: ServerPart | None
    keeper: GroupKeyKeeper | None

    def __init__(
        self,
        roster: Roster,
        configuration: Configuration,
        model: bytes,
        *,
        fixed: bytes = b"",
        entropy: Entropy,
        smallest_cohort: int,
        join_seconds: float,
        grace: float,
        now: float,
        completed: int = 0,
        enough_seconds: float | None = None,
        regather_seconds: float = 0.0,
        participants: int | None = None,
        sampling: bytes = b"",
        held: Iterable[tuple[bytes, bytes]] = (),
    ) -> None:
        super().__init__(roster, configuration, session=entropy(KEY_BYTES), grace=grace, completed=completed, held=held)
        self._configuration = configuration
        self._participants = max(participants or 0, configuration.clients)
        self._sampling = b""
        if self._participants > configuration.clients:
            self._sampling = sampling or entropy(KEY_BYTES)
        largest = len(self._gathered(roster.clients))
        try:
            if self._sampling:
                self._check_sampling(smallest_cohort)
            configuration.check_groups(roster.group_sizes, largest, smallest_cohort)
            configuration.check_dropouts(grouped=bool(roster.groups))
        except ValueError as error:
            raise LocalProtocolError(str(error)) from None
        self._regather_seconds = regather_seconds or inf
        self._gather_until = now + max(join_seconds, self._regather_seconds if completed else 0.0)
        self.deadline = now + min(join_seconds, join_seconds if enough_seconds is None else enough_seconds)
        self._short = False
        """Whether it gathers without a deadline until there are enough for a round."""
        self.keeper = GroupKeyKeeper(roster, configuration, self.session, completed=completed)
        self._smallest_cohort = max(smallest_cohort, configuration.smallest_group)
        self.stragglers = Stragglers()
        self._seconds: deque[float] = deque(maxlen=MOST_TIMED)
        """Durations of the vectors in the last rounds with a sum."""
        self._in_round: set[str] = set()
        """Members that received the round's start and must receive its end."""
        self._model = Model.of(model)
        self._fixed = fixed

    def transitions(self) -> Table[SessionState]:
        return TRAINING_SERVER_TABLE

    @property
    def phase(self) -> Phase:
        """The phase of the round; TRAIN from the distribution of shares until the last vector is ready."""
        if self.sum is None:
            return Phase.SESSION
        return Phase.TRAIN if self.sum.training else Phase(self.sum.state.value)

    @property
    def waiting_for(self) -> tuple[str, ...]:
        """The members that the server waits for now."""
        if self.sum is not None:
            return tuple(self.sum.agreement.cohort[member] for member in sorted(self.sum.waiting))
        if self.state is SessionState.GATHERING:
            return tuple(name for name in self._roster.clients if name not in self.presence)
        return () if self.keeper is None else self.keeper.waiting_for

    def next_round(self, model: bytes, now: float, *, unusable: str = "") -> list[Output]:
        """End the last round for its members and start the next one from this model.

        unusable: reason why an existing sum of the last round was not applied."""
        return self.trigger(SessionTrigger.NEXT_ROUND, now, model, unusable)

    def finish(self, model: bytes, now: float, *, unusable: str = "") -> list[Output]:
        """End the rounds, and inform all members. The last model is distributed if only the clients can read it.

        unusable: see `next_round`."""
        return self.trigger(Trigger.FINISH, now, model, unusable)

    def pass_on(self, part: Machine[Any], send: Send) -> Sequence[Output]:
        if send.to not in self.presence:
            return ()
        return (self._transmit(send.to, send.message, payload=send.payload, round=0 if part is self.keeper else None),)

    def do_without(self, missing: Collection[str], now: float) -> list[Output]:
        """These clients will not come: do not delay the first round for them."""

        def commit() -> None:
            self.presence.missing = frozenset(missing)

        return self._take(Step(self.state, commit=commit), now)

    def complete(self) -> bool:
        there, largest = self.presence.linked, len(self._participating(self.presence.possible))
        return len(there) >= largest and len(self._participating(there)) >= largest

    def on_waited(self, now: float) -> Step[SessionState]:
        if now >= self._gather_until or self._suffices(self.presence.there):
            return self.on_ready(now)

        def commit() -> None:
            self.deadline, self._short = None if self._gather_until == inf else self._gather_until, True

        return Step(SessionState.GATHERING, (), commit)

    def on_ready(self, now: float) -> Step[SessionState]:
        return self._draw(self.presence.there, self._model, now)

    def _draw(self, there: tuple[str, ...], model: Model, now: float) -> Step[SessionState]:
        """Continue from this model with as many of these as a round takes, without stragglers if there are enough."""
        readers = () if self.keeper is None else self.keeper.readers
        skipped = self.stragglers.skipped(self.round + 1)
        # If only some can read the model, none of them is replaced by others.
        ranked = sorted(there, key=lambda name: (name not in readers, name in skipped))
        prompt = [name for name in ranked if name not in skipped]
        readable = not readers or not {*readers}.isdisjoint(prompt)
        ready = prompt if readable and self._suffices(prompt) else ranked
        return self._prepare(self._gathered(self._sampled(ready)), model, now)

    def _sampled(self, ready: Sequence[str]) -> Sequence[str]:
        """The ready clients that take part, in the order in which the next round draws its cohort."""
        if not self._sampling:
            return ready
        clients, taking_part = self._roster.clients, {*self._participating(ready)}
        order = drawing_order(len(clients), self._sampling, self.round + 1)
        return [clients[index] for index in order if clients[index] in taking_part]

    def _check_sampling(self, smallest_cohort: int) -> None:
        """ValueError if cohorts of these clients cannot be drawn."""
        if self._configuration.encrypted:
            raise ValueError("only the cohort of the last round can read an encrypted model: no cohort is drawn anew")
        check_cohorts(self._configuration, self._roster.group_sizes, smallest_cohort)

    def _suffices(self, there: Sequence[str]) -> bool:
        cohort = len(self._gathered(there))
        try:
            self._configuration.parameters(cohort)
        except ValueError:
            return False
        return cohort >= self._smallest_cohort

    def _gathered(self, there: Sequence[str]) -> tuple[str, ...]:
        """The largest cohort of these clients, in whole groups, the first ones before the others."""
        return self._roster.gather(there, self._configuration.clients)

    def _participating(self, there: Sequence[str]) -> tuple[str, ...]:
        """The clients of these, in whole groups, from which a round draws its cohort."""
        if not self._sampling:
            return self._gathered(there)
        return self._roster.gather(there, self._participants)

    def on_key_ready(self, result: KeyReady, now: float) -> Step[SessionState]:
        if result.model is None:
            return self._prepare(result.members, self._model, now)
        model, completed = Model.of(result.model), self.round if result.round is None else result.round
        prepared = self._prepare(result.members, model, now, completed)

        def commit() -> Sequence[Output] | None:
            self._model, self.round = model, completed
            return prepared.commit()

        return replace(prepared, outputs=(NewModel(model.data, completed), *prepared.outputs), commit=commit)

    def on_key_failed(self, result: KeyFailed, now: float) -> Step[SessionState]:
        out = () if result.code is Code.LEFT else result.culprits
        # They leave before the others are asked again.
        drawn = self._draw(tuple(name for name in self.presence.there if name not in out), self._model, now)

        def commit() -> list[Output]:
            parted = [said for member in out for said in self._expel(member, result.code, result.detail, now)]
            return [*parted, *(drawn.commit() or ())]

        return replace(drawn, commit=commit)

    def on_key_lost(self, result: KeyLost, now: float) -> Step[SessionState]:
        return self._ended(Code.KEYS, result.detail)

    def on_refused(self, result: Refused, now: float) -> Step[SessionState]:
        return self.refuse(result.member, result.error.blaming(result.member), now)

    def on_distributed(self, result: Distributed, now: float) -> Step[SessionState]:
        without = (ModelNotReceived(members=list(result.without)),) if result.without else ()
        return replace(self._all_done(), outputs=without)

    def on_fetch(self, heard: Heard[Fetch], now: float) -> Step[SessionState]:
        return self._handed_out(heard, heard.message.chunk, self.at(CurrentRound).outgoing)

    def on_fetch_fixed(self, heard: Heard[FetchFixed], now: float) -> Step[SessionState]:
        return self._handed_out(heard, heard.message.chunk, self.at(CurrentRound).fixed)

    def _handed_out(self, heard: Heard[Any], chunk: int, outgoing: OutgoingBlob) -> Step[SessionState]:
        if not heard.envelope.round:
            raise self.unexpected(type(heard.message))
        sender = heard.sender
        piece, count = outgoing.chunk(sender, chunk), outgoing.sent(sender)

        def commit() -> list[Output]:
            count()
            return [self._transmit(sender, Chunk(chunk=chunk), payload=piece)]

        return Step(self.state, (), commit)

    def on_summed(self, summed: Summed, now: float) -> Step[SessionState]:
        return self._round_done(summed, now)

    def on_sum_aborted(self, aborted: ServerAborted, now: float) -> Step[SessionState]:
        return self._round_done(aborted, now)

    def on_next_round(self, model: bytes, unusable: str, now: float) -> Step[SessionState]:
        following, ending = Model.of(model), self._end_round(unusable)
        drawn = self._draw(self.presence.there, following, now)

        def commit() -> list[Output]:
            self._model = following
            return [*ending(), *(drawn.commit() or ())]

        return replace(drawn, commit=commit)

    def on_last_round(self, model: bytes, unusable: str, now: float) -> Step[SessionState]:
        ending, keeper = self._end_round(unusable), self.keeper
        if keeper is not None and keeper.readers:
            return Step(
                SessionState.DISTRIBUTING,
                commit=lambda: [*ending(), *self.relay(keeper, keeper.distribute(model, now), now)],
            )
        ended = self._all_done()
        return replace(ended, commit=lambda: [*ending(), *(ended.commit() or ())])

    def _read(self, sender: str, frames: Sequence[Frame]) -> Packet | None:
        """The packet; None if it belongs to a former conversation or round."""
        packet = super()._read(sender, frames)
        if packet is None or packet.kind is Hello:
            return packet
        kind, round = packet.kind, packet.envelope.round
        if round > self.round:
            raise RemoteProtocolError(Code.SESSION, f"{kind.TYPE} of a round that has not begun")
        stale = round < self.round and (kind in SUM_TO_SERVER or (kind in (Fetch, FetchFixed) and round > 0))
        gave_up = kind is Abort and round > 0
        over = round < self.round or self.sum is None
        if stale or (gave_up and over):
            return None
        if gave_up and isinstance(said := packet.parse(), Abort) and said.code is Code.POLICY:
            self.stragglers.refuses(sender, said.detail)
        return packet

    def _prepare(
        self, cohort: tuple[str, ...], model: Model, now: float, completed: int | None = None
    ) -> Step[SessionState]:
        """Start a round from this model with these clients, or first let them agree on a key.

        completed: the number of the previous round; None: of the last one."""
        present = set(self.presence.there)
        there, keeper = self._gathered([name for name in cohort if name in present]), self.keeper
        over = self.state is SessionState.GATHERING and now >= self._gather_until
        if not over and not self._suffices(there) and self._suffices(self.presence.possible):
            return self._gather_again(len(there), now)
        if len(there) < self._smallest_cohort:
            return self._ended(Code.THRESHOLD, self._too_few(len(there)))
        if self._configuration.group_key and keeper is not None and not keeper.fits(there):
            return Step(
                SessionState.KEYING, commit=lambda: self.relay(keeper, keeper.agree(there, model.data, now), now)
            )
        return self._start_round(there, model, now, self.round if completed is None else completed)

    def _gather_again(self, there: int, now: float) -> Step[SessionState]:
        """Too few are left: wait for others, a grace for all of them, then for as many as a round takes."""
        until = now + self._regather_seconds

        def commit() -> None:
            self._gather_until, self._short = until, False

        report = GatheringStarted(detail=f"{self._too_few(there)}; it waits for others")
        return Step(SessionState.GATHERING, (report,), commit, deadline=min(now + self.presence.grace, until))

    def _too_few(self, there: int) -> str:
        whole = " with their whole groups" if self._roster.groups else ""
        return f"only {there} clients are there{whole}; a round takes at least {self._smallest_cohort}"

    def _start_round(self, cohort: tuple[str, ...], model: Model, now: float, completed: int) -> Step[SessionState]:
        try:
            agreement = self._agreement(cohort, completed + 1, model)
        except ValueError as error:
            return self._ended(Code.THRESHOLD, str(error))
        start = StartRound(cohort=self.presence.bitmap(cohort), model=model.announced)

        def commit() -> list[Output]:
            self.round = self.traffic.begun = agreement.round
            self._in_round = set(cohort)
            self._lost_links = set(self.presence.lost)
            if self.keeper is not None:
                self.keeper.round_begun()
            self.sum = begun = sum_server(agreement, now)
            if len(self._seconds) >= FEWEST_TIMED:
                begun.proceed_at = now + max(LEAST_PROCEED_SECONDS, PROCEED_AFTER * median(self._seconds))
            skipped = {name: why for name, why in self.stragglers.skipped(self.round).items() if name not in cohort}
            ready = self._participating([name for name in self.presence.there if name not in skipped])
            undrawn = [name for name in ready if name not in cohort] if self._sampling else []
            report = RoundStarted(round=self.round, cohort=list(cohort), skipped=skipped, undrawn=undrawn)
            started = [self._transmit(name, start) for name in cohort]
            return [report, *started, *self.relay(begun, begun.start(now), now)]

        return Step(
            SessionState.IN_ROUND,
            (),
            commit,
            data=CurrentRound(now, cohort, OutgoingBlob(model.data, cohort), OutgoingBlob(self._fixed, cohort)),
        )

    def _agreement(self, cohort: tuple[str, ...], round: int, model: Model) -> Agreement:
        return agree(
            session=self.session,
            round=round,
            roster=self._roster,
            configuration=self._configuration,
            cohort=cohort,
            model=model.announced.digest,
            group_key=b"" if self.keeper is None else self.keeper.transcript,
            fewest_survivors=self._smallest_cohort,
        )

    def _round_done(self, result: Summed | ServerAborted, now: float) -> Step[SessionState]:
        if self.sum is None:
            raise LocalProtocolError("a secure sum ended that was not going on")
        drops = tuple(self.sum.drops)
        lost, current = frozenset(self._lost_links), self.at(CurrentRound)
        done = outcome(self.round, current, drops, result, lost)
        took = self.sum.last_ready - current.began

        def commit() -> list[Output]:
            self.stragglers.note(done)
            if isinstance(result, Summed):
                self._seconds.append(took)
            outputs = self._exclude_culprits(drops, now)
            if isinstance(result, ServerAborted) and result.culprit:
                outputs += self._expel(result.culprit, result.code, result.detail, now)
            return [*outputs, done]

        return Step(SessionState.BETWEEN_ROUNDS, (), commit, data=done)

    def _end_round(self, unusable: str) -> Callable[[], list[Output]]:
        done = self.at(RoundDone)
        code, detail = (Code.VECTOR, unusable) if unusable else (done.code, done.detail)
        end = EndRound(code=code, detail=detail[:DETAIL_LIMIT])
        return lambda: [self._transmit(name, end) for name in done.cohort if name in self._in_round]

    def _exclude_culprits(self, drops: Sequence[Dropped], now: float) -> list[Output]:
        outputs: list[Output] = []
        for dropped in drops:
            if dropped.code not in NOT_AT_FAULT:
                outputs += self._expel(dropped.member, dropped.code, dropped.detail, now)
        return outputs

    def _greet(self, member: str, now: float) -> list[Output]:
        greeted = super()._greet(member, now)
        if self._short and self.state is SessionState.GATHERING and self._suffices(self.presence.there):
            # Others may still be arriving.
            self.deadline, self._short = min(now + self.presence.grace, self._gather_until), False
        return greeted

    def _gone(self, member: str, code: Code, detail: str, now: float) -> list[Output]:
        self._in_round.discard(member)
        keeper, outputs = self.keeper, []
        if keeper is not None:
            outputs += self.relay(keeper, keeper.left(member, code, detail, now), now)
        if self.sum is not None:
            outputs += self.trigger(Trigger.DROP, now, member, code, detail)
        return outputs


def _server_table() -> Table[SessionState]:
    s = SessionState
    prepared = (s.IN_ROUND, s.KEYING, s.GATHERING, s.ENDED)
    table: dict[Any, Any] = {
        (s.GATHERING, Trigger.COMPLETE): Row(TrainingServer.on_ready, (s.IN_ROUND, s.KEYING, s.ENDED)),
        (s.GATHERING, Trigger.EXPIRE): Row(TrainingServer.on_waited, prepared),
        (s.KEYING, KeyReady): Row(TrainingServer.on_key_ready, prepared),
        (s.KEYING, KeyFailed): Row(TrainingServer.on_key_failed, prepared),
        (s.KEYING, KeyLost): Row(TrainingServer.on_key_lost, (s.ENDED,)),
        **{(s.IN_ROUND, cause): Inside("sum") for cause in (*SUM_TO_SERVER, Trigger.DROP)},
        (s.IN_ROUND, SpendingSeen): Row(TrainingServer.on_spending_seen, (s.IN_ROUND,)),
        (s.IN_ROUND, Summed): Row(TrainingServer.on_summed, (s.BETWEEN_ROUNDS,)),
        (s.IN_ROUND, ServerAborted): Row(TrainingServer.on_sum_aborted, (s.BETWEEN_ROUNDS,)),
        (s.BETWEEN_ROUNDS, SessionTrigger.NEXT_ROUND): Row(TrainingServer.on_next_round, prepared),
        (s.BETWEEN_ROUNDS, Trigger.FINISH): Row(TrainingServer.on_last_round, (s.ENDED, s.DISTRIBUTING)),
        (s.GATHERING, SessionTrigger.CHANGE_ROSTER): Row(TrainingServer.on_change_roster, (s.ENDED,)),
        (s.BETWEEN_ROUNDS, SessionTrigger.CHANGE_ROSTER): Row(TrainingServer.on_last_round, (s.ENDED, s.DISTRIBUTING)),
        (s.DISTRIBUTING, Distributed): Row(TrainingServer.on_distributed, (s.ENDED,)),
    }
    table[s.ENDED, Resume] = Row(TrainingServer.on_resume, (s.ENDED,))
    for state in SERVER_CONTAINS["keeper"]:
        table[state, Hello] = Row(TrainingServer.on_hello, (state,))
        table[state, Resume] = Row(TrainingServer.on_resume, (state,))
        table[state, Abort] = Row(TrainingServer.on_abort, (state,))
        table[state, Refused] = Row(TrainingServer.on_refused, (state,))
        table.update({(state, kind): Inside("keeper") for kind in TO_KEEPER})
        if state is not s.IN_ROUND:
            # Messages sent before their sender saw the end of the round.
            table.update({(state, kind): IGNORE for kind in SUM_TO_SERVER})
            table[state, Fetch] = Inside("keeper", IGNORE)
            table[state, FetchFixed] = IGNORE
    table[s.IN_ROUND, Fetch] = Inside("keeper", Row(TrainingServer.on_fetch, (s.IN_ROUND,)))
    table[s.IN_ROUND, FetchFixed] = Row(TrainingServer.on_fetch_fixed, (s.IN_ROUND,))
    table[s.IN_ROUND, Abort] = Inside("sum", Row(TrainingServer.on_abort, (s.IN_ROUND,)))
    return table


TRAINING_SERVER_TABLE: Final = _server_table()
