"""One clock for the logs of several hosts: the server's, found from the messages that both ends noted.

Be `ahead` what a client's clock is ahead of the server's. A message to the client took (receipt - sending) - ahead
seconds by both clocks, and no message takes less than none: ahead <= receipt - sending. A message to the server took
(receipt - sending) + ahead: ahead >= sending - receipt. So each message bounds `ahead` from one side at the moment that
the client's clock showed; at another moment, by as much more as two clocks may drift apart until then. The estimate is
the middle between the tightest bounds, and uncertain by half their distance. Bounds that contradict each other show
that a clock was set: a new stretch begins there. Where the bounds admit that both clocks are the same, times are left.

(The bounds are those of D. L. Mills, "Internet Time Synchronization", IEEE Trans. Commun. 39(10), 1991, section III.)
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Final, NamedTuple

import msgspec

from tacit.simulate.report.history import Clock

DRIFT: Final = 200e-6
"""Seconds by which two clocks drift apart in a second, at most: either is a quartz that is off by 100 ppm or less."""

Events = list[dict[str, Any]]


class _Note(NamedTuple):
    """A message as an end noted it: with whom, in which session and round, its number, when."""

    peer: str
    session: str
    round: int
    sequence: int
    time: float


class _Bound(NamedTuple):
    """What one message tells of `ahead`, at `time` of the client's clock."""

    time: float
    ahead: float
    upper: bool
    line: int
    """Where the client's log has it."""


@dataclass
class _Stretch:
    """The bounds between two jumps of the clock, in the order of the client's log."""

    bounds: list[_Bound] = field(default_factory=list)
    low: float = -math.inf
    high: float = math.inf

    def take(self, bound: _Bound) -> bool:
        """Add a bound, unless it contradicts those that are there."""
        drifted = DRIFT * abs(bound.time - self.bounds[-1].time) if self.bounds else 0.0
        low, high = self.low - drifted, self.high + drifted
        low, high = (low, min(high, bound.ahead)) if bound.upper else (max(low, bound.ahead), high)
        if low > high:
            return False
        self.low, self.high = low, high
        self.bounds.append(bound)
        return True

    def finish(self) -> None:
        """Tighten every bound by all others."""
        self.last_line = max(bound.line for bound in self.bounds)
        self.bounds.sort(key=lambda bound: bound.time)
        self.times = [bound.time for bound in self.bounds]
        lows = [-math.inf if bound.upper else bound.ahead for bound in self.bounds]
        highs = [bound.ahead if bound.upper else math.inf for bound in self.bounds]
        forth = range(len(lows))
        for places in (forth, reversed(forth)):
            for before, place in pairwise(places):
                drifted = DRIFT * abs(self.times[place] - self.times[before])
                lows[place] = max(lows[place], lows[before] - drifted)
                highs[place] = min(highs[place], highs[before] + drifted)
        self.lows, self.highs = lows, highs
        self.same = all(-math.inf < low <= 0.0 <= high < math.inf for low, high in zip(lows, highs, strict=True))

    def distance(self, time: float) -> float:
        """How far a time is from those of the messages."""
        return max(self.times[0] - time, time - self.times[-1], 0.0)

    def ahead(self, time: float) -> tuple[float, float]:
        """The estimate at a time of the client's clock, and by how much it may be wrong; infinite if nobody knows."""
        place = bisect_left(self.times, time)
        near = [index for index in (place - 1, place) if 0 <= index < len(self.times)]
        low = max(self.lows[index] - DRIFT * abs(time - self.times[index]) for index in near)
        high = min(self.highs[index] + DRIFT * abs(time - self.times[index]) for index in near)
        if self.same:
            return 0.0, max(high, -low)
        if math.isinf(high - low):
            # Messages went one way only: as if they had taken no time.
            return (low if math.isinf(high) else high), math.inf
        return (low + high) / 2, (high - low) / 2


def align(logs: Mapping[str, Events], server: str) -> tuple[dict[str, Events], tuple[Clock, ...]]:
    """The same logs with all times by the server's clock, and what was found of the others'.

    msgspec.ValidationError, KeyError or TypeError for events that are none of ours.
    """
    aligned, clocks = {server: logs[server]}, []
    for name, events in logs.items():
        if name != server:
            aligned[name], clock = _align(name, events, logs[server])
            clocks.append(clock)
    return aligned, tuple(clocks)


def _align(name: str, events: Events, server: Events) -> tuple[Events, Clock]:
    bounds = _bounds(name, events, server)
    stretches = _stretches(bounds)
    if not stretches:
        return events, Clock(name, 0)
    aligned, worst, ahead = [], 0.0, 0.0
    for line, event in enumerate(events):
        stretch = _stretch_of(stretches, event["time"], line)
        ahead, wrong = stretch.ahead(event["time"])
        worst = max(worst, wrong)
        aligned.append({**event, "time": event["time"] - ahead})
    uncertainty = None if math.isinf(worst) else worst
    return aligned, Clock(name, len(bounds), ahead, uncertainty, len(stretches) - 1)


def _stretch_of(stretches: Sequence[_Stretch], time: float, line: int) -> _Stretch:
    """The one whose messages are nearest in time; of those within which the time lies, the first that the log is in."""
    return min(stretches, key=lambda stretch: (stretch.distance(time), stretch.last_line < line))


def _stretches(bounds: Sequence[_Bound]) -> list[_Stretch]:
    stretches: list[_Stretch] = []
    for bound in bounds:
        # An older one only for messages of one line of the log, whose order is not known.
        if not any(stretch.take(bound) for stretch in reversed(stretches)):
            stretches.append(_Stretch())
            stretches[-1].take(bound)
    for stretch in stretches:
        stretch.finish()
    return stretches


def _bounds(name: str, events: Events, server: Events) -> list[_Bound]:
    """What the messages that both ends noted tell, in the order of the client's log."""
    found = []
    for ours, theirs in (("received", "sent"), ("sent", "received")):
        there = _by_message(_notes(server, theirs, peer=name))
        here = _by_message(_notes(events, ours))
        for message in here.keys() & there.keys():
            (line, note), (_, other) = here[message], there[message]
            found.append(_Bound(note.time, note.time - other.time, ours == "received", line))
    return sorted(found, key=lambda bound: (bound.line, bound.time))


def _notes(events: Events, direction: str, peer: str | None = None) -> Iterator[tuple[int, _Note]]:
    for line, event in enumerate(events):
        if event["event"] == "messages":
            for fields in msgspec.convert(event.get(direction, ()), list[tuple[str, str, int, int, float]]):
                if peer in (None, fields[0]):
                    yield line, _Note(*fields)


def _by_message(notes: Iterator[tuple[int, _Note]]) -> dict[tuple[str, int, int], tuple[int, _Note]]:
    """By session, round and number; without those that are there twice, as after a conversation that began anew."""
    listed = list(notes)
    counts = Counter((note.session, note.round, note.sequence) for _, note in listed)
    keyed = {(note.session, note.round, note.sequence): (line, note) for line, note in listed}
    return {message: found for message, found in keyed.items() if counts[message] == 1}
