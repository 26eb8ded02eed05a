"""Copies of blocks, made by a data owner from outputs of blocks that were revealed to it in secret orders.

Every pass reveals the last block's output, which is the same for an image whenever it comes: images are identified by
it. Within a pass the others are matched from block to block (models/extraction.py), so that each row gets the name of
its image. Blocks between two outputs that are known of the same images are then copied as one.

The adaptation was run with recordings: what its owners have, and what the audit knows beside to judge them. Neither an
order nor a relative one is used to find anything; secret orders are there to judge what was found.
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

from tacit.models.adapters.federated import FullBatches, Order
from tacit.models.adapters.parallel import AdapterParameters, FinalNorm, block_outputs, logits
from tacit.models.extraction import copied_block, matched_outputs
from tacit.models.training import seeded
from tacit.parties.adaptation import standing
from tacit.parties.adaptation.public import PublicLearning
from tacit.parties.inference.stages import input_share
from tacit.parties.runs.adaptation import AdaptationExperiment
from tacit.simulate.adaptation.plan import Folder, owner_names, read_learning
from tacit.simulate.adaptation.setting import AdaptationSetting, Labelled, setting
from tacit.simulate.audit.scores import CANDIDATES, Pixels
from tacit.simulate.federation.recording import ToldOutputs, read

_SAME: Final = 0.01
"""Two outputs of the last block that are no further apart, relative to their norm, are of one image."""


@dataclass(frozen=True, kw_only=True)
class ToldRows:
    """Of one block in one pass. The printed form shows none of them."""

    rows: torch.Tensor = field(repr=False)
    """float32 [B, T, D], in an order of their own."""
    images: torch.Tensor = field(repr=False)
    """Of which image each row is, int64 [B]: what is to be found."""


ToldPass = Mapping[int, ToldRows]
"""By the number of the block, rising; the last block is always there."""


@dataclass(frozen=True, kw_only=True)
class BlockCopies:
    """What was copied from the passes of a run."""

    told: int
    """Outputs of single images."""
    ordered: float
    """Share of those that were given to their own image, but for the last block's."""
    known: tuple[int, ...]
    """Numbers of the blocks whose outputs were told, rising."""
    errors: tuple[float, ...]
    """Of the copy of what lies between each of these and the next, on pairs that were held out."""
    blocks: tuple[nn.Module, ...] = field(repr=False)
    """These copies, which map [B, T, D] to the same."""

    @torch.no_grad()
    def outputs(self, first: torch.Tensor) -> list[torch.Tensor]:
        """What they make of the output of the first block that is known, float32 [B, T, D]: that, and one for each."""
        found = [first]
        for block in self.blocks:
            found.append(block(found[-1]))
        return found


def centred(outputs: torch.Tensor) -> torch.Tensor:
    """Tokens [..., D] without their mean, as a pass on shares has them: norms take it away."""
    return outputs - outputs.mean(-1, keepdim=True)


def copied_blocks(
    passes: Sequence[ToldPass],
    block: Callable[[], nn.Module],
    *,
    epochs: int,
    learning_rate: float,
    seed: int,
    in_order: bool = False,
) -> BlockCopies:
    """Match, and copy. block: makes one with random weights; in_order: the images of all rows are known, so that
    nothing is matched. ValueError for passes that tell of fewer than two images, or of one block alone."""
    named = _Named()
    for told in passes:
        named.take(told) if in_order else named.match(told)
    known = tuple(sorted(named.rows))
    if len(known) < 2:
        raise ValueError("outputs of one block alone were told: there is nothing to copy; take more passes")
    copies = []
    for before, after in itertools.pairwise(known):
        both = sorted(named.rows[before].keys() & named.rows[after].keys())
        inputs, targets = (torch.stack([named.rows[block][name] for name in both]) for block in (before, after))
        with seeded(seed):
            like = nn.Sequential(*(block() for _ in range(after - before)))
        copies.append(copied_block(inputs, targets, like, epochs=epochs, learning_rate=learning_rate, seed=seed))
    return BlockCopies(
        told=sum(len(told.rows) for each in passes for told in each.values()),
        ordered=named.right / named.matched,
        known=known,
        errors=tuple(copy.error for copy in copies),
        blocks=tuple(copy.block for copy in copies),
    )


class _Named:
    """Rows by block and by the name of their image: its number, or where none is known, that in the order in which
    images first came."""

    def __init__(self) -> None:
        self.rows: dict[int, dict[int, torch.Tensor]] = {}
        self.matched = self.right = 0
        """Rows that were given to an image, and to their own."""
        self._last: list[torch.Tensor] = []

    def take(self, told: ToldPass) -> None:
        """Name the rows of a pass as they are."""
        for block, each in told.items():
            self.rows.setdefault(block, {}).update(zip(each.images.tolist(), each.rows, strict=True))
            self.matched += len(each.rows)
            self.right += len(each.rows)

    def match(self, told: ToldPass) -> None:
        """Find names for the rows of a pass."""
        *others, last = sorted(told)
        names = [self._name(row) for row in told[last].rows]
        self.rows.setdefault(last, {}).update(zip(names, told[last].rows, strict=True))
        rows = told[last].rows
        for block in reversed(others):
            order = matched_outputs(told[block].rows, rows)
            # In the order of the last block from here on.
            rows = told[block].rows[order]
            self.rows.setdefault(block, {}).update(zip(names, rows, strict=True))
            self.matched += len(rows)
            self.right += int((told[block].images[order] == told[last].images).sum())

    def _name(self, row: torch.Tensor) -> int:
        if self._last:
            distances = torch.linalg.vector_norm((torch.stack(self._last) - row).flatten(1), dim=1)
            nearest = int(distances.argmin())
            if distances[nearest] <= _SAME * torch.linalg.vector_norm(row):
                return nearest
        self._last.append(row)
        return len(self._last) - 1


