"""Quotas of a day: never more than they allow, whatever is asked, answered or refused, and whenever."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tacit.protocol.core.errors import Code, RemoteProtocolError
from tacit.protocol.inference.quota import DAY_SECONDS, Quota, Spent, answered, charged
from tests.cases import cases

PASSES = st.lists(st.tuples(st.floats(0.0, 4.0), st.integers(1, 5), st.booleans()), max_size=30)
"""Days at which passes are asked for, their images, and whether they are in range."""


@given(passes=PASSES, images=st.integers(0, 12), refused=st.integers(0, 12))
def test_no_day_has_more_than_the_quota(passes: list[tuple[float, int, bool]], images: int, refused: int) -> None:
    quota, spent = Quota(images=images, refused=refused), Spent()
    begun: dict[int, int] = {}
    failed: dict[int, int] = {}
    for days, count, in_range in passes:
        day = max(int(days), spent.day)
        asked, out = begun.get(day, 0), failed.get(day, 0)
        if asked + count > images or out + count > refused:
            with pytest.raises(RemoteProtocolError) as caught:
                charged(quota, spent, count, days * DAY_SECONDS)
            assert caught.value.code is Code.POLICY
            continue
        spent = charged(quota, spent, count, days * DAY_SECONDS)
        begun[day], failed[day] = asked + count, out + (0 if in_range else count)
        if in_range:
            spent = answered(spent, count)
        assert spent == Spent(day=day, images=begun[day], refused=failed[day])


@cases(
    ("spent", "said"),
    [
        (Spent(day=1, images=9), "10 images a day a data owner may ask about, 1 are left until 1970-01-03T00:00:00Z"),
        (Spent(day=1, refused=4), "5 images a day of a data owner may be refused, 1 are left until 1970-01-03T00:00:0"),
        (Spent(day=1, images=12), "10 images a day a data owner may ask about, 0 are left until"),
    ],
)
def test_what_is_refused_says_what_remains_and_when_it_renews(spent: Spent, said: str) -> None:
    with pytest.raises(RemoteProtocolError, match=said) as refused:
        charged(Quota(images=10, refused=5), spent, 2, DAY_SECONDS + 1.0)
    assert "a pass of 2 is wanted" in refused.value.detail
