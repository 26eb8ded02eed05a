"""Table 4 of Tastan and Nandakumar 2025: what every way to adapt trains, and what one step of it costs.

Parameters are counted on ViT-B/16 for 384 x 384 pixels with random weights, at both sizes: neither images nor trained
weights are needed. Time and memory are those of one step, forwards and backwards through the frozen backbone of
polynomials too. Memory is the most that tensors take at one moment of the step, weights included, counted exactly.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import msgspec

from tacit.models.configuration import ModelConfiguration
from tacit.simulate.experiments.adaptation import TableRow
from tacit.simulate.experiments.measurement import Progress
from tacit.simulate.experiments.study import Claim, ClaimVerdict
from tacit.simulate.experiments.tastan_approximations import PAPER
from tacit.simulate.experiments.tastan_tables import OURS, PROBING, TABLE1, TUNING, TWIN, VIT

if TYPE_CHECKING:
    from torch import nn

UNIT: Final = 2**20
"""Of the paper's numbers of parameters, which it calls millions: those of its heads fit no other."""
CLASSES: Final = {"CIFAR-10 / SVHN": 10, "CIFAR-100": 100, "Fed-ISIC2019": 8}
NEARLY: Final = 1.1
"""A ratio that counts as nearly the same; the paper has up to 1.05."""
ROWS: Final[tuple[TableRow, ...]] = TABLE1.full.rows


class CostFigures(msgspec.Struct, frozen=True, kw_only=True):
    """One step of one way to adapt to ten classes."""

    row: str
    seed: int
    milliseconds: float
    """Median for an image."""
    megabytes: float
    """10^6 bytes."""


@dataclass(frozen=True, kw_only=True)
class CostSize:
    """The settings of one size."""

    model: ModelConfiguration
    channels: int
    batch_size: int
    repetitions: int
    differences: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class CostTable(Claim):
    """The table."""

    published: dict[tuple[str, str], tuple[float, float, float]]
    """By data set and row: parameters in units of 2^20, milliseconds for an image, GB."""
    small: CostSize
    full: CostSize


@dataclass(frozen=True, kw_only=True)
class Costs:
    """What was counted and measured."""

    counts: dict[tuple[str, str], int]
    """Parameters that are trained, by data set and row."""
    figures: tuple[CostFigures, ...]

    def median(self, row: str, field: str) -> float | None:
        """Of a figure, over the seeds; None for a row that could not be measured."""
        found = [getattr(entry, field) for entry in self.figures if entry.row == row]
        return statistics.median(found) if found else None

    def ratio(self, row: str, field: str) -> float:
        """Of a figure to that of linear probing, both measured."""
        ours, probing = self.median(row, field), self.median(PROBING, field)
        if not ours or not probing:
            raise ValueError(f"{field}: {row} or {PROBING} was not measured")
        return ours / probing


def count() -> dict[tuple[str, str], int]:
    """Parameters that are trained of ViT-B, by data set and row, of rows that can be used here."""
    from tacit.models.adapters.methods import trained
    from tacit.models.vision_transformer import build

    backbone = build(msgspec.structs.replace(VIT, pretrained=False), classes=1, channels=3, seed=0)
    found = {}
    for row in ROWS:
        for name, classes in CLASSES.items():
            if not row.method.missing:
                model: nn.Module = row.method.adaptation().adapt(backbone, classes=classes, seed=0)
                found[name, row.name] = sum(parameter.numel() for parameter in trained(model).values())
    return found


