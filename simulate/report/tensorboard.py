"""Metrics of a run by round, and its report, for TensorBoard (`tacit simulate --tensorboard`).

Events are folded as they arrive, as for the live page. The metrics of a round are written when the next round begins,
or when the run is over; accuracies from clients arrive during the next round, and are written a round later.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, Self

from tacit.parties.runs.state import JUDGED_BY_CLIENTS, RoundState, RunState
from tacit.protocol.core.events import Event
from tacit.protocol.session.events import RoundStarted

JUDGED: Final = ("accuracy", "balanced_accuracy", "loss")
COUNTED: Final = ("train_accuracy", "train_loss", "clipped", "samples")


class MissingTensorBoardError(ImportError):
    """TensorBoard cannot be imported; the message explains the installation."""


class TensorBoard:
    """Event file in `<folder>/<name of the run directory>`, made with the first round, and the report beside it.

    A context manager that writes the rest at its end. It never harms a run: it warns of its first error, and then stops
    writing.
    """

    def __init__(self, folder: Path, run: Path, warn: Callable[[str], None]) -> None:
        """Import the package. MissingTensorBoardError without it."""
        try:
            from tensorboard.summary import Writer
        except ImportError as error:
            raise MissingTensorBoardError(
                f"--tensorboard needs tensorboard, which cannot be imported ({error}): pip install tensorboard"
            ) from None
        self._make: Callable[[str], Any] = Writer
        self._folder = folder / run.resolve().name
        self._report = run / "report.html"
        self._warn = warn
        self._writer: Any = None
        self._failed = False
        self._state = RunState()
        self._written: dict[int, set[str]] = {}
        """Written metrics of each round, by its place in the run."""

    def take(self, event: Event) -> None:
        self._state.take(event)
        if isinstance(event, RoundStarted):
            self._write(over=False)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._write(over=True)

    def _write(self, *, over: bool) -> None:
        if self._failed:
            return
        try:
            self._write_rounds(over=over)
            if over and self._writer is not None:
                self._writer.close()
                if self._report.is_file():
                    # TensorBoard shows no pages; the report lies in the same folder.
                    shutil.copyfile(self._report, self._folder / self._report.name)
        except Exception as error:
            self._failed = True
            reason = " ".join(str(error).split()) or type(error).__name__
            self._warn(f"--tensorboard: {reason}; nothing more of this run is written there")

    def _write_rounds(self, *, over: bool) -> None:
        state = self._state
        # Earlier rounds are written in full; metrics of clients may still arrive for the last one.
        late = JUDGED if state.judged_on == JUDGED_BY_CLIENTS else ()
        finished = [place for place, round in enumerate(state.rounds) if round.result is not None]
        for place in finished[-2:]:
            round, written = state.rounds[place], self._written.setdefault(place, set())
            open = late if place == finished[-1] and not over else ()
            values = {name: value for name, value in _metrics(round).items() if name not in (*written, *open)}
            written |= values.keys()
            # Unused here, and the largest part of the state.
            round.spans.clear()
            if values and self._writer is None:
                self._folder.mkdir(parents=True, exist_ok=True)
                self._writer = self._make(str(self._folder))
            for name, value in values.items():
                self._writer.add_scalar(name, value, round.number, wall_time=round.ended)
        if self._writer is not None:
            self._writer.flush()


def _metrics(round: RoundState) -> dict[str, float]:
    result = round.result
    assert result is not None
    found: dict[str, float | None] = {name: getattr(result, name) for name in (*JUDGED, *COUNTED)}
    if result.held_out is not None:
        # Of the model that the round began with.
        found |= {"held_out_accuracy": result.held_out.accuracy, "held_out_loss": result.held_out.loss}
    found |= {"survivors": len(result.survivors), "bytes": round.moved, "seconds": round.seconds}
    found["completed"] = float(result.status == "completed")
    return {name: float(value) for name, value in found.items() if value is not None}