@dataclass(frozen=True, kw_only=True)
class TellingPass:
    """What a data owner was told of a batch, beside which images it had brought."""

    rows: ToldPass = field(repr=False)
    own: torch.Tensor = field(repr=False)
    """Numbers of its images, int64 [B]."""
    patches: torch.Tensor = field(repr=False)
    """Their pixels, float64 [B, N, P]."""
    labels: torch.Tensor = field(repr=False)
    """What was told beside the last block's output, int64 [B] in the order of that."""


@dataclass(frozen=True)
class AuditedAdaptation:
    """A run that can be attacked."""

    experiment: AdaptationExperiment
    seed: int
    setting: AdaptationSetting
    learning: PublicLearning
    parameters: AdapterParameters = field(repr=False)
    """The last common ones, float64, which all data owners were told."""

    @classmethod
    def of(cls, experiment: AdaptationExperiment, folder: Folder, seed: int) -> AuditedAdaptation:
        """Of a run in this folder. ValueError or OSError for what is not there any more."""
        learning = read_learning(folder)
        last, _ = standing.load(folder.of_owner(owner_names(experiment.clients)[0]), learning.initial())
        return cls(experiment, seed, setting(experiment, folder.path, seed=seed), learning, last)

    def images_of(self, owner: str) -> Labelled:
        """What a data owner has."""
        return self.setting.owners[self._number(owner)]

    def batches(self, owner: str) -> list[Order]:
        """Numbers of its images in every pass of a run in which no batch was gone through again."""
        own, images = self.experiment.adaptation, len(self.images_of(owner).labels)
        work = FullBatches(own.batch, own.batches)
        return [
            batch
            for round in range(1, self.experiment.federation.rounds + 1)
            for batch in work.batches(images, np.random.default_rng([self.seed, round, self._number(owner)]))
        ]

    def told(self, recordings: Path, owner: str) -> Iterator[TellingPass]:
        """What it was told, pass by pass. What each row really is of, to judge by, is that of its images whose output
        in the clear is nearest."""
        images = self.images_of(owner).images
        shared = input_share(self.learning.public, len(images), images).flatten(1)
        clear = centred(block_outputs(self.setting.served.transformer, images)).flatten(2)
        for record in read(recordings, owner):
            if isinstance(record, ToldOutputs):
                patches = torch.from_numpy(record.patches.copy())
                own = torch.stack([(shared == one).all(1).nonzero()[0, 0] for one in patches.flatten(1)])
                rows = {}
                for block, told in record.rows.items():
                    outputs = torch.from_numpy(told.copy())
                    nearest = torch.cdist(outputs.flatten(1), clear[block, own]).argmin(1)
                    rows[block] = ToldRows(rows=outputs, images=own[nearest])
                labels = torch.from_numpy(record.labels.copy())
                yield TellingPass(rows=rows, own=own, patches=patches.double(), labels=labels)

    @cached_property
    def tested(self) -> torch.Tensor:
        """Outputs of all blocks for the test images, float32 [L, N, T, D], without the mean of tokens."""
        return centred(block_outputs(self.setting.served.transformer, self.setting.test.images))

    def answers(self, outputs: torch.Tensor) -> torch.Tensor:
        """Labels [N] by adapters and head, of outputs of all blocks [L, N, T, D]."""
        ones = torch.ones(self.learning.public.sizes.width, dtype=torch.float64)
        norm = FinalNorm(weight=ones, bias=torch.zeros_like(ones), epsilon=self.learning.epsilon)
        with torch.no_grad():
            return logits(self.parameters, norm, outputs.double()).argmax(-1)

    def pixels(self, images: torch.Tensor) -> list[Pixels]:
        """Images as they are looked at: 0 to 1, the darkest and the brightest value that test images have."""
        test = self.setting.test.images.double()
        low, high = test.amin((0, 2, 3), keepdim=True), test.amax((0, 2, 3), keepdim=True)
        return list(((images.double() - low) / (high - low)).clamp(0, 1).numpy())

    def candidates(self, owner: str, number: int) -> list[Pixels]:
        """Images to confuse one of a data owner's with, which are not its own: as the seed and the number say."""
        others = (own.images for place, own in enumerate(self.setting.owners) if place != self._number(owner))
        pool = torch.cat([self.setting.test.images, *others])
        generator = torch.Generator().manual_seed((self.seed * 1000 + number) % 2**63)
        return self.pixels(pool[torch.randperm(len(pool), generator=generator)[: CANDIDATES - 1]])

    def blind(self) -> Pixels:
        """What somebody gives who has seen nothing: the mean of the model owner's own images."""
        image: Pixels = self.pixels(self.setting.own.images.mean(0, keepdim=True))[0]
        return image

    def _number(self, owner: str) -> int:
        return owner_names(self.experiment.clients).index(owner)
