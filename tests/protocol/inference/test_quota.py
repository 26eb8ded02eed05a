"""Quotas of a day: never more than they allow, whatever is asked, answered or refused, and whenever."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tacit.protocol.inference.quota import DAY_SECONDS, OverQuotaError, Quota, Spent, answered, charged
from tests.cases import cases

PASSES = st.lists(st.tuples(st.floats(0.0, 4.0), st.integers(1, 5), st.booleans()), max_size=30)
"""Days at which passes are asked for, their images, and whether they are in range."""


@given(passes=PASSES, images=st.integers(0, 12), refused=st.integers(0, 12))
def test_no_day_has_more_than_the_quota(passes: list[tuple[float, int, bool]], images: int, refused: int) -> None:
    quota, spent = Quota(used=images, refused=refused), Spent()
    begun: dict[int, int] = {}
    failed: dict[int, int] = {}
    for days, count, in_range in passes:
        day = max(int(days), spent.day)
        asked, out = begun.get(day, 0), failed.get(day, 0)
        if asked + count > images or out + count > refused:
            with pytest.raises(OverQuotaError):
                charged(quota, spent, count, days * DAY_SECONDS)
            continue
        spent = charged(quota, spent, count, days * DAY_SECONDS)
        begun[day], failed[day] = asked + count, out + (0 if in_range else count)
        if in_range:
            spent = answered(spent, count)
        assert spent == Spent(day=day, used=begun[day], refused=failed[day])


@cases(
    ("spent", "refused", "most", "left"),
    [
        (Spent(day=1, used=9), False, 10, 1),
        (Spent(day=1, refused=4), True, 5, 1),
        (Spent(day=1, used=12), False, 10, 0),
    ],
)
def test_what_is_refused_says_what_remains_and_when_it_renews(
    spent: Spent, refused: bool, most: int, left: int
) -> None:
    with pytest.raises(OverQuotaError) as over:
        charged(Quota(used=10, refused=5), spent, 2, DAY_SECONDS + 1.0)
    found = over.value
    assert (found.refused, found.most, found.left) == (refused, most, left)
    assert found.renewed == "1970-01-03T00:00:00Z"
