"""A conversation over connections that break, explored: all is heard once and in order, whatever the network does."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.exploration.engine import explore
from tests.exploration.link_world import LinkWorld


@pytest.mark.parametrize(
    ("messages", "breaks", "kept"),
    [(1, 2, 64), (2, 1, 64), (2, 1, 1), (1, 2, 0)],
)
def test_small(messages: int, breaks: int, kept: int) -> None:
    seen = explore(LinkWorld(messages, breaks, kept=kept))
    print(seen)


@settings(deadline=None)
@given(data=st.data(), messages=st.integers(1, 12), breaks=st.integers(0, 8))
def test_long(data: st.DataObject, messages: int, breaks: int) -> None:
    world = LinkWorld(messages, breaks)
    state = world.initial()
    while moves := dict(world.moves(state)):
        state = moves[data.draw(st.sampled_from(sorted(moves)))]
        assert list(world.faults(state)) == []
    assert world.outcome(state).startswith("all was heard")
