"""Outputs of blocks that Tastan and Nandakumar 2025 reveal to data owners, and the consequences: a table of our own.

Real parties adapt a model (simulate/adaptation) three times with the same images, batches and first adapters: data
owners receive no outputs, those of sampled blocks, or of all. The same rounds in the clear stand beside it. The outputs
revealed to one data owner are then used to copy blocks (simulate/adaptation_audit/copies.py); the victim itself judges
the copies.
"""

from __future__ import annotations

import asyncio
import shutil
import statistics
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec
import numpy as np
import torch
from timm.models.vision_transformer import Block

from tacit.models.adapters.configuration import AdaptationConfiguration, Reveal
from tacit.models.adapters.federated import Features, FullBatches, Order, federated
from tacit.models.adapters.parallel import FinalNorm, block_outputs
from tacit.models.configuration import DataConfiguration, ModelConfiguration, TrainingConfiguration
from tacit.models.friendly.transformer import FriendlyTransformer
from tacit.parties.runs.adaptation import AdaptationExperiment
from tacit.parties.runs.experiment import FederationSection
from tacit.simulate.adaptation.plan import Folder, read_learning
from tacit.simulate.adaptation.run import adapt, make_folder
from tacit.simulate.adaptation.setting import BACKBONE, AdaptationSetting, setting
from tacit.simulate.adaptation.summary import Judge
from tacit.simulate.adaptation_audit.copies import ToldPass, ToldRows, centred, copied_blocks
from tacit.simulate.experiments.data import StudyImages, find
from tacit.simulate.experiments.measurement import Progress
from tacit.simulate.experiments.page import COLOURS
from tacit.simulate.experiments.study import Claim, ClaimVerdict, markdown_table, spread, verdict
from tacit.simulate.experiments.tastan_tables import PAPER, TWIN, VIT
from tacit.simulate.federation.processes import ProcessError, warm_up
from tacit.simulate.insecure.revealed_outputs import revealed_blocks

if TYPE_CHECKING:
    from matplotlib.figure import Figure


CLEAR: Final = "in the clear"
REVEALS: Final[tuple[Reveal, ...]] = ("none", "sampled", "all")
ROWS: Final = (CLEAR, *REVEALS)
AS_ACCURATE: Final = 0.01
"""How far below the rounds in the clear the accuracy may be on average."""
AGREES: Final = 0.9
"""Share of the images with the victim's label from which on blocks count as copied."""


class CopyFigures(msgspec.Struct, frozen=True, kw_only=True):
    """What a data owner made of what it was told."""

    told: int
    """Outputs of single images."""
    ordered: float
    """Share of those that were given to their own image, but for the last block's."""
    errors: list[float]
    """Of each copy, on pairs that were held out."""
    agreement: float
    """Of the victim with copies in the place of its blocks, with the victim: a share of the test images."""
    without: float
    """The same with these blocks left out."""


class RevealFigures(msgspec.Struct, frozen=True, kw_only=True):
    """One row with one seed."""

    row: str
    seed: int
    accuracy: float
    """Balanced, on the test images after the last round, 0 to 1."""
    data_owner_bytes: float | None = None
    """Sent for one batch by a data owner: the median. None, here and below: not by parties."""
    model_owner_bytes: float | None = None
    seconds: float | None = None
    """Of one batch online: the median."""
    waited_seconds: float | None = None
    """For the material of a batch: the median."""
    refused: int | None = None
    """Batches that were out of range."""
    copied: CopyFigures | None = None
    """None: nothing was told."""


@dataclass(frozen=True, kw_only=True)
class RevealSize:
    """The settings of one size."""

    experiment: AdaptationExperiment
    """Without data, seed, known classes and what is told."""
    copy_epochs: int
    copy_learning_rate: float
    differences: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class RevealTable(Claim):
    """The table."""

    small: RevealSize
    full: RevealSize

    def size(self, *, small: bool) -> RevealSize:
        """Its settings."""
        return self.small if small else self.full


def of(figures: Sequence[RevealFigures], row: str) -> list[RevealFigures]:
    """Those of a row, in the order of the seeds."""
    return [entry for entry in figures if entry.row == row]


