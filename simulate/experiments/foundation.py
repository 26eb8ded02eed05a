"""`foundation`: a pretrained vision transformer adapted by real data owners that may not see it.

Real parties of `tacit adapt` train on secret shares. The same steps on the same batches run in the clear for
comparison, and so do data owners that train alone on their own images. A table of our own; foundation_runs.py makes the
runs. Loads no torch.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import msgspec

from tacit.models.adapters.configuration import (
    AdaptationConfiguration,
    AdapterConfiguration,
    LinearProbeConfiguration,
    ParallelConfiguration,
)
from tacit.models.configuration import DataConfiguration, ModelConfiguration
from tacit.parties.runs.adaptation import AdaptationExperiment
from tacit.parties.runs.experiment import Deadlines, FederationSection
from tacit.parties.runs.results import Column, Table, decimals, plain, thousands
from tacit.simulate.experiments.criteria import verdict
from tacit.simulate.experiments.data import check_sample, find
from tacit.simulate.experiments.foundation_settings import ALONE, CLEAR, COLUMNS, SHARES, FoundationRow
from tacit.simulate.experiments.measures import Prepared, Request, Row, StudyError
from tacit.simulate.experiments.results import AdaptedRun, Quantity, StudyResult, StudyRow, Verdict
from tacit.simulate.experiments.study import Claim, Size, Study

if TYPE_CHECKING:
    from matplotlib.figure import Figure

POINTS: Final = 0.005
"""Largest accepted loss of accuracy on shares, compared with the clear."""
SPLITS: Final = {
    "IID": DataConfiguration(partition="iid"),
    "Dirichlet 0.1": DataConfiguration(partition="dirichlet", alpha=0.1),
}
PROBE, ADAPTERS = "linear probe", "adapters"


@dataclass(frozen=True, kw_only=True)
class Foundation:
    """Adapt the model of --checkpoint by real parties, in the clear, and by each data owner alone; see Measure."""

    test_images: int
    checkpoint: bool = True

    def summary(self, rows: Sequence[Row]) -> str:
        first = rows[0]
        assert isinstance(first, FoundationRow)
        model = first.experiment.model
        return f"{model.name} at {model.image_size} pixels, CIFAR-10, {first.images:,} images"

    def prepare(self, name: str, rows: Sequence[Row], request: Request) -> Prepared:
        # Imported here: it loads torch.
        from tacit.simulate.experiments.foundation_runs import PreparedFoundation

        chosen = [row for row in rows if isinstance(row, FoundationRow)]
        if len(chosen) < len(rows):
            raise StudyError(f"{name}: rows that Foundation measures are each a FoundationRow")
        images = find(request.data, clients=max(row.experiment.clients for row in chosen), halved=False, classes=(10,))
        check_sample(images, max(row.images + row.experiment.adaptation.own_images for row in chosen))
        return PreparedFoundation(test_images=self.test_images, images=images, request=request)


def row(adapted: str, split: str) -> str:
    return f"{adapted}, {split}"


def learning(*, rounds: int, batches: int, rate: float, decay_rounds: tuple[int, ...], own: int) -> dict[str, Any]:
    adaptation = AdaptationConfiguration(
        known_classes=(), own_images=own, batches=batches, learning_rate=rate, decay_rounds=decay_rounds
    )
    return {"rounds": rounds, "adaptation": adaptation}


def rows(
    adapted: str,
    adapter: AdapterConfiguration,
    sections: Mapping[str, Any],
    *,
    model: str,
    image_size: int,
    owners: int,
    images: int,
) -> Iterator[FoundationRow]:
    for split, data in SPLITS.items():
        experiment = AdaptationExperiment(
            name="foundation",
            federation=FederationSection(clients=owners, rounds=sections["rounds"]),
            model=ModelConfiguration(name=model, image_size=image_size, checkpoint="that of --checkpoint"),
            data=data,
            adapter=adapter,
            adaptation=sections["adaptation"],
            # A round may hold the passes of all images.
            deadlines=Deadlines(join=3600.0, train=86400.0),
        )
        yield FoundationRow(name=row(adapted, split), experiment=experiment, images=images)


def size(
    *,
    probe: Mapping[str, Any],
    probe_images: int,
    adapters: Mapping[str, Any],
    adapter_images: int,
    test_images: int,
    image_size: int,
    owners: int = 3,
    rank: int = 8,
    model: str = "vit_small_patch14_dinov2",
    differences: tuple[str, ...] = (),
) -> Size:
    """Return all rows at these sizes; images: of all data owners together. probe, adapters: of `learning`."""
    common: dict[str, Any] = {"model": model, "image_size": image_size, "owners": owners}
    found = (
        *rows(PROBE, LinearProbeConfiguration(), probe, images=probe_images, **common),
        *rows(ADAPTERS, ParallelConfiguration(rank=rank), adapters, images=adapter_images, **common),
    )
    return Size(rows=found, measure=Foundation(test_images=test_images), differences=differences)


def _judged(name: str, other: Quantity, above: float, text: str, rows: Mapping[str, StudyRow]) -> Verdict:
    ours, theirs = (rows[name].values(quantity.name) for quantity in (SHARES, other))
    found = [(one - two) / 100 for one, two in zip(ours, theirs, strict=True)]
    return verdict({f"double-blind less {other.name}": found}, claim=f"{name}: {text}", above=above)


def _claims() -> Iterator[Claim]:
    for name in (row(adapted, split) for adapted in (PROBE, ADAPTERS) for split in SPLITS):
        for other, above, text in (
            (CLEAR, -POINTS, f"double-blind is at most {100 * POINTS:g} points less accurate than in the clear"),
            (ALONE, 0.0, "double-blind is more accurate than data owners alone"),
        ):
            yield Claim(rows=(name,), judge=partial(_judged, name, other, above, text))


def _adapted(result: StudyResult) -> Iterator[tuple[StudyRow, AdaptedRun]]:
    for found in result.finished:
        for run in found.runs[:1]:
            if run.adaptation is not None:
                yield found, run.adaptation


def details(result: StudyResult) -> list[Table | str]:
    """Return tables of the cost of passes and steps, and of the parties' memory."""
    adapted = list(_adapted(result))
    costs = [
        [found.name, name, *msgspec.structs.astuple(part)] for found, run in adapted for name, part in run.parts.items()
    ]
    columns = [
        Column("row"), Column("part"), Column("how often", thousands), Column("online (s)", decimals(3)),
        Column("waiting (s)", decimals(3)), Column("rounds", plain), Column("data owner sends (MB)", decimals(2)),
        Column("model owner sends (MB)", decimals(2)), Column("dealer sends (MB)", decimals(2)),
    ]  # fmt: skip
    parties = list(dict.fromkeys(name for _, run in adapted for name in run.peak_bytes))
    peaks = [[found.name, *(run.peak_bytes.get(name, 0) / 1e6 for name in parties)] for found, run in adapted]
    refused = [f"{found.name}: {run.refused}." for found in result.finished for run in found.runs if run.refused]
    memory = [Column("row"), *(Column(f"{name} (MB)", decimals(0)) for name in parties)]
    return [
        Table(columns=columns, rows=costs, title="cost by part, with the first seed"),
        "An image passes the blocks once, all data owners side by side: its seconds are those of all passes of a data "
        "owner, divided by the images of all. A step is the median over all, as one of a data owner. What the secure "
        "sums send is not in it.",
        Table(columns=memory, rows=peaks, title="peak memory of a process"),
        *refused,
    ]  # fmt: skip


