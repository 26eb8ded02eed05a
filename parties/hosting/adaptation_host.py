"""The dealer and the model owner, of private inference or of adaptation, each on a host of its own: they serve.

In private inference a dealer persists nothing of a session, and serves until it is stopped. A model owner persists a
secret salt, so that the same model has the same commitment after a restart and data owners go on with it; and what each
data owner has used of its quota.

In double-blind adaptation a dealer also serves the sums of the data owners' shares, until the rounds are over. The last
sum is on its disk before anybody receives it, so that a restarted dealer goes on from there. A model owner makes the
public part of a learning once, with a seed of the first adapters from the operating system, and keeps it: data owners
that come again find the same. The sums that it has revealed are on its disk too. Its shares of a round are not, so that
its restart costs the round that was going on.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import time
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from tacit.models.adapters.federated import Schedule
from tacit.models.file_system import FILES, replace_file
from tacit.models.training import resolve_device
from tacit.parties.adaptation.events import (
    CalibrationStarted,
    LearningOffered,
    MarginReduced,
    NoiseConfigured,
    SumsResumed,
)
from tacit.parties.adaptation.model_owner import TeachingParty, TeachingSettings
from tacit.parties.adaptation.noise import noise_policy
from tacit.parties.adaptation.predicting import PredictingParty, PredictionSettings
from tacit.parties.adaptation.public import PublicLearning
from tacit.parties.adaptation.rehearsed import Lesson, rehearsed_learning
from tacit.parties.adaptation.rounds import (
    RoundsTask,
    SummingDealerSettings,
    configure_rounds,
    deal_and_sum,
    roster_of_sums,
)
from tacit.parties.hosting.folder import OpenedParty, Status, at_work
from tacit.parties.hosting.party_file import DealerFile, ModelOwnerFile, SummingSection, TeachingSection
from tacit.parties.inference.conversation import ReconnectPolicy
from tacit.parties.inference.dealer import DealerParty, DealerSettings
from tacit.parties.inference.events import ModelLoaded
from tacit.parties.inference.model_owner import ModelOwnerParty, ModelOwnerSettings
from tacit.parties.inference.private_model import PrivateModel
from tacit.parties.runs.experiment import Experiment, FederationSection
from tacit.parties.runs.served import ServedModel, read_served
from tacit.parties.session.event_log import EventFile, EventLog, Tell
from tacit.parties.session.events import ConnectionFailed
from tacit.parties.session.server import ServerSettings
from tacit.protocol.adaptation.schedule import sum_words
from tacit.protocol.adaptation.sums import OpeningPolicy
from tacit.protocol.core.machine import Ended
from tacit.protocol.core.primitives import KEY_BYTES
from tacit.protocol.inference.quota import Quota


async def run_dealer(party: OpenedParty[DealerFile], *, show: Tell) -> None:
    """Serve, for ever. ValueError for a roster with another dealer as well; EndpointError if it cannot listen."""
    file, roster = party.file, party.roster
    # That there is one alone.
    status = Status(name=roster.dealer.name, role=file.role, process=os.getpid(), since=time.time())
    with at_work(party, status, show) as tell, EventFile(party.folder.events(party.name), party.name) as log:
        settings = DealerSettings(address=file.bind, keys=party.keys, roster=roster, patience=file.answer)
        await DealerParty(settings, EventLog(log, tell)).run()


async def run_model_owner(party: OpenedParty[ModelOwnerFile], *, show: Tell) -> None:
    """Serve, for ever. ValueError or OSError for a model that cannot be used, or a roster without a dealer;
    EndpointError if it cannot listen, or the dealer cannot be reached."""
    file, device = party.file, resolve_device(party.file.device)
    status = Status(name=party.name, role=file.role, process=os.getpid(), since=time.time())
    with at_work(party, status, show) as tell, EventFile(party.folder.events(party.name), party.name) as log:
        event_log = EventLog(log, tell)
        model = read_served(Path(file.model)).prepared(salt=kept_salt(party.folder.salt))
        event_log.write(ModelLoaded(weights=model.commitment.hex()))
        settings = ModelOwnerSettings(
            **model_owner_settings(party, event_log),
            most_images=file.most_images,
            most_batch=file.most_batch,
            device=device,
        )
        await ModelOwnerParty(settings, model, event_log).run()


def model_owner_settings(party: OpenedParty[ModelOwnerFile], event_log: EventLog) -> dict[str, Any]:
    """Those that follow from the file of the party, whatever data owners come for. ValueError for no dealer."""
    file, roster = party.file, party.roster
    dealer = roster.dealer.name
    return {
        "address": file.bind,
        "dealer_address": file.dealer,
        "keys": party.keys,
        "roster": roster,
        "results": file.results,
        "quota": Quota(images=file.policy.images_a_day, refused=file.policy.refused_a_day),
        "ledger": party.folder.ledger,
        "patience": file.answer,
        "reconnect": ReconnectPolicy(
            seconds=file.patience,
            on_failure=lambda reason: event_log.write(ConnectionFailed(peer=dealer, reason=reason)),
        ),
    }


def kept_salt(path: Path) -> bytes:
    """The salt of the commitment, which is made when it is first needed. ValueError for a file that holds none."""
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


class KeptSum(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The last sum, on a dealer's disk."""

    round: Annotated[int, Meta(ge=1, le=2**31)]
    words: bytes
    """What the next round begins with."""