def judge(figures: Sequence[RevealFigures]) -> list[ClaimVerdict]:
    """What holds of the three ways, by criteria that were fixed before the runs."""
    pairs = zip(of(figures, "none"), of(figures, CLEAR), strict=True)
    found = [
        verdict(
            {"none less in the clear": [one.accuracy - other.accuracy for one, other in pairs]},
            claim=f"with none it is at most {100 * AS_ACCURATE:.0f} point less accurate than in the clear",
            above=-AS_ACCURATE,
        )
    ]
    for row in ("sampled", "all"):
        copied = [entry.copied for entry in of(figures, row) if entry.copied is not None]
        agreement, ordered = ([getattr(each, name) for each in copied] for name in ("agreement", "ordered"))
        found.append(
            ClaimVerdict(
                claim=f"{row}: one data owner copies the blocks",
                criterion=f"with copies in their place the victim keeps its label for {100 * AGREES:.0f} % of the test "
                "images or more, the mean over the seeds",
                holds=statistics.mean(agreement) >= AGREES,
                detail=f"agreement {100 * statistics.mean(agreement):.1f} %, without the blocks "
                f"{100 * statistics.mean(each.without for each in copied):.1f} %; "
                f"{100 * statistics.mean(ordered):.1f} % of the secret orders found",
            )
        )
    return found


READING: Final = (
    "the paper measures no attack; the rows have the same images, batches and first adapters, and parties are "
    "processes of one machine, a thread each, over loopback",
    "sent, seconds and waiting are medians over all batches of all data owners: seconds are those of a pass and its "
    "step, waiting is for the dealer's material, as all data owners learn at once",
    "what a data owner was told for its batches is derived, not recorded: by the same rule and in fresh secret orders, "
    "of outputs computed in the clear, which those of a pass equal but for fixed-point rounding; those are "
    "of its own images alone",
    "the relative orders, which a data owner is told too, are not used: it matches outputs",
    "blocks before the first output that is told are not copied, and the model is put together with its own for these, "
    "its own last norm and its own head; sampled never tells the output of the last block but one, so that the last "
    "two are copied as one",
    "with none no output of a block is told: there is nothing to copy from, and what follows from adapters and head, "
    "which are opened in every row, was not attacked",
)
SMALL_DIFFERENCES: Final = (
    *READING,
    "the first half of the classes of digits, or of the images of --data, is the owner's, and three data owners adapt "
    "to the second half; resized to 16 x 16",
    "a vision transformer of width 32, depth 4 and patches of 8 x 8 pixels, with its own functions, trained for 20 "
    "epochs on the owner's images, in place of ViT-B/16 at 384 x 384",
    "30 rounds of one batch of 16 images for each data owner, the learning rate 0.1, 0.01 after 20",
)
FULL_DIFFERENCES: Final = (
    *READING,
    "the first half of the classes of CIFAR-10 is the owner's, who trains ViT-B on it for 5 epochs, and the data "
    "owners adapt to the second half",
    "a round has 16 batches of each data owner; the paper's text gives it one",
)


def experiment(
    *,
    model: ModelConfiguration,
    training: TrainingConfiguration,
    clients: int,
    rounds: int,
    epochs: int,
    adaptation: AdaptationConfiguration,
) -> AdaptationExperiment:
    """What parties run by."""
    return AdaptationExperiment(
        federation=FederationSection(clients=clients, rounds=rounds),
        model=model,
        data=DataConfiguration(partition="iid"),
        training=training,
        adaptation=msgspec.structs.replace(adaptation, backbone_epochs=epochs),
    )


REVEAL: Final = RevealTable(
    name="tastan-reveal",
    paper=PAPER,
    shows="accuracy, costs and copied blocks by what data owners are told of outputs of blocks; not in the paper",
    claim="data owners who are told outputs of blocks in secret orders, or of sampled blocks, cannot extract the model",
    small=RevealSize(
        experiment=experiment(
            model=msgspec.structs.replace(TWIN, patch_size=8),
            training=TrainingConfiguration(batch_size=32, learning_rate=2e-3),
            clients=3,
            rounds=30,
            epochs=20,
            adaptation=AdaptationConfiguration(learning_rate=0.1, decay_rounds=(20,)),
        ),
        copy_epochs=150,
        copy_learning_rate=1e-2,
        differences=SMALL_DIFFERENCES,
    ),
    full=RevealSize(
        experiment=experiment(
            model=VIT,
            training=TrainingConfiguration(batch_size=16, learning_rate=1e-5),
            clients=5,
            rounds=50,
            epochs=5,
            adaptation=AdaptationConfiguration(batches=16, learning_rate=1e-3, decay_rounds=(25, 40)),
        ),
        copy_epochs=40,
        copy_learning_rate=1e-3,
        differences=FULL_DIFFERENCES,
    ),
)


_SESSION_BYTES: Final = 32


