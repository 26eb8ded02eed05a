"""Chunks that arrive and rounds of a pass, for any sizes and in any order that causes allow."""

from collections import deque

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tacit.protocol.core.errors import Code, LocalProtocolError, RemoteProtocolError
from tacit.protocol.inference.material import Arrivals, chunks
from tacit.protocol.inference.schedule import Round
from tacit.protocol.inference.session import PassRounds

CHUNK = 4
SIZES = st.lists(st.integers(0, 3 * CHUNK + 1), max_size=6)


@pytest.fixture(autouse=True, scope="module")
def small_chunks() -> object:
    """Chunks of four bytes: what happens at their ends does not depend on their length."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tacit.protocol.inference.material.CHUNK_BYTES", CHUNK)
        yield


@given(sizes=SIZES, later=SIZES)
def test_what_is_due_arrives_whole_and_in_order(sizes: list[int], later: list[int]) -> None:
    arrivals = Arrivals("thing", enumerate(sizes))
    arrivals.expect(enumerate(later, len(sizes)))
    expected = [(index, bytes([index] * size)) for index, size in enumerate(sizes + later) if size]
    assert arrivals.next == (expected[0][0] if expected else None)
    found = []
    for index, data in expected:
        for chunk, piece in chunks(data):
            assert len(piece) == CHUNK or chunk == (len(data) - 1) // CHUNK
            assert arrivals.next == index
            arrivals.check(index, chunk, piece)
            ends = arrivals.ends_with(piece)
            whole = arrivals.take(piece)
            assert ends == (whole is not None and index == expected[-1][0])
            found += [(whole[0], bytes(whole[1]))] if whole else []
    assert found == expected
    assert arrivals.next is None


@given(sizes=SIZES.filter(any), data=st.data())
def test_anything_but_the_next_chunk_is_refused_and_changes_nothing(sizes: list[int], data: st.DataObject) -> None:
    arrivals = Arrivals("thing", enumerate(sizes))
    pieces = [(index, chunk, bytes(piece)) for index, size in enumerate(sizes) for chunk, piece in chunks(bytes(size))]
    stop = data.draw(st.integers(0, len(pieces)))
    for index, chunk, piece in pieces[:stop]:
        arrivals.check(index, chunk, piece)
        arrivals.take(piece)
    index, chunk = data.draw(st.tuples(st.integers(0, 7), st.integers(0, 4)))
    payload = data.draw(st.none() | st.binary(max_size=CHUNK + 1))
    due = pieces[stop] if stop < len(pieces) else None
    if due is not None and (index, chunk, len(payload or b"")) == (*due[:2], len(due[2])):
        arrivals.check(index, chunk, payload)
    else:
        with pytest.raises(RemoteProtocolError) as refused:
            arrivals.check(index, chunk, payload)
        place = due is not None and (index, chunk) == due[:2]
        assert refused.value.code is (Code.VECTOR if place else Code.UNEXPECTED)
    for index, chunk, piece in pieces[stop:]:
        arrivals.check(index, chunk, piece)
        arrivals.take(piece)
    assert arrivals.next is None
    arrivals.forget()
    with pytest.raises(RemoteProtocolError, match="thing 0 came where nothing is due"):
        arrivals.check(0, 0, b"")


def test_what_is_forgotten_is_not_due() -> None:
    arrivals = Arrivals("thing", [(0, CHUNK + 1)])
    arrivals.take(bytes(CHUNK))
    arrivals.forget()
    assert arrivals.next is None
    arrivals.expect([(1, 1)])
    arrivals.check(1, 0, b"x")
    assert arrivals.take(b"x") == (1, bytearray(b"x"))


SCHEDULES = st.lists(
    st.tuples(st.integers(0, CHUNK + 1), st.integers(0, CHUNK + 1)).filter(any), min_size=1, max_size=6
).map(lambda pairs: tuple(Round("operation", *pair) for pair in pairs))


@given(schedule=SCHEDULES, data=st.data())
def test_any_order_that_causes_allow_ends_the_pass_alike(schedule: tuple[Round, ...], data: st.DataObject) -> None:
    """Two sides open what they can and receive what has come, in any order: all of it is admitted, and only that."""
    sides = [PassRounds(schedule, model_owner=True), PassRounds(schedule, model_owner=False)]
    wires: list[deque[tuple[int, int, bytes]]] = [deque(), deque()]
    opened: list[list[tuple[int, int]]] = [[], []]
    while not all(side.over for side in sides):
        moves = []
        for place, side in enumerate(sides):
            due = side.arrivals.next
            # By the schedule: a side opens something in a round when all before it has arrived.
            able = side.owed is not None and (due is None or due >= side.owed)
            moves += [("open", place)] if able else []
            moves += [("receive", place)] if wires[place] else []
            if side.owed is not None and not able:
                with pytest.raises(LocalProtocolError):
                    side.give(side.owed, schedule[side.owed][1 + place])
            waiting = due is not None and (side.owed is None or due <= side.owed)
            assert side.waiting == waiting
        move, place = data.draw(st.sampled_from(moves))  # There always is one: neither can wait for the other.
        side = sides[place]
        if move == "open":
            step = side.owed
            assert step is not None
            size = schedule[step][1 + place]
            for wrong in ((step + 1, size), (step, size + 1)):
                with pytest.raises(LocalProtocolError):
                    side.give(*wrong)
            side.give(step, size)
            wires[1 - place].extend((step, chunk, bytes(piece)) for chunk, piece in chunks(bytes(size)))
        else:
            step, chunk, piece = wires[place].popleft()
            side.check(step, chunk, piece)
            whole = side.arrivals.take(piece)
            opened[place] += [(whole[0], len(whole[1]))] if whole else []
    for place in (0, 1):
        assert opened[place] == [(step, each[2 - place]) for step, each in enumerate(schedule) if each[2 - place]]
        assert not wires[place]
        with pytest.raises(LocalProtocolError):
            sides[place].give(0, 1)


@given(schedule=SCHEDULES, place=st.integers(0, 1))
def test_an_opening_behind_one_that_this_side_owes_is_refused(schedule: tuple[Round, ...], place: int) -> None:
    side = PassRounds(schedule, model_owner=not place)
    due, owed = side.arrivals.next, side.owed
    if due is None:
        return
    piece = bytes(min(CHUNK, schedule[due][2 - place]))
    if owed is None or owed >= due:
        side.check(due, 0, piece)
        return
    with pytest.raises(RemoteProtocolError, match="before this side has opened anything") as refused:
        side.check(due, 0, piece)
    assert refused.value.code is Code.UNEXPECTED
