"""The processes of an adaptation on one machine (dealer, model owner, a data owner each), their settings and folder.

experiment.toml            the experiment as it was run
backbone/                  the model owner's model, where it was trained for this run: a run of `tacit simulate`
learning.msgpack           what is public of the learning: scales, bounds and schedule
adapters/ROUND.safetensors the common adapters and head after that round
owners/NAME.safetensors    the last ones, as each data owner has them
judged.json                what the adapters of every round were judged by, from before the first one on
summary.json, report.html, events/, journal/, logs/   as in a run of `tacit simulate`
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import msgspec
import torch

from tacit.parties.adaptation import standing
from tacit.parties.adaptation.data_owner import LearnerSettings, RoundLearned, SharesTask
from tacit.parties.adaptation.model_owner import TeachingSettings
from tacit.parties.adaptation.noise import noise_policy
from tacit.parties.adaptation.public import PublicLearning
from tacit.parties.adaptation.rounds import (
    SCHEME,
    RoundsTask,
    SummingDealerSettings,
    configure_rounds,
    deal_and_sum,
    roster_of_sums,
)
from tacit.parties.hosting.server import describe
from tacit.parties.inference.data_owner import DataOwnerSettings
from tacit.parties.inference.dealer import DealerSettings
from tacit.parties.inference.private_model import PrivateModel
from tacit.parties.links.keys import PartyKeys
from tacit.parties.runs.adaptation import AdaptationExperiment
from tacit.parties.runs.directory import RunDirectory, Seed, command_line
from tacit.parties.runs.events import InvocationRecorded
from tacit.parties.session.client import ClientParty, ClientSettings
from tacit.parties.session.event_log import EventFile, EventLog, read
from tacit.parties.session.events import ListeningStarted, SessionEnded
from tacit.parties.session.journal import JournalFile
from tacit.parties.session.server import ServerSettings
from tacit.parties.session.shell import Hooks
from tacit.protocol.adaptation.schedule import sum_words
from tacit.protocol.adaptation.sums import OpeningPolicy
from tacit.protocol.core.events import Event
from tacit.protocol.core.roster import Roster
from tacit.protocol.sum.policy import Policy
from tacit.simulate.adaptation.recording import OwnerRecording
from tacit.simulate.adaptation.setting import Labelled
from tacit.simulate.federation.child import Control
from tacit.simulate.federation.roles import tell
from tacit.simulate.insecure.revealed_outputs import forget
from tacit.simulate.insecure.revealing_parties import Revealing, learner, teacher

DEALER: Final = "dealer"
MODEL_OWNER: Final = "model-owner"
LISTEN: Final = "tcp://127.0.0.1:*"


def owner_names(count: int) -> tuple[str, ...]:
    """Of so many data owners."""
    return tuple(f"data-owner-{number}" for number in range(1, count + 1))


@dataclass(frozen=True)
class Folder:
    """Of a run."""

    path: Path

    @property
    def run(self) -> RunDirectory:
        """What it has in common with other runs."""
        return RunDirectory(self.path)

    @property
    def learning(self) -> Path:
        """What is public of the learning."""
        return self.path / "learning.msgpack"

    @property
    def judged(self) -> Path:
        """Evaluations of the adapters, and what else is known beside the event logs while the run goes on."""
        return self.path / "judged.json"

    def events(self, party: str) -> list[Event]:
        """Events that a party has logged so far. EventLogError for a log that cannot be read."""
        path = self.run.events(party)
        return list(read(path)) if path.exists() else []

    def adapters(self, round: int) -> Path:
        """The common ones after this round."""
        return self.path / "adapters" / f"{round}.safetensors"

    def of_owner(self, name: str) -> Path:
        """The last ones that a data owner has."""
        return self.path / "owners" / f"{name}.safetensors"


@dataclass(frozen=True)
class Recorded:
    """Who keeps what it receives and is told, and where; only an audit asks for that."""

    folder: Path
    parties: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Seat:
    """What every party is given."""

    experiment: AdaptationExperiment
    folder: Folder
    keys: PartyKeys
    roster: Roster
    learning: PublicLearning = field(repr=False)
    seed: int
    least_count: int
    """Images of the data owner with the fewest, where they count by that; 0: all count alike."""
    device: str
    recorded: Recorded | None = None
    command: str = field(default_factory=command_line)
    """With which the run was started."""
    started: float = field(default_factory=time.time)
    """When that was, in seconds since 1970."""

    @property
    def origin(self) -> InvocationRecorded:
        """Where the run comes from."""
        drawn = self.experiment.federation.seed is None
        return InvocationRecorded.now(
            self.command,
            started=self.started,
            device=torch.cuda.get_device_name(self.device) if self.device.startswith("cuda") else self.device,
            seed=Seed(value=self.seed, drawn=drawn, repeats="everything but keys"),
        )

    def recording(self) -> OwnerRecording | None:
        """What keeps what this party receives, in an audit."""
        recorded, name = self.recorded, self.keys.name
        return OwnerRecording(recorded.folder, name) if recorded and name in recorded.parties else None

    @property
    def revealing(self) -> Revealing:
        """What outputs of blocks the owners reveal."""
        return Revealing(self.experiment.adaptation.reveal, self.experiment.adaptation.selection)

    @property
    def _common(self) -> dict[str, Any]:
        return {"keys": self.keys, "roster": self.roster, "patience": self.experiment.deadlines.phase}

    def dealer(self) -> SummingDealerSettings:
        """Of the dealer, which serves both on loopback."""
        experiment, learning = self.experiment, self.learning
        rounds = experiment.federation.rounds
        task = RoundsTask(words=sum_words(learning.public.sizes, learning.learning), rounds=rounds)
        summing = ServerSettings(
            address=LISTEN,
            keys=self.keys,
            roster=roster_of_sums(self.roster),
            configuration=configure_rounds(experiment.terms(), task),
            rounds=rounds + 1,
            completed=0,
            smallest_cohort=experiment.adaptation.smallest_cohort + experiment.adaptation.colluders,
            join_seconds=experiment.deadlines.join,
            regather_seconds=experiment.deadlines.join,
            grace=experiment.deadlines.grace,
        )
        return SummingDealerSettings(dealing=DealerSettings(address=LISTEN, **self._common), summing=summing)

    def model_owner(self, dealer_address: str, hooks: Hooks) -> TeachingSettings:
        """Of the model owner."""
        own, experiment = self.experiment.adaptation, self.experiment
        return TeachingSettings(
            address=LISTEN,
            dealer_address=dealer_address,
            most_images=own.batch * own.batches * experiment.federation.rounds,
            most_batch=own.batch,
            device=torch.device(self.device),
            learning=self.learning,
            opening=OpeningPolicy(
                rounds=own.most_rounds or experiment.federation.rounds,
                owners=experiment.clients,
                smallest_cohort=own.smallest_cohort,
                colluders=own.colluders,
            ),
            least_count=self.least_count,
            noise=noise_policy(own),
            hooks=hooks,
            **self._common,
        )

    def learner(self, *, model_owner_address: str, dealer_address: str, hooks: Hooks) -> LearnerSettings:
        """Of a data owner towards the model owner."""
        own = self.experiment.adaptation
        owner = DataOwnerSettings(
            model_owner_address=model_owner_address,
            dealer_address=dealer_address,
            device=torch.device(self.device),
            hooks=hooks,
            **self._common,
        )
        return LearnerSettings(
            owner=owner,
            batch=own.batch,
            batches=own.batches,
            rounds=self.experiment.federation.rounds,
            smallest_cohort=own.smallest_cohort,
            weights=own.weights,
            # So that it draws what it would draw in the clear (models/adapters/federated.py).
            seed=(self.seed, owner_names(self.experiment.clients).index(self.keys.name)),
        )

    def client(self, sums_address: str) -> ClientSettings:
        """Of a data owner towards the dealer's sums."""
        experiment, run, name = self.experiment, self.folder.run, self.keys.name
        policy = {key: getattr(experiment.policy, key) for key in Policy.__struct_fields__}
        policy["schemes"] = (SCHEME,)
        policy["smallest_cohort"] = experiment.adaptation.smallest_cohort + experiment.adaptation.colluders
        return ClientSettings(
            address=sums_address,
            keys=self.keys,
            roster=roster_of_sums(self.roster),
            policy=Policy(**policy),
            journal=JournalFile(run.journal(name)),
            patience=experiment.deadlines.join + experiment.deadlines.train,
            grace=experiment.deadlines.grace,
        )


