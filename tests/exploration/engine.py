"""Breadth-first search through every state that a World can reach.

A World says what can happen in a state; its states are canonical and hashable, so that a state that is reached twice is
looked at once. The search stops at the first broken rule and shows the shortest run that leads there.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from itertools import pairwise
from typing import Protocol, TypeVar

State = TypeVar("State", bound=Hashable)


class World(Protocol[State]):
    """What there is to explore. A state is its own canonical key: it leaves out what does not influence the future."""

    def initial(self) -> State:
        """Where every run begins."""

    def moves(self, state: State) -> Iterable[tuple[str, State]]:
        """What can happen, in words, and the state that it leads to."""

    def faults(self, state: State) -> Iterable[str]:
        """The rules that this state breaks; none in a right protocol."""

    def outcome(self, state: State) -> str:
        """What a run that ends in this state came to, in words."""


class RuleBroken(Exception):
    """A reachable state breaks a rule. fault: which; trace: what happened until then, a shortest run."""

    def __init__(self, fault: str, trace: list[str]) -> None:
        super().__init__("\n  ".join([fault, *trace]))
        self.fault = fault
        self.trace = trace


@dataclass(frozen=True)
class Exploration:
    states: int
    transitions: int
    depth: int
    """Moves of the longest of the shortest runs to a state."""
    outcomes: Counter[str]
    """States in which nothing can happen any more, by outcome."""
    seconds: float
    """Processor time."""


def explore(world: World[State]) -> Exploration:
    """See every reachable state. RuleBroken at the first one with a fault."""
    began = time.process_time()
    start = world.initial()
    parents: dict[State, State] = {start: start}
    frontier, transitions, depth = [start], 0, 0
    outcomes: Counter[str] = Counter()
    while frontier:
        following = []
        for state in frontier:
            for fault in world.faults(state):
                raise RuleBroken(fault, _trace(world, parents, state))
            last = True
            for _, successor in world.moves(state):
                last = False
                transitions += 1
                if successor not in parents:
                    parents[successor] = state
                    following.append(successor)
            if last:
                outcomes[world.outcome(state)] += 1
        depth += bool(following)
        frontier = following
    return Exploration(len(parents), transitions, depth, outcomes, time.process_time() - began)


def _trace(world: World[State], parents: dict[State, State], state: State) -> list[str]:
    """Only states are kept while searching; what led from one to the next is looked up again."""
    path = [state]
    while parents[path[-1]] != path[-1]:
        path.append(parents[path[-1]])
    path.reverse()
    return [
        next(name for name, successor in world.moves(before) if successor == after) for before, after in pairwise(path)
    ]
