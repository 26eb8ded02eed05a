"""The parties of an adaptation on one machine (dealer, model owner, data owners): their files, hooks and folder, which
docs/run-directory.md describes.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal, cast

import torch

from tacit.models.adapters.configuration import TeachingConfiguration
from tacit.models.configuration import ImagesConfiguration
from tacit.models.datasets.samples import Source
from tacit.parties.adaptation.data_owner import PrivateLearner
from tacit.parties.adaptation.public import PublicLearning
from tacit.parties.hosting.data_owner import DataOwnerHooks
from tacit.parties.hosting.dealer import DealerHooks
from tacit.parties.hosting.model_owner import ModelOwnerHooks
from tacit.parties.hosting.model_owner import read_learning as kept_learning
from tacit.parties.hosting.party_file import (
    DataOwnerFile,
    DealerFile,
    LearningSection,
    ModelOwnerFile,
    PartyFile,
    SummingSection,
    TeachingSection,
)
from tacit.parties.inference.conversation import AHEAD
from tacit.parties.inference.model_owner import ModelOwnerParty
from tacit.parties.inference.private_model import OwnedModel, PrivateModel
from tacit.parties.runs.adaptation import AdaptationExperiment
from tacit.parties.runs.directory import RunDirectory, Seed, command_line
from tacit.parties.runs.events import InvocationRecorded
from tacit.parties.session.event_log import read
from tacit.protocol.adaptation.messages import Purpose
from tacit.protocol.adaptation.schedule import sum_words
from tacit.protocol.core.events import Event
from tacit.protocol.sum.policy import Policy
from tacit.simulate.adaptation.recording import OwnerRecording
from tacit.simulate.adaptation.setting import backbone
from tacit.simulate.federation.party_files import (
    DEALER,
    LISTEN,
    MODEL_OWNER,
    NO_QUOTA,
    NO_SUMS_YET,
    NOT_YET,
    HeldParty,
    PartyFiles,
    PartyProgram,
    hold_party,
    own_images,
)
from tacit.simulate.federation.processes import Program
from tacit.simulate.insecure.revealed_outputs import Keep, forget
from tacit.simulate.insecure.revealing_parties import Revealing, learner, teacher


def owner_names(count: int) -> tuple[str, ...]:
    return tuple(f"data-owner-{number}" for number in range(1, count + 1))


@dataclass(frozen=True)
class Folder:
    path: Path

    @property
    def run(self) -> RunDirectory:
        return RunDirectory(self.path)

    @property
    def files(self) -> PartyFiles:
        return PartyFiles(self.path)

    @property
    def learning(self) -> Path:
        return self.files.state(MODEL_OWNER).learning

    @property
    def judged(self) -> Path:
        """Path of the evaluations of adapters, and of other data of a running adaptation outside its event logs."""
        return self.path / "judged.json"

    def events(self, party: str) -> list[Event]:
        """Return a party's events so far. EventLogError for a log that cannot be read."""
        path = self.run.events(party)
        return list(read(path)) if path.exists() else []

    def adapters(self, round: int) -> Path:
        return self.path / "adapters" / f"{round}.safetensors"

    def of_owner(self, name: str) -> Path:
        return self.files.state(name).adapters


@dataclass(frozen=True)
class Recorded:
    """Recorded parties, and the folder of their recordings; only an audit sets it."""

    folder: Path
    parties: tuple[str, ...]


def read_learning(folder: Folder) -> PublicLearning:
    """Read the public part of a run's adaptation. ValueError or OSError if it cannot be read."""
    found = kept_learning(folder.learning)
    if found is None:
        raise ValueError(f"{folder.learning} is missing: restore it")
    return found


