"""Which blocks' outputs the adapters are given: all of them, or few enough that no two are neighbours.

Whoever has inputs and outputs of a block, image by image, can learn the block. Stochastic block sampling (Tastan and
Nandakumar 2025, second version, Fig. 5) never gives b_l and b_{l+1} together: with s_l = 1 where b_l is given,

    P(s_{l+1} = 1 | s_l = 1) = 0,   P(s_{l+1} = 1 | s_l = 0) = 1/2,

a Markov chain whose stationary distribution has P(s_l = 1) = 1/3. The output of the last block is always needed, h_0 =
b_L; the paper does not say how that goes together. Here the chain begins stationary and is conditioned on s_L = 1. A
stationary chain of two states is the same backwards, so that it is drawn from the last block to the first by the same
rule, exactly; a block k before the last is given with probability (1 + 2 (-1/2)^k) / 3. In the place of an output that
is not given the adapters take zeros, g_l(0 + h_{l-1}). A mask is drawn anew for every batch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Protocol

import numpy as np
import numpy.typing as npt
import torch

Mask = npt.NDArray[np.bool_]
"""Bool [L], whether the output of each block is given; the last one always is."""


class BlockSampling(Protocol):
    """How masks are drawn."""

    def draw(self, blocks: int, generator: np.random.Generator) -> Mask:
        """A mask for a backbone of L blocks, one at least."""


@dataclass(frozen=True)
class AllBlocks:
    """Every output is given."""

    def draw(self, blocks: int, generator: np.random.Generator) -> Mask:
        """See BlockSampling. Nothing is drawn."""
        return np.ones(blocks, dtype=np.bool_)


ALL_BLOCKS: Final = AllBlocks()


@dataclass(frozen=True)
class StochasticBlocks:
    """The chain above: the last output, about a third of the others, and never two neighbours."""

    def draw(self, blocks: int, generator: np.random.Generator) -> Mask:
        """See BlockSampling. Takes L - 1 fair coins."""
        return chain(generator.random(blocks - 1) < 0.5)


def chain(coins: Mask) -> Mask:
    """The mask [L] of fair coins [L - 1], of which each is looked at where the next block is not given."""
    mask = np.append(coins, True)
    for block in reversed(range(len(coins))):
        mask[block] &= not mask[block + 1]
    return mask


def masked(outputs: torch.Tensor, mask: Mask) -> torch.Tensor:
    """Outputs of all blocks [L, B, T, D], with zeros for those that are not given, whatever stands there."""
    given = torch.from_numpy(mask).to(outputs.device)[:, None, None, None]
    return torch.where(given, outputs, torch.zeros_like(outputs))
