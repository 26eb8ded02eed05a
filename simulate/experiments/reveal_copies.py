"""What a data owner makes of outputs of blocks that it was told in secret orders: pairs of outputs, and copied blocks.

Every pass tells the last block's output, which is the same for an image whenever it comes: images go by it. Within a
pass the others are matched from block to block (models/extraction.py), so that each row gets the name of its image.
Blocks between two outputs that are known of the same images are then copied as one. Neither an order nor a relative one
is used to find anything; secret orders are there to judge what was found.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import torch
from timm.models.vision_transformer import Block
from torch import nn

from tacit.models.adapters.federated import Order
from tacit.models.configuration import ModelConfiguration
from tacit.models.device import seeded
from tacit.models.extraction import copied_block, matched_outputs
from tacit.models.friendly.transformer import FriendlyTransformer
from tacit.protocol.adaptation.told import Reveal, told_blocks
from tacit.simulate.experiments.tastan_reveal import CopyFigures

_SAME: Final = 0.01
"""Two outputs of the last block that are no further apart, relative to their norm, are of one image."""
_SESSION_BYTES: Final = 32


@dataclass(frozen=True, kw_only=True)
class ToldRows:
    """Of one block in one pass. The printed form shows none of them."""

    rows: torch.Tensor = field(repr=False)
    """float32 [B, T, D], in an order of their own."""
    images: torch.Tensor = field(repr=False)
    """Of which image each row is, int64 [B]: what is to be found."""


ToldPass = Mapping[int, ToldRows]
"""By the number of the block, rising; the last block is always there."""


def centred(outputs: torch.Tensor) -> torch.Tensor:
    """Tokens [..., D] without their mean, as a pass on shares has them: norms take it away."""
    return outputs - outputs.mean(-1, keepdim=True)


def told_passes(outputs: torch.Tensor, batches: Sequence[Order], reveal: Reveal, *, seed: int) -> list[ToldPass]:
    """What a session tells of these batches.

    outputs: of all blocks for all images [L, N, T, D]; seed: of the orders, and of the session that the told blocks
    follow from.
    """
    generator = np.random.default_rng([seed, 1])
    session, blocks = generator.bytes(_SESSION_BYTES), len(outputs)
    found: list[ToldPass] = []
    for number, batch in enumerate(batches, start=1):
        told = told_blocks(reveal, blocks, session=session, number=number)
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
    centred. ValueError for passes that tell of fewer than two images, or of one block alone."""
    named = _Named()
    for told in passes:
        named.add(told)
    known = sorted(named.rows)
    if len(known) < 2:
        raise ValueError("outputs of one block alone were told: there is nothing to copy; take more passes")
    stolen, errors = judged[known[0]], []
    for before, after in itertools.pairwise(known):
        both = sorted(named.rows[before].keys() & named.rows[after].keys())
        inputs, targets = (torch.stack([named.rows[block][name] for name in both]) for block in (before, after))
        with seeded(seed):
            like = nn.Sequential(*(Block(sizes.width, sizes.heads, qkv_bias=True) for _ in range(after - before)))
        copy = copied_block(inputs, targets, like, epochs=epochs, learning_rate=learning_rate, seed=seed)
        errors.append(copy.error)
        with torch.no_grad():
            stolen = copy.block(stolen)
    with torch.no_grad():
        theirs, ours, none = (
            victim.classify(tokens).argmax(dim=1) for tokens in (judged[known[-1]], stolen, judged[known[0]])
        )
    return CopyFigures(
        told=sum(len(told.rows) for each in passes for told in each.values()),
        ordered=named.right / named.matched,
        errors=errors,
        agreement=(ours == theirs).double().mean().item(),
        without=(none == theirs).double().mean().item(),
    )


class _Named:
    """Rows by block and by the name of their image: its number in the order in which images first came."""

    def __init__(self) -> None:
        self.rows: dict[int, dict[int, torch.Tensor]] = {}
        self.matched = self.right = 0
        """Rows that were given to an image, and to their own."""
        self._last: list[torch.Tensor] = []

    def add(self, told: ToldPass) -> None:
        """Name the rows of a pass."""
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
