"""What a data owner makes of outputs of blocks that it was told in secret orders: pairs of outputs, and copied blocks.

Every pass tells the last block's output, which is the same for an image whenever it comes: images go by it. Within a
pass the others are matched from block to block (models/extraction.py), so that each row gets the name of its image.
Blocks between two outputs that are known of the same images are then copied as one. Neither an order nor a relative one
is used to find anything; secret orders are there to judge what was found.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import torch
from torch import nn

from tacit.models.extraction import copied_block, matched_outputs
from tacit.models.training import seeded

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
