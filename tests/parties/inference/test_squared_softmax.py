"""A softmax by squarings: its sums stay in the ranges that are proven for them, whatever the row and its length."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch

from tacit.parties.inference.operations import Party, Program
from tacit.parties.inference.ring import signed
from tacit.parties.inference.scores import LAST_BITS, SHARE_BITS, SQUARE_BITS, SquaredSoftmax, fitted_divisions
from tacit.parties.inference.tables import fitted_steps, step_ratios
from tacit.parties.inference.waves import Wave
from tacit.protocol.inference.schedule import LARGEST_TOKENS, MOST_SQUARINGS, PLACE, SHARES

with pytest.MonkeyPatch.context() as patch:
    patch.syspath_prepend(Path(__file__).parent)
    from in_memory import Pair, shares

RING = 64
WAVE = Wave(constant=0, cosines=(1,), sines=(0,), precision=12, words=16)
"""Of its precision alone: 28 fractional bits."""
UNIT = 2 * 2.0**-SHARE_BITS
"""What both owners' roundings change in a share of one."""
REACH = 8.0
"""Of scores / 2^L."""


def rows(tokens: int) -> torch.Tensor:
    """Centred scores / 2^L, float64 [n, tokens]: equal ones, one far above all or below, two kinds, and random ones."""
    random = torch.randn(4, tokens, generator=torch.Generator().manual_seed(tokens), dtype=torch.float64)
    found = torch.cat(
        [torch.zeros(4, tokens, dtype=torch.float64), random * torch.tensor([[0.01], [0.3], [1.0], [3.0]])]
    )
    found[1, 0], found[2, 0], found[3, ::2] = REACH, -REACH, REACH
    found -= found.mean(-1, keepdim=True)
    return found * (REACH / found.abs().amax(-1, keepdim=True).clamp(min=REACH))


@pytest.mark.parametrize("tokens", [2, 3, 17, 65, 197, 257, LARGEST_TOKENS])
def test_every_row_is_a_softmax_and_in_range(tokens: int) -> None:
    for squarings in range(1, MOST_SQUARINGS + 1):
        divisions, sums = fitted_divisions(WAVE, math.exp(REACH), squarings, tokens)
        scores = rows(tokens)
        exponentials = (scores.exp() * 2.0**WAVE.bits).round().long()

        def act(party: Party, share: torch.Tensor) -> Program[tuple[torch.Tensor, torch.Tensor]]:
            softmax = SquaredSoftmax(party, tuple(share.shape), divisions, RING)  # noqa: B023
            return (yield from softmax.run(share))

        pair = Pair()
        parts = zip(pair.parties, shares(exponentials), strict=True)
        (one, outside), (other, more) = pair.run(*(act(party, part) for party, part in parts))
        assert int(outside + more) % (1 << PLACE) == 0, squarings
        found = signed(one + other, RING).double() / 2.0**LAST_BITS
        totals = found.sum(-1)
        assert sums.low <= totals.min(), squarings
        assert totals.max() <= sums.high, squarings
        exact, error = (
            scores.softmax(-1),
            torch.full_like(scores, UNIT + 2.0 ** (1 + divisions[0].cut - WAVE.bits) / tokens),
        )
        for _ in range(squarings):
            squares = exact.square().sum(-1, keepdim=True)
            # 2^(1 - SQUARE_BITS): roundings of a square by both owners.
            error = (2 * exact * error + error.square() + 2.0 ** (1 - SQUARE_BITS)) / squares
            exact = exact.square() / squares
            # Of a row its sum is divided out.
            error += UNIT + exact * error.sum(-1, keepdim=True)
        # Sums are within a quarter of one, so that units are worth a quarter more.
        assert ((found / totals[:, None] - exact).abs() <= 1.25 * error).all(), squarings
        assert len(pair.log) == 2 + 3 * squarings


def test_a_sum_beyond_the_first_range_has_its_row_refused() -> None:
    """Whatever its multiple of the ring's part, up to all that the ring holds."""
    divisions, _ = fitted_divisions(WAVE, math.exp(REACH), 2, 17)
    ring, place = SHARES + divisions[0].cut, divisions[0].sums
    unit = 2 ** (ring - place.levels) / place.factor
    high, low = place.high * unit, (place.low - 1) * unit
    largest = 2**ring / place.factor
    for total in (high + unit, (high + largest) / 2, 0.99 * largest, low / 2, 0.0):
        exponentials = torch.zeros(1, 17, dtype=torch.int64)
        exponentials[0, 0] = int(total)

        def act(party: Party, share: torch.Tensor) -> Program[tuple[torch.Tensor, torch.Tensor]]:
            return (yield from SquaredSoftmax(party, (1, 17), divisions, RING).run(share))

        pair = Pair()
        parts = zip(pair.parties, shares(exponentials), strict=True)
        (_, outside), (_, more) = pair.run(*(act(party, part) for party, part in parts))
        assert int(outside + more) % (1 << PLACE) >= 1, total


@pytest.mark.parametrize("ratio", [1.5, 20.0, 300.0, 1e5])
def test_an_inverse_in_steps_is_within_its_ratios(ratio: float) -> None:
    unit, low = 2.0**20, 3.0
    stepped = fitted_steps("it", bits=60, unit=unit, most=low * ratio, low=low, high=low * ratio, scale=2.0**24)
    ratios = step_ratios(stepped)
    assert 2.0**-0.5 < ratios.low < 1 < ratios.high < 2.0**0.5
    ends, values = stepped.steps
    sums = torch.logspace(math.log2(low), math.log2(low * ratio), 5000, base=2, dtype=torch.float64)
    units = sums * unit * stepped.factor / 2.0 ** (60 - stepped.levels)
    for carry in (0, 1):  # What is compared is the number of a unit, or one more.
        place = torch.searchsorted(ends, (units.floor() + carry).long(), right=True) - 1
        inside = (place >= 0) & (place < len(values))
        assert inside[1:-1].float().mean() > 0.99
        product = sums[inside] * values[place[inside]].double() / 2.0**24
        assert ratios.low <= product.min()
        assert product.max() <= ratios.high
