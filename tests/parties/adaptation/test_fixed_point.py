"""Checks of rows that are looked at together, each by its own bounds."""

import pytest
import torch

from tacit.parties.adaptation.fixed_point import RangeCheck, rows_outside
from tacit.parties.inference.operations import Party, Program
from tacit.parties.inference.tables import fitted_sum
from tacit.protocol.inference.schedule import PLACE, WORD_BITS
from tests.parties.inference.in_memory import Pair, shares

UNIT = 2.0**40


@pytest.mark.parametrize("levels", [(PLACE, PLACE, PLACE), (PLACE, 12, PLACE), (12, 12, 20)])
def test_rows_are_counted_by_bounds_and_bits_of_their_own(levels: tuple[int, int, int]) -> None:
    sums = [torch.tensor([1.0, 9.0, 11.0]), torch.tensor([[60.0], [0.5]]), torch.tensor([0.0, 3.5, 12.0, 90.0])]
    high = (10.0, 70.0, 3.0)  # Out of range: one, none, and three.
    checks = [
        fitted_sum("rows", bits=WORD_BITS, unit=UNIT, most=100.0, low=0.0, high=most, levels=each)
        for most, each in zip(high, levels, strict=True)
    ]
    words = [shares((rows.double() * UNIT).long()) for rows in sums]

    def program(party: Party) -> Program[torch.Tensor]:
        found = [RangeCheck(party, tuple(rows.shape), check) for rows, check in zip(sums, checks, strict=True)]
        for check, pair in zip(found, words, strict=True):
            check.of(pair[party.rank])
        for check, opened in zip(
            found, (yield from party.open("rows", *(each.masked() for each in found))), strict=True
        ):
            check.settle(opened)
        return rows_outside(found)

    pair = Pair()
    assert int(sum(pair.run(*map(program, pair.parties)))) % (1 << PLACE) == 4
