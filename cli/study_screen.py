"""The progress of `tacit experiment`: the present run, and a line for each finished one."""

from __future__ import annotations

from functools import partial

from rich.console import Console

from tacit.cli.output import say
from tacit.cli.progress import Progress
from tacit.parties.runs.events import PartyFailed
from tacit.parties.session.events import RoundEnded
from tacit.protocol.core.events import Event
from tacit.simulate.experiments.engine import PreparedStudy
from tacit.simulate.experiments.federations import Arm, ModelPretrained
from tacit.simulate.experiments.results import Run
from tacit.simulate.federation.processes import Show


class StudyScreen:
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
        self._progress = Progress(console)

    def __enter__(self) -> StudyScreen:
        kept = f", {self._kept} of them finished before" if self._kept else ""
        self._say(f"{self._total} {self._kind}{kept}")
        self._progress.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self._progress.__exit__()

    def began(self, title: str) -> Show:
        self._show(title)

        def show(event: Event) -> None:
            if isinstance(event, ModelPretrained):
                self._say(event.text)
            elif isinstance(event, RoundEnded):
                self._show(f"{title}, round {event.round}{self._rounds}")
            elif isinstance(event, PartyFailed) and event.level == "warning":
                self._say(f"  {title}, {event.party}: {event.text}", style="yellow")

        return show

    def ended(self, title: str, run: Run) -> None:
        self._over += 1
        found = [
            f"{quantity.name} {value:.{quantity.decimals}f} {quantity.unit}".rstrip()
            for quantity in self._columns
            if (value := run.values[quantity.name]) is not None
        ]
        self._say(f"{self._over:>4} of {self._total}  {title}: {', '.join(found)}; {run.seconds:.1f} s")

    def _show(self, running: str) -> None:
        self._progress.update(f"{self._over} of {self._total} runs are over; {running}")
