"""A set of members has one encoding."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tacit.protocol.core.errors import Code, RemoteProtocolError
from tacit.protocol.core.roster import Members, decode_members, encode_members


@st.composite
def sets(draw: st.DrawFn) -> tuple[set[int], int]:
    size = draw(st.integers(1, 40))
    return draw(st.sets(st.integers(0, size - 1))), size


@given(sets())
def test_bit_i_is_member_i(case: tuple[set[int], int]) -> None:
    members, size = case
    expected = sum(1 << member for member in members).to_bytes((size + 7) // 8, "little")
    assert encode_members(members, size) == expected
    assert decode_members(expected, size) == tuple(sorted(members))


@given(st.sets(st.integers(0, 20)), st.sets(st.integers(0, 20)))
def test_sets_as_sent_compare_like_sets(some: set[int], others: set[int]) -> None:
    first, second = (Members(encode_members(members, 21), 21) for members in (some, others))
    assert list(first) == sorted(some)
    assert len(first) == len(some)
    assert [member in first for member in range(-1, 25)] == [member in some for member in range(-1, 25)]
    assert (first <= second) == (some <= others)
    assert (first == second, hash(first) == hash(second)) == (some == others, some == others)


def test_other_lengths_and_members_outside_are_refused() -> None:
    for size in [1, 7, 9, 15]:
        for bit in range(size, (size + 7) // 8 * 8):
            with pytest.raises(RemoteProtocolError, match=f"beyond the {size} members") as caught:
                decode_members((1 | 1 << bit).to_bytes((size + 7) // 8, "little"), size)
            assert caught.value.code is Code.MEMBERS
    for size, length in [(8, 0), (8, 2), (9, 1), (9, 3)]:
        with pytest.raises(RemoteProtocolError, match=f"a set of {size} members has .* not {length}") as caught:
            decode_members(bytes(length), size)
        assert caught.value.code is Code.MEMBERS
    for member in [-1, -8, 8, 100]:
        with pytest.raises(IndexError):
            encode_members([0, member], 8)
