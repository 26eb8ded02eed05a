"""The client of a federation: joins, and in every round fetches the model, trains, and takes part in the secure sum.

It is fed with frames from the server and answers with frames to it. Local work is not done here: `Train` asks the shell
for it, and `contribute` brings the result. A broken rule inside a round ends that round; a broken link, or a
configuration below the client's policy, ends the session.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy.typing as npt

from tacit.protocol.core.codec import Frame, decode_structure
from tacit.protocol.core.errors import Code, LocalProtocolError, RemoteProtocolError
from tacit.protocol.core.machine import Entropy, Output, Report, Send, Step, Trigger
from tacit.protocol.core.members import decode_members
from tacit.protocol.core.messages import BODY_LIMIT, Abort, Phase
from tacit.protocol.core.model_transfer import IncomingModel
from tacit.protocol.core.primitives import SigningKey
from tacit.protocol.core.roster import Roster
from tacit.protocol.group_key.agreement import GroupKey
from tacit.protocol.group_key.holder import GroupKeyHolder
from tacit.protocol.group_key.session_tables import TO_HOLDER
from tacit.protocol.session.client_session import ClientSession
from tacit.protocol.session.messages import (
    EndRound,
    FetchLimits,
    FetchModel,
    LimitsChunk,
    ModelChunk,
    StartRound,
    StartSecondStage,
    Welcome,
)
from tacit.protocol.session.rounds import Accepted, Limit, RoundOver, Train, agree, sum_client
from tacit.protocol.session.tables import NO_ROUND, SUM_TO_CLIENT, WITHIN_ROUNDS, TrainingState
from tacit.protocol.session.voiding import check_model_is_fresh, promise
from tacit.protocol.sum.agreement import Agreement
from tacit.protocol.sum.client import AggregationClient
from tacit.protocol.sum.configuration import Configuration, Policy
from tacit.protocol.sum.counting import (
    COUNTING,
    IncomingLimits,
    check_second_cohort,
    counting_agreement,
    limits_bytes,
    second_agreement,
)
from tacit.protocol.sum.results import ClientAborted, Contribution, Journal
from tacit.protocol.sum.tables import PHASES, ClientState


class TrainingClient(ClientSession):
    """One client of one server.

    journal: the contributions of this client so far, from its disk; patience: seconds to wait for the server outside of
    a round; grace: seconds for a lost link to come back.
    """

    def __init__(
        self,
        name: str,
        roster: Roster,
        *,
        signing: SigningKey,
        policy: Policy,
        journal: Iterable[Contribution],
        entropy: Entropy,
        patience: float,
        grace: float,
    ) -> None:
        super().__init__(
            name,
            roster,
            signing=signing,
            policy=policy,
            journal=journal,
            entropy=entropy,
            patience=patience,
            grace=grace,
        )
        self.configuration: Configuration
        self._incoming_round = 0
        self._open = False
        """Whether the outcome of the round is still to be reported."""
        self._cohort: tuple[str, ...] = ()
        self._model_hash = b""
        self._arriving: IncomingModel | None = None
        self._counted: tuple[str, ...] = ()
        """Who was in the sum of counts of the round."""
        self._limits = b""
        """Digest of the limits of the round."""
        self._sum: AggregationClient | None = None
        self._holder: GroupKeyHolder | None = None
        self._key: GroupKey | None = None
        """The group key of the round."""

    @property
    def phase(self) -> Phase:
        """The phase that this client is in."""
        if self._sum is not None:
            return PHASES[self._sum.state]
        return Phase.SESSION if self.state in NO_ROUND else Phase.TRAIN

    @property
    def next_deadline(self) -> float | None:
        """When to call `expire`."""
        deadlines = (
            self.deadline,
            self._lost_until,
            self._sum.deadline if self._sum else None,
            self._holder.next_deadline if self._holder else None,
        )
        return min((deadline for deadline in deadlines if deadline is not None), default=None)

    def start(self, now: float) -> list[Output]:
        """Say hello."""
        return self.trigger(Trigger.START, now)

    def feed(self, frames: Sequence[Frame], now: float) -> list[Output]:
        """One multipart message from the server."""
        if self.state is TrainingState.ENDED:
            return []
        try:
            packet = self._read(frames)
        except RemoteProtocolError as error:
            return self._take(self._end(error.blaming(self._server), now), None, now)
        self._incoming_round = packet.envelope.round
        over = self.state is TrainingState.AWAIT_ROUND and packet.kind in (*WITHIN_ROUNDS, Abort)
        if 0 < self._incoming_round < self.round or (over and 0 < self._incoming_round == self.round):
            self.ignored += 1
            return []
        if self._sum is not None and self._incoming_round and packet.kind in (*SUM_TO_CLIENT, Abort):
            return self._relay(self._sum.receive(self._server, packet, now), now)
        if self._holder is not None and packet.kind in TO_HOLDER and self.state is TrainingState.AWAIT_ROUND:
            self.deadline = now + self._patience
            return self._relay_key(self._holder.receive(self._server, packet, now), now)
        return self.receive(self._server, packet, now)

    def contribute(self, round: int, vector: npt.NDArray[Any], now: float) -> list[Output]:
        """The trained update as ring words, or first the counts; without effect if that round is over meanwhile."""
        if self.state not in (TrainingState.TRAINING, TrainingState.LIMITING) or round != self.round:
            return []
        return self.trigger(Trigger.CONTRIBUTE, now, vector)

    def provide(self, epoch: int, model: bytes, now: float) -> list[Output]:
        """The model under the key of this epoch, as `Reencrypt` asked for it, little-endian float32 bytes."""
        return [] if self._holder is None else self._relay_key(self._holder.provide(epoch, model, now), now)

    def expire(self, now: float) -> list[Output]:
        if self._lost_until is not None and now >= self._lost_until:
            self._lost_until = None
            return self.trigger(Trigger.DROP, now)
        if self._sum is not None and self._sum.deadline is not None and now >= self._sum.deadline:
            return self._relay(self._sum.expire(now), now)
        if self._holder is not None and self._holder.next_deadline is not None and now >= self._holder.next_deadline:
            return self._relay_key(self._holder.expire(now), now)
        return super().expire(now)

    def on_welcome(self, sender: str, message: Welcome, payload: None, now: float) -> Step[TrainingState]:
        if message.roster != self._roster.hash:
            raise RemoteProtocolError(Code.ROSTER, "the server holds another roster: give all parties the same file")
        configuration = decode_structure(message.configuration, Configuration, limit=BODY_LIMIT)
        self._policy.check(configuration)
        holder = GroupKeyHolder(
            self.name,
            self._roster,
            configuration,
            session=self._link.session,
            policy=self._policy,
            signing=self._signing,
            entropy=self._entropy,
        )

        def commit() -> None:
            self.configuration = configuration
            self._holder = holder if configuration.group_key else None
            self.deadline = now + self._patience

        return Step(TrainingState.AWAIT_ROUND, (Accepted(configuration),), commit)

    def on_start_round(self, sender: str, message: StartRound, payload: None, now: float) -> Step[TrainingState]:
        cohort = self._cohort_of(message.cohort)
        incoming = self._incoming_round
        if (self._link.session, incoming) in self._journal:
            raise RemoteProtocolError(Code.SESSION, f"this client was in round {incoming} of this session before")
        expected = 4 * sum(self.configuration.tensor_sizes)
        if message.model_bytes != expected:
            raise RemoteProtocolError(Code.MODEL, f"a model of {message.model_bytes} bytes; its layout has {expected}")
        check_model_is_fresh(self._roster, self._journal.values(), message.model, message.voided)
        key = None if self._holder is None else self._holder.for_round(cohort)
        model = IncomingModel(message.model, expected)

        def commit() -> list[Output]:
            if self._holder is not None:
                self._holder.round_begun()
            self.round, self._cohort, self._model_hash, self._key = incoming, cohort, message.model, key
            self._arriving, self._open = model, True
            self.deadline = now + 2 * self.configuration.phase_seconds
            return [self._transmit(FetchModel(chunk=chunk)) for chunk in model.first_requests()]

        return Step(TrainingState.FETCHING_MODEL, (), commit)

    def on_model_chunk(
        self, sender: str, message: ModelChunk, payload: Frame | None, now: float
    ) -> Step[TrainingState]:
        incoming, following, last = self._take_chunk(message.chunk, payload)

        def commit() -> list[Output]:
            if last:
                self.deadline, self._arriving = None, None
                return [Train(self.round, incoming.data, self._key)]
            self.deadline = now + 2 * self.configuration.phase_seconds
            return [] if following is None else [self._transmit(FetchModel(chunk=following))]

        return Step(TrainingState.TRAINING if last else TrainingState.FETCHING_MODEL, (), commit)

    def on_contribute(self, vector: npt.NDArray[Any], now: float) -> Step[TrainingState]:
        begun = sum_client(self._agreement(), self.name, signing=self._signing, vector=vector, entropy=self._entropy)

        def commit() -> list[Output]:
            self._sum = begun
            return self._relay(begun.start(now), now)

        return Step(TrainingState.AGGREGATING, (), commit)

    def on_sum_over(self, aborted: ClientAborted | None, now: float) -> Step[TrainingState]:
        if aborted is not None:
            return self._over(aborted.code, aborted.detail, now)
        finished = self._sum
        if finished is None:
            raise LocalProtocolError("a sum ended that was not going on")
        agreement = finished.agreement
        counting = agreement.purpose == COUNTING
        # Without masks a client is done while others still train.
        others = 0.0 if agreement.secure else agreement.train_seconds + agreement.input_seconds

        def commit() -> None:
            self._sum, self._counted = None, finished.opened
            self.deadline = now + others + self._patience

        return Step(TrainingState.AWAIT_SECOND_STAGE if counting else TrainingState.AWAIT_ROUND, (), commit)

    def on_second_stage(self, sender: str, message: StartSecondStage, payload: None, now: float) -> Step[TrainingState]:
        cohort = self._cohort_of(message.cohort)
        check_second_cohort(self.configuration, cohort, self._counted)
        limits = IncomingLimits(message.limits, limits_bytes(self.configuration))

        def commit() -> list[Output]:
            self._cohort, self._limits, self._arriving = cohort, message.limits, limits
            self.deadline = now + 2 * self.configuration.phase_seconds
            return [self._transmit(FetchLimits(chunk=chunk)) for chunk in limits.first_requests()]

        return Step(TrainingState.FETCHING_LIMITS, (), commit)

    def on_limits_chunk(
        self, sender: str, message: LimitsChunk, payload: Frame | None, now: float
    ) -> Step[TrainingState]:
        arriving, following, last = self._take_chunk(message.chunk, payload)

        def commit() -> list[Output]:
            if last:
                self.deadline, self._arriving = None, None
                return [Limit(self.round, arriving.data)]
            self.deadline = now + 2 * self.configuration.phase_seconds
            return [] if following is None else [self._transmit(FetchLimits(chunk=following))]

        return Step(TrainingState.LIMITING if last else TrainingState.FETCHING_LIMITS, (), commit)

    def on_key_over(self, aborted: ClientAborted, now: float) -> Step[TrainingState]:
        return self._end(RemoteProtocolError(aborted.code, aborted.detail, culprit=aborted.culprit), now)

    def on_end_round(self, sender: str, message: EndRound, payload: None, now: float) -> Step[TrainingState]:
        return self._over(message.code, message.detail, now)

    def on_abort(self, sender: str, message: Abort, payload: None, now: float) -> Step[TrainingState]:
        if self._incoming_round:
            return self._over(message.code, message.detail, now)
        return self._ended(message.code, message.detail)

    def refuse(self, sender: str, error: RemoteProtocolError, now: float) -> Step[TrainingState]:
        if self.state is TrainingState.AWAIT_WELCOME or not self._incoming_round:
            return self._end(error, now)
        incoming = self._incoming_round
        abort = Abort(code=error.code, detail=error.detail, culprit=error.culprit or sender)
        over = self._over(error.code, error.detail, now)
        never_begun = (RoundOver(incoming, error.code, error.detail),) if incoming > self.round else ()

        def commit() -> list[Output]:
            self.round = incoming
            return [self._transmit(abort), *(over.commit() or ())]

        return Step(over.state, over.outputs + never_begun, commit)

    def _cohort_of(self, bitmap: bytes) -> tuple[str, ...]:
        """The clients in a bitmap; refuses a cohort without this one, or below its policy."""
        clients = self._roster.clients
        cohort = tuple(clients[index] for index in decode_members(bitmap, len(clients)))
        if self.name not in cohort:
            raise RemoteProtocolError(
                Code.MEMBERS, "this client was not selected for the round that it is asked to join"
            )
        self._policy.check_cohort(self.configuration, len(cohort))
        return cohort

    def _take_chunk(self, chunk: int, payload: Frame | None) -> tuple[IncomingModel, int | None, bool]:
        """Keep a chunk of what arrives; returns that, the chunk to ask for now, and whether this was the last."""
        if self._arriving is None:
            raise LocalProtocolError("a chunk came of nothing that was asked for")
        # A refusal ends the round and drops what has arrived, so it may grow before the step is committed.
        following = self._arriving.take(chunk, payload)
        return self._arriving, following, self._arriving.complete

    def _agreement(self) -> Agreement:
        """What this client goes by in the sum that begins now."""
        agreement = agree(
            session=self._link.session,
            round=self.round,
            roster=self._roster,
            configuration=self.configuration,
            cohort=self._cohort,
            model=self._model_hash,
            group_key=self._key.transcript if self._key else b"",
            fewest_survivors=self._policy.smallest_cohort,
        )
        if self.configuration.enforce == "server":
            return agreement
        if self.state is TrainingState.TRAINING:
            return counting_agreement(agreement, self.configuration)
        return second_agreement(agreement, self.configuration, counted=len(self._counted), limits=self._limits)

    def _relay(self, outputs: list[Output], now: float) -> list[Output]:
        """Pass on what the secure sum says, and leave it when it is over."""
        relayed: list[Output] = []
        aborted: ClientAborted | None = None
        for output in outputs:
            if isinstance(output, Send):
                relayed.append(self._transmit(output.message, output.payload))
            elif isinstance(output, ClientAborted):
                aborted = output
            else:
                if isinstance(output, Journal):
                    entry = output.contribution
                    self._journal[entry.session, entry.round] = entry
                relayed.append(output)
        if aborted is not None or (self._sum is not None and self._sum.state is ClientState.DONE):
            relayed += self.trigger(Trigger.SUM_OVER, now, aborted)
        return relayed

    def _relay_key(self, outputs: list[Output], now: float) -> list[Output]:
        """Pass on what the holder of the keys says; a fault there ends the session."""
        relayed: list[Output] = []
        for output in outputs:
            if isinstance(output, Send):
                relayed.append(self._transmit(output.message, output.payload, round=0))
            elif isinstance(output, GroupKey):
                relayed.append(Report("group-key", {"epoch": output.epoch, "members": list(output.members)}))
            elif isinstance(output, ClientAborted):
                relayed += self.trigger(Trigger.KEY_OVER, now, output)
            else:
                relayed.append(output)
        return relayed

    def _over(self, code: Code | None, detail: str, now: float) -> Step[TrainingState]:
        """The round is over for this client; a vector that it masked and did not unmask stays closed, it promises."""
        entry = self._journal.get((self._link.session, self.round))
        outputs: list[Output] = [RoundOver(self.round, code, detail)] if self._open else []
        if code is not None and entry is not None and not entry.unmasked and self._sum is not None:
            outputs.append(self._transmit(promise(entry, self.name, self._signing)))

        def commit() -> None:
            if self._sum is not None:
                self._sum.forget()
            self._sum = None
            self._arriving, self._open, self._key = None, False, None
            self.deadline = now + self._patience

        return Step(TrainingState.AWAIT_ROUND, tuple(outputs), commit)

    def _forget(self) -> None:
        for part in (self._sum, self._holder):
            if part is not None:
                part.forget()
        self._sum, self._holder, self._key = None, None, None
