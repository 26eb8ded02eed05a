"""The data owner of double-blind adaptation on its own host: it trains beside a model that it does not receive.

It compares the model owner's terms with its own file, and persists the training's public parameters: from then on no
others are accepted. The common adapters are persisted after every round. After a crash, the same command resumes with
the round after the last one that it received.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import ClassVar, Final

import msgspec
import torch

from tacit.models.adapters.parallel import AdapterParameters
from tacit.models.data import normalise, read
from tacit.models.datasets.samples import Source
from tacit.models.file_system import FILES, replace_file
from tacit.models.training import resolve_device
from tacit.parties.adaptation import standing
from tacit.parties.adaptation.data_owner import (
    RETRYABLE,
    LearnerSettings,
    PrivateLearner,
    RoundLearned,
    SharesTask,
)
from tacit.parties.adaptation.events import AdaptersUpdated, BatchEnded, ImagesKept, LearningSessionLost
from tacit.parties.adaptation.predicting import PredictionSession
from tacit.parties.adaptation.public import PublicLearning, learning_of
from tacit.parties.adaptation.rounds import SCHEME, RoundsTask, roster_of_sums
from tacit.parties.adaptation.standing import Common
from tacit.parties.hosting.folder import OpenedParty, PartyFolder, read_state
from tacit.parties.hosting.party_file import DataOwnerFile, LearningSection
from tacit.parties.hosting.running import PartyOutcome
from tacit.parties.inference.conversation import (
    AHEAD,
    CONNECT_SECONDS,
    FOR_OWNER,
    RECONNECT_SECONDS,
    InferenceError,
    ReconnectPolicy,
)
from tacit.parties.inference.data_owner import DataOwnerSettings, conversing
from tacit.parties.inference.events import ImagesRead, ModelAgreed
from tacit.parties.inference.ledger import Ledger
from tacit.parties.links.client_endpoint import AWAITED
from tacit.parties.links.tokens import TokenFile
from tacit.parties.runs.adaptation import LearnedAdapters, LearnedRound
from tacit.parties.runs.state import RunState
from tacit.parties.session.client import ClientParty, ClientSettings
from tacit.parties.session.event_log import EventFile, EventLog, Tell
from tacit.parties.session.event_log import read as read_events
from tacit.parties.session.events import ConnectionFailed, InputNoted
from tacit.parties.session.journal import JournalFile
from tacit.parties.session.shell import Hooks
from tacit.protocol.adaptation.data_owner import LearningDataOwner, adaptation_terms
from tacit.protocol.adaptation.schedule import sum_words
from tacit.protocol.core.errors import Code, RemoteProtocolError
from tacit.protocol.core.machine import Ended
from tacit.protocol.inference.data_owner import InferencePolicy, InferenceRequest
from tacit.protocol.inference.messages import Terms
from tacit.protocol.inference.results import Agreed
from tacit.protocol.sum.policy import Policy


class _TermsRequest(LearningDataOwner):
    KEEPS: ClassVar[bool] = False


class KeptLearning(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    terms: bytes
    weights: bytes
    learning: PublicLearning


def read_kept(path: Path) -> KeptLearning | None:
    """Read the training that a data owner agreed to; None before that. ValueError for other content."""
    return read_state(path, KeptLearning, remedy="restore it, or name another `directory`")


def kept_adapters(path: Path, learning: PublicLearning) -> Common | None:
    """The last common adapters, if there are any. ValueError for a file of another training."""
    try:
        return standing.load(path, learning.initial())
    except FileNotFoundError:
        return None


@dataclass(frozen=True, repr=False)
class Learned:
    kept: KeptLearning
    parameters: AdapterParameters
    round: int
    _path: Path

    @property
    def weights(self) -> str:
        return self.kept.weights.hex()

    @property
    def classes(self) -> tuple[str, ...]:
        return self.kept.learning.names

    def session(self) -> PredictionSession:
        return PredictionSession(self.parameters)

    def named(self, images: str) -> str:
        """Derive the file name for predictions with these adapters from that of the images: 32 hexadecimal digits."""
        return sha256(images.encode() + FILES.read(self._path)).hexdigest()[:32]

    def check(self, terms: Terms) -> None:
        """ValueError if the terms belong to another training."""
        offered = learning_of(adaptation_terms(terms))
        if offered.names != self.classes:
            raise ValueError(
                f"the model owner has the classes {', '.join(offered.names)}, and here are {', '.join(self.classes)}; "
                f"{self.misfit}"
            )
        if offered != self.kept.learning:
            raise ValueError(f"the model owner goes by another learning; {self.misfit}")

    @property
    def misfit(self) -> str:
        """Error text and remedy for a model owner that offers another training."""
        return f"{self._path} is of another learning: name the `directory` in which this one was learned"


def read_learned(folder: PartyFolder) -> Learned:
    """Read the training result in a data owner's folder. ValueError if it is missing or inconsistent."""
    kept = read_kept(folder.learning)
    found = None if kept is None else kept_adapters(folder.adapters, kept.learning)
    if kept is None or found is None:
        missing = folder.learning if kept is None else folder.adapters
        raise ValueError(f"{missing} is missing: nothing was learned here; name the `directory` of who has learned")
    return Learned(kept, found.parameters, found.round, folder.adapters)


