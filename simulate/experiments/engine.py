"""Engine of studies: runs every row with every seed, and stores each result (docs/experiments.md).

study.json in its directory has the settings of its runs: finished results are reused only while these stay the same.
"""

from __future__ import annotations

import inspect
import os
import platform
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Protocol

import msgspec

from tacit.parties.runs.directory import (
    RunDirectoryError,
    check_release,
    claim,
    mark_release,
    write_json,
    writing,
)
from tacit.simulate.experiments.measures import Prepared, Request, Row, StudyError
from tacit.simulate.experiments.results import Run, StudyResult, StudyRow
from tacit.simulate.experiments.study import Size, Study
from tacit.simulate.federation.processes import Show

NOT_FINISHED = "not finished"


class Watcher(Protocol):
    def began(self, title: str) -> Show:
        """Announce a run, or a step before all runs; return the receiver of its parties' events."""
        ...

    def ended(self, title: str, run: Run) -> None: ...


@dataclass(frozen=True, kw_only=True)
class Job:
    row: Row
    seed: int

    @property
    def title(self) -> str:
        return f"{self.row.name}, seed {self.seed}"


@dataclass(frozen=True, kw_only=True)
class PreparedStudy:
    study: Study
    small: bool
    size: Size
    request: Request
    rows: tuple[Row, ...]
    measuring: Prepared

    def jobs(self) -> Iterator[Job]:
        for seed in self.request.seeds:
            for row in self.rows:
                if not self.measuring.missing(row):
                    yield Job(row=row, seed=seed)

    def finished(self, job: Job) -> Run | None:
        """Return the stored result of a run; None without one."""
        try:
            return msgspec.json.decode(self._file(job).read_bytes(), type=Run)
        except (OSError, msgspec.MsgspecError):
            return None

    def keep(self, job: Job, run: Run) -> None:
        """Write the result of a run. OSError as `writing`."""
        with writing(self._file(job)):
            self._file(job).parent.mkdir(parents=True, exist_ok=True)
        write_json(run, self._file(job))

    def result(self, *, command: str) -> StudyResult:
        """Return the current result: complete rows, chosen or not, with all of these seeds, and the others."""
        study, measuring = self.study, self.measuring
        rows = [self._row(row) for row in self.size.rows]
        return StudyResult(
            study=study.name,
            shows=study.shows,
            paper=study.paper,
            claim=study.claim,
            size="small" if self.small else "full",
            command=command,
            machine=f"{os.cpu_count()} cores ({platform.machine()}), Python {platform.python_version()}",
            date=f"{datetime.now(UTC):%Y-%m-%d}",
            data=measuring.data,
            device=self.request.device,
            seeds=list(self.request.seeds),
            columns=list(study.columns),
            rows=rows,
            verdicts=study.judge(rows),
            settings=dict(study.settings),
            silent=list(study.silent),
            differences=[*self.size.differences, *measuring.differences],
        )

    def _row(self, row: Row) -> StudyRow:
        if reason := self.measuring.missing(row):
            return StudyRow(name=row.name, unfinished=f"not measured, {reason}")
        jobs = (Job(row=row, seed=seed) for seed in self.request.seeds)
        runs = [run for job in jobs if (run := self.finished(job)) is not None]
        if len(runs) < len(self.request.seeds):
            return StudyRow(name=row.name, published=dict(row.published), unfinished=NOT_FINISHED)
        return StudyRow.of(row.name, runs, dict(row.published))

    def _file(self, job: Job) -> Path:
        return self.request.out / "runs" / job.row.directory / f"{job.seed}.json"


def prepare(study: Study, request: Request, *, small: bool, patterns: Sequence[str] = ("*",)) -> PreparedStudy:
    """Check everything that can be checked before a run, and make the directory.

    patterns: shell patterns of the rows to run. ValueError for these, the images and the device, and RunDirectoryError
    for the directory; OSError if the disk is full.
    """
    size = study.size(small=small)
    for pattern in patterns:
        if not any(fnmatchcase(row.name, pattern) for row in size.rows):
            names = ", ".join(row.name for row in size.rows)
            raise StudyError(f"--arm {pattern}: {study.name} has no such row; it has {names}")
    _check_checkpoint(study, size, request)
    measuring = size.measure.prepare(study.name, size.rows, request)
    _claim(study, size, request, measuring, small=small)
    rows = tuple(row for row in size.rows if any(fnmatchcase(row.name, pattern) for pattern in patterns))
    return PreparedStudy(study=study, small=small, size=size, request=request, rows=rows, measuring=measuring)


def _check_checkpoint(study: Study, size: Size, request: Request) -> None:
    """Raise StudyError unless a checkpoint is given to a study that begins with one, and to no other."""
    wanted, given = getattr(size.measure, "checkpoint", False), request.checkpoint
    if wanted and given is None:
        raise StudyError(f"{study.name} begins with given weights: name their .safetensors file with --checkpoint")
    if given is not None and not wanted:
        raise StudyError(f"--checkpoint {given}: {study.name} begins without given weights; leave it out")
    if given is not None and not given.is_file():
        raise StudyError(f"--checkpoint {given}: there is no such file")


def run_study(work: PreparedStudy, watcher: Watcher) -> None:
    """Run the chosen rows that have no result yet. Raises as `Prepared.measure`."""
    missing = [job for job in work.jobs() if work.finished(job) is None]
    if missing:
        work.measuring.start(watcher.began)
    names = [quantity.name for quantity in work.study.columns]
    for job in missing:
        run = work.measuring.measure(job.row, job.seed, watcher.began(job.title))
        if run.values.keys() != set(names):
            raise StudyError(
                f"{job.title}: measured {', '.join(run.values) or 'nothing'}, but the columns of {work.study.name} are "
                f"{', '.join(names)}; make them the same"
            )
        work.keep(job, run)
        watcher.ended(job.title, run)


def command_line(
    name: str,
    *,
    small: bool,
    seeds: str,
    data: Path | None,
    device: str,
    patterns: Sequence[str] = (),
    checkpoint: Path | None = None,
) -> str:
    """Return the command that repeats these runs, without the places of files on this machine."""
    words = ["tacit", "experiment", Path(name).name, *(["--small"] if small else []), "--seeds", seeds]
    words += [word for pattern in patterns for word in ("--arm", pattern)]
    words += ["--data", data.name] if data is not None else []
    words += ["--checkpoint", checkpoint.name] if checkpoint is not None else []
    words += ["--device", device] if device != "cpu" else []
    return shlex.join(words)


def _claim(study: Study, size: Size, request: Request, measuring: Prepared, *, small: bool) -> None:
    out, path = request.out, request.out / "study.json"
    stamp = msgspec.json.encode(
        {
            "study": study.name,
            "small": small,
            "device": request.device,
            "data": [request.data and str(request.data.resolve()), measuring.data],
            "checkpoint": request.checkpoint and str(request.checkpoint.resolve()),
            "measure": size.measure,
            "rows": [replace(row, published={}) for row in size.rows],
        },
        enc_hook=_source,
    )
    if os.path.exists(path):
        check_release(out)
        if path.read_bytes() != stamp:
            raise RunDirectoryError(
                f"{out} holds results of another study, or of other settings, data or device: choose another directory "
                "with --out"
            )
        return
    claim(out, taken="exists already and is not that of a study: choose another one with --out")
    mark_release(out)
    with writing(path):
        path.write_bytes(stamp)


def _source(value: object) -> str:
    """Return the source of a function, so that a changed function invalidates its results."""
    try:
        return inspect.getsource(value)  # type: ignore[arg-type]
    except (TypeError, OSError):
        return type(value).__qualname__