def draw(result: StudyResult) -> Figure:
    """Plot accuracy over bytes and over time, a line of panels for each row."""
    from matplotlib.figure import Figure

    from tacit.simulate.report.figures import PALETTE

    adapted = list(_adapted(result))
    figure = Figure(figsize=(9.0, 0.8 + 2.5 * len(adapted)))
    grid = figure.subplots(max(len(adapted), 1), 2, sharey="row", squeeze=False)
    for panels, (found, run) in zip(grid, adapted, strict=False):
        for axes, values, label in zip(
            panels,
            ([value / 1e9 for value in run.sent_bytes], [value / 60 for value in run.seconds]),
            ("sent by all parties (GB)", "time (min)"),
            strict=True,
        ):
            axes.plot(values, [100 * value for value in run.accuracies], "o-", color=PALETTE[0], markersize=3)
            for at, (quantity, style) in enumerate(((CLEAR, "--"), (ALONE, ":")), start=1):
                axes.axhline(found.values(quantity.name)[0], linestyle=style, color=PALETTE[at])
            axes.set_xlabel(label)
            axes.set_title(found.name, fontsize=9.5)
            axes.grid(axis="y")
        panels[0].set_ylabel("test accuracy (%)")
    names = [f"{SHARES.name}, round by round", f"{CLEAR.name}, at the end", f"{ALONE.name}, at the end"]
    if adapted:
        figure.legend(grid[0][0].get_lines(), names, loc="outside lower center", ncols=3)
    return figure


_PROBE: Final = learning(rounds=10, batches=20, rate=0.02, decay_rounds=(7,), own=128)
_ADAPTERS: Final = learning(rounds=4, batches=10, rate=0.02, decay_rounds=(), own=128)
STUDY: Final = Study(
    name="foundation",
    paper="A table of our own",
    shows="double-blind adaptation of a pretrained vision transformer, beside the same in the clear",
    claim="data owners learn beside a model that they may not see as they would with it, and more than each alone",
    settings=(
        ("model", "DINOv2 ViT-S/14, a checkpoint of timm's (--checkpoint)"),
        ("data", "CIFAR-10, or a part of it (--data); 128 training images are the model owner's alone"),
        ("data owners", "three, each a process, as model owner and dealer are; sums of all three are opened"),
    ),
    columns=COLUMNS,
    full=size(
        probe=_PROBE, probe_images=600, adapters=_ADAPTERS, adapter_images=96, test_images=1000, image_size=112
    ),
    small=size(
        probe=_PROBE, probe_images=300, adapters=_ADAPTERS, adapter_images=96, test_images=1000, image_size=56,
        differences=("56 x 56 pixels, and 300 training images for a linear probe, instead of 600 at 112 x 112",),
    ),
    claims=tuple(_claims()),
    draw=draw,
    details=details,
)  # fmt: skip