_PASSING: Final = frozenset({Code.LEFT, Code.TIMEOUT})
"""Ends of a session of sums after which a dealer may come back."""


class LearnerHooks(Hooks):
    """Points at which a simulation, an audit or a benchmark changes a data owner; the defaults are those of hosts."""

    ahead: int | None = AHEAD
    seed: tuple[int, int] | None = None

    def source(self, file: DataOwnerFile) -> Source:
        """Find the training images. ValueError or OSError, naming what is wrong with them."""
        return own_source(file)

    def accepts(self, own: LearningSection) -> Policy:
        return Policy(schemes=(SCHEME,), smallest_cohort=own.smallest_cohort + own.colluders, roster_changes=())

    def learner(self, usual: Callable[..., PrivateLearner]) -> Callable[..., PrivateLearner]:
        """Factory of the learner, from settings, images and labels; usual: that of hosts."""
        return usual


async def learn(
    party: OpenedParty[DataOwnerFile], own: LearningSection, tell: Tell, hooks: LearnerHooks
) -> PartyOutcome:
    """Train until the rounds are over. The folder must be held. Raises as `run_data_owner`, and InferenceError."""
    file, folder = party.file, party.folder
    source = hooks.source(file)
    with EventFile(folder.events(party.name), party.name) as log:
        event_log = EventLog(log, tell)
        kept = read_kept(folder.learning)
        if kept is not None:
            check_own(file, own, source, kept.learning)
        last = None if kept is None else kept_adapters(folder.adapters, kept.learning)
        learned = 0 if last is None else last.round
        event_log.write(ImagesRead(images=len(source.train.images), learned=learned))
        for note in source.notes:
            event_log.write(InputNoted(detail=note))
        ended = Ended(None, "all rounds were learned before")
        if kept is None or learned < own.rounds:
            learning = _TrainingRun(party, own, source, log, tell, hooks)
            kept = await learning.agree(kept)
            ended = await learning.follow(kept, last)
    return PartyOutcome(ended, learned_adapters(folder.events(party.name), folder.adapters, kept, own.rounds))


def own_source(file: DataOwnerFile) -> Source:
    """Labelled images of a data owner that trains. ValueError or OSError if they are unreadable or too few."""
    assert file.data is not None
    try:
        source = read(file.data)
    except FileNotFoundError as error:
        raise ValueError(str(error)) from None
    if (count := len(source.train.images)) < file.batch:
        raise ValueError(
            f"data.source {file.data.source!r} holds {count} training images, and a batch takes {file.batch}: give it "
            "more, or have all parties lower the batch"
        )
    return source


def check_own(file: DataOwnerFile, own: LearningSection, source: Source, learning: PublicLearning) -> None:
    """ValueError, naming the key, if a data owner's file contradicts the model owner's terms."""
    for key, value, said in (
        ("batch", file.batch, learning.batch),
        ("adaptation.batches", own.batches, learning.batches),
        ("adaptation.rounds", own.rounds, learning.schedule.rounds),
    ):
        if value != said:
            raise ValueError(f"{key} = {value}: the model owner has {said}; all parties need the same")
    if source.class_names != learning.names:
        raise ValueError(
            f"data.classes: the images here have the classes {', '.join(source.class_names)}; what is learned are "
            f"{', '.join(learning.names) or 'classes that the model owner does not name'}, in this order: name these"
        )


