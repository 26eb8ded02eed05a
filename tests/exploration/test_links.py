"""A conversation over connections that break, on long walks; and links that lack one rule each are caught."""

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tacit.protocol.core.codec import Packet
from tacit.protocol.core.link import Link
from tacit.protocol.core.machine import Transmit
from tests.cases import cases
from tests.exploration.engine import RuleBroken, explore
from tests.exploration.link_world import LinkWorld


@settings(deadline=None, max_examples=25)
@given(data=st.data(), messages=st.integers(1, 6), breaks=st.integers(0, 5), kept=st.sampled_from([2, 64]))
def test_all_is_heard_once_and_in_order_on_long_walks(
    data: st.DataObject, messages: int, breaks: int, kept: int
) -> None:
    world = LinkWorld(messages, breaks, kept=kept)
    state = world.initial()
    while moves := dict(world.moves(state)):
        state = moves[data.draw(st.sampled_from(sorted(moves)))]
        assert list(world.faults(state)) == []
    assert world.outcome(state).startswith("all was heard")


def hears_former(link: Link, packet: Packet) -> bool:
    """Takes what comes from a former connection for an offence."""
    return False


def says_all(link: Link) -> list[Transmit] | None:
    rest = link._repeated()[1:]
    link._agreed = link.number
    return [link._resume(link.due), *rest]


def forgets(link: Link) -> Transmit:
    return link._resume(link._sent)


MUTANTS: dict[str, tuple[str, Callable[..., Any]]] = {
    "takes nothing for late": ("late", hears_former),
    "leaves out a message": ("answer", says_all),
    "asks on the former link": ("ask", forgets),
}


def fault() -> str:
    try:
        outcomes = explore(LinkWorld(1, 2)).outcomes
    except RuleBroken as broken:
        return broken.fault
    return next((end for end in outcomes if not end.startswith("all was heard")), "")


@cases(("name", "instead"), MUTANTS.values())
def test_a_link_without_a_rule_is_caught(
    monkeypatch: pytest.MonkeyPatch, name: str, instead: Callable[..., Any]
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(Link, name, instead)
        assert fault()


def test_a_link_with_every_rule_has_no_fault() -> None:
    assert not fault()