def told_passes(outputs: torch.Tensor, batches: Sequence[Order], reveal: Reveal, *, seed: int) -> list[ToldPass]:
    """What a session tells of these batches.

    outputs: of all blocks for all images [L, N, T, D]; seed: of the orders, and of the session that the told blocks
    follow from.
    """
    generator = np.random.default_rng([seed, 1])
    session, blocks = generator.bytes(_SESSION_BYTES), len(outputs)
    found: list[ToldPass] = []
    for number, batch in enumerate(batches, start=1):
        told = revealed_blocks(reveal, blocks, session=session, number=number)
        orders = {block: torch.from_numpy(generator.permutation(batch)) for block in range(blocks) if told[block]}
        found.append({block: ToldRows(rows=outputs[block, at], images=at) for block, at in orders.items()})
    return found


def copies(
    passes: Sequence[ToldPass],
    victim: FriendlyTransformer,
    judged: torch.Tensor,
    sizes: ModelConfiguration,
    *,
    epochs: int,
    learning_rate: float,
    seed: int,
) -> CopyFigures:
    """Match, copy, and judge by the victim itself. judged: outputs of all its blocks for other images [L, N, T, D],
    centred. ValueError as `copied_blocks`."""

    def block() -> Block:
        return Block(sizes.width, sizes.heads, qkv_bias=True)

    found = copied_blocks(passes, block, epochs=epochs, learning_rate=learning_rate, seed=seed)
    first, last = judged[found.known[0]], judged[found.known[-1]]
    with torch.no_grad():
        theirs, ours, none = (
            victim.classify(tokens).argmax(dim=1) for tokens in (last, found.outputs(first)[-1], first)
        )
    return CopyFigures(
        told=found.told,
        ordered=found.ordered,
        errors=list(found.errors),
        agreement=(ours == theirs).double().mean().item(),
        without=(none == theirs).double().mean().item(),
    )


Value = Callable[[RevealFigures], float | None]

COSTS: Final[dict[str, tuple[Value, str]]] = {
    "MB of a data owner": (lambda entry: _millionth(entry.data_owner_bytes), ".2f"),
    "MB of the model owner": (lambda entry: _millionth(entry.model_owner_bytes), ".2f"),
    "seconds online": (lambda entry: entry.seconds, ".2f"),
    "seconds of waiting": (lambda entry: entry.waited_seconds, ".2f"),
    "batches refused": (lambda entry: entry.refused, ".0f"),
}
"""Columns, what they have of a run, and how that is printed."""


@dataclass(frozen=True, kw_only=True)
class RevealMeasurement:
    """The table; see Measurement."""

    claim: RevealTable

    def prepare(self, *, small: bool, data: Path | None) -> PreparedReveal:
        """See Measurement."""
        # Imported here: it loads torch.

        size = self.claim.size(small=small)
        images = find(data, small=small, clients=size.experiment.federation.clients, halved=False)
        return PreparedReveal(table=self.claim, work=RevealWork(size=size, images=images))

    def summary(self) -> list[str]:
        """See Measurement."""
        sizes = (
            ("full size", self.claim.full, "CIFAR-10"),
            ("--small", self.claim.small, "digits or --data"),
        )
        return [
            f"arms: {', '.join(ROWS)}",
            *(f"{name}: {_model(size)}, {_rounds(size)} rounds, {data}" for name, size, data in sizes),
        ]


@dataclass(frozen=True, kw_only=True)
class PreparedReveal:
    """The table whose images are found; see PreparedMeasurement."""

    table: RevealTable
    work: RevealWork

    @property
    def differences(self) -> tuple[str, ...]:
        """See PreparedMeasurement."""
        return self.work.size.differences

    def measure(self, *, seeds: Sequence[int], device: str, progress: Progress) -> RevealFindings:
        """See PreparedMeasurement; ProcessError for a party that fails, or a round that is lost."""
        figures = self.work.measure(seeds=seeds, device=device, progress=progress)
        return RevealFindings(images=self.work.images.name, figures=figures)


