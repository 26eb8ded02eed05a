"""Tables 5 and 6 of Tastan and Nandakumar 2025: what the degree of the softmax and of the inverse are worth.

No federation: for every degree one student learns from one teacher for one epoch of stage 1 of the distillation
(models/friendly/distillation.py), all from the same weights and with the same batches. In the clear, as in the paper.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakSet

import msgspec

from tacit.models.configuration import DataConfiguration, ModelConfiguration, TrainingConfiguration
from tacit.models.friendly.configuration import DistillationConfiguration
from tacit.simulate.experiments.criteria import INTERVAL, MARGIN, compare, is_above
from tacit.simulate.experiments.measurement import Progress
from tacit.simulate.experiments.study import Claim, ClaimVerdict

if TYPE_CHECKING:
    import torch

    from tacit.models.friendly.blocks import Approximation
    from tacit.models.friendly.transformer import FriendlyTransformer

PAPER: Final = (
    'Tastan and Nandakumar 2025, "A Framework for Double-Blind Federated Adaptation of Foundation Models" '
    "(arXiv:2502.01289v1)"
)
BATCH: Final = 8
"""Images whose latency and memory are measured, as in the paper."""
REPETITIONS: Final = 15
CENTRE: Final = 0
"""Of Fed-ISIC2019, whose images the paper takes."""


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    """What one student of one seed gave."""

    degree: int | None
    seed: int
    attention: float
    """Mean over the epoch, as distillation.layer_losses counts it."""
    hidden: float
    accuracy: float
    """On the test images after the epoch, 0 to 1."""
    milliseconds: float
    """Median of a forward pass of BATCH images."""
    megabytes: float
    """Of tensors that a forward pass of BATCH images keeps for the backward pass."""


@dataclass(frozen=True, kw_only=True)
class ApproximationTable(Claim):
    """One of the two tables."""

    paper: str = PAPER
    varies: str
    """The field of Approximation."""
    chosen: int
    """The degree that the paper takes."""
    published: dict[int | None, tuple[float, float, float, float, float]]
    """By degree, None for the function itself: memory (GB), latency (Table 5: s, Table 6: ms), attention loss,
    representation loss, one-epoch accuracy (%)."""

    def approximation(self, degree: int | None) -> Approximation:
        """That of a row; what is not varied is as in the paper."""
        from tacit.models.friendly.blocks import Approximation

        varied: Any = {self.varies: degree}
        return Approximation(**varied)


@dataclass(frozen=True, kw_only=True)
class ApproximationSize:
    """The settings of one size."""

    model: ModelConfiguration
    data: DataConfiguration
    teacher: TrainingConfiguration
    distillation: DistillationConfiguration
    differences: tuple[str, ...]


SMALL_DIFFERENCES: Final = (
    "digits in place of Fed-ISIC2019 (centre 0), or the images of --data",
    "two blocks of width 128 on images of 32 x 32 pixels in place of ViT-Base, trained on these images alone",
    "Adam's step is 0.001 in place of 0.0001, since an epoch has fewer batches",
)
OUR_DIFFERENCES: Final = (
    "losses are means of squared differences, added up over the blocks, where the paper has sums",
    "rows of scores are centred, and the teacher's cut where the exponential would leave fixed-point numbers, as "
    "`tacit distill` does; the paper does neither",
    "memory is what a forward pass keeps for the backward pass, counted exactly, not the allocation of a GPU",
)


def setting(*, small: bool, data: Path | None) -> ApproximationSize:
    """The twin's or the paper's. Raises ValueError for data that a size does not take."""
    if small:
        source = DataConfiguration() if data is None else DataConfiguration(source=str(data.resolve()))
        return ApproximationSize(
            model=ModelConfiguration(),
            data=source,
            teacher=TrainingConfiguration(epochs=10),
            distillation=DistillationConfiguration(layer_epochs=1),
            differences=(*SMALL_DIFFERENCES, *OUR_DIFFERENCES),
        )
    if data is None or not data.is_dir():
        raise ValueError("the full size needs --data: the directory with the files of Fed-ISIC2019")
    return ApproximationSize(
        model=ModelConfiguration(name="vit_base_patch16_384", image_size=384, pretrained=True),
        data=DataConfiguration(source="fed-isic2019", directory=str(data.resolve()), partition="centre"),
        teacher=TrainingConfiguration(epochs=50, batch_size=16, learning_rate=1e-4, optimizer="adamw"),
        distillation=DistillationConfiguration(layer_epochs=1, layer_learning_rate=1e-4),
        differences=OUR_DIFFERENCES,
    )


def measure(
    table: ApproximationTable, chosen: ApproximationSize, *, seeds: Sequence[int], device: str, progress: Progress
) -> list[Figures]:
    """Every row with every seed. Raises ValueError or OSError for data, model or device that cannot be used."""
    import numpy as np

    from tacit.models.data import load
    from tacit.models.device import resolve_device
    from tacit.models.friendly.convert import convert
    from tacit.models.friendly.distillation import distill
    from tacit.models.training import EVALUATION_BATCH, evaluate, train
    from tacit.models.vision_transformer import build

    place = resolve_device(device)
    loaded = load(chosen.data, image_size=chosen.model.image_size)
    x, y, test = loaded.x_train, loaded.y_train, (loaded.x_test, loaded.y_test)
    if loaded.centres is not None:
        x, y = loaded.share(np.flatnonzero(loaded.centres == CENTRE))
    few = x[:BATCH].to(place)
    figures: list[Figures] = []
    for seed in seeds:
        teacher = build(chosen.model, classes=loaded.classes, channels=loaded.channels, seed=seed)
        train(teacher, x, y, chosen.teacher, seed=seed, device=place)
        judged = evaluate(teacher, *test, batch_size=EVALUATION_BATCH, device=place)
        progress(f"teacher, seed {seed}: test accuracy {judged.accuracy:.3f}")
        for degree in table.published:
            student = convert(teacher, table.approximation(degree))
            # The settings of all rows are the same, the range of the scores too, so that losses can be compared.
            settings = chosen.distillation
            (epoch,) = distill(teacher, student, x, y, test, settings, seed=seed, device=place, stages=("layers",))
            figures.append(
                Figures(
                    degree=degree,
                    seed=seed,
                    attention=epoch.losses["attention"],
                    hidden=epoch.losses["hidden"],
                    accuracy=epoch.accuracy,
                    milliseconds=_latency(student, few),
                    megabytes=memory(student, few),
                )
            )
            progress(f"degree {name_of(degree)}, seed {seed}: test accuracy {epoch.accuracy:.3f}")
    return figures


def _latency(student: FriendlyTransformer, images: torch.Tensor) -> float:
    import torch

    seconds: list[float] = []
    with torch.no_grad():
        for _ in range(REPETITIONS):
            begin = time.perf_counter()
            student(images)
            if images.is_cuda:
                torch.cuda.synchronize()
            seconds.append(time.perf_counter() - begin)
    return 1000 * statistics.median(seconds)


def memory(student: FriendlyTransformer, images: torch.Tensor) -> float:
    """Megabytes of tensors that a forward pass of `images` keeps for the backward pass, parameters apart."""
    import torch

    parameters = {parameter.untyped_storage().data_ptr() for parameter in student.parameters()}
    kept: WeakSet[_Kept] = WeakSet()

    def keep(tensor: torch.Tensor) -> _Kept:
        box = _Kept(tensor)
        kept.add(box)
        return box

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda box: box.tensor):
        output = student(images)
    # What is not needed any more is gone by now; the output holds the rest.
    storages = {box.tensor.untyped_storage().data_ptr(): box.tensor.untyped_storage().nbytes() for box in kept}
    del output
    return sum(size for place, size in storages.items() if place not in parameters) / 1e6


@dataclass(eq=False)
class _Kept:
    """Holds a tensor for the backward pass."""

    tensor: torch.Tensor


def judge(table: ApproximationTable, figures: Sequence[Figures]) -> list[ClaimVerdict]:
    """The claims of the paper: every step of every column, and the degree that it takes."""
    exact, chosen = (means(figures, degree) for degree in (None, table.chosen))
    found = compare(_apart(figures, "accuracy", None, table.chosen))
    return [
        _trend(table, figures, "attention", sign=-1),
        _trend(table, figures, "hidden", sign=-1),
        _trend(table, figures, "accuracy", sign=1),
        ClaimVerdict(
            claim=f"degree {table.chosen} is as accurate as the function itself",
            criterion=f"after one epoch all of the {INTERVAL} of the mean difference of accuracies is within "
            f"{100 * MARGIN:.0f} points; not so if the mean is beyond that and the interval leaves out 0; else "
            "undecided",
            holds=None if found == "undecided" else found == "equal",
            detail=f"{100 * chosen['accuracy']:.2f} and {100 * exact['accuracy']:.2f} %",
        ),
    ]


def _trend(table: ApproximationTable, figures: Sequence[Figures], field: str, *, sign: int) -> ClaimVerdict:
    """Whether a column goes one way from each degree to the next."""
    what = {"attention": "the attention loss", "hidden": "the representation loss", "accuracy": "accuracy"}[field]
    way, other = ("falls", "rises") if sign < 0 else ("rises", "falls")
    said: dict[bool | None, list[str]] = {True: [], False: [], None: []}
    for before, after in pairwise(table.published):
        steps = [sign * step for step in _apart(figures, field, before, after)]
        said[is_above(steps, 0.0)].append(f"{name_of(before)} to {name_of(after)} {sign * statistics.mean(steps):+.3f}")
    found = ((way, said[True]), (other, said[False]), ("undecided", said[None]))
    return ClaimVerdict(
        claim=f"{what} {way} with every degree, to the function itself",
        criterion=f"of every step, the {INTERVAL} of the mean over the seeds is on that side of 0; not so if one is on "
        "the other; else undecided",
        holds=False if said[False] else None if said[None] else True,
        detail="; ".join(f"{word}: {', '.join(steps)}" for word, steps in found if steps),
    )


def _apart(figures: Sequence[Figures], field: str, before: int | None, after: int | None) -> list[float]:
    """What is measured of one row less that of another, seed by seed."""
    pairs = zip(of(figures, before), of(figures, after), strict=True)
    return [getattr(ours, field) - getattr(theirs, field) for theirs, ours in pairs]


def name_of(degree: int | None) -> str:
    """For tables."""
    return "exact" if degree is None else str(degree)


def of(figures: Sequence[Figures], degree: int | None) -> list[Figures]:
    """Those of one row."""
    return [entry for entry in figures if entry.degree == degree]


def means(figures: Sequence[Figures], degree: int | None) -> dict[str, float]:
    """What is measured, over the seeds of one row."""
    fields = ("attention", "hidden", "accuracy", "milliseconds", "megabytes")
    return {field: statistics.mean(getattr(entry, field) for entry in of(figures, degree)) for field in fields}


def _claim(chosen: int) -> str:
    return f"losses fall and accuracy rises with the degree, and degree {chosen} comes close to the function"


TABLE5: Final = ApproximationTable(
    name="tastan-table5",
    shows="Table 5, the degree of the softmax",
    varies="softmax_degree",
    claim=_claim(6),
    chosen=6,
    published={
        2: (16.82, 0.41, 44.37, 915.46, 75.17),
        4: (19.68, 0.48, 38.31, 748.62, 83.85),
        6: (22.54, 0.52, 33.92, 655.26, 84.36),
        8: (25.39, 0.58, 30.91, 603.53, 84.47),
        10: (28.99, 0.62, 28.17, 573.54, 84.16),
        16: (36.83, 0.81, 20.31, 527.95, 85.08),
        None: (15.36, 0.35, 13.59, 508.64, 86.91),
    },
)
TABLE6: Final = ApproximationTable(
    name="tastan-table6",
    shows="Table 6, the steps of the inverse",
    varies="inverse_steps",
    claim=_claim(7),
    chosen=7,
    published={
        2: (22.42, 118.70, 61.50, 1698.19, 57.87),
        4: (22.44, 119.64, 57.42, 1534.97, 76.64),
        6: (22.45, 120.27, 45.67, 1352.91, 81.77),
        7: (22.46, 120.43, 44.11, 1334.32, 82.96),
        8: (22.47, 120.97, 45.10, 1352.55, 83.23),
        10: (22.48, 121.70, 43.23, 1332.62, 80.61),
        12: (22.50, 122.98, 40.40, 1302.41, 82.55),
        16: (22.53, 124.76, 38.86, 1292.36, 83.04),
        None: (22.46, 10.57, 38.77, 1289.71, 83.15),
    },
)
