"""The one deterministic world in which machines are played: a clock, a network, processes that die and start again.

A run is a function of a seed and a schedule: the conduct of the network (network.py) or a choice of who speaks next,
what the hook does to messages on their way, and what is on the agenda. Everything random comes from named streams of
the seed (streams.py), whatever parties keep is on simulated disks (disk.py).

Time stands still while something can be delivered or done, and then leaps to what comes next: an arrival, a deadline of
a machine, or an entry of the agenda. What a protocol adds is how its parties are made, who hears a message, and what
the shell of a party does with outputs that are no messages.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from math import inf
from typing import Any, Generic, ParamSpec, Self, TypeVar

from tacit.protocol.core.machine import Machine, Output
from tacit.simulate.world.disk import Killed, SimulatedDisk
from tacit.simulate.world.network import Item, Network
from tacit.simulate.world.streams import Streams

Kind = TypeVar("Kind")
Made = TypeVar("Made")
Settings = ParamSpec("Settings")


Timer = tuple[float | None, Callable[[], object]]
"""A deadline, and how its machine is told the time."""


class World(Generic[Item]):
    """The machines of some parties."""

    def __init__(self, streams: Streams) -> None:
        self.now = 0.0
        self.streams = streams
        self.network: Network[Item] = Network(self.streams.random("network"))
        self.hook: Callable[[Item], Iterable[Item]] = lambda item: [item]
        """Sees every message before it is delivered, and says what is delivered instead."""
        self.log: list[Item] = []
        """What was delivered."""
        self.outputs: list[tuple[str, Output]] = []
        """Everything that is no message, by party."""
        self.dead: set[str] = set()
        """Parties that were killed, and not started again."""
        self.outside = ""
        """A party that somebody else plays: what is delivered to it is `due`."""
        self.due: list[Item] = []
        self.disks: defaultdict[str, SimulatedDisk] = defaultdict(SimulatedDisk)
        self._agenda: list[tuple[float, Callable[[], object]]] = []

    def make(
        self, name: str, kind: Callable[Settings, Made], /, *settings: Settings.args, **more: Settings.kwargs
    ) -> Made:
        """Make a machine. Every one is made here, so that a recorder sees it (tests/vectors_corpus/recorder.py).

        name: of its party, followed by a slash and the peer where a party has a machine for each peer.
        """
        return kind(*settings, **more)

    def timers(self) -> Iterator[Timer]:
        """Of every machine of a party that lives."""
        raise NotImplementedError

    def hand_over(self, item: Item) -> list[Output]:
        """Feed a message to the machine of its receiver, and emit what comes of it."""
        raise NotImplementedError

    def carried(self, party: str, output: Output) -> Item | None:
        """What an output puts under way; None if it is no message."""
        raise NotImplementedError

    def act(self, party: str, output: Output) -> None:
        """What the shell of a party does with an output that is no message."""

    def work(self) -> bool:
        """Do what a shell does when nothing is under way; whether there was something to do."""
        return False

    def at(self, time: float, act: Callable[[], object]) -> None:
        """Put something onto the agenda."""
        self._agenda.append((time, act))

    def advance(self, until: Callable[[], bool] = lambda: False) -> bool:
        """Deliver what arrives now until the condition holds; whether it does. No time passes."""
        while not (reached := until()) and (item := self.network.take(self.now)) is not None:
            self.deliver(item)
        return reached

    def settle(self, until: float = inf) -> Self:
        """Deliver, work, and let time pass, until nothing is left to happen, or that time."""
        while True:
            self.advance()
            if self.work():
                continue
            deadlines = [deadline for deadline, _ in self.timers() if deadline is not None]
            times = [*deadlines, *(time for time, _ in self._agenda), self.network.next_arrival]
            if min(times) >= until:
                self.now = max(self.now, until) if until < inf else self.now
                return self
            self.now = max(self.now, min(times))
            for entry in [entry for entry in self._agenda if entry[0] <= self.now]:
                self._agenda.remove(entry)
                entry[1]()
            self.advance()
            for deadline, expire in [*self.timers()]:
                if deadline is not None and deadline <= self.now:
                    expire()

    def deliver(self, item: Item) -> None:
        """Deliver a message now, after the hook has seen it."""
        for said in self.hook(item):
            self.put(said)

    def put(self, item: Item) -> list[Output]:
        """Deliver a message now, past the hook; returns what its receiver makes of it."""
        if {item.sender, item.receiver} & self.dead:
            return []
        if item.receiver == self.outside:
            self.due.append(item)
            return []
        self.log.append(item)
        return self.hand_over(item)

    def emit(self, party: str, outputs: list[Output]) -> list[Output]:
        """Put the messages under way and let the shell do the rest, one after the other; keep what is no message."""
        with self.process(party):
            for output in outputs:
                if party in self.dead:
                    break
                item = self.carried(party, output)
                if item is None:
                    self.outputs.append((party, output))
                    self.act(party, output)
                else:
                    self.network.send(item, self.now)
        return outputs

    @contextmanager
    def process(self, party: str) -> Iterator[None]:
        """Around what a process does: where its disk says that it is killed, it does no more."""
        try:
            yield
        except Killed:
            self.kill(party)

    def tell_time(self, party: str, machine: Machine[Any]) -> None:
        """Tell a machine the time."""
        self.emit(party, machine.expire(self.now))

    def kill(self, name: str) -> None:
        """The process of a party is gone, with all that is under way to it and from it."""
        self.dead.add(name)
        self.network.forget(lambda link: name in link)

    def outcome(self, kind: type[Kind], party: str | None = None) -> list[Kind]:
        """The outputs of one kind, of all parties or of one."""
        return [output for name, output in self.outputs if isinstance(output, kind) and party in (None, name)]

    def say_instead(self, kind: str, sender: str, make: Callable[[Any], Sequence[Any]], *, at: int | None = 0) -> None:
        """Let this party say something else than its message of that kind, after what earlier calls changed.

        at: the first one, or the one after so many; None: all of them.
        """
        hook, said = self.hook, 0

        def say(original: Item) -> list[Item]:
            nonlocal said
            items: list[Item] = []
            for item in hook(original):
                meant = (item.kind, item.sender) == (kind, sender)
                items += make(item) if meant and at in (None, said) else [item]
                said += meant
            return items

        self.hook = say