def measure(size: CostSize, *, seeds: Sequence[int], device: str, progress: Progress) -> Costs:
    """Everything. Raises ValueError for a device that cannot be used."""
    import torch

    from tacit.models.device import resolve_device
    from tacit.models.friendly.blocks import Approximation
    from tacit.models.friendly.calibration import calibrate
    from tacit.models.friendly.convert import convert
    from tacit.models.vision_transformer import build
    from tacit.simulate.experiments.tensor_memory import TensorMemory

    place = resolve_device(device)
    counts = count()
    progress("parameters are counted")
    figures = []
    for seed in seeds:
        generator = torch.Generator().manual_seed(seed)
        edge = size.model.image_size
        images = torch.randn(size.batch_size, size.channels, edge, edge, generator=generator).to(place)
        labels = (torch.arange(size.batch_size) % 10).to(place)
        backbone = convert(build(size.model, classes=10, channels=size.channels, seed=seed), Approximation()).to(place)
        calibrate(backbone, images, margin=2.0)
        for row in ROWS:
            if row.method.missing:
                continue
            step = row.method.step(backbone, classes=10, seed=seed)
            step.take(images, labels)
            with TensorMemory(step.weights) as memory:
                step.take(images, labels)
            seconds = []
            for _ in range(size.repetitions):
                begin = time.perf_counter()
                step.take(images, labels)
                if place.type == "cuda":
                    torch.cuda.synchronize()
                seconds.append(time.perf_counter() - begin)
            figures.append(
                CostFigures(
                    row=row.name,
                    seed=seed,
                    milliseconds=1000 * statistics.median(seconds) / size.batch_size,
                    megabytes=memory.peak / 1e6,
                )
            )
            progress(f"{row.name}, seed {seed}: {figures[-1].milliseconds:.1f} ms for an image")
    return Costs(counts=counts, figures=tuple(figures))


def judge(table: CostTable, costs: Costs) -> list[ClaimVerdict]:
    """The paper's sentences, by criteria that were fixed before the runs."""
    wrong = [
        f"{row} for {name}: {costs.counts[name, row] / UNIT:.4f} and {published:.4f}"
        for (name, row), (published, *_) in table.published.items()
        if f"{costs.counts[name, row] / UNIT:.4f}" != f"{published:.4f}"
    ]
    verdicts = [
        ClaimVerdict(
            claim="all numbers of parameters are the paper's",
            criterion=f"of ViT-B with 384 x 384 pixels, in units of {UNIT:,}, to four decimals",
            holds=not wrong,
            detail="; ".join(wrong) or f"{len(table.published)} of {len(table.published)}",
        )
    ]
    for field, word in (("milliseconds", "time"), ("megabytes", "memory")):
        ratio = costs.ratio(OURS, field)
        verdicts.append(
            ClaimVerdict(
                claim=f"a step of ours takes nearly the {word} of linear probing",
                criterion=f"medians over the seeds, at most {NEARLY} times as much",
                holds=ratio <= NEARLY,
                detail=f"{ratio:.2f} times",
            )
        )
    ratio = costs.ratio(TUNING, "milliseconds")
    verdicts.append(
        ClaimVerdict(
            claim="a step of full fine-tuning takes more than twice the time of linear probing",
            criterion="medians over the seeds",
            holds=ratio > 2,
            detail=f"{ratio:.2f} times",
        )
    )
    return verdicts


_DIFFERENCES: Final[tuple[Any, ...]] = (
    "random weights and images, on which time and memory do not depend",
    "memory is the most that tensors take at a moment of one step, not the allocation of a GPU in a whole experiment",
    "time is that of the device of the command; the paper has one NVIDIA A100",
)
TABLE4: Final = CostTable(
    name="tastan-table4",
    paper=PAPER,
    shows="Table 4, parameters, time and memory",
    claim="the adapters train few parameters more than linear probing, and take nearly its time and memory; full "
    "fine-tuning takes three times as long",
    published={
        ("CIFAR-10 / SVHN", PROBING): (0.0073, 15.1, 9.39),
        ("CIFAR-10 / SVHN", TUNING): (82.1096, 47.4, 18.13),
        ("CIFAR-10 / SVHN", OURS): (0.2536, 15.7, 9.08),
        ("CIFAR-100", PROBING): (0.0733, 15.7, 9.40),
        ("CIFAR-100", TUNING): (82.1756, 47.4, 18.13),
        ("CIFAR-100", OURS): (0.3196, 16.3, 9.08),
        ("Fed-ISIC2019", PROBING): (0.0059, 20.2, 17.32),
        ("Fed-ISIC2019", TUNING): (82.1082, 51.2, 8.71),
        ("Fed-ISIC2019", OURS): (0.2522, 21.1, 8.39),
    },
    small=CostSize(
        model=TWIN,
        channels=1,
        batch_size=16,
        repetitions=15,
        differences=(
            *_DIFFERENCES,
            "time and memory are those of the transformer of the other small twins, 16 images a step",
        ),
    ),
    full=CostSize(
        model=msgspec.structs.replace(VIT, pretrained=False),
        channels=3,
        batch_size=1,
        repetitions=3,
        differences=(*_DIFFERENCES, "a step has one image; the paper's has 16, or 8"),
    ),
)
