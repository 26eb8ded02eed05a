"""The figures of a run by round, and its report, for programs that collect runs: TensorBoard, MLflow.

Events are folded as they come, as for the live page. When a round begins, or the run is over, the rounds before it are
told to every tracker; accuracies that clients find come while the next round runs, and are told a round later.

A tracker never harms a run. Each works in a thread of its own, which nothing waits for until the run is over, and then
for `PATIENCE_SECONDS` at most; the first thing that goes wrong is said, and that tracker is told nothing more.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final, Protocol, Self

from tacit.simulate.report.fold import Fold
from tacit.simulate.report.history import JUDGED_BY_CLIENTS, RoundHistory

PATIENCE_SECONDS: Final = 30.0
"""How long a run that is over waits for its trackers, all together."""

JUDGED: Final = ("accuracy", "balanced_accuracy", "loss")
COUNTED: Final = ("train_accuracy", "train_loss", "clipped", "samples")


class Tracker(Protocol):
    """A place where figures of runs are kept. What it raises is said to the user, once."""

    @property
    def option(self) -> str:
        """The option that asked for it, for what is said to the user."""

    def begin(self) -> None:
        """Called before anything else, in the thread of all calls."""

    def figures(self, round: int, seconds: float, values: Mapping[str, float]) -> None:
        """Keep figures of a round; seconds since 1970."""

    def page(self, path: Path) -> None:
        """Keep the report."""

    def end(self, *, completed: bool) -> None:
        """Nothing more will come. completed: whether all rounds were."""


class _Worker:
    """One tracker and its thread; None in the queue ends it."""

    def __init__(self, tracker: Tracker, say: Callable[[str], None]) -> None:
        self.tracker = tracker
        self.calls: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._say = say
        self.thread = threading.Thread(target=self._work, name=tracker.option, daemon=True)

    def call(self, function: Callable[[], None]) -> None:
        if self.thread.ident is None:
            self.calls.put(self.tracker.begin)
            self.thread.start()
        self.calls.put(function)

    def _work(self) -> None:
        try:
            while (call := self.calls.get()) is not None:
                call()
        except Exception as error:
            reason = " ".join(str(error).split()) or type(error).__name__
            self._say(f"{self.tracker.option}: {reason}; the run is not tracked there any further")


class Tracking:
    """Tells trackers of one run, from its events; a context manager, whose end tells the rest. A run that has no round
    is told to nobody."""

    def __init__(self, trackers: Sequence[Tracker], *, rounds: int, report: Path, say: Callable[[str], None]) -> None:
        """rounds: of the whole run. report: its page, which is told if it is there at the end. say: gets what went
        wrong, from any thread."""
        self._workers = [_Worker(tracker, say) for tracker in trackers]
        self._rounds = rounds
        self._report = report
        self._say = say
        self._fold = Fold()
        self._told: dict[int, set[str]] = {}
        """By the place of a round in the history, the figures of it that were told."""

    def take(self, party: str, event: str, fields: Mapping[str, Any]) -> None:
        """One event of a party, which happens now."""
        if self._workers:
            self._fold.take({**fields, "time": time.time(), "party": party, "event": event})
            if event == "round":
                self._tell(over=False)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._tell(over=True)
        history = self._fold.history
        completed = bool(history.completed) and history.completed[-1].number == self._rounds
        began = [worker for worker in self._workers if worker.thread.ident is not None]
        for worker in began:
            if self._report.is_file():
                worker.call(partial(worker.tracker.page, self._report))
            worker.call(partial(worker.tracker.end, completed=completed))
            worker.calls.put(None)
        last = time.monotonic() + PATIENCE_SECONDS
        for worker in began:
            worker.thread.join(max(0.0, last - time.monotonic()))
            if worker.thread.is_alive():
                self._say(f"{worker.tracker.option}: it did not take all figures within {PATIENCE_SECONDS:g} s")

    def _tell(self, *, over: bool) -> None:
        history = self._fold.history
        # Rounds of earlier turns were told; of the last but one there may be more.
        late = JUDGED if history.judged_on == JUDGED_BY_CLIENTS else ()
        finished = [place for place, round in enumerate(history.rounds) if round.result is not None]
        for place in finished[-2:]:
            round, told = history.rounds[place], self._told.setdefault(place, set())
            open = late if place == finished[-1] and not over else ()
            values = {name: value for name, value in _figures(round).items() if name not in (*told, *open)}
            told |= values.keys()
            round.spans.clear()
            if values:
                for worker in self._workers:
                    worker.call(partial(worker.tracker.figures, round.number, round.ended, values))


def _figures(round: RoundHistory) -> dict[str, float]:
    """What is known of a round that has a result, by name."""
    result = round.result
    assert result is not None
    found: dict[str, float | None] = {name: getattr(result, name) for name in (*JUDGED, *COUNTED)}
    if result.held_out is not None:
        # Of the model that the round began with.
        found |= {"held_out_accuracy": result.held_out.accuracy, "held_out_loss": result.held_out.loss}
    found |= {"survivors": len(result.survivors), "bytes": round.moved, "seconds": round.seconds}
    found["completed"] = float(result.status == "completed")
    return {name: float(value) for name, value in found.items() if value is not None}
