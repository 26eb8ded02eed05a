"""The search on a puzzle whose states can be counted by hand: two dice that are turned up by one, up to `top`."""

from collections import Counter
from collections.abc import Iterator

import pytest

from tests.cases import cases
from tests.exploration.engine import RuleBroken, explore

Dice = tuple[int, int]


class TwoDice:
    def __init__(self, top: int, forbidden: Dice | None = None) -> None:
        self.top = top
        self.forbidden = forbidden

    def initial(self) -> Dice:
        return 1, 1

    def moves(self, state: Dice) -> Iterator[tuple[str, Dice]]:
        left, right = state
        if left < self.top:
            yield "left", (left + 1, right)
        if right < self.top:
            yield "right", (left, right + 1)

    def faults(self, state: Dice) -> Iterator[str]:
        if state == self.forbidden:
            yield f"dice show {state}"

    def outcome(self, state: Dice) -> str:
        return "both at the top"


@cases("top", [1, 2, 6])
def test_every_state_is_seen_once(top: int) -> None:
    seen = explore(TwoDice(top))
    assert (seen.states, seen.transitions, seen.depth) == (top**2, 2 * top * (top - 1), 2 * (top - 1))
    assert seen.outcomes == Counter({"both at the top": 1})


def test_the_shortest_run_to_a_fault_is_shown_and_the_first_state_is_checked_too() -> None:
    with pytest.raises(RuleBroken) as broken:
        explore(TwoDice(6, forbidden=(3, 2)))
    assert broken.value.fault == "dice show (3, 2)"
    assert sorted(broken.value.trace) == ["left", "left", "right"]
    assert "dice show (3, 2)\n  left" in str(broken.value)

    with pytest.raises(RuleBroken) as broken:
        explore(TwoDice(6, forbidden=(1, 1)))
    assert broken.value.trace == []
