"""Everything that a client and its link may be, given what the server sent to it and heard from it.

Clients never speak to each other, so with the server's past fixed, what one client did meanwhile says nothing about the
others: the reachable states of all parties are, for every past of the server, the product of one set per client. This
file keeps that set instead of its members. An element is the client's state, with the letters under way in both
directions and how many more times each may arrive; the set is closed under all that happens without the server: the
client starts, gives up, loses its link, or a letter reaches it. What the server hears shrinks the set to those who can
have said it.

A letter may arrive at any time after it was sent, in any order, `copies` times at most. A loss is an arrival that never
comes: deadlines pass, and the rules are checked, no matter what is under way. So whoever has more under way can do all
that the other can, and only the largest elements are kept.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator

from tacit.protocol.core.machine import Trigger
from tests.exploration.machines import States

Mail = tuple[tuple[int, int], ...]
"""Letters under way, with the arrivals that each has left, in the order of their numbers."""
Possibility = tuple[int, Mail, Mail]
"""State of the client, mail to it, mail from it."""


def posted(mail: Mail, letters: Iterable[int], copies: int) -> Mail:
    counts = dict(mail)
    for letter in letters:
        counts[letter] = counts.get(letter, 0) + copies
    return tuple(sorted(counts.items()))


def arrived(mail: Mail, letter: int) -> Mail:
    return tuple((other, left - (other == letter)) for other, left in mail if other != letter or left > 1)


class Possibilities:
    """The numbered sets of one client. Set 0 is that of the beginning."""

    def __init__(self, states: States, server: str, copies: int) -> None:
        self._states = states
        self._server = server
        self._copies = copies
        self._numbers: dict[frozenset[Possibility], int] = {}
        self._sets: list[frozenset[Possibility]] = []
        self._moves: dict[Possibility, list[Possibility]] = {}
        self._told: dict[tuple[int, int], int] = {}
        self._heard: dict[tuple[int, int], int] = {}
        self.letters: list[tuple[int, ...]] = []
        """Per set: what may arrive at the server next."""
        self.states: list[frozenset[int]] = []
        """Per set: the states that the client may be in."""
        self._close([(0, (), ())])

    def __len__(self) -> int:
        return len(self._sets)

    def told(self, number: int, letter: int) -> int:
        key = number, letter
        if key not in self._told:
            self._told[key] = self._close(
                (state, posted(inward, [letter], self._copies), outward)
                for state, inward, outward in self._sets[number]
            )
        return self._told[key]

    def heard(self, number: int, letter: int) -> int:
        key = number, letter
        if key not in self._heard:
            self._heard[key] = self._close(
                (state, inward, arrived(outward, letter))
                for state, inward, outward in self._sets[number]
                if letter in dict(outward)
            )
        return self._heard[key]

    def steps(self, possibility: Possibility) -> Iterator[Possibility]:
        state, inward, outward = possibility
        events: list[tuple[int | Trigger, Mail]] = [(letter, arrived(inward, letter)) for letter, _ in inward]
        events += [(trigger, inward) for trigger in (Trigger.EXPIRE, Trigger.DROP)]
        if self._states.machine(state).admits(Trigger.START):
            events.append((Trigger.START, inward))
        for event, left in events:
            following, sent = self._states.after(state, event, self._server)
            if following != state or sent:
                yield following, left, posted(outward, [letter for _, letter in sent], self._copies)

    def _close(self, possibilities: Iterable[Possibility]) -> int:
        pending = [*possibilities]
        reached = {*pending}
        while pending:
            possibility = pending.pop()
            if possibility not in self._moves:
                self._moves[possibility] = [*self.steps(possibility)]
            for following in self._moves[possibility]:
                if following not in reached:
                    reached.add(following)
                    pending.append(following)
        largest = frozenset(_largest(reached))
        if largest not in self._numbers:
            self._numbers[largest] = len(self._sets)
            self._sets.append(largest)
            self.letters.append(tuple(sorted({letter for _, _, outward in largest for letter, _ in outward})))
            self.states.append(frozenset(state for state, _, _ in largest))
        return self._numbers[largest]


def _largest(possibilities: Iterable[Possibility]) -> Iterator[Possibility]:
    by_state = defaultdict(list)
    for possibility in possibilities:
        by_state[possibility[0]].append(possibility)
    for alike in by_state.values():
        for one in alike:
            if not any(one is not other and _within(one, other) for other in alike):
                yield one


def _within(one: Possibility, other: Possibility) -> bool:
    return all(
        left <= dict(larger).get(letter, 0)
        for smaller, larger in zip(one[1:], other[1:], strict=True)
        for letter, left in smaller
    )
