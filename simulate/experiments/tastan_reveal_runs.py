"""The runs of `tastan-reveal`: real parties for every way of telling, the rounds in the clear, and the copies.

What a data owner is told of outputs of blocks is derived from outputs in the clear, and the copies of blocks that it
makes of that (simulate/adaptation_audit/copies.py) are judged by the victim itself.
"""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np
import torch
from timm.models.vision_transformer import Block

from tacit.models.adapters.configuration import Reveal
from tacit.models.adapters.federated import Features, FullBatches, Order, federated
from tacit.models.adapters.parallel import FinalNorm, block_outputs
from tacit.models.configuration import ModelConfiguration
from tacit.models.friendly.transformer import FriendlyTransformer
from tacit.parties.runs.adaptation import AdaptationExperiment
from tacit.simulate.adaptation.plan import Folder, read_learning
from tacit.simulate.adaptation.run import adapt, make_folder
from tacit.simulate.adaptation.setting import BACKBONE, AdaptationSetting, setting
from tacit.simulate.adaptation.summary import Judge
from tacit.simulate.adaptation_audit.copies import ToldPass, ToldRows, centred, copied_blocks
from tacit.simulate.experiments.data import StudyImages
from tacit.simulate.experiments.measurement import Progress
from tacit.simulate.experiments.tastan_reveal import CLEAR, REVEALS, CopyFigures, RevealFigures, RevealSize
from tacit.simulate.federation.processes import ProcessError, warm_up
from tacit.simulate.insecure.revealed_outputs import revealed_blocks

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
            summary = asyncio.run(adapt(experiment, folder, device=device, show=lambda event: None))
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
