"""What a table or figure of a paper is, as data: its arms, the paper's figures, and what we do differently.

A study has two sizes. The full one takes the paper's own settings; the small one is a twin that runs in minutes and is
set so that the paper's claim shows if it holds. Every arm is an experiment as `tacit simulate` takes it; the engine
(engine.py) adds what all arms of a run share: the seed, the data and, where an arm starts from a model that was trained
before, that model.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import msgspec

from tacit.models.configuration import ModelConfiguration, TrainingConfiguration
from tacit.parties.runs.experiment import Experiment

if TYPE_CHECKING:  # Drawing takes a second to load, which whoever asks for the list of studies need not wait for.
    from matplotlib.figure import Figure


@dataclass(frozen=True, kw_only=True)
class Arm:
    """One way of training, run once for every seed."""

    name: str
    """Letters, digits and hyphens: it names a directory too."""
    experiment: Experiment
    """Without seed and data."""
    pretrained: bool = False
    """Starts from trained weights: in a small twin from those of `Size.pretraining`."""
    published: str = "not given"
    """What the paper says of this arm."""


@dataclass(frozen=True, kw_only=True)
class Size:
    """The arms of a study with the settings of one size. ValueError if arms cannot share what is trained before."""

    arms: tuple[Arm, ...]
    differences: tuple[str, ...]
    """Where the settings are not the paper's, as sentences."""
    pretraining: TrainingConfiguration | None = None
    """With it, one half of the training images is kept from the federation, and a model is trained on it centrally."""

    def __post_init__(self) -> None:
        if self.pretraining is not None and self.pretrained_model is None:
            raise ValueError("a model is trained before, so that arms start from it: all of these have the same model")

    @property
    def pretrained_model(self) -> ModelConfiguration | None:
        """The model that pretrained arms have in common; None if there is none."""
        models = {arm.experiment.model for arm in self.arms if arm.pretrained}
        return models.pop() if len(models) == 1 else None


class RunCost(msgspec.Struct, frozen=True, kw_only=True):
    """What all rounds of a run cost, over all clients."""

    sent: int
    """Bytes that clients sent to the server, of every kind of message."""
    kept: int = 0
    """Of these bytes those of zeros, in the place of whole tensors that a client kept back."""
    seconds: float
    """How long the rounds took, one after another."""
    training_seconds: float
    choosing_seconds: float
    """Of the clients, for training and for choosing what to keep back."""


class RunResult(msgspec.Struct, frozen=True, kw_only=True):
    """What one run of an arm gave."""

    arm: str
    seed: int
    directory: str
    """Relative to the directory of the study."""
    test_images: int
    accuracies: list[float]
    """Of the global model on the test images after each round."""
    clipped: int
    """Coordinates of updates that were clipped, in all rounds."""
    seconds: float
    cost: RunCost
    moves: list[int] | None = None
    """How many coordinates of the model were moved by 0, 1, 2, ... of the rounds, where that was recorded."""

    @property
    def accuracy(self) -> float:
        """After the last round."""
        return self.accuracies[-1]


@dataclass(frozen=True, kw_only=True)
class ArmResult:
    """All runs of an arm, in the order of their seeds."""

    arm: Arm
    runs: tuple[RunResult, ...]

    @property
    def accuracies(self) -> list[float]:
        """Of each run, after its last round."""
        return [run.accuracy for run in self.runs]


class ClaimVerdict(msgspec.Struct, frozen=True, kw_only=True):
    """Whether a sentence of the paper holds in these runs."""

    claim: str
    criterion: str
    holds: bool | None
    """None: the runs do not decide it."""
    detail: str


def test_accuracy(result: ArmResult) -> tuple[str, list[float]]:
    """The quantity of studies that compare accuracies, in percent."""
    return "test accuracy (%)", [100 * accuracy for accuracy in result.accuracies]


@dataclass(frozen=True, kw_only=True)
class Claim:
    """A table or figure of a paper, and what the paper says of it."""

    name: str
    """On the command line."""
    paper: str
    shows: str
    """Which table or figure, and of what."""
    claim: str


@dataclass(frozen=True, kw_only=True)
class Study(Claim):
    """One whose arms are federations."""

    settings: tuple[tuple[str, str], ...]
    """The paper's own: what, and how much."""
    silent: tuple[str, ...]
    """What the paper does not say, and what is taken instead."""
    full: Size
    small: Size
    quantity: Callable[[ArmResult], tuple[str, list[float]]] = test_accuracy
    """What the table lists of an arm: its name with the unit, and a value for every run."""
    judge: Callable[[Sequence[ArmResult]], list[ClaimVerdict]]
    """Gets the arms that are finished; leaves out what these cannot decide."""
    draw: Callable[[Sequence[ArmResult]], Figure]
    details: Callable[[Sequence[ArmResult]], list[str]] = lambda results: []
    """Lines below the table, the last one empty."""
    record_moves: bool = False
    images_per_client: Mapping[int, int] = field(default_factory=dict)
    """In the full size, training and test images of a client by the number of classes: 10 of CIFAR-10, 43 of GTSRB; if
    empty, the clients share all images of CIFAR-10."""

    def size(self, *, small: bool) -> Size:
        """Its settings."""
        return self.small if small else self.full


def markdown_table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """The lines of a table."""
    return [f"| {' | '.join(cells)} |" for cells in (headings, ["---"] * len(headings), *rows)]


def spread(values: Sequence[float]) -> float:
    """Sample standard deviation; nan for a single value."""
    return statistics.stdev(values) if len(values) > 1 else float("nan")
