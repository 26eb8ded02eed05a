"""Copies of blocks, made by a data owner from outputs of blocks that were revealed to it in secret orders.

The last block's output is the same for an image in every pass, and identifies it; the other outputs of a pass are
matched from block to block (models/extraction.py). The audit also knows the secret orders, but uses them only to
evaluate the matches, never in an attack.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Final

import numpy as np
import torch
from torch import nn

from tacit.models.adapters.configuration import Reveal
from tacit.models.adapters.federated import Order
from tacit.models.adapters.parallel import AdapterParameters, block_outputs, logits
from tacit.models.extraction import copied_block, matched_outputs
from tacit.models.training import seeded
from tacit.parties.adaptation import standing
from tacit.parties.adaptation.public import PublicLearning
from tacit.parties.inference.stages import input_share
from tacit.parties.runs.adaptation import AdaptationExperiment
from tacit.simulate.adaptation.clear import drawn_batches, head_norm
from tacit.simulate.adaptation.plan import Folder, owner_names, read_learning
from tacit.simulate.adaptation.setting import AdaptationSetting, Labelled, setting
from tacit.simulate.audit.scores import CANDIDATES, Pixels
from tacit.simulate.federation.recording import ToldOutputs, read

_SAME: Final = 0.01
"""Largest distance between two outputs of the last block of one image, relative to their norm."""


@dataclass(frozen=True, kw_only=True)
class RevealedRows:
    rows: torch.Tensor = field(repr=False)
    """float32 [B, T, D], in an order of their own."""
    images: torch.Tensor = field(repr=False)
    """The true image of each row, int64 [B]."""


RevealedPass = Mapping[int, RevealedRows]
"""Keyed by the number of the block, ascending; the last block is always there."""


def aligned(revealed: RevealedPass) -> RevealedPass:
    """Match all outputs of a pass to those of its last block; return them in its order."""
    *others, last = sorted(revealed)
    found = {last: revealed[last]}
    for block in reversed(others):
        each = revealed[block]
        order = matched_outputs(each.rows, found[min(found)].rows)
        found[block] = RevealedRows(rows=each.rows[order], images=each.images[order])
    return found


@dataclass(frozen=True, kw_only=True)
class BlockCopies:
    received_outputs: int
    matching_accuracy: float
    """Fraction of outputs matched to their own image, without the last block's."""
    known: tuple[int, ...]
    """Numbers of the blocks whose outputs were revealed, ascending."""
    errors: tuple[float, ...]
    """Error of the copy between each of these and the next, on held-out pairs."""
    blocks: tuple[nn.Module, ...] = field(repr=False)
    """These copies, which map [B, T, D] to the same."""

    @torch.no_grad()
    def outputs(self, first: torch.Tensor) -> list[torch.Tensor]:
        """Return the output of the first known block, as given, float32 [B, T, D], and those of all copies after it."""
        found = [first]
        for block in self.blocks:
            found.append(block(found[-1]))
        return found


def centred(outputs: torch.Tensor) -> torch.Tensor:
    """Return tokens [..., D] without their mean, which norms remove, like a pass on shares."""
    return outputs - outputs.mean(-1, keepdim=True)


def copied_blocks(
    passes: Sequence[RevealedPass],
    block: Callable[[], nn.Module],
    *,
    epochs: int,
    learning_rate: float,
    seed: int,
    in_order: bool = False,
) -> BlockCopies:
    """Match outputs, and copy the blocks between them. block: makes one with random weights; in_order: the images of
    all rows are known, without matching. ValueError for passes with fewer than two images, or one block."""
    named = _NamedRows()
    for revealed in passes:
        named.take(revealed) if in_order else named.match(revealed)
    known = tuple(sorted(named.rows))
    if len(known) < 2:
        raise ValueError("outputs of one block alone were revealed: there is nothing to copy; take more passes")
    copies = []
    for before, after in itertools.pairwise(known):
        both = sorted(named.rows[before].keys() & named.rows[after].keys())
        inputs, targets = (torch.stack([named.rows[block][name] for name in both]) for block in (before, after))
        with seeded(seed):
            like = nn.Sequential(*(block() for _ in range(after - before)))
        copies.append(copied_block(inputs, targets, like, epochs=epochs, learning_rate=learning_rate, seed=seed))
    return BlockCopies(
        received_outputs=sum(len(revealed.rows) for each in passes for revealed in each.values()),
        matching_accuracy=named.right / named.matched,
        known=known,
        errors=tuple(copy.error for copy in copies),
        blocks=tuple(copy.block for copy in copies),
    )


class _NamedRows:
    def __init__(self) -> None:
        self.rows: dict[int, dict[int, torch.Tensor]] = {}
        self.matched = self.right = 0
        """Rows matched to an image, and to their own."""
        self._last: list[torch.Tensor] = []

    def take(self, revealed: RevealedPass) -> None:
        for block, each in revealed.items():
            self.rows.setdefault(block, {}).update(zip(each.images.tolist(), each.rows, strict=True))
            self.matched += len(each.rows)
            self.right += len(each.rows)

    def match(self, revealed: RevealedPass) -> None:
        (last, identified), *others = aligned(revealed).items()
        names = [self._name(row) for row in identified.rows]
        self.rows.setdefault(last, {}).update(zip(names, identified.rows, strict=True))
        for block, each in others:
            self.rows.setdefault(block, {}).update(zip(names, each.rows, strict=True))
            self.matched += len(names)
            self.right += int((each.images == identified.images).sum())

    def _name(self, row: torch.Tensor) -> int:
        if self._last:
            distances = torch.linalg.vector_norm((torch.stack(self._last) - row).flatten(1), dim=1)
            nearest = int(distances.argmin())
            if distances[nearest] <= _SAME * torch.linalg.vector_norm(row):
                return nearest
        self._last.append(row)
        return len(self._last) - 1


