"""What `tacit experiment` shows: a bar over all runs, what the present one does, and a line for each that is over."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from functools import partial

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from tacit.cli.legacy_output import table
from tacit.cli.output import say
from tacit.parties.runs.events import PartyFailed
from tacit.parties.session.events import RoundEnded
from tacit.protocol.core.events import Event
from tacit.simulate.experiments.engine import ModelPretrained, PreparedStudy
from tacit.simulate.experiments.study import ArmResult, RunResult, Study, spread
from tacit.simulate.federation.processes import Show


class StudyScreen:
    """The progress of a study; without a terminal, the lines alone."""

    def __init__(self, console: Console, work: PreparedStudy) -> None:
        self._say = partial(say, console)
        jobs = list(work.jobs())
        self._rounds = jobs[0].experiment.federation.rounds
        missing = sum(work.finished(job) is None for job in jobs)
        self._kept = len(jobs) - missing
        self._total = len(jobs)
        self._over = self._kept
        self._progress = Progress(
            BarColumn(), MofNCompleteColumn(), TextColumn("{task.description}", markup=False), TimeElapsedColumn(),
            console=console, transient=True, disable=not console.is_terminal,
        )  # fmt: skip
        self._task = self._progress.add_task("starting the processes", total=len(jobs), completed=self._over)

    def __enter__(self) -> StudyScreen:
        kept = f", {self._kept} of them finished before" if self._kept else ""
        self._say(f"{self._total} runs of {self._rounds} rounds{kept}")
        self._progress.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._progress.stop()

    def began(self, title: str) -> Show:
        """A run, or the training before all runs, begins."""
        self._progress.update(self._task, description=title)

        def show(event: Event) -> None:
            if isinstance(event, ModelPretrained):
                self._say(event.text)
            elif isinstance(event, RoundEnded):
                self._progress.update(self._task, description=f"{title}, round {event.round} of {self._rounds}")
            elif isinstance(event, PartyFailed) and event.level == "warning":
                self._say(f"  {title}, {event.party}: {event.text}", style="yellow")

        return show

    def ended(self, title: str, result: RunResult) -> None:
        """A run is over."""
        self._over += 1
        self._progress.update(self._task, completed=self._over)
        accuracy, seconds = f"test accuracy {result.accuracy:.3f}", f"{result.seconds:.1f} s"
        self._say(f"{self._over:>4} of {self._total}  {title}: {accuracy}, {seconds}")


def results_table(study: Study, results: Sequence[ArmResult]) -> Table:
    """Mean and spread of every arm."""
    rows = []
    for result in results:
        title, values = study.quantity(result)
        deviation = f"{spread(values):.2f}" if len(values) > 1 else ""
        rows.append((result.arm.name, f"{statistics.mean(values):.2f}", deviation, str(len(values))))
    return table(("arm", "mean", "spread", "runs"), rows, title=title)
