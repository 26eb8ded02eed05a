"""The distribution of masks, enumerated, and what the adapters compute with one."""

from collections import Counter
from fractions import Fraction
from itertools import pairwise, product

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tacit.models.adapters.gradients import descent
from tacit.models.adapters.parallel import (
    QUADRATIC_GELU,
    AdapterParameters,
    AllBlocks,
    FinalNorm,
    StochasticBlocks,
    chain,
    logits,
    masked,
    mix,
)

States = tuple[bool, ...]


def forwards(blocks: int) -> dict[States, Fraction]:
    """The chain from its stationary start, block by block, and of these the masks with the last block."""
    found: dict[States, Fraction] = {(True,): Fraction(1, 3), (False,): Fraction(2, 3)}
    for _ in range(blocks - 1):
        following: dict[States, Fraction] = {}
        for states, probability in found.items():
            if states[-1]:
                following[(*states, False)] = probability
            else:
                following[(*states, True)] = following[(*states, False)] = probability / 2
        found = following
    last = {states: probability for states, probability in found.items() if states[-1]}
    assert sum(last.values()) == Fraction(1, 3)  # Stationary.
    return {states: 3 * probability for states, probability in last.items()}


@pytest.mark.parametrize("blocks", range(1, 7))
def test_masks_of_all_coins_are_distributed_as_the_chain_that_ends_with_the_last_block(blocks: int) -> None:
    counts: Counter[States] = Counter()
    for coins in product((False, True), repeat=blocks - 1):
        counts[tuple(chain(np.array(coins, dtype=np.bool_)).tolist())] += 1
    found = {states: Fraction(count, 2 ** (blocks - 1)) for states, count in counts.items()}
    assert found == forwards(blocks)
    for before_last in range(blocks):
        given = sum(probability for states, probability in found.items() if states[blocks - 1 - before_last])
        assert given == (1 + 2 * Fraction(-1, 2) ** before_last) / 3


@given(blocks=st.integers(1, 24), seed=st.integers(0, 2**32))
def test_a_drawn_mask_has_the_last_block_and_no_neighbours(blocks: int, seed: int) -> None:
    mask = StochasticBlocks().draw(blocks, np.random.default_rng(seed))
    assert len(mask) == blocks
    assert mask[-1]
    assert not any(first and second for first, second in pairwise(mask))
    assert (mask == StochasticBlocks().draw(blocks, np.random.default_rng(seed))).all()
    assert AllBlocks().draw(blocks, np.random.default_rng(seed)).tolist() == [True] * blocks


def test_coins_are_fair_and_all_are_used() -> None:
    """The generator's numbers on either side of one half, in their order."""

    class Numbers(np.random.Generator):
        def random(self, size: int) -> np.ndarray:  # type: ignore[override]
            assert size == 4
            return np.array([0.5 - 2**-53, 0.0, 0.5, 0.5 - 2**-53])

    mask = StochasticBlocks().draw(5, Numbers(np.random.PCG64(0)))
    assert mask.tolist() == [False, True, False, False, True]


def test_adapters_take_zeros_for_outputs_that_are_not_given(
    parameters: AdapterParameters, norm: FinalNorm, outputs: torch.Tensor, labels: torch.Tensor
) -> None:
    mask = np.array([True, False, True])
    hidden = outputs[2]
    for block, z in enumerate((outputs[0], torch.zeros_like(outputs[1]), outputs[2])):
        hidden = hidden + parameters.scale[block] * mix(parameters, block, z + hidden, QUADRATIC_GELU).added
    expected = norm(hidden[:, 0]) @ parameters.head_weight.T + parameters.head_bias
    given = masked(outputs, mask)
    assert torch.equal(logits(parameters, norm, given), expected)

    # What is not given has no influence, not even where it is no number.
    unknown = outputs.clone()
    unknown[1] = torch.nan
    assert descent(parameters, norm, masked(unknown, mask), labels) == descent(parameters, norm, given, labels)
    assert torch.equal(masked(outputs, np.ones(3, dtype=np.bool_)), outputs)