@dataclass(frozen=True, kw_only=True)
class ReceivedPass:
    """Outputs that a data owner received for a batch, and the batch."""

    rows: RevealedPass = field(repr=False)
    own: torch.Tensor = field(repr=False)
    """Numbers of its images, int64 [B]."""
    patches: torch.Tensor = field(repr=False)
    """Their pixels, float64 [B, N, P]."""
    labels: torch.Tensor = field(repr=False)
    """Labels received with the last block's output, int64 [B] in the order of that."""

    @property
    def true(self) -> torch.Tensor:
        """Return the true image of each row of the last block, int64 [B]."""
        return self.rows[max(self.rows)].images


@dataclass(frozen=True)
class AuditedAdaptation:
    experiment: AdaptationExperiment
    seed: int
    setting: AdaptationSetting
    learning: PublicLearning
    parameters: AdapterParameters = field(repr=False)
    """Last common parameters, float64, which all data owners receive."""

    @classmethod
    def of(cls, experiment: AdaptationExperiment, folder: Folder, seed: int) -> AuditedAdaptation:
        """Read the run in this folder. ValueError or OSError for missing files."""
        learning = read_learning(folder)
        last = standing.load(folder.of_owner(owner_names(experiment.clients)[0]), learning.initial()).parameters
        return cls(experiment, seed, setting(experiment, folder.path, seed=seed), learning, last)

    def images_of(self, owner: str) -> Labelled:
        return self.setting.of_owner(self._number(owner))

    def batches(self, owner: str) -> list[Order]:
        """Return the numbers of its images in every pass of a run in which no batch was repeated."""
        images = len(self.images_of(owner).labels)
        return drawn_batches(self.experiment, images, seed=self.seed, owner=self._number(owner))

    def brought(self, owner: str, reveal: Reveal) -> list[Order]:
        """Return the numbers of its images in every pass that brings images: every batch where outputs are revealed,
        and otherwise each image once, in order, since shares of the outputs are kept."""
        batches, count = self.batches(owner), len(self.images_of(owner).labels)
        if reveal != "none":
            return batches
        used = np.arange(count) if sum(map(len, batches)) >= count else np.unique(np.concatenate(batches))
        size = self.experiment.adaptation.batch
        return [used[low : low + size] for low in range(0, len(used), size)]

    def received(self, recordings: Path, owner: str) -> Iterator[ReceivedPass]:
        """Read its received outputs, pass by pass. The true image of each row is the one of its images whose output in
        the clear is nearest."""
        images = self.images_of(owner).images
        shared = input_share(self.learning.public, len(images), images).flatten(1)
        clear = centred(block_outputs(self.setting.served.transformer, images)).flatten(2)
        for record in read(recordings, owner):
            if isinstance(record, ToldOutputs):
                patches = torch.from_numpy(record.patches.copy())
                own = torch.stack([(shared == one).all(1).nonzero()[0, 0] for one in patches.flatten(1)])
                rows = {}
                for block, revealed in record.rows.items():
                    outputs = torch.from_numpy(revealed.copy())
                    nearest = torch.cdist(outputs.flatten(1), clear[block, own]).argmin(1)
                    rows[block] = RevealedRows(rows=outputs, images=own[nearest])
                labels = torch.from_numpy(record.labels.copy())
                yield ReceivedPass(rows=rows, own=own, patches=patches.double(), labels=labels)

    @cached_property
    def tested(self) -> torch.Tensor:
        """Outputs of all blocks for the test images, float32 [L, N, T, D], without the mean of tokens."""
        return centred(block_outputs(self.setting.served.transformer, self.setting.test.images))

    def answers(self, outputs: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            return logits(self.parameters, head_norm(self.learning), outputs.double()).argmax(-1)

    def pixels(self, images: torch.Tensor) -> list[Pixels]:
        """Return images with pixels from 0 to 1, the darkest and the brightest value of the test images."""
        test = self.setting.test.images.double()
        low, high = test.amin((0, 2, 3), keepdim=True), test.amax((0, 2, 3), keepdim=True)
        return list(((images.double() - low) / (high - low)).clamp(0, 1).numpy())

    def candidates(self, owner: str, number: int) -> list[Pixels]:
        """Return the candidates beside an image of a data owner, which are not its own, drawn by seed and number."""
        number_of_owner = self._number(owner)
        others = (
            self.setting.of_owner(other).images for other in range(len(self.setting.owners)) if other != number_of_owner
        )
        pool = torch.cat([self.setting.test.images, *others])
        generator = torch.Generator().manual_seed((self.seed * 1000 + number) % 2**63)
        return self.pixels(pool[torch.randperm(len(pool), generator=generator)[: CANDIDATES - 1]])

    def baseline(self) -> Pixels:
        """Return the image of the baseline: the mean of the model owner's own images."""
        image: Pixels = self.pixels(self.setting.own.images.mean(0, keepdim=True))[0]
        return image

    def _number(self, owner: str) -> int:
        return owner_names(self.experiment.clients).index(owner)
