"""The run so far, as the page and the metrics show it: a fold over events, and how much of it is kept.

It has no clock of its own: whoever takes the same events gets the same history. What a long run would pile up is
limited: timelines of old rounds and the oldest troubles are forgotten; the event logs have all of them.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from tacit.parties.runs.experiment import Experiment
from tacit.simulate.report.fold import Event, Fold
from tacit.simulate.report.history import History

MOST_TROUBLES: Final = 200
MOST_TIMELINES: Final = 8
"""Rounds of which it is kept who was in which phase when."""


class Live:
    """What is shown of a run. `version` grows with everything that changes it."""

    def __init__(self, experiment: Experiment, earlier: Iterable[Event] = (), *, one_machine: bool = True) -> None:
        """earlier: what the logs say that the run goes on from."""
        self.experiment = experiment
        self.version = 0
        self.forgotten = 0
        """Troubles that are not kept any more."""
        self._fold = Fold(History(None, {}, one_machine=one_machine))
        for event in earlier:
            self.take(event)

    @property
    def history(self) -> History:
        """Everything so far; the last round may be open."""
        return self._fold.history

    def take(self, event: Event) -> None:
        """One event of a party, in the order of their times."""
        self._fold.take(event)
        # A sign of life changes nothing that is shown.
        self.version += event["event"] != "alive"
        history = self.history
        if len(history.troubles) > MOST_TROUBLES:
            self.forgotten += 1
            del history.troubles[0]
        if len(history.rounds) > MOST_TIMELINES:
            old = history.rounds[-1 - MOST_TIMELINES]
            old.spans.clear()
            old.drop_times.clear()
