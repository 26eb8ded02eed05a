"""The model owner on its own host: data owners request inference, train adapters, or predict with them.

It persists a secret salt, so that the same model has the same commitment after a restart; each data owner's quota; the
public part of a training; and the revealed sums. Its shares of a round are not persisted: a restart costs the round in
progress.
"""

from __future__ import annotations

import asyncio
import os
import secrets
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any

import msgspec

from tacit.models.adapters.federated import Schedule
from tacit.models.file_system import FILES, replace_file
from tacit.models.training import resolve_device
from tacit.parties.adaptation.events import CalibrationStarted, LearningOffered, MarginReduced, NoiseConfigured
from tacit.parties.adaptation.model_owner import TeachingParty, TeachingSettings
from tacit.parties.adaptation.noise import noise_policy
from tacit.parties.adaptation.predicting import PredictingParty, PredictionSettings
from tacit.parties.adaptation.public import PublicLearning
from tacit.parties.adaptation.rehearsed import Lesson, rehearsed_learning
from tacit.parties.hosting.folder import OpenedParty, at_work, read_state
from tacit.parties.hosting.party_file import ModelOwnerFile, TeachingSection
from tacit.parties.hosting.protocols import PROTOCOLS
from tacit.parties.hosting.running import PartyOutcome
from tacit.parties.inference.conversation import AHEAD, ReconnectPolicy
from tacit.parties.inference.events import ModelLoaded
from tacit.parties.inference.model_owner import ModelOwnerParty, ModelOwnerSettings
from tacit.parties.inference.private_model import OwnedModel, PrivateModel
from tacit.parties.links.tokens import TokenFile
from tacit.parties.runs.served import Checkpoint, ServedModel, checkpoint_of_run, read_served
from tacit.parties.session.event_log import EventFile, EventLog, Tell
from tacit.parties.session.events import ConnectionFailed, SessionEnded
from tacit.parties.session.shell import Hooks
from tacit.protocol.adaptation.schedule import sum_words
from tacit.protocol.adaptation.sums import OpeningPolicy
from tacit.protocol.core.machine import Ended
from tacit.protocol.core.primitives import KEY_BYTES
from tacit.protocol.inference.audit import audited_of
from tacit.protocol.inference.quota import Quota


def read_model(file: ModelOwnerFile) -> ServedModel:
    """Read the model that a file names. Raises as read_served(), checkpoint_of_run() and Checkpoint.read() do."""
    model, calibration = Path(file.model), Path(file.calibration)
    if not file.calibration:
        return read_served(model)
    if model.is_dir() and not file.architecture:
        model = checkpoint_of_run(model, calibration).path
    checkpoint = Checkpoint(
        architecture=file.architecture,
        path=model,
        calibration=calibration,
        image_size=file.image_size,
        labelled=file.adaptation is not None,
    )
    return checkpoint.read()


class ModelOwnerHooks(Hooks):
    """Points at which a simulation, an audit or a benchmark changes a model owner; the defaults are those of hosts."""

    ahead: int | None = AHEAD

    def served(self, file: ModelOwnerFile) -> ServedModel:
        """Read the model. ValueError or OSError if it cannot be read."""
        return read_model(file)

    def model(self, usual: Callable[[], OwnedModel]) -> OwnedModel:
        """Prepare the model for private inference; usual: as on hosts. ValueError for an unsupported model."""
        return usual()

    def party(self, usual: Callable[..., ModelOwnerParty]) -> Callable[..., ModelOwnerParty]:
        """Factory of the party, from settings, model and event log; usual: that of hosts."""
        return usual


async def run_model_owner(
    party: OpenedParty[ModelOwnerFile], *, show: Tell, hooks: ModelOwnerHooks | None = None
) -> PartyOutcome:
    """Serve until stopped.

    ValueError or OSError for an unsupported model, or a roster without a dealer; ValueError if the persisted training
    or sums are invalid, missing, or of another training than in the party's file; FloatingPointError for a learning
    rate that is too large; EndpointError if it cannot listen, or the dealer cannot be reached."""
    hooks = hooks or ModelOwnerHooks()
    file, own = party.file, party.file.adaptation
    protocol = PROTOCOLS[file.protocol]
    learns = own is not None and own.purpose == "learning"
    rounds = own.rounds if own is not None and learns else 0
    with (
        at_work(party, show, rounds=rounds, learning=learns) as tell,
        EventFile(party.folder.events(party.name), party.name) as log,
    ):
        event_log = EventLog(log, tell)
        common = _settings(party, hooks, event_log)
        served = cache(partial(hooks.served, file))
        salt = kept_salt(party.folder.salt)
        model = hooks.model(lambda: protocol.prepared(served(), salt))
        event_log.write(ModelLoaded(weights=model.commitment.hex()))
        settings: ModelOwnerSettings
        usual: type[ModelOwnerParty]
        if own is None:
            settings = ModelOwnerSettings(**common, most_images=file.most_images, most_batch=file.most_batch)
            usual = protocol.party()
        else:
            # No other protocol has [adaptation].
            assert isinstance(model, PrivateModel)
            learning = await asyncio.to_thread(_learning, party.folder.learning, served, model, own, event_log)
            common |= {"most_batch": own.batch, "learning": learning}
            if learns:
                settings, usual = _teaching(party, own, learning, common, event_log), TeachingParty
            else:
                settings, usual = PredictionSettings(**common, most_images=file.most_images), PredictingParty
        try:
            await hooks.party(usual)(settings, model, event_log).run()
        except asyncio.CancelledError:
            log.write(SessionEnded(code=None, detail="it was stopped"))
            raise
    return PartyOutcome(Ended(None, "it serves no more"))


