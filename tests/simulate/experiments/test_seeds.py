"""What names seeds, and what does not."""

import pytest

from tacit.simulate.experiments.measures import StudyError, read_seeds
from tests.cases import cases


@cases(
    ("text", "seeds"),
    [
        ("0", (0,)),
        ("0-4", (0, 1, 2, 3, 4)),
        ("0,2,7", (0, 2, 7)),
        ("3-3", (3,)),
        ("1-2, 5,8-9", (1, 2, 5, 8, 9)),
        ("999999", (999_999,)),
        ("0-999", tuple(range(1000))),
    ],
)
def test_seeds_are_read(text: str, seeds: tuple[int, ...]) -> None:
    assert read_seeds(text) == seeds


@cases(
    ("text", "reason"),
    [
        ("", "'' is no seed"),
        ("0,", "'' is no seed"),
        ("-1", "'-1' is no seed"),
        ("1-", "'1-' is no seed"),
        ("1.5", "'1.5' is no seed"),
        ("two", "'two' is no seed"),
        ("٣", "is no seed"),
        ("1000000", "'1000000' is no seed: give numbers up to 999999"),
        ("4-0", "'4-0' goes down; write it as 0-4"),
        ("2,2", "every seed once"),
        ("3,1", "ascending"),
        ("0-2,2", "every seed once"),
        ("0-1000", "at most 1000"),
    ],
)
def test_everything_else_is_refused(text: str, reason: str) -> None:
    with pytest.raises(StudyError, match=r"^--seeds ") as refused:
        read_seeds(text)
    assert reason in str(refused.value)