def read_learning(folder: Folder) -> PublicLearning:
    """What is public of the learning of a run. ValueError or OSError if it cannot be read."""
    try:
        return msgspec.msgpack.decode(folder.learning.read_bytes(), type=PublicLearning)
    except msgspec.MsgspecError as error:
        raise ValueError(f"{folder.learning} is not what `tacit adapt` writes: {error}") from error


async def run_dealer(control: Control, *, seat: Seat, addresses: dict[str, str]) -> dict[str, Any]:
    """Deal material, and serve the sums until the rounds are over; how they ended."""
    torch.set_num_threads(1)
    found: dict[str, str] = {}
    say = tell(control)

    def show(event: Event) -> None:
        say(event)
        if isinstance(event, ListeningStarted):
            found[event.service] = event.address
            if len(found) == 2:
                control.send({"address": f"{found['']} {found['sums']}"})

    settings = seat.dealer()
    with EventFile(seat.folder.run.events(DEALER), DEALER) as log:
        log.write(describe(settings.summing.configuration))
        log.write(seat.origin)
        ended = await deal_and_sum(settings, dealt=EventLog(log, show), summed=EventLog(log, show))
    return {"code": ended.code.name if ended.code else None, "detail": ended.detail}


async def run_model_owner(control: Control, *, seat: Seat, addresses: dict[str, str], model: PrivateModel) -> None:
    """Serve until it is ended."""
    torch.set_num_threads(1)
    say = tell(control)

    def show(event: Event) -> None:
        say(event)
        if isinstance(event, ListeningStarted):
            control.send({"address": event.address})

    dealing, _ = addresses[DEALER].split()
    with EventFile(seat.folder.run.events(MODEL_OWNER), MODEL_OWNER) as log:
        try:
            settings = seat.model_owner(dealing, seat.recording() or Hooks())
            await teacher(seat.revealing, settings, model, EventLog(log, show)).run()
        except asyncio.CancelledError:
            log.write(SessionEnded(code=None, detail="nobody learns any more"))
            raise


async def run_data_owner(control: Control, *, seat: Seat, addresses: dict[str, str], own: Labelled) -> dict[str, Any]:
    """Learn until the rounds are over; how that ended."""
    torch.set_num_threads(1)
    name, folder = seat.keys.name, seat.folder
    dealing, summing = addresses[DEALER].split()

    def keep(told: RoundLearned) -> None:
        standing.save(folder.of_owner(name), told.parameters, round=told.round)

    with EventFile(folder.run.events(name), name) as log:
        event_log = EventLog(log, tell(control))
        recording = seat.recording()
        settings = seat.learner(
            model_owner_address=addresses[MODEL_OWNER],
            dealer_address=dealing,
            hooks=recording or Hooks(),
        )
        learns = learner(
            seat.revealing,
            settings,
            own.images,
            own.labels,
            event_log,
            keep=forget if recording is None else recording.keep_revealed,
            on_round=keep,
        )
        try:
            ended = await ClientParty(seat.client(summing), {SCHEME: SharesTask(learns)}, event_log).run()
        finally:
            await asyncio.shield(learns.close())
    return {"code": ended.code.name if ended.code else None, "detail": ended.detail}