def _settings(party: OpenedParty[ModelOwnerFile], hooks: ModelOwnerHooks, event_log: EventLog) -> dict[str, Any]:
    """Settings from the party's file that all purposes share. ValueError for a roster without a dealer, and a missing
    device."""
    file, roster = party.file, party.roster
    dealer = roster.dealer.name
    return {
        "address": file.bind,
        "dealer_address": file.dealer,
        "keys": party.keys,
        "roster": roster,
        "results": file.results,
        "quota": Quota(used=file.policy.images_a_day, refused=file.policy.refused_a_day),
        "audited": audited_of(file.policy.audit_fraction),
        "ledger": party.folder.ledger,
        "patience": file.answer,
        "reconnect": ReconnectPolicy(
            seconds=file.patience,
            on_failure=lambda reason: event_log.write(ConnectionFailed(peer=dealer, reason=reason)),
        ),
        "device": resolve_device(file.device),
        "tokens": TokenFile(party.folder.tokens),
        "ahead": hooks.ahead,
        "hooks": hooks,
    }


def _teaching(
    party: OpenedParty[ModelOwnerFile],
    own: TeachingSection,
    learning: PublicLearning,
    common: dict[str, Any],
    event_log: EventLog,
) -> TeachingSettings:
    words = sum_words(learning.public.sizes, learning.learning)
    event_log.write(LearningOffered(words=words, rounds=own.rounds, classes=learning.classes))
    if own.noise:
        event_log.write(NoiseConfigured(deviation=own.noise, largest_epsilon=own.largest_epsilon, delta=own.delta))
    return TeachingSettings(
        **common,
        most_images=party.file.most_images,
        least_count=own.least_count,
        noise=noise_policy(own),
        opening=OpeningPolicy(
            rounds=own.most_rounds or own.rounds,
            owners=own.owners or len(party.roster.clients),
            smallest_cohort=own.smallest_cohort,
            colluders=own.colluders,
            steps=own.rounds * learning.batches,
        ),
        openings=party.folder.openings,
        kept=party.folder.kept,
    )


def kept_salt(path: Path) -> bytes:
    """The salt of the commitment, created at first use. ValueError for a file without one."""
    try:
        salt = FILES.read(path)
    except FileNotFoundError:
        salt = os.urandom(KEY_BYTES)
        replace_file(path, salt)
    if len(salt) != KEY_BYTES:
        raise ValueError(
            f"{path} holds no salt: remove it; data owners are then offered what looks like another model to them"
        )
    return salt


def _learning(
    path: Path, served: Callable[[], ServedModel], model: PrivateModel, own: TeachingSection, event_log: EventLog
) -> PublicLearning:
    kept = read_learning(path)
    schedule = Schedule(
        rounds=own.rounds, learning_rate=own.learning_rate, decay=own.decay, decay_rounds=own.decay_rounds
    )
    lesson = Lesson(
        adapter=own.adapter,
        schedule=schedule,
        batch=own.batch,
        batches=own.batches,
        classes=len(own.classes),
        seed=secrets.randbits(63) if kept is None else kept.seed,
        names=own.classes,
    )
    if kept is not None:
        if kept.public != model.public or any(getattr(kept, name) != value for name, value in vars(lesson).items()):
            raise ValueError(
                f"{path} is of another model or learning than the file of this party has: for another one name another "
                "`directory`, or correct the file"
            )
        return kept
    if own.purpose == "prediction":
        raise ValueError(f"{path} is missing: nobody has learned here; name the `directory` of the learning")
    event_log.write(CalibrationStarted())
    found = served()
    learning, margin = rehearsed_learning(model, found.transformer, *found.rehearsed(), lesson, margin=own.margin)
    if margin < own.margin:
        event_log.write(MarginReduced(margin=margin))
    replace_file(path, msgspec.msgpack.encode(learning))
    return learning


def read_learning(path: Path) -> PublicLearning | None:
    """Read the public part of a training; None before it is made. ValueError for other content."""
    return read_state(path, PublicLearning, remedy="restore it, or name another `directory`")
