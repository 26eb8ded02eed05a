"""Which outputs of blocks a data owner is told in a pass. Both owners compute it from what both know before the pass,
because its rounds and their bytes follow from it.

Stochastic block sampling (Tastan and Nandakumar 2025, second version, Fig. 5) never tells b_l and b_(l + 1) together:

    P(told l + 1 | told l) = 0,   P(told l + 1 | not told l) = 1 / 2,

a stationary chain, given that the last output is told, which adapters begin with. It is drawn from the last block to
the first with fair coins: bits of a digest of the session and the number of the pass, so anew for every pass. Neither
owner has to be kept from knowing or choosing them: what is told protects nothing (docs/decisions/016-double-blind.md).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal

from tacit.protocol.core.primitives import Label, digest

Reveal = Literal["none", "sampled", "all"]
"""Which outputs of blocks data owners are told: none, a sample that is drawn for every pass, or all."""
Selection = Literal["data-owner", "enrolment"]
"""Which images a batch has whose outputs are told: those that the data owner chose for it, or the next ones in a secret
order of the model owner, of everything that the data owner goes through in a session."""
MOST_BLOCKS: Final = 257
"""Of which a sample can be drawn: a digest has 256 coins, and the last block needs none."""


def told_blocks(reveal: Reveal, blocks: int, *, session: bytes, number: int) -> tuple[bool, ...]:
    """For each block, whether its output is told in the pass of this number, from 1, of this session. ValueError for
    more blocks than there are coins."""
    if not 1 <= blocks <= MOST_BLOCKS:
        raise ValueError(f"of {blocks} blocks none can be drawn: 1 to {MOST_BLOCKS} can")
    if reveal != "sampled":
        return (reveal == "all",) * blocks
    bits = int.from_bytes(digest(Label.TOLD_BLOCKS, session, number.to_bytes(8, "little")), "little")
    return sampled([bool(bits >> block & 1) for block in range(blocks - 1)])


def sampled(coins: Sequence[bool]) -> tuple[bool, ...]:
    """The chain [L] of fair coins [L - 1]: that of a block counts where the next block is not told."""
    told = [*coins, True]
    for block in reversed(range(len(coins))):
        told[block] = told[block] and not told[block + 1]
    return tuple(told)
