"""The secure sum explored: the real machines keep every rule, and no possibility is lost by keeping sets of them."""

from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from tacit.protocol.core.machine import Trigger
from tests.exploration.engine import World, explore
from tests.exploration.lying_world import LyingWorld
from tests.exploration.machines import Event, States, duplicate, fingerprint
from tests.exploration.network_world import NetworkState, NetworkWorld
from tests.exploration.page import WORLDS, explore_world, row
from tests.exploration.possibilities import Possibility, arrived, posted
from tests.exploration.secure_sum import Cohort

PAGE = Path(__file__).parents[2] / "docs" / "exploration.md"
LONG = ("4 clients", "2 rounds", "2 sessions", "2 breaks", "3 breaks", "group key, 3 clients", "with a complaint")
TAKES_LONG = [name for name in WORLDS if any(part in name for part in LONG)]
BOUNDED: dict[str, Callable[[], World[Any]]] = {
    "nothing interrupts": lambda: NetworkWorld(Cohort(4, 3, active=True), copies=1, interruptions=0),
    "one interruption": lambda: NetworkWorld(Cohort(4, 3, active=True), copies=1, interruptions=1),
    "a complaint, nothing interrupts": lambda: NetworkWorld(
        Cohort(4, 3, active=True, spoiler="c1"), copies=1, interruptions=0
    ),
    "a complaint, one interruption": lambda: NetworkWorld(
        Cohort(4, 3, active=True, spoiler="c1"), copies=1, interruptions=1
    ),
    "a corrupt client complains": lambda: LyingWorld(Cohort(4, 3, active=True), whole=False, corrupt=True),
    "lies about survivors": lambda: LyingWorld(Cohort(4, 3, active=True), whole=False),
    "lies to three": lambda: LyingWorld(Cohort(3, 2, active=True), whole=True),
}
"""Four clients within bounds, and where these leave out a kind of lie, three."""
EXPECTED = {
    "nothing interrupts": {"sum over 4"},
    "one interruption": {"sum over 4", "sum over 3", "no sum: THRESHOLD"},
    "a complaint, nothing interrupts": {"sum over 4"},
    "a complaint, one interruption": {"sum over 4", "sum over 3", "no sum: THRESHOLD", "no sum: SHARES"},
    "a corrupt client complains": {"0 clients opened", "3 clients opened", "4 clients opened"},
    "lies about survivors": {"0 clients opened", "3 clients opened", "4 clients opened"},
    "lies to three": {"0 clients opened", "2 clients opened", "3 clients opened"},
}

QUICK = ("nothing interrupts", "a complaint, nothing interrupts", "lies to three")

Explicit = tuple[int, tuple[Possibility, ...], int]


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.exhaustive] * (name in TAKES_LONG)) for name in WORLDS]
)
def test_no_state_breaks_a_rule(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    seen = explore_world(name)
    with capsys.disabled():
        print(f"\n{row(name, seen)} {seen.seconds:.1f} s")
    assert row(name, seen) in PAGE.read_text(encoding="utf-8"), "write docs/exploration.md again, as it says"


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.exhaustive] * (name not in QUICK)) for name in BOUNDED]
)
def test_no_state_within_bounds_breaks_a_rule(name: str) -> None:
    assert set(explore(BOUNDED[name]()).outcomes) == EXPECTED[name]


class Recorded(NetworkWorld):
    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.seen: list[NetworkState] = []

    def faults(self, state: NetworkState) -> Iterator[str]:
        self.seen.append(state)
        return super().faults(state)


class ExplicitWorld:
    """The same network with nothing folded: every start, arrival, time-out and lost link of anybody is a move."""

    def __init__(self, cohort: Cohort, *, copies: int, interruptions: int) -> None:
        self.cohort = cohort
        self.copies = copies
        self.interruptions = interruptions
        self.steps = NetworkWorld(cohort, copies=copies, interruptions=0).possibilities
        self.seen: set[tuple[int, tuple[int, ...]]] = set()

    def initial(self) -> Explicit:
        return 0, ((0, (), ()),) * self.cohort.agreement.size, self.interruptions

    def moves(self, state: Explicit) -> Iterator[tuple[str, Explicit]]:
        server, clients, left = state
        for member, (name, client) in enumerate(zip(self.cohort.agreement.cohort, clients, strict=True)):
            for following in self.steps[member].steps(client):
                yield "client", (server, (*clients[:member], following, *clients[member + 1 :]), left)
            for letter, _ in client[2]:
                heard = client[0], client[1], arrived(client[2], letter)
                yield (
                    "letter",
                    self.after(server, (*clients[:member], heard, *clients[member + 1 :]), letter, name, left),
                )
            if left:
                yield "lost link", self.after(server, clients, Trigger.DROP, name, left - 1)
        if left:
            yield "deadline", self.after(server, clients, Trigger.EXPIRE, "", left - 1)

    def after(self, server: int, clients: tuple[Possibility, ...], event: Event, peer: str, left: int) -> Explicit:
        following, sent = self.cohort.server.after(server, event, peer)
        reached = [*clients]
        for receiver, letter in sent:
            place = self.cohort.agreement.places[receiver]
            state, inward, outward = reached[place]
            reached[place] = state, posted(inward, [letter], self.copies), outward
        return following, tuple(reached), left

    def faults(self, state: Explicit) -> Iterator[str]:
        self.seen.add((state[0], tuple(client for client, _, _ in state[1])))
        return iter(())

    def outcome(self, state: Explicit) -> str:
        return ""


@pytest.mark.parametrize(
    ("size", "threshold", "copies", "interruptions"),
    [
        (2, 2, 1, 2),
        (3, 2, 1, 0),
        pytest.param(2, 2, 2, 1, marks=pytest.mark.exhaustive),
        pytest.param(3, 2, 1, 1, marks=pytest.mark.exhaustive),
    ],
)
def test_sets_of_possibilities_lose_nothing_and_add_nothing(
    size: int, threshold: int, copies: int, interruptions: int
) -> None:
    cohort = Cohort(size, threshold, active=False)
    folded = Recorded(cohort, copies=copies, interruptions=interruptions)
    explicit = ExplicitWorld(cohort, copies=copies, interruptions=interruptions)
    assert 10 * explore(folded).states < explore(explicit).states
    together = {
        (server, clients)
        for server, sets, _ in folded.seen
        for clients in product(*(folded.possibilities[member].states[number] for member, number in enumerate(sets)))
    }
    assert together == explicit.seen


class Printed(NetworkWorld):
    """Takes the fingerprint of every machine as soon as there is one."""

    def __init__(self, cohort: Cohort) -> None:
        super().__init__(cohort, copies=1, interruptions=1)
        self.prints: dict[States, list[Any]] = {states: [] for states in (cohort.server, *cohort.clients)}

    def faults(self, state: NetworkState) -> Iterator[str]:
        for states, prints in self.prints.items():
            prints += [fingerprint(states.machine(number)) for number in range(len(prints), len(states))]
        return super().faults(state)


def test_a_machine_is_not_changed_by_what_its_copies_do() -> None:
    world = Printed(Cohort(3, 2, active=True))
    explore(world)
    for states, prints in world.prints.items():
        assert [fingerprint(states.machine(number)) for number in range(len(states))] == prints
        assert [fingerprint(duplicate(states.machine(number))) for number in range(len(states))] == prints
