"""A set of members has one encoding."""

from hypothesis import given
from hypothesis import strategies as st

from tacit.protocol.core.roster import Members, encode_members


@st.composite
def sets(draw: st.DrawFn) -> tuple[set[int], int]:
    size = draw(st.integers(1, 40))
    return draw(st.sets(st.integers(0, size - 1))), size


@given(st.sets(st.integers(0, 20)), st.sets(st.integers(0, 20)))
def test_sets_as_sent_compare_like_sets(some: set[int], others: set[int]) -> None:
    first, second = (Members(encode_members(members, 21), 21) for members in (some, others))
    assert list(first) == sorted(some)
    assert len(first) == len(some)
    assert [member in first for member in range(-1, 25)] == [member in some for member in range(-1, 25)]
    assert (first <= second) == (some <= others)
    assert (first == second, hash(first) == hash(second)) == (some == others, some == others)
