"""The client of a federation: joins, and in every round fetches the model, trains, and takes part in the secure sum.

It is fed with frames from the server and answers with frames to it. Local work is not done here: `Train` asks the shell
for it, and `contribute` brings the result. A broken rule inside a round ends that round; a broken link, or a
configuration below the client's policy, ends the session.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import Enum
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from tacit.protocol.aggregation_client import AggregationClient
from tacit.protocol.aggregation_results import ClientAborted, Contribution, Journal
from tacit.protocol.aggregation_tables import PHASES, ClientState
from tacit.protocol.codec import Frame, Packet, decode, decode_structure
from tacit.protocol.configuration import Configuration, Policy
from tacit.protocol.errors import DETAIL_LIMIT, Code, RemoteProtocolError
from tacit.protocol.link import NO_SESSION, Link, Traffic
from tacit.protocol.machine import Entropy, Machine, Output, Row, Send, Step, Table, Trigger
from tacit.protocol.members import decode_members
from tacit.protocol.messages import (
    BODY_LIMIT,
    CHUNK_BYTES,
    MOST_PROMISES,
    Abort,
    EndRound,
    FetchModel,
    FetchVector,
    Finish,
    Hello,
    Message,
    ModelChunk,
    PeerKeys,
    PeerShares,
    Phase,
    StartRound,
    Survivors,
    UnmaskRequest,
    Welcome,
)
from tacit.protocol.primitives import Label, SigningKey, digest
from tacit.protocol.roster import Roster
from tacit.protocol.rounds import Accepted, Ended, RoundOver, Train, Transmit, agree
from tacit.protocol.transfer import Transfer
from tacit.protocol.voiding import check_model_is_fresh, promise

AGGREGATION: Final = (PeerKeys, PeerShares, FetchVector, Survivors, UnmaskRequest)
"""What the server says within a secure sum."""

OUTSIDE_ROUNDS: Final = (Welcome, Finish)
"""What the server says in no round; an Abort may come in one and outside."""


class TrainingState(Enum):
    """What the client does or awaits."""

    OFFLINE = "offline"
    AWAIT_WELCOME = "await the server's welcome"
    AWAIT_ROUND = "await the next round"
    FETCHING_MODEL = "fetch the model"
    TRAINING = "train"
    AGGREGATING = "take part in the secure sum"
    ENDED = "ended"


def _table() -> Table[TrainingState]:
    s = TrainingState
    table: dict[Any, Any] = {
        (s.OFFLINE, Trigger.START): Row("on_start", (s.AWAIT_WELCOME,)),
        (s.AWAIT_WELCOME, Welcome): Row("on_welcome", (s.AWAIT_ROUND,)),
        (s.AWAIT_ROUND, StartRound): Row("on_start_round", (s.FETCHING_MODEL,)),
        (s.AWAIT_ROUND, EndRound): Row("on_end_round", (s.AWAIT_ROUND,)),
        (s.FETCHING_MODEL, ModelChunk): Row("on_model_chunk", (s.FETCHING_MODEL, s.TRAINING)),
        (s.TRAINING, Trigger.CONTRIBUTE): Row("on_contribute", (s.AGGREGATING,)),
        (s.AGGREGATING, Trigger.SUM_OVER): Row("on_sum_over", (s.AWAIT_ROUND,)),
    }
    outside, within = (s.AWAIT_WELCOME, s.AWAIT_ROUND), (s.FETCHING_MODEL, s.TRAINING, s.AGGREGATING)
    for state in within:
        table[state, EndRound] = Row("on_end_round", (s.AWAIT_ROUND,))
    for state in outside + within:
        table[state, Finish] = Row("on_finish", (s.ENDED,))
        table[state, Abort] = Row("on_abort", (s.ENDED,) if state in outside else (s.AWAIT_ROUND, s.ENDED))
        table[state, Trigger.EXPIRE] = Row("on_expire", (s.ENDED,))
        table[state, Trigger.DROP] = Row("on_drop", (s.ENDED,))
    return table


TRAINING_CLIENT_TABLE: Final = _table()
"""While AGGREGATING, the messages of the secure sum go to its own machine (aggregation_client.py)."""


class TrainingClient(Machine[TrainingState]):
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
        super().__init__(TRAINING_CLIENT_TABLE, TrainingState.OFFLINE)
        self.name = name
        self.round = 0
        """The round that this client takes, or last took, part in; 0 before the first."""
        self.configuration: Configuration
        self._roster = roster
        self._server = roster.server.name
        self._signing = signing
        self._policy = policy
        self._journal = {(entry.session, entry.round): entry for entry in journal}
        self._entropy = entropy
        self._patience = patience
        self._grace = grace
        self.traffic = Traffic()
        self._link = Link(name, self._server, NO_SESSION, self.traffic)
        self._lost_until: float | None = None
        self._incoming_round = 0
        self._open = False
        """Whether the outcome of the round is still to be reported."""
        self._cohort: tuple[str, ...] = ()
        self._model_hash = b""
        self._model = bytearray()
        self._transfer = Transfer(0)
        self._sum: AggregationClient | None = None

    @property
    def phase(self) -> Phase:
        """The phase that this client is in."""
        if self._sum is not None:
            return PHASES[self._sum.state]
        training = self.state in (TrainingState.FETCHING_MODEL, TrainingState.TRAINING)
        return Phase.TRAIN if training else Phase.SESSION

    @property
    def next_deadline(self) -> float | None:
        """When to call `expire`."""
        deadlines = (self.deadline, self._lost_until, self._sum.deadline if self._sum else None)
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
        over = self.state is TrainingState.AWAIT_ROUND and packet.kind in (*AGGREGATION, ModelChunk, Abort)
        if 0 < self._incoming_round < self.round or (over and 0 < self._incoming_round == self.round):
            self.ignored += 1
            return []
        if self._sum is not None and self._incoming_round and packet.kind in (*AGGREGATION, Abort):
            return self._relay(self._sum.receive(self._server, packet, now), now)
        return self.receive(self._server, packet, now)

    def contribute(self, round: int, vector: npt.NDArray[Any], now: float) -> list[Output]:
        """The trained update as ring words; without effect if that round is over meanwhile."""
        if self.state is not TrainingState.TRAINING or round != self.round:
            return []
        return self.trigger(Trigger.CONTRIBUTE, now, vector)

    def give_up(self, detail: str, now: float) -> list[Output]:
        """This party cannot go on (its own disk, data or device): tell the server, and end."""
        if self.state is TrainingState.ENDED:
            return []
        return self._take(self._end(RemoteProtocolError(Code.LOCAL, detail, culprit=self.name), now), None, now)

    def server_lost(self, now: float) -> None:
        """The link is down; the grace begins."""
        if self.state not in (TrainingState.OFFLINE, TrainingState.ENDED):
            self._lost_until = now + self._grace

    def server_back(self) -> None:
        """The link is up again."""
        self._lost_until = None

    def expire(self, now: float) -> list[Output]:
        if self._lost_until is not None and now >= self._lost_until:
            self._lost_until = None
            return self.trigger(Trigger.DROP, now)
        if self._sum is not None and self._sum.deadline is not None and now >= self._sum.deadline:
            return self._relay(self._sum.expire(now), now)
        return super().expire(now)

    def on_start(self, now: float) -> Step[TrainingState]:
        closed = [entry for entry in self._journal.values() if not entry.unmasked][-MOST_PROMISES:]
        promises = tuple(promise(entry, self.name, self._signing) for entry in closed)

        def commit() -> list[Output]:
            self.deadline = now + self._patience
            return [self._transmit(Hello(roster=self._roster.hash, promises=promises))]

        return Step(TrainingState.AWAIT_WELCOME, (), commit)

    def on_welcome(self, sender: str, message: Welcome, payload: None, now: float) -> Step[TrainingState]:
        if message.roster != self._roster.hash:
            raise RemoteProtocolError(Code.ROSTER, "the server holds another roster: give all parties the same file")
        configuration = decode_structure(message.configuration, Configuration, limit=BODY_LIMIT)
        self._policy.check(configuration)

        def commit() -> None:
            self.configuration = configuration
            self.deadline = now + self._patience

        return Step(TrainingState.AWAIT_ROUND, (Accepted(configuration),), commit)

    def on_start_round(self, sender: str, message: StartRound, payload: None, now: float) -> Step[TrainingState]:
        clients = self._roster.clients
        cohort = tuple(clients[index] for index in decode_members(message.cohort, len(clients)))
        if self.name not in cohort:
            raise RemoteProtocolError(
                Code.MEMBERS, "this client was not selected for the round that it is asked to join"
            )
        self._policy.check_cohort(self.configuration, len(cohort))
        incoming = self._incoming_round
        if (self._link.session, incoming) in self._journal:
            raise RemoteProtocolError(Code.SESSION, f"this client was in round {incoming} of this session before")
        expected = 4 * sum(self.configuration.tensor_sizes)
        if message.model_bytes != expected:
            raise RemoteProtocolError(Code.MODEL, f"a model of {message.model_bytes} bytes; its layout has {expected}")
        check_model_is_fresh(self._roster, self._journal.values(), message.model, message.voided)
        transfer = Transfer(-(-expected // CHUNK_BYTES))

        def commit() -> list[Output]:
            self.round, self._cohort, self._model_hash = incoming, cohort, message.model
            self._transfer, self._model, self._open = transfer, bytearray(), True
            self.deadline = now + 2 * self.configuration.phase_seconds
            return [self._transmit(FetchModel(chunk=chunk)) for chunk in transfer.first_requests()]

        return Step(TrainingState.FETCHING_MODEL, (), commit)

    def on_model_chunk(
        self, sender: str, message: ModelChunk, payload: Frame | None, now: float
    ) -> Step[TrainingState]:
        self._transfer.check(message.chunk)
        missing = 4 * sum(self.configuration.tensor_sizes) - len(self._model)
        expected = min(missing, CHUNK_BYTES)
        if payload is None or len(payload) != expected:
            raise RemoteProtocolError(Code.MODEL, f"chunk {message.chunk} of the model does not have {expected} bytes")
        # A refusal ends the round and drops the model, so it may grow before the step is committed.
        self._model += payload
        if last := expected == missing:
            check_model(self._model, self._model_hash)

        def commit() -> list[Output]:
            self._transfer.advance()
            if last:
                self.deadline = None
                return [Train(self.round, bytes(self._model))]
            self.deadline = now + 2 * self.configuration.phase_seconds
            following = self._transfer.request_after(message.chunk)
            return [] if following is None else [self._transmit(FetchModel(chunk=following))]

        return Step(TrainingState.TRAINING if last else TrainingState.FETCHING_MODEL, (), commit)

    def on_contribute(self, vector: npt.NDArray[Any], now: float) -> Step[TrainingState]:
        agreement = agree(
            session=self._link.session,
            round=self.round,
            roster=self._roster,
            configuration=self.configuration,
            cohort=self._cohort,
            model=self._model_hash,
            fewest_survivors=self._policy.smallest_cohort,
        )
        begun = AggregationClient(agreement, self.name, signing=self._signing, vector=vector, entropy=self._entropy)

        def commit() -> list[Output]:
            self._sum = begun
            return self._relay(begun.start(now), now)

        return Step(TrainingState.AGGREGATING, (), commit)

    def on_sum_over(self, aborted: ClientAborted | None, now: float) -> Step[TrainingState]:
        if aborted is not None:
            return self._over(aborted.code, aborted.detail, now)

        def commit() -> None:
            self._sum = None
            self.deadline = now + self._patience

        return Step(TrainingState.AWAIT_ROUND, (), commit)

    def on_end_round(self, sender: str, message: EndRound, payload: None, now: float) -> Step[TrainingState]:
        return self._over(message.code, message.detail, now)

    def on_abort(self, sender: str, message: Abort, payload: None, now: float) -> Step[TrainingState]:
        if self._incoming_round:
            return self._over(message.code, message.detail, now)
        return self._ended(message.code, message.detail)

    def on_finish(self, sender: str, message: Finish, payload: None, now: float) -> Step[TrainingState]:
        return self._ended(None, "the federation is finished")

    def on_expire(self, now: float) -> Step[TrainingState]:
        return self._ended(Code.TIMEOUT, f"no word from {self._server} while it was to {self.state.value}")

    def on_drop(self, now: float) -> Step[TrainingState]:
        return self._ended(Code.LEFT, f"the link to {self._server} is lost and did not come back in {self._grace:g} s")

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

    def _read(self, frames: Sequence[Frame]) -> Packet:
        """The packet, with the session taken from the server's first answer."""
        if self.state is TrainingState.AWAIT_WELCOME:
            session = decode(frames).envelope.session
            fresh = Link(self.name, self._server, session, self.traffic)
            packet = fresh.packet(frames)
            self._link = fresh
        else:
            packet = self._link.packet(frames)
        kind, round = packet.kind, packet.envelope.round
        if kind is StartRound and round <= self.round:
            raise RemoteProtocolError(Code.SESSION, f"round {round} is started a second time")
        if kind is not StartRound and round > self.round:
            raise RemoteProtocolError(Code.SESSION, f"{kind.TYPE} of a round that has not begun")
        if kind is not Abort and (round == 0) != (kind in OUTSIDE_ROUNDS):
            raise RemoteProtocolError(Code.SESSION, f"{kind.TYPE} as a message of round {round}")
        return packet

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
            self._model, self._open = bytearray(), False
            self.deadline = now + self._patience

        return Step(TrainingState.AWAIT_ROUND, tuple(outputs), commit)

    def _end(self, error: RemoteProtocolError, now: float) -> Step[TrainingState]:
        """End the session, and say why to the server."""
        ended = self._ended(error.code, f"{error.culprit or self._server}: {error.detail}")
        abort = Abort(code=error.code, detail=error.detail[:DETAIL_LIMIT], culprit=error.culprit or self._server)
        return Step(ended.state, (self._transmit(abort, round=0), *ended.outputs), ended.commit)

    def _ended(self, code: Code | None, detail: str) -> Step[TrainingState]:
        def commit() -> None:
            if self._sum is not None:
                self._sum.forget()
            self._sum = None
            self.deadline = self._lost_until = None

        return Step(TrainingState.ENDED, (Ended(code, detail),), commit)

    def _transmit(self, message: Message, payload: Frame | None = None, *, round: int | None = None) -> Transmit:
        round = self.round if round is None else round
        return Transmit(self._server, self._link.frames(message, round=round, payload=payload), message.PHASE)


def check_model(model: bytearray, expected: bytes) -> None:
    """Refuse a model that is not the announced one, or has numbers that are not finite."""
    if digest(Label.MODEL, model) != expected:
        raise RemoteProtocolError(Code.MODEL, "the model that came is not the one that was announced")
    if not np.isfinite(np.frombuffer(model, "<f4")).all():
        raise RemoteProtocolError(Code.MODEL, "the model has numbers that are not finite")
