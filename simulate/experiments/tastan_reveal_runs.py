"""Runs of `tastan-reveal`: real parties for every kind of reveal, the rounds in the clear, and the copies.

The outputs revealed to a data owner are derived from outputs in the clear, and its copies of blocks
(simulate/adaptation_audit/copies.py) are evaluated against the victim itself.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, cast

import msgspec
import numpy as np
import torch
from timm.models.vision_transformer import Block

from tacit.models.adapters.configuration import Reveal
from tacit.models.adapters.federated import Order
from tacit.models.adapters.parallel import block_outputs
from tacit.models.configuration import ModelConfiguration
from tacit.models.friendly.transformer import FriendlyTransformer
from tacit.parties.runs.adaptation import AdaptationExperiment
from tacit.simulate.adaptation.clear import InTheClear, Judge, drawn_batches
from tacit.simulate.adaptation.plan import Folder, read_learning
from tacit.simulate.adaptation.results import AdaptationSummary
from tacit.simulate.adaptation.run import adapt, make_folder
from tacit.simulate.adaptation.setting import BACKBONE, AdaptationSetting, setting
from tacit.simulate.adaptation_audit.copies import RevealedPass, RevealedRows, centred, copied_blocks
from tacit.simulate.experiments import tastan_reveal_settings as columns
from tacit.simulate.experiments.data import StudyImages
from tacit.simulate.experiments.measures import Prepared, Row, Values
from tacit.simulate.experiments.results import Run
from tacit.simulate.experiments.tastan_reveal_settings import CLEAR, COLUMNS, RevealSettings
from tacit.simulate.federation.processes import ProcessError, Show, warm_up
from tacit.simulate.insecure.revealed_outputs import revealed_blocks

_SESSION_BYTES: Final = 32


def revealed_passes(
    outputs: torch.Tensor, batches: Sequence[Order], reveal: Reveal, *, seed: int
) -> list[RevealedPass]:
    """Return the outputs that a session reveals of these batches.

    outputs: of all blocks for all images [L, N, T, D]; seed: of the orders, and of the session that selects the
    revealed blocks.
    """
    generator = np.random.default_rng([seed, 1])
    session, blocks = generator.bytes(_SESSION_BYTES), len(outputs)
    found: list[RevealedPass] = []
    for number, batch in enumerate(batches, start=1):
        revealed = revealed_blocks(reveal, blocks, session=session, number=number)
        orders = {block: torch.from_numpy(generator.permutation(batch)) for block in range(blocks) if revealed[block]}
        found.append({block: RevealedRows(rows=outputs[block, at], images=at) for block, at in orders.items()})
    return found


def copies(
    passes: Sequence[RevealedPass],
    victim: FriendlyTransformer,
    judged: torch.Tensor,
    sizes: ModelConfiguration,
    *,
    epochs: int,
    learning_rate: float,
    seed: int,
) -> Values:
    """Match, copy, and evaluate against the victim itself. judged: outputs of all its blocks for other images [L, N, T,
    D], centred. ValueError as `copied_blocks`."""

    def block() -> Block:
        return Block(sizes.width, sizes.heads, qkv_bias=True)

    found = copied_blocks(passes, block, epochs=epochs, learning_rate=learning_rate, seed=seed)
    first, last = judged[found.known[0]], judged[found.known[-1]]
    with torch.no_grad():
        theirs, ours, none = (
            victim.classify(tokens).argmax(dim=1) for tokens in (last, found.outputs(first)[-1], first)
        )
    return {
        columns.REVEALED.name: found.received_outputs,
        columns.ORDERED.name: 100 * found.matching_accuracy,
        columns.COPIES.name: len(found.errors),
        columns.ERROR.name: max(found.errors),
        columns.AGREEMENT.name: (ours == theirs).double().mean().item(),
        columns.WITHOUT.name: (none == theirs).double().mean().item(),
    }


_SPY: Final = 0
"""Number, from 0, of the data owner that copies."""


@dataclass(frozen=True)
class _Seed:
    place: tempfile.TemporaryDirectory[str]
    summaries: dict[Reveal, AdaptationSummary] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class PreparedReveals(Prepared):
    settings: RevealSettings
    images: StudyImages
    _of_seed: dict[int, _Seed] = field(default_factory=dict, repr=False)
    """State of the measured seed alone."""

    @property
    def data(self) -> str:
        return self.images.description

    def start(self, begin: Callable[[str], Show]) -> None:
        warm_up()

    def measure(self, row: Row, seed: int, show: Show) -> Run:
        """See Prepared; ProcessError also for a lost round."""
        if seed not in self._of_seed:
            self._of_seed.clear()
            self._of_seed[seed] = _Seed(tempfile.TemporaryDirectory(prefix="tacit-"))
        values: dict[str, float | None] = dict.fromkeys(quantity.name for quantity in COLUMNS)
        if row.name == CLEAR:
            self._by_parties("none", seed, show)
            begin = time.perf_counter()
            folder = self._folder("none", seed)
            experiment = self.experiment("none", seed=seed)
            found = setting(experiment, folder.path, seed=seed)
            values[columns.ACCURACY.name] = in_the_clear(found, folder, seed=seed)
            return Run(seed=seed, values=values, seconds=time.perf_counter() - begin)
        reveal = cast(Reveal, row.name)
        summary = self._by_parties(reveal, seed, show)
        values |= _costs(summary)
        if reveal != "none":
            values |= self._copied(reveal, seed=seed)
        return Run(seed=seed, values=values, seconds=summary.wall_seconds)

    def experiment(self, reveal: Reveal, *, seed: int) -> AdaptationExperiment:
        base, replace = self.settings.experiment, msgspec.structs.replace
        known = tuple(range((len(self.images.source.class_names) + 1) // 2))
        return replace(
            base,
            data=self.images.configuration,
            federation=replace(base.federation, seed=seed),
            adaptation=replace(base.adaptation, known_classes=known, reveal=reveal),
        )

    def _folder(self, reveal: Reveal, seed: int) -> Folder:
        return Folder(Path(self._of_seed[seed].place.name) / reveal)

    def _by_parties(self, reveal: Reveal, seed: int, show: Show) -> AdaptationSummary:
        summaries = self._of_seed[seed].summaries
        if reveal not in summaries:
            experiment, folder = self.experiment(reveal, seed=seed), self._folder(reveal, seed)
            make_folder(experiment, folder)
            for other in summaries:
                shutil.copytree(self._folder(other, seed).path / BACKBONE, folder.path / BACKBONE)
                break
            summary = self.request.run(adapt(experiment, folder, device=self.request.device, show=show))
            if summary.failed or not summary.completed:
                raise ProcessError(f"{reveal}, seed {seed}: a round was lost: {summary.ended}")
            summaries[reveal] = summary
        return summaries[reveal]

    def _copied(self, reveal: Reveal, *, seed: int) -> Values:
        """Train a copy, as one data owner would, from all outputs revealed to it in all rounds."""
        experiment = self.experiment(reveal, seed=seed)
        found = setting(experiment, self._folder(reveal, seed).path, seed=seed)
        victim, own = found.served.transformer, found.of_owner(_SPY)
        outputs, judged = (centred(block_outputs(victim, part.images)) for part in (own, found.test))
        batches = drawn_batches(experiment, len(own.labels), seed=seed, owner=_SPY)
        return copies(
            revealed_passes(outputs, batches, reveal, seed=seed),
            victim,
            judged,
            experiment.model,
            epochs=self.settings.copy_epochs,
            learning_rate=self.settings.copy_learning_rate,
            seed=seed,
        )


def in_the_clear(found: AdaptationSetting, folder: Folder, *, seed: int) -> float:
    """Return the balanced accuracy after the same rounds on outputs in the clear, from the same adapters."""
    learning = read_learning(folder)
    *_, last = InTheClear(learning, found, seed=seed).rounds()
    return Judge(learning, found.served.transformer, found.test).judged(last).balanced_accuracy


def _costs(summary: AdaptationSummary) -> Values:
    batches = summary.batches
    return {
        columns.ACCURACY.name: summary.final_balanced_accuracy,
        columns.DATA_OWNER_SENT.name: _millionth(batches.data_owner_bytes),
        columns.MODEL_OWNER_SENT.name: _millionth(batches.model_owner_bytes),
        columns.ONLINE.name: batches.online_seconds,
        columns.WAITED.name: batches.preprocessing_wait_seconds,
        columns.REFUSED.name: batches.refused,
    }


def _millionth(value: float | None) -> float | None:
    return None if value is None else value / 1e6