@dataclass(frozen=True, kw_only=True)
class AdaptationPlan:
    """Start parameters of all parties of a run. The supervisor has more than any single real party."""

    experiment: AdaptationExperiment
    folder: Folder
    classes: tuple[str, ...]
    owners: tuple[Source, ...] = field(repr=False)
    model: PrivateModel = field(repr=False)
    learning: PublicLearning = field(repr=False)
    seed: int
    device: str
    recorded: Recorded | None = None
    command: str = field(default_factory=command_line)
    started: float = field(default_factory=time.time)

    def enrol(self) -> None:
        files, names = self.folder.files, owner_names(self.experiment.clients)
        groups = dict(zip(names, self.experiment.groups(), strict=True))
        files.enrol({MODEL_OWNER: "server", DEALER: "dealer", **dict.fromkeys(names, "client")}, groups)

    def programs(self) -> dict[str, Program]:
        files = self.folder.files

        def program(name: str, file: PartyFile, hooks: Callable[[], HeldParty]) -> Program:
            return hold_party, {"program": PartyProgram(files, name, file, hooks)}

        reveals = partial(teacher, self._revealing)
        owner = partial(SimulatedModelOwner, self.model, reveals, self._recording(MODEL_OWNER))
        programs = {
            DEALER: program(DEALER, self._dealer(), partial(SimulatedDealer, self._origin)),
            MODEL_OWNER: program(MODEL_OWNER, self._model_owner(), owner),
        }
        for number, (name, own) in enumerate(zip(owner_names(len(self.owners)), self.owners, strict=True)):
            hooks = partial(
                SimulatedLearner,
                own,
                (self.seed, number),
                self.experiment.policy,
                self._revealing,
                self._recording(name),
            )
            programs[name] = program(name, self._data_owner(name), hooks)
        return programs

    @property
    def _origin(self) -> InvocationRecorded:
        drawn = self.experiment.federation.seed is None
        return InvocationRecorded.now(
            self.command,
            started=self.started,
            device=torch.cuda.get_device_name(self.device) if self.device.startswith("cuda") else self.device,
            seed=Seed(value=self.seed, drawn=drawn, repeats="everything but keys"),
        )

    @property
    def _revealing(self) -> Revealing:
        return Revealing(self.experiment.adaptation.reveal, self.experiment.adaptation.selection)

    def _recording(self, name: str) -> Callable[[], OwnerRecording] | None:
        """Return the factory of this party's recording, for its process, in an audit."""
        recorded = self.recorded
        return partial(OwnerRecording, recorded.folder, name) if recorded and name in recorded.parties else None

    def _common(self, name: str) -> dict[str, Any]:
        return {"answer": self.experiment.deadlines.phase, **self.folder.files.common(name)}

    def _dealer(self) -> DealerFile:
        experiment, own = self.experiment, self.experiment.adaptation
        sums = SummingSection(
            sums=LISTEN,
            words=sum_words(self.learning.public.sizes, self.learning.learning),
            rounds=experiment.federation.rounds,
            smallest_cohort=own.smallest_cohort,
            colluders=own.colluders,
            aggregation=experiment.aggregation,
            deadlines=experiment.deadlines,
        )
        device = cast("Literal['cpu', 'cuda']", self.device)
        return DealerFile(bind=LISTEN, device=device, adaptation=sums, **self._common(DEALER))

    def _model_owner(self) -> ModelOwnerFile:
        least = min(len(own.train.labels) for own in self.owners)
        section = teaching(self.experiment, self.classes, least_count=least)
        return ModelOwnerFile(
            bind=LISTEN,
            dealer=NOT_YET,
            model=str(backbone(self.experiment, self.folder.path).absolute()),
            device=cast("Literal['cpu', 'cuda']", self.device),
            policy=NO_QUOTA,
            most_images=self._most_images,
            adaptation=section,
            **self._common(MODEL_OWNER),
        )

    @property
    def _most_images(self) -> int:
        """Largest number of images of a data owner; where outputs are revealed every batch brings its images anew."""
        own = self.experiment.adaptation
        drawn = own.batch * own.batches * self.experiment.federation.rounds
        return max(drawn, *(len(each.train.labels) for each in self.owners))

    def _data_owner(self, name: str) -> DataOwnerFile:
        experiment, own = self.experiment, self.experiment.adaptation
        section = LearningSection(
            sums=NO_SUMS_YET,
            weights=own.weights,
            batches=own.batches,
            rounds=experiment.federation.rounds,
            smallest_cohort=own.smallest_cohort,
            colluders=own.colluders,
            grace=experiment.deadlines.grace,
        )
        return DataOwnerFile(
            model_owner=NOT_YET,
            dealer=NOT_YET,
            batch=own.batch,
            device=cast("Literal['cpu', 'cuda']", self.device),
            patience=experiment.deadlines.join + experiment.deadlines.train,
            adaptation=section,
            data=ImagesConfiguration(**own_images(experiment)),
            **self._common(name),
        )


def teaching(
    experiment: AdaptationExperiment, classes: tuple[str, ...], *, least_count: int = 0, purpose: Purpose = "learning"
) -> TeachingSection:
    own = experiment.adaptation
    return TeachingSection(
        purpose=purpose,
        classes=classes,
        rounds=experiment.federation.rounds,
        least_count=least_count if own.weights == "counts" else 0,
        adapter=experiment.adapter,
        **{name: getattr(own, name) for name in TeachingConfiguration.__struct_fields__},
    )


class SimulatedDealer(DealerHooks, HeldParty):
    """A dealer whose log states the origin of the run, if given."""

    def __init__(self, origin: InvocationRecorded | None = None) -> None:
        super().__init__()
        self._origin = origin

    def origin(self) -> InvocationRecorded:
        return self._origin or super().origin()


class SimulatedModelOwner(ModelOwnerHooks, HeldParty):
    """A model owner of a simulation.

    model: prepared; None: read as on hosts. party: a factory that replaces the usual one; recording: in an audit.
    """

    def __init__(
        self,
        model: PrivateModel | None,
        party: Callable[..., ModelOwnerParty] | None = None,
        recording: Callable[[], OwnerRecording] | None = None,
        *,
        ahead: int | None = AHEAD,
    ) -> None:
        super().__init__()
        self.ahead = ahead
        self._model = model
        self._party = party
        if recording is not None:
            self._around = recording()

    def model(self, usual: Callable[[], OwnedModel]) -> OwnedModel:
        return self._model or usual()

    def party(self, usual: Callable[..., ModelOwnerParty]) -> Callable[..., ModelOwnerParty]:
        return self._party or usual


class SimulatedLearner(DataOwnerHooks, HeldParty):
    """A data owner with given images; seed: repeats the draws of a run in the clear (models/adapters/federated.py)."""

    def __init__(
        self,
        own: Source,
        seed: tuple[int, int],
        policy: Policy,
        revealing: Revealing,
        recording: Callable[[], OwnerRecording] | None,
    ) -> None:
        super().__init__()
        self.seed = seed
        self._own = own
        self._policy = policy
        self._revealing = revealing
        self._keep: Keep = forget
        if recording is not None:
            self._around = keeper = recording()
            self._keep = keeper.keep_revealed

    def source(self, file: DataOwnerFile) -> Source:
        return self._own

    def accepts(self, own: LearningSection) -> Policy:
        usual = super().accepts(own)
        chosen = {key: getattr(self._policy, key) for key in Policy.__struct_fields__}
        return Policy(**(chosen | {"schemes": usual.schemes, "smallest_cohort": usual.smallest_cohort}))

    def learner(self, usual: Callable[..., PrivateLearner]) -> Callable[..., PrivateLearner]:
        return partial(learner, self._revealing, keep=self._keep)