def owner_settings(
    party: OpenedParty[DataOwnerFile], policy: InferencePolicy, event_log: EventLog, hooks: LearnerHooks
) -> DataOwnerSettings:
    """Return the settings of a data owner towards the model owner. ValueError for a missing device or an unreadable
    ledger."""
    file = party.file
    return DataOwnerSettings(
        model_owner_address=file.model_owner,
        dealer_address=file.dealer,
        keys=party.keys,
        roster=party.roster,
        policy=policy,
        ledger=Ledger(party.folder.ledger),
        patience=file.answer,
        reconnect=ReconnectPolicy(
            seconds=file.patience, on_failure=lambda reason: event_log.write(ConnectionFailed(reason=reason))
        ),
        device=resolve_device(file.device),
        tokens=TokenFile(party.folder.tokens),
        on_copy=lambda error: event_log.copy_found(error, party.name),
        ahead=hooks.ahead,
        hooks=hooks,
    )


@dataclass(frozen=True)
class _TrainingRun:
    party: OpenedParty[DataOwnerFile]
    own: LearningSection
    source: Source
    log: EventFile
    tell: Tell
    hooks: LearnerHooks

    def _owner(self, weights: bytes | None) -> DataOwnerSettings:
        file = self.party.file
        named = bytes.fromhex(file.policy.weights) or None
        if weights is not None and named not in (None, weights):
            raise ValueError(
                f"policy.weights: {self.party.folder.learning} is of a learning beside another model; for another one "
                "name another `directory`"
            )
        policy = file.policy.accepts(weights or named)
        return owner_settings(self.party, policy, EventLog(self.log, self.tell), self.hooks)

    async def agree(self, kept: KeptLearning | None) -> KeptLearning:
        """Return the persisted training, or agree to the model owner's offer and persist it. ValueError for an
        unsuitable offer; InferenceError where sessions with it end, for longer than the party's patience."""
        if kept is not None:
            return kept
        since = time.monotonic()
        while True:
            try:
                agreed, learning = await self._offer()
                break
            except InferenceError as error:
                if error.code not in RETRYABLE or time.monotonic() - since > self.party.file.patience:
                    raise
                EventLog(self.log, self.tell).write(LearningSessionLost(code=error.code.name, detail=str(error)))
            await asyncio.sleep(RECONNECT_SECONDS)
        check_own(self.party.file, self.own, self.source, learning)
        kept = KeptLearning(terms=agreed.digest, weights=agreed.terms.weights, learning=learning)
        replace_file(self.party.folder.learning, msgspec.msgpack.encode(kept))
        return kept

    async def _offer(self) -> tuple[Agreed, PublicLearning]:
        """Ask the model owner for its terms, in a session that ends with them."""
        file, own = self.party.file, self.own
        settings = self._owner(None)
        asking = _TermsRequest(
            self.party.name,
            self.party.roster,
            request=InferenceRequest(
                images=min(len(self.source.train.images), file.batch * own.batches * own.rounds), batch=file.batch
            ),
            policy=settings.policy,
            patience=FOR_OWNER * file.answer,
            spent=settings.spent,
            purpose="learning",
            smallest_cohort=own.smallest_cohort,
            count=len(self.source.train.images) if own.weights == "counts" else 0,
            entropy=os.urandom,
        )
        async with conversing(settings, asking) as conversation:
            conversation.hear(asking.start(conversation.now()))
            agreed = await conversation.expect(Agreed)
            try:
                learning = learning_of(adaptation_terms(agreed.terms))
            except ValueError as error:
                conversation.refuse(f"what it offers is not usable: {error}")
            over = RemoteProtocolError(Code.LEFT, "it has read the terms, and comes back", culprit=self.party.name)
            conversation.hear(asking.give_up(over, conversation.now()))
        return agreed, learning

    async def follow(self, kept: KeptLearning, last: Common | None) -> Ended:
        """Take part in one session of sums after the other, until one ends for good."""
        file, own, folder, learning = self.party.file, self.own, self.party.folder, kept.learning
        event_log = EventLog(self.log, self.tell)
        event_log.write(ModelAgreed(weights=kept.weights.hex()))
        images, labels = await asyncio.to_thread(prepared, self.source, learning)

        def keep(result: RoundLearned) -> None:
            standing.save(folder.adapters, result.parameters, round=result.round, refused=result.refused)

        settings = LearnerSettings(
            owner=self._owner(kept.weights),
            batch=file.batch,
            batches=own.batches,
            rounds=own.rounds,
            weights=own.weights,
            smallest_cohort=own.smallest_cohort,
            seed=self.hooks.seed,
        )
        learner = self.hooks.learner(PrivateLearner)(
            settings, images, labels, event_log, last=last, terms=kept.terms, kept=folder.kept, on_round=keep
        )
        expected = RoundsTask(words=sum_words(learning.public.sizes, learning.learning), rounds=own.rounds)
        since, said = time.monotonic(), ""
        try:
            while True:
                try:
                    tasks = {SCHEME: SharesTask(learner, expected=expected)}
                    ended = await ClientParty(self._client(), tasks, EventLog(self.log, self.tell)).run()
                    if ended.code not in _PASSING:
                        return ended
                    since = time.monotonic()
                except AWAITED as error:
                    if time.monotonic() - since > file.patience:
                        raise
                    if str(error) != said:
                        said = str(error)
                        event_log.write(ConnectionFailed(reason=said))
                await asyncio.sleep(RECONNECT_SECONDS)
        finally:
            await asyncio.shield(learner.close())

    def _client(self) -> ClientSettings:
        party, file, own = self.party, self.party.file, self.own
        return ClientSettings(
            address=own.sums,
            keys=party.keys,
            roster=roster_of_sums(party.roster),
            policy=self.hooks.accepts(own),
            journal=JournalFile(party.folder.journal(party.name)),
            patience=file.patience,
            grace=own.grace,
            connect_seconds=min(CONNECT_SECONDS, file.patience),
            tokens=TokenFile(party.folder.sum_tokens),
        )