async def run_learning_dealer(party: OpenedParty[DealerFile], own: SummingSection, *, show: Tell) -> Ended:
    """Serve until the rounds are over, and how they ended.

    ValueError for a roster that does not do, and a sum on the disk that is none; EndpointError if it cannot listen.
    """
    file, roster, kept = party.file, party.roster, party.folder.sum
    status = Status(
        name=roster.dealer.name,
        role=file.role,
        process=os.getpid(),
        since=time.time(),
        rounds=own.rounds,
        learning=True,
    )
    with at_work(party, status, show) as tell, EventFile(party.folder.events(party.name), party.name) as log:
        last = _kept_sum(kept)
        completed = 0 if last is None else last.round
        if completed:
            tell(SumsResumed(round=completed))
        settings = SummingDealerSettings(
            dealing=DealerSettings(address=file.bind, keys=party.keys, roster=roster, patience=file.answer),
            summing=_summing(party, own, completed=completed),
            last=None if last is None else last.words,
        )

        def keep(round: int, words: bytes) -> None:
            if round <= own.rounds:
                replace_file(kept, msgspec.msgpack.encode(KeptSum(round=round, words=words)))

        return await deal_and_sum(settings, dealt=EventLog(log, tell), summed=EventLog(log, tell), on_sum=keep)


def _summing(party: OpenedParty[DealerFile], own: SummingSection, *, completed: int) -> ServerSettings:
    """Of the sums. ValueError if the roster has too few data owners, or other groups than the sums can have."""
    roster = roster_of_sums(party.roster)
    owners, needed = len(roster.clients), own.smallest_cohort + own.colluders
    if owners < needed:
        raise ValueError(
            f"the roster has {owners} data owners: sums of {own.smallest_cohort} beside {own.colluders} who may "
            f"collude need {needed}; add the others, or lower adaptation.smallest_cohort"
        )
    terms = Experiment(
        federation=FederationSection(clients=owners, rounds=own.rounds),
        aggregation=own.aggregation,
        deadlines=own.deadlines,
    ).terms()
    terms.check_dropouts(grouped=bool(roster.groups))
    terms.check_groups(roster.group_sizes, owners, needed)
    return ServerSettings(
        address=own.sums,
        keys=party.keys,
        roster=roster,
        configuration=configure_rounds(terms, RoundsTask(words=own.words, rounds=own.rounds)),
        # One round more, in which nobody learns, tells the last sum.
        rounds=own.rounds + 1 - completed,
        completed=completed,
        smallest_cohort=needed,
        join_seconds=own.deadlines.join,
        regather_seconds=own.deadlines.join,
        grace=own.deadlines.grace,
    )


def _kept_sum(path: Path) -> KeptSum | None:
    try:
        return msgspec.msgpack.decode(FILES.read(path), type=KeptSum)
    except FileNotFoundError:
        return None
    except msgspec.MsgspecError as error:
        raise ValueError(f"{path} holds no sum ({error}): restore it, or remove it to begin with round 1") from None


async def run_teacher(party: OpenedParty[ModelOwnerFile], own: TeachingSection, *, show: Tell) -> None:
    """Serve data owners that learn, or ask with what was learned, for ever.

    Raises as run_model_owner, and ValueError for a learning or openings on the disk that are none, or of another
    learning than the party's file has, or that are needed and missing; FloatingPointError for a learning rate that is
    too large."""
    file, folder = party.file, party.folder
    learns = own.purpose == "learning"
    status = Status(
        name=party.name,
        role=file.role,
        process=os.getpid(),
        since=time.time(),
        rounds=own.rounds if learns else 0,
        learning=learns,
    )
    with at_work(party, status, show) as tell, EventFile(folder.events(party.name), party.name) as log:
        event_log = EventLog(log, tell)
        served = read_served(Path(file.model))
        model = served.prepared(salt=kept_salt(folder.salt))
        event_log.write(ModelLoaded(weights=model.commitment.hex()))
        learning = await asyncio.to_thread(_learning, folder.learning, served, model, own, event_log)
        common = {
            **model_owner_settings(party, event_log),
            "most_batch": own.batch,
            "device": resolve_device(file.device),
            "learning": learning,
        }
        serving: ModelOwnerParty
        if learns:
            words = sum_words(learning.public.sizes, learning.learning)
            event_log.write(LearningOffered(words=words, rounds=own.rounds, classes=learning.classes))
            if own.noise:
                event_log.write(
                    NoiseConfigured(deviation=own.noise, largest_epsilon=own.largest_epsilon, delta=own.delta)
                )
            teaching = TeachingSettings(
                **common,
                most_images=own.batch * own.batches * own.rounds,
                least_count=own.least_count,
                noise=noise_policy(own),
                opening=OpeningPolicy(
                    rounds=own.most_rounds or own.rounds,
                    owners=own.owners or len(party.roster.clients),
                    smallest_cohort=own.smallest_cohort,
                    colluders=own.colluders,
                ),
                openings=folder.openings,
            )
            serving = TeachingParty(teaching, model, event_log)
        else:
            serving = PredictingParty(PredictionSettings(**common, most_images=file.most_images), model, event_log)
        await serving.run()


def _learning(
    path: Path, served: ServedModel, model: PrivateModel, own: TeachingSection, event_log: EventLog
) -> PublicLearning:
    """What is kept of the learning, or what a rehearsal makes of it, which is kept then."""
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
    learning, margin = rehearsed_learning(model, served.transformer, *served.rehearsed(), lesson, margin=own.margin)
    if margin < own.margin:
        event_log.write(MarginReduced(margin=margin))
    replace_file(path, msgspec.msgpack.encode(learning))
    return learning


def read_learning(path: Path) -> PublicLearning | None:
    """What is kept of a learning, if anything is. ValueError for a file that holds none."""
    try:
        return msgspec.msgpack.decode(FILES.read(path), type=PublicLearning)
    except FileNotFoundError:
        return None
    except msgspec.MsgspecError as error:
        raise ValueError(
            f"{path} does not hold what is public of a learning ({error}): restore it, or name another `directory`"
        ) from None
