"""A table or figure of a paper, as data: its arms, the paper's figures, our deviations, and verdicts over seeds.

A study has two sizes. The full one takes the paper's own settings; the small one is a twin that runs in minutes and is
set so that the paper's claim shows if it holds. Every arm is an experiment as `tacit simulate` takes it; the engine
(engine.py) adds what all arms of a run share: the seed, the data and, where an arm starts from a model that was trained
before, that model.

A claim about a difference is decided by its mean over the seeds, with the 95 % interval of Student's t around it: as
wide as so few seeds leave it, with three 4.303 standard errors to each side. Where the interval holds both answers, the
runs decide nothing, and a single seed never does.
"""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Final

import msgspec

from tacit.models.configuration import ModelConfiguration, TrainingConfiguration
from tacit.parties.runs.experiment import Experiment

if TYPE_CHECKING:
    from matplotlib.figure import Figure


MOST_SEEDS: Final = 1000
LARGEST: Final = 999_999


class SeedsError(ValueError):
    """Text that names no seeds; the message says what would."""


def read_seeds(text: str) -> tuple[int, ...]:
    """Ascending numbers and ranges, separated by commas. Raises SeedsError."""
    seeds: list[int] = []
    for part in text.split(","):
        match = re.fullmatch(r"(\d{1,6})(?:-(\d{1,6}))?", part.strip(), flags=re.ASCII)
        if match is None:
            raise SeedsError(f"--seeds {text}: {part!r} is no seed: give numbers up to {LARGEST}, as in 0-4 or 0,2,7")
        first = int(match[1])
        seeds += range(first, int(match[2] or first) + 1)
        if len(seeds) > MOST_SEEDS:
            raise SeedsError(f"--seeds {text}: at most {MOST_SEEDS} runs of an arm")
        if match[2] and int(match[2]) < first:
            raise SeedsError(f"--seeds {text}: {part!r} goes down; write it as {match[2]}-{match[1]}")
    if any(later <= earlier for earlier, later in pairwise(seeds)):
        raise SeedsError(f"--seeds {text}: every seed once, in ascending order")
    return tuple(seeds)


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


@dataclass(frozen=True, kw_only=True)
class ArmClaim:
    """A sentence of the paper about some arms, which is judged when all of them have run."""

    arms: tuple[str, ...]
    judge: Callable[[Mapping[str, ArmResult]], ClaimVerdict]
    """Takes the results of exactly these arms."""


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
    claims: tuple[ArmClaim, ...]
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

    def judge(self, results: Sequence[ArmResult]) -> list[ClaimVerdict]:
        """Judge every claim whose arms are all among the results."""
        by_name = {result.arm.name: result for result in results}
        return [
            claim.judge({name: by_name[name] for name in claim.arms})
            for claim in self.claims
            if by_name.keys() >= set(claim.arms)
        ]


def markdown_table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """The lines of a table."""
    return [f"| {' | '.join(cells)} |" for cells in (headings, ["---"] * len(headings), *rows)]


def spread(values: Sequence[float]) -> float:
    """Sample standard deviation; nan for a single value."""
    return statistics.stdev(values) if len(values) > 1 else float("nan")


MARGIN: Final = 0.02
"""Accuracies that differ by no more count as equal: two images of a hundred."""
INTERVAL: Final = "95 % interval (Student's t; with three seeds 4.303 standard errors to each side)"
EQUAL_OR_LOWER: Final = (
    f"the accuracy of an arm less that of the unprotected one, seed by seed, and the {INTERVAL} of its mean: equal if "
    f"all of it is within {100 * MARGIN:.0f} points, else lower (or higher) if the mean is beyond that and the "
    "interval leaves out 0, else undecided"
)


def half_width(values: Sequence[float]) -> float:
    """Of the 95 % interval of the mean; infinite for a single value."""
    if len(values) < 2:
        return float("inf")
    # Imported here: scipy.stats takes a second to load, and `tacit experiment list` needs none of it.
    from scipy.stats import t

    return float(t.ppf(0.975, len(values) - 1)) * spread(values) / math.sqrt(len(values))


def is_above(values: Sequence[float], bound: float) -> bool | None:
    """Whether the mean is above a bound by its whole interval; None if it is neither above nor below by as much."""
    if len(values) < 2:
        return None
    # Rounded, so that equal accuracies differ by nothing.
    distance = round(statistics.mean(values) - bound, 9)
    return None if abs(distance) <= half_width(values) else distance > 0


def differences(arm: ArmResult, baseline: ArmResult) -> list[float]:
    """The accuracy of an arm less that of the baseline, seed by seed: both saw the same data in the same order."""
    return [ours - theirs for ours, theirs in zip(arm.accuracies, baseline.accuracies, strict=True)]


def compare(found: Sequence[float]) -> str:
    """One of equal, lower, higher and undecided, of differences seed by seed: see EQUAL_OR_LOWER."""
    if len(found) < 2:
        return "undecided"
    # Rounded, so that a difference of just the margin is within it.
    mean, width = round(statistics.mean(found), 9), half_width(found)
    if round(abs(mean) + width, 9) <= MARGIN:
        return "equal"
    if abs(mean) <= MARGIN or abs(mean) <= width:
        return "undecided"
    return "lower" if mean < 0 else "higher"


def verdict(found: Mapping[str, Sequence[float]], *, claim: str, above: float) -> ClaimVerdict:
    """Of differences of accuracies, seed by seed, by what they are of: whether all are above a bound."""
    decided = {name: is_above(values, above) for name, values in found.items()}
    not_so = [name for name, holds in decided.items() if holds is False]
    unclear = [name for name, holds in decided.items() if holds is None]
    detail = ", ".join(
        f"{name} {100 * statistics.mean(values):+.1f} points" if values else f"{name} not measured"
        for name, values in found.items()
    )
    if not_so:
        detail += f"; not so: {', '.join(not_so)}"
    if unclear:
        detail += f"; undecided: {', '.join(unclear)}"
    return ClaimVerdict(
        claim=claim,
        criterion=f"the difference of the accuracies, seed by seed, has a mean whose {INTERVAL} is above "
        f"{100 * above:g} points; not so if it is below; if both are in it, and with one seed, undecided",
        holds=False if not_so else None if unclear else True,
        detail=detail,
    )
