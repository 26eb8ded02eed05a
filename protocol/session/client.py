"""The client of a federation: joins, and in every round fetches the model, trains, and takes part in the secure sum.

It is fed with frames from the server and answers with frames to it. Local work is not done here: `Train` asks the shell
for it, and `contribute` brings the result. The sum begins with the round, beside the fetching and the training: its
keys and shares do not depend on what is contributed, and their round trips take no time of their own. A broken rule
inside a round ends that round; a link that stays lost, or a configuration below the client's policy, ends the session.
When a lost link is back, the client asks the server to go on; where the server cannot, it says hello again, and is in
the next round.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy.typing as npt

from tacit.protocol.core.blob import IncomingBlob
from tacit.protocol.core.codec import Frame, decode_structure
from tacit.protocol.core.errors import DETAIL_LIMIT, Code, LocalProtocolError, RemoteProtocolError
from tacit.protocol.core.link import Traffic
from tacit.protocol.core.machine import Entropy, Heard, Machine, Output, Report, Send, Step, Trigger
from tacit.protocol.core.members import decode_members
from tacit.protocol.core.membership import check_later
from tacit.protocol.core.messages import BODY_LIMIT, Abort, Chunk, Phase, Resume
from tacit.protocol.core.outputs import Ended, Transmit
from tacit.protocol.core.primitives import Label, SigningKey
from tacit.protocol.core.roster import Roster
from tacit.protocol.group_key.agreement import GroupKey
from tacit.protocol.group_key.holder import GroupKeyHolder, LastModel, Reencrypt
from tacit.protocol.group_key.tables import TO_HOLDER
from tacit.protocol.session.groups import check_group, journalled_group
from tacit.protocol.session.messages import EndRound, Finish, NewRoster, StartRound, StartSecondStage, Welcome
from tacit.protocol.session.rounds import (
    Accepted,
    ClientPart,
    GroupEntry,
    Journal,
    JournalEntry,
    JournalLine,
    Limit,
    RosterChanged,
    RoundOver,
    Train,
    agree,
    sum_client,
)
from tacit.protocol.session.server_link import ServerLink
from tacit.protocol.session.tables import CLIENT_CONTAINS, NO_ROUND, TRAINING_CLIENT_TABLE, TrainingState
from tacit.protocol.sum.agreement import Agreement
from tacit.protocol.sum.configuration import Configuration, Policy
from tacit.protocol.sum.counting import (
    COUNTING,
    check_second_cohort,
    counting_agreement,
    limits_bytes,
    second_agreement,
)
from tacit.protocol.sum.results import ClientAborted, Contributed
from tacit.protocol.sum.tables import PHASES


@dataclass(frozen=True)
class _Round:
    """What the client goes by in a round."""

    cohort: tuple[str, ...]
    model: bytes
    """Its digest."""
    key: GroupKey | None
    """The group key of the cohort, where there is one."""
    counted: tuple[str, ...] = ()
    """Who was in the sum of counts."""
    limits: bytes = b""
    """Their digest, in the second stage."""
    incoming: IncomingBlob | None = None
    """The model, or the limits, while they are fetched."""


class TrainingClient(
    Machine[TrainingState],
    tables=(TRAINING_CLIENT_TABLE,),
    outputs=Transmit
    | Report
    | Journal
    | Accepted
    | Train
    | Limit
    | Reencrypt
    | LastModel
    | RoundOver
    | RosterChanged
    | Ended,
    contains=CLIENT_CONTAINS,
):
    """One client of one server.

    journal: the stages of rounds that this client entered before, from its disk; patience: seconds to wait for the
    server outside of a round; grace: seconds for a lost link to come back; accepted_groups: the fingerprint of a roster
    in which it may be in another group than before.
    """

    sum: ClientPart | None
    holder: GroupKeyHolder | None

    def __init__(
        self,
        name: str,
        roster: Roster,
        *,
        signing: SigningKey,
        policy: Policy,
        journal: Iterable[JournalLine],
        entropy: Entropy,
        patience: float,
        grace: float,
        accepted_groups: str = "",
    ) -> None:
        super().__init__(TRAINING_CLIENT_TABLE, TrainingState.OFFLINE)
        self.name = name
        self._roster = roster
        self._server = roster.server.name
        self._signing = signing
        self._policy = policy
        lines = tuple(journal)
        entries = [line for line in lines if isinstance(line, JournalEntry)]
        self._entered = {(entry.session, entry.round) for entry in entries}
        """Rounds that it was in, in the life of its keys."""
        self._former_group = journalled_group(lines)
        self._accepted_groups = accepted_groups
        self._spent = sum(entry.cost for entry in entries)
        """Of the budget of its policy."""
        self._entropy = entropy
        self._patience = patience
        self._grace = grace
        self._link = ServerLink(name, self._server)
        self._configuration: Configuration | None = None
        self._lost_until: float | None = None
        self._open = False
        """Whether the outcome of the round is still to be reported."""

    @property
    def configuration(self) -> Configuration:
        """What everybody computes. LocalProtocolError before it is accepted."""
        if self._configuration is None:
            raise LocalProtocolError(f"{self.name!r} has accepted no configuration")
        return self._configuration

    @property
    def session(self) -> bytes:
        """Its name, 32 bytes; zeros before the server's first answer."""
        return self._link.session

    @property
    def round(self) -> int:
        """The round that this client takes, or last took, part in; 0 before the first."""
        return self._link.round

    @property
    def traffic(self) -> Traffic:
        """What went over its link."""
        return self._link.traffic

    @property
    def phase(self) -> Phase:
        """The phase that this client is in."""
        if self.sum is not None:
            return PHASES[self.sum.state]
        return Phase.SESSION if self.state in NO_ROUND else Phase.TRAIN

    @property
    def untold(self) -> bool:
        """Whether somebody may still come back to be told that this machine has ended: never a server."""
        return False

    def deadlines(self) -> Iterator[float]:
        yield from super().deadlines()
        if self._lost_until is not None:
            yield self._lost_until

    def start(self, now: float) -> list[Output]:
        """Say hello."""
        return self.trigger(Trigger.START, now)

    def feed(self, frames: Sequence[Frame], now: float) -> list[Output]:
        """One multipart message from the server."""
        if self.state is TrainingState.ENDED:
            return []
        try:
            packet = self._link.read(frames, self.state)
        except RemoteProtocolError as error:
            return self._take(self._end(error), now)
        if packet is None:
            self.ignored += 1
            return []
        if self.state is TrainingState.AWAIT_ROUND and packet.kind in TO_HOLDER:
            self.deadline = now + self._patience
        return self.receive(self._server, packet, now)

    def contribute(self, round: int, vector: npt.NDArray[Any], now: float) -> list[Output]:
        """The trained update as ring words, or first the counts; without effect if that round is over meanwhile."""
        if self.state not in (TrainingState.TRAINING, TrainingState.LIMITING) or round != self.round:
            return []
        return self.trigger(Trigger.CONTRIBUTE, now, vector)

    def provide(self, epoch: int, model: bytes, now: float) -> list[Output]:
        """The model under the key of this epoch, as `Reencrypt` asked for it, little-endian float32 bytes."""
        holder = self.holder
        return [] if holder is None else self.relay(holder, holder.provide(epoch, model, now), now)

    def server_lost(self, now: float) -> None:
        """The link is down; the grace begins."""
        if self.state not in (TrainingState.OFFLINE, TrainingState.ENDED):
            self._lost_until = now + self._grace
            self._link.lost()

    def server_back(self) -> list[Output]:
        """The link is up again: ask the server to go on, if it was lost."""
        if self._lost_until is None:
            return []
        self._lost_until = None
        return [self._link.ask()]

    def give_up(self, detail: str, now: float) -> list[Output]:
        """This party cannot go on (its own disk, data or device): tell the server, and end."""
        if self.state is TrainingState.ENDED:
            return []
        return self._take(self._end(RemoteProtocolError(Code.LOCAL, detail, culprit=self.name)), now)

    def expire(self, now: float) -> list[Output]:
        if self._lost_until is not None and now >= self._lost_until:
            return self.trigger(Trigger.DROP, now)
        return super().expire(now)

    def pass_on(self, part: Machine[Any], send: Send) -> Sequence[Output]:
        round = 0 if part is self.holder else self.round
        return (self._link.transmit(send.message, send.payload, round=round),)

    def on_start(self, now: float) -> Step[TrainingState]:
        hello = self._link.hello(self._roster.hash)
        return Step(TrainingState.AWAIT_WELCOME, (hello,), deadline=now + self._patience)

    def on_welcome(self, heard: Heard[Welcome], now: float) -> Step[TrainingState]:
        if heard.message.roster != self._roster.hash:
            raise RemoteProtocolError(Code.ROSTER, "the server holds another roster: give all parties the same file")
        configuration = decode_structure(heard.message.configuration, Configuration, limit=BODY_LIMIT)
        self._policy.check(configuration)
        if self._configuration not in (None, configuration):
            raise RemoteProtocolError(Code.POLICY, "the server proposes something else than before: start again")
        self._policy.check_groups(configuration, [len(group) for group in self._roster.groups])
        lines = self._check_group(self._roster)
        holder = GroupKeyHolder(
            self.name,
            self._roster,
            configuration,
            session=heard.envelope.session,
            policy=self._policy,
            signing=self._signing,
            entropy=self._entropy,
        )

        def commit() -> None:
            self._configuration = configuration
            self._former_group = journalled_group(lines) if lines else self._former_group
            self.holder = holder if configuration.group_key else None

        outputs = (*map(Journal, lines), Accepted(configuration))
        return Step(TrainingState.AWAIT_ROUND, outputs, commit, deadline=now + self._patience)

    def on_start_round(self, heard: Heard[StartRound], now: float) -> Step[TrainingState]:
        message, round = heard.message, heard.envelope.round
        cohort = self._cohort_of(message.cohort)
        if (heard.envelope.session, round) in self._entered:
            raise RemoteProtocolError(Code.SESSION, f"this client was in round {round} of this session before")
        self._policy.check_budget(self._spent + self._policy.cost(self.configuration))
        self._check_size("model", message.model.size, 4 * sum(self.configuration.tensor_sizes))
        key = None if self.holder is None else self.holder.for_round(cohort)
        part = _Round(cohort, message.model.digest, key, incoming=IncomingBlob(message.model, Label.MODEL))

        def commit() -> None:
            if self.holder is not None:
                self.holder.round_begun()
            self._link.round, self._open = round, True

        return self._begin(TrainingState.FETCHING_MODEL, part, round, now, commit)

    def on_second_stage(self, heard: Heard[StartSecondStage], now: float) -> Step[TrainingState]:
        message, part = heard.message, self.at(_Round)
        cohort = self._cohort_of(message.cohort)
        check_second_cohort(self.configuration, cohort, part.counted)
        self._check_size("limits", message.limits.size, limits_bytes(self.configuration))
        incoming = IncomingBlob(message.limits, Label.LIMITS)
        second = replace(part, cohort=cohort, limits=message.limits.digest, incoming=incoming)
        return self._begin(TrainingState.FETCHING_LIMITS, second, self.round, now)

    def on_chunk(self, heard: Heard[Chunk], now: float) -> Step[TrainingState]:
        part = self.at(_Round)
        if part.incoming is None:
            raise LocalProtocolError("a chunk came of nothing that was announced")
        incoming = part.incoming.after(heard.message.chunk, heard.payload)
        if not incoming.complete:
            return self._fetched(self.state, replace(part, incoming=incoming), now)
        whole, part = incoming.whole(), replace(part, incoming=None)
        if self.state is TrainingState.FETCHING_MODEL:
            return Step(TrainingState.TRAINING, (Train(self.round, whole, part.key),), data=part)
        return Step(TrainingState.LIMITING, (Limit(self.round, whole),), data=part)

    def on_contribute(self, vector: npt.NDArray[Any], now: float) -> Step[TrainingState]:
        part, current = self.at(_Round), self.sum
        if current is None:
            raise LocalProtocolError(f"{self.name!r} contributes to no sum")
        current.check_vector(vector)
        cost = self._policy.cost(self.configuration)
        entered = (Journal(self._entry(part, self.round, cost)),) if cost else ()

        def commit() -> list[Output]:
            self._spent += cost
            return self.relay(current, current.contribute(vector, now), now)

        return Step(TrainingState.AGGREGATING, entered, commit, data=part)

    def on_contributed(self, contributed: Contributed, now: float) -> Step[TrainingState]:
        part = self.at(_Round)
        agreement = self._agreement(part, self.round)
        if agreement.purpose == COUNTING:
            counted = replace(part, counted=contributed.opened)
            return Step(TrainingState.AWAIT_SECOND_STAGE, data=counted, deadline=now + self._patience)
        # Without masks a client is done while others still train.
        others = 0.0 if agreement.secure else agreement.train_seconds + agreement.input_seconds
        return Step(TrainingState.AWAIT_ROUND, deadline=now + others + self._patience)

    def on_sum_aborted(self, aborted: ClientAborted, now: float) -> Step[TrainingState]:
        return self._over(aborted.code, aborted.detail, now)

    def on_key(self, key: GroupKey, now: float) -> Step[TrainingState]:
        report = Report("group-key", {"epoch": key.epoch, "members": list(key.members)})
        return Step(TrainingState.AWAIT_ROUND, (report,))

    def on_key_aborted(self, aborted: ClientAborted, now: float) -> Step[TrainingState]:
        return self._end(RemoteProtocolError(aborted.code, aborted.detail, culprit=aborted.culprit))

    def on_end_round(self, heard: Heard[EndRound], now: float) -> Step[TrainingState]:
        return self._over(heard.message.code, heard.message.detail, now)

    def on_abort(self, heard: Heard[Abort], now: float) -> Step[TrainingState]:
        code, detail = heard.message.code, heard.message.detail
        if heard.envelope.round:
            return self._over(code, detail, now)
        in_conversation = self.state is not TrainingState.AWAIT_WELCOME or self._link.asking
        if in_conversation and (code, heard.message.culprit) == (Code.LEFT, self.name):
            return self._again(detail, now)
        return self._ended(code, detail)

    def on_resume(self, heard: Heard[Resume], now: float) -> Step[TrainingState]:
        rest = self._link.rest()
        if rest is None:
            return self._again(f"what {self._server} lacks is not kept any more", now)
        return Step(self.state, tuple(rest))

    def on_new_roster(self, heard: Heard[NewRoster], now: float) -> Step[TrainingState]:
        held, message = self._roster, heard.message
        if not held.operator:
            raise RemoteProtocolError(Code.ROSTER, "another roster, where this client's has no operator")
        offered = Roster.decode(message.roster, message.signature, operator=held.operator)
        difference = check_later(held, offered, self.name)
        self._policy.check_changes(difference.changes)
        self._check_group(offered)
        ended = self._ended(Code.ROSTER, f"it goes on with version {offered.version} of the roster")
        return replace(ended, outputs=(RosterChanged(offered, difference), *ended.outputs))

    def on_finish(self, heard: Heard[Finish], now: float) -> Step[TrainingState]:
        return self._ended(None, "the federation is finished")

    def on_expire(self, now: float) -> Step[TrainingState]:
        detail = f"no word from {self._server} while it was to {self.state.value}"
        return self._again(detail, now) if self._link.broken else self._ended(Code.TIMEOUT, detail)

    def on_drop(self, now: float) -> Step[TrainingState]:
        return self._ended(Code.LEFT, f"the link to {self._server} is lost and did not come back in {self._grace:g} s")

    def refuse(self, sender: str, error: RemoteProtocolError, now: float) -> Step[TrainingState]:
        if self.state is TrainingState.AWAIT_WELCOME or not error.round:
            return self._end(error)
        over = self._over(error.code, error.detail, now)
        abort = Abort(code=error.code, detail=error.detail, culprit=error.culprit or sender)
        never_begun = (RoundOver(error.round, error.code, error.detail),) if error.round > self.round else ()

        def commit() -> list[Output]:
            over.commit()
            self._link.round = error.round
            return [self._link.transmit(abort)]

        return replace(over, outputs=over.outputs + never_begun, commit=commit)

    def _check_group(self, roster: Roster) -> tuple[GroupEntry, ...]:
        return check_group(self._former_group, roster, self.name, accepted=self._accepted_groups)

    def _cohort_of(self, bitmap: bytes) -> tuple[str, ...]:
        """The clients in a bitmap; refuses a cohort without this one, with a part of a group, or below its policy."""
        clients = self._roster.clients
        cohort = tuple(clients[index] for index in decode_members(bitmap, len(clients)))
        if self.name not in cohort:
            raise RemoteProtocolError(
                Code.MEMBERS, "this client was not selected for the round that it is asked to join"
            )
        self._roster.check_whole(cohort)
        self._policy.check_cohort(self.configuration, len(cohort))
        return cohort

    @staticmethod
    def _check_size(name: str, size: int, expected: int) -> None:
        if size != expected:
            raise RemoteProtocolError(Code.MODEL, f"a {name} of {size} bytes; its layout has {expected}")

    def _begin(
        self,
        state: TrainingState,
        part: _Round,
        round: int,
        now: float,
        commit: Callable[[], None] = lambda: None,
    ) -> Step[TrainingState]:
        """Enter a stage of this round: begin its sum, and fetch what is to be worked on meanwhile."""
        begun = sum_client(self._agreement(part, round), self.name, signing=self._signing, entropy=self._entropy)
        fetching = self._fetched(state, part, now)

        entry = self._entry(part, round)

        def enter() -> list[Output]:
            commit()
            self._entered.add((entry.session, entry.round))
            self.sum = begun
            return [*self.relay(begun, begun.start(now), now), *fetching.outputs]

        return replace(fetching, outputs=(Journal(entry),), commit=enter)

    def _fetched(self, state: TrainingState, part: _Round, now: float) -> Step[TrainingState]:
        """Ask for what is due of the model or the limits."""
        requests = () if part.incoming is None else part.incoming.requests
        sends = tuple(Send(self._server, fetch) for fetch in requests)
        return Step(state, sends, data=part, deadline=now + 2 * self.configuration.phase_seconds)

    def _entry(self, part: _Round, round: int, cost: float = 0.0) -> JournalEntry:
        return JournalEntry(session=self._link.session, round=round, stage=2 if part.limits else 1, cost=cost)

    def _agreement(self, part: _Round, round: int) -> Agreement:
        """What this client goes by in the sum of this stage."""
        agreement = agree(
            session=self._link.session,
            round=round,
            roster=self._roster,
            configuration=self.configuration,
            cohort=part.cohort,
            model=part.model,
            group_key=part.key.transcript if part.key else b"",
            fewest_survivors=self._policy.smallest_cohort,
        )
        if self.configuration.enforce == "server":
            return agreement
        if not part.limits:
            return counting_agreement(agreement, self.configuration)
        return second_agreement(agreement, self.configuration, counted=len(part.counted), limits=part.limits)

    def _over(self, code: Code | None, detail: str, now: float) -> Step[TrainingState]:
        told = (RoundOver(self.round, code, detail),) if self._open else ()

        def commit() -> None:
            self._open = False

        return Step(TrainingState.AWAIT_ROUND, told, commit, deadline=now + self._patience)

    def _again(self, detail: str, now: float) -> Step[TrainingState]:
        """The conversation is over, because it cannot go on: begin another one."""
        over = self._over(Code.LEFT, detail, now)

        def commit() -> Sequence[Output]:
            over.commit()
            return self.on_start(now).outputs

        return replace(over, state=TrainingState.AWAIT_WELCOME, commit=commit)

    def _end(self, error: RemoteProtocolError) -> Step[TrainingState]:
        """End the session, and say why to the server."""
        culprit = error.culprit or self._server
        ended = self._ended(error.code, f"{culprit}: {error.detail}")
        abort = Abort(code=error.code, detail=error.detail[:DETAIL_LIMIT], culprit=culprit)
        return replace(ended, outputs=(self._link.transmit(abort, round=0), *ended.outputs))

    def _ended(self, code: Code | None, detail: str) -> Step[TrainingState]:
        def commit() -> None:
            self._lost_until = None

        return Step(TrainingState.ENDED, (Ended(code, detail),), commit)