@dataclass(frozen=True, kw_only=True)
class RevealFindings:
    """Every row with every seed; see Findings."""

    images: str
    """Name of the data set or the file."""
    figures: tuple[RevealFigures, ...]

    def verdicts(self) -> list[ClaimVerdict]:
        """By the criteria of the table."""
        return judge(self.figures)

    def lines(self) -> list[str]:
        """What was learned and what it cost; then what was copied."""
        learned = [[row, self._accuracy(row), *(self._cost(row, *how) for how in COSTS.values())] for row in ROWS]
        seeds = ", ".join(str(entry.seed) for entry in of(self.figures, ROWS[0]))
        return [
            *markdown_table([self.images, "balanced accuracy", *COSTS], learned),
            "",
            "What one data owner copied:",
            "",
            *markdown_table(
                ["", "outputs told", "orders found (%)", "copies", "largest error held out", "agreement", "without"],
                [[row, *self._copied(row)] for row in ROWS[1:]],
            ),
            "",
            f"Seeds {seeds}: means over them, and each seed in brackets; MB (10^6 bytes) sent and seconds are of one "
            "batch. An error is relative to what the blocks add; agreement is the share of the test images with the "
            "victim's label by the victim with copies in the place of its blocks, and without them. In the clear there "
            "are no parties.",
        ]

    def rows(self) -> list[dict[str, Any]]:
        """A row for every way, with means over the seeds; null for what it does not have."""
        return [
            {
                "row": row,
                "accuracy": statistics.mean(entry.accuracy for entry in of(self.figures, row)),
                **{
                    field: _mean(self._values(row, attrgetter(field)))
                    for field in ("data_owner_bytes", "model_owner_bytes", "seconds", "waited_seconds", "refused")
                },
                **{
                    field: _mean([getattr(each, field) for each in self._copies(row)])
                    for field in ("ordered", "agreement", "without")
                },
            }
            for row in ROWS
        ]

    def runs(self) -> Sequence[RevealFigures]:
        """Every row with every seed."""
        return self.figures

    def draw(self) -> Figure:
        """Accuracy, seconds online and agreement of every row, and every seed."""
        from matplotlib.figure import Figure

        figure = Figure(figsize=(10.0, 2.6))
        panels: tuple[tuple[str, Value], ...] = (
            ("balanced accuracy", lambda entry: entry.accuracy),
            ("seconds of a batch online", lambda entry: entry.seconds),
            ("agreement of the copy", lambda entry: None if entry.copied is None else entry.copied.agreement),
        )
        for axes, (title, value) in zip(figure.subplots(1, len(panels), sharey=True), panels, strict=True):
            found = [self._values(row, value) for row in ROWS]
            axes.barh(ROWS, [_mean(values) or 0.0 for values in found], color=COLOURS[2], height=0.6)
            for place, values in enumerate(found):
                axes.plot(values, [place] * len(values), "o", color=COLOURS[0], markersize=3)
            axes.set_xlabel(title)
            axes.grid(axis="x")
        figure.axes[0].invert_yaxis()
        return figure

    def _values(self, row: str, value: Value) -> list[float]:
        """Of the seeds that have one."""
        return [found for entry in of(self.figures, row) if (found := value(entry)) is not None]

    def _copies(self, row: str) -> list[CopyFigures]:
        return [entry.copied for entry in of(self.figures, row) if entry.copied is not None]

    def _accuracy(self, row: str) -> str:
        found = [entry.accuracy for entry in of(self.figures, row)]
        return _told(found, ".3f") + (f" ± {spread(found):.3f}" if len(found) > 1 else "")

    def _cost(self, row: str, value: Value, form: str) -> str:
        return _told(self._values(row, value), form)

    def _copied(self, row: str) -> list[str]:
        copied = self._copies(row)
        if not copied:
            return ["none", "", "nothing to copy from", "", "", ""]
        return [
            _told([each.told for each in copied], ".0f"),
            _told([100 * each.ordered for each in copied], ".1f"),
            _told([len(each.errors) for each in copied], ".0f"),
            _told([max(each.errors) for each in copied], ".3f"),
            _told([each.agreement for each in copied], ".3f"),
            _told([each.without for each in copied], ".3f"),
        ]


def _told(values: Sequence[float], form: str) -> str:
    """The mean, and all where they differ; "" for none."""
    if not values:
        return ""
    each = [format(value, form) for value in values]
    return format(statistics.mean(values), form) + (f" ({', '.join(each)})" if len(set(each)) > 1 else "")


def _mean(values: Sequence[float]) -> float | None:
    return statistics.mean(values) if values else None


def _millionth(value: float | None) -> float | None:
    return None if value is None else value / 1e6


def _model(size: RevealSize) -> str:
    return size.experiment.model.name


def _rounds(size: RevealSize) -> int:
    return size.experiment.federation.rounds


_SPY: Final = 0
"""The data owner that copies: its number, from 0."""