def prepared(source: Source, learning: PublicLearning) -> tuple[torch.Tensor, torch.Tensor]:
    """Training images in the model's input format, float32 [N, C, S, S], and their labels, int64 [N]. ValueError for
    one that cannot be decoded or has other channels, and for a model owner that does not state its model's input."""
    interface = learning.public.interface
    if interface is None:
        raise ValueError("the model owner does not say what its model takes: ask it to use `tacit model-owner`")
    source = source.read_as(interface.scaling, interface.white)
    data = normalise(source, image_size=learning.public.sizes.side, mean=interface.mean, std=interface.std)
    return data.x_train, data.y_train


def learned_adapters(events: Path, adapters: Path, kept: KeptLearning, planned: int) -> LearnedAdapters:
    """Result after the last round, from the events of all processes of this party."""
    state = RunState()
    for event in read_events(events):
        state.take(event)
    parties = state.parties.values()
    batches = [batch for party in parties for batch in party.batches]
    passes: list[BatchEnded | ImagesKept] = [*batches, *(kept for party in parties for kept in party.kept)]
    last = state.learned.get(planned)
    lost = {number: why for party in parties for number, why in party.missed.items() if number <= planned}
    lost |= state.unlearned
    return LearnedAdapters(
        adapters=str(adapters),
        round=max(state.learned, default=0),
        rounds=[
            _learned_round(number, state.learned[number])
            if number in state.learned
            else _lost_round(number, lost[number])
            for number in sorted({*lost, *state.learned})
        ],
        planned=planned,
        classes=list(kept.learning.names),
        weights=kept.weights.hex(),
        kept_images=max((kept.images for party in parties for kept in party.kept), default=0),
        batches=len(batches),
        refused_batches=None if last is None else last.refused_batches,
        data_owner_bytes=sum(event.sent for event in passes),
        model_owner_bytes=sum(event.received for event in passes),
        dealer_bytes=sum(event.preprocessing_bytes for event in passes),
    )


def _learned_round(number: int, learned: AdaptersUpdated) -> LearnedRound:
    return LearnedRound(
        round=number,
        lost=None,
        owners=learned.owners,
        images=learned.images,
        train_loss=learned.train_loss,
        train_accuracy=learned.train_accuracy,
    )


def _lost_round(number: int, why: str) -> LearnedRound:
    return LearnedRound(round=number, lost=why, owners=None, images=None, train_loss=None, train_accuracy=None)
