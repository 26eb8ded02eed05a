"""The progress of `tacit experiment`: a bar over all runs, and a line for each that is over."""

from __future__ import annotations

from functools import partial

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from tacit.cli.output import say
from tacit.parties.runs.events import PartyFailed
from tacit.parties.session.events import RoundEnded
from tacit.protocol.core.events import Event
from tacit.simulate.experiments.engine import PreparedStudy
from tacit.simulate.experiments.federations import Arm, ModelPretrained
from tacit.simulate.experiments.results import Run
from tacit.simulate.federation.processes import Show


class StudyScreen:
    """The progress of a study; without a terminal, the lines alone."""

    def __init__(self, console: Console, work: PreparedStudy) -> None:
        self._say = partial(say, console)
        jobs = list(work.jobs())
        rounds = next((row.experiment.federation.rounds for row in work.rows if isinstance(row, Arm)), 0)
        self._rounds = f" of {rounds}" if rounds else ""
        self._kind = f"runs of {rounds} rounds" if rounds else "runs"
        self._columns = work.study.columns
        self._kept = sum(work.finished(job) is not None for job in jobs)
        self._total = len(jobs)
        self._over = self._kept
        self._progress = Progress(
            BarColumn(), MofNCompleteColumn(), TextColumn("{task.description}", markup=False), TimeElapsedColumn(),
            console=console, transient=True, disable=not console.is_terminal,
        )  # fmt: skip
        self._task = self._progress.add_task("starting", total=len(jobs), completed=self._over)

    def __enter__(self) -> StudyScreen:
        kept = f", {self._kept} of them finished before" if self._kept else ""
        self._say(f"{self._total} {self._kind}{kept}")
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
                self._progress.update(self._task, description=f"{title}, round {event.round}{self._rounds}")
            elif isinstance(event, PartyFailed) and event.level == "warning":
                self._say(f"  {title}, {event.party}: {event.text}", style="yellow")

        return show

    def ended(self, title: str, run: Run) -> None:
        """A run is over."""
        self._over += 1
        self._progress.update(self._task, completed=self._over)
        found = [
            f"{quantity.name} {value:.{quantity.decimals}f} {quantity.unit}".rstrip()
            for quantity in self._columns
            if (value := run.values[quantity.name]) is not None
        ]
        self._say(f"{self._over:>4} of {self._total}  {title}: {', '.join(found)}; {run.seconds:.1f} s")