@dataclass(frozen=True, kw_only=True)
class RevealWork:
    """The settings of a size, and its images."""

    size: RevealSize
    images: StudyImages

    def measure(self, *, seeds: Sequence[int], device: str, progress: Progress) -> tuple[RevealFigures, ...]:
        """Every row with every seed. Raises as PreparedMeasurement says, and ProcessError for a party that fails or a
        round that is lost."""
        warm_up()
        found: list[RevealFigures] = []
        for seed in seeds:
            with tempfile.TemporaryDirectory(prefix="tacit-") as place:
                for figures in self._of_seed(Path(place), seed, device, progress):
                    progress(f"{figures.row}, seed {seed}: balanced accuracy {figures.accuracy:.3f}")
                    found.append(figures)
        return tuple(found)

    def experiment(self, reveal: Reveal, *, seed: int) -> AdaptationExperiment:
        """What parties run by."""
        base, replace = self.size.experiment, msgspec.structs.replace
        known = tuple(range((len(self.images.source.class_names) + 1) // 2))
        return replace(
            base,
            data=self.images.configuration,
            federation=replace(base.federation, seed=seed),
            adaptation=replace(base.adaptation, known_classes=known, reveal=reveal),
        )

    def _of_seed(self, place: Path, seed: int, device: str, progress: Progress) -> list[RevealFigures]:
        first, summaries = Folder(place / REVEALS[0]), {}
        for reveal in REVEALS:
            experiment, folder = self.experiment(reveal, seed=seed), Folder(place / reveal)
            make_folder(experiment, folder)
            if folder != first:
                shutil.copytree(first.path / BACKBONE, folder.path / BACKBONE)
            summary = asyncio.run(adapt(experiment, folder, device=device, show=lambda *told: None))
            if any(each["status"] != "completed" for each in summary["rounds"]) or not summary["rounds"]:
                raise ProcessError(f"{reveal}, seed {seed}: a round was lost: {summary['ended']}")
            summaries[reveal] = summary
            progress(f"{reveal}, seed {seed}: the parties took {summary['wall_seconds']:.0f} s")
        found = setting(experiment, first.path, seed=seed)
        told = {reveal: None if reveal == "none" else self._copied(found, reveal, seed=seed) for reveal in REVEALS}
        clear = RevealFigures(row=CLEAR, seed=seed, accuracy=in_the_clear(found, experiment, first, seed=seed))
        return [clear, *(_figures(reveal, seed, summaries[reveal], told[reveal]) for reveal in REVEALS)]

    def _copied(self, found: AdaptationSetting, reveal: Reveal, *, seed: int) -> CopyFigures:
        """By one data owner, of all that it was told in all rounds."""
        victim, own = found.served.transformer, found.owners[_SPY]
        outputs, judged = (centred(block_outputs(victim, part.images)) for part in (own, found.test))
        batches = batches_of(self.size.experiment, len(own.labels), seed=seed, owner=_SPY)
        return copies(
            told_passes(outputs, batches, reveal, seed=seed),
            victim,
            judged,
            self.size.experiment.model,
            epochs=self.size.copy_epochs,
            learning_rate=self.size.copy_learning_rate,
            seed=seed,
        )


def batches_of(experiment: AdaptationExperiment, images: int, *, seed: int, owner: int) -> list[Order]:
    """Indices of the images of every batch of a data owner that has so many, in all rounds."""
    work = FullBatches(experiment.adaptation.batch, experiment.adaptation.batches)
    return [
        batch
        for number in range(1, experiment.federation.rounds + 1)
        for batch in work.batches(images, np.random.default_rng([seed, number, owner]))
    ]


def in_the_clear(found: AdaptationSetting, experiment: AdaptationExperiment, folder: Folder, *, seed: int) -> float:
    """The balanced accuracy after the same rounds on outputs in the clear, from the same adapters."""
    learning, victim = read_learning(folder), found.served.transformer
    ones = torch.ones(learning.public.sizes.width, dtype=torch.float64)
    norm = FinalNorm(weight=ones, bias=torch.zeros_like(ones), epsilon=learning.epsilon)
    clients = [
        Features(outputs=centred(block_outputs(victim, own.images).double()), labels=own.labels) for own in found.owners
    ]
    work = FullBatches(experiment.adaptation.batch, experiment.adaptation.batches)
    *_, last = federated(learning.initial(), norm, clients, learning.schedule, work, seed=seed)
    return Judge(learning, victim, found.test).judged(last).balanced_accuracy


def _figures(row: str, seed: int, summary: Mapping[str, Any], copied: CopyFigures | None) -> RevealFigures:
    batches = summary["batches"]
    return RevealFigures(
        row=row,
        seed=seed,
        accuracy=summary["final_balanced_accuracy"],
        data_owner_bytes=batches["data_owner_bytes"],
        model_owner_bytes=batches["model_owner_bytes"],
        seconds=batches["seconds"],
        waited_seconds=batches["waited_seconds"],
        refused=batches["refused"],
        copied=copied,
    )
