"""Functions in children forked from this process: each starts with all that was imported here, and may spoil it.

A child ends by its result, by its limit of processor time, which a busy machine does not move, or by patience: it is
killed when it has taken so long by the clock.
"""

from __future__ import annotations

import gc
import os
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Final, Generic, NoReturn, TypeVar

MOST_MEMORY: Final = 6 << 30
"""Bytes; a defect may ask for any number of them."""

T = TypeVar("T")


class Limit(Enum):
    PROCESSOR = "used up its processor time"
    CLOCK = "did not end"
    DIED = "died"


@dataclass(frozen=True)
class Job(Generic[T]):
    """What a child does. subject: whatever it is about; function: returns a text; limits in seconds."""

    subject: T
    function: Callable[[], str]
    processor: float
    clock: float


@dataclass(frozen=True)
class _Child(Generic[T]):
    job: Job[T]
    folder: Path
    deadline: float


def run(jobs: Iterable[Job[T]], workers: int) -> Iterator[tuple[T, str | Limit]]:
    """Run so many of them at a time; what each returned, or what ended it. RuntimeError for an exception in a child.

    The next job is asked for when there is room for it, so that it may depend on what was learnt from the others.
    """
    waiting, running = iter(jobs), dict[int, _Child[T]]()
    try:
        while True:
            while len(running) < workers and (job := next(waiting, None)) is not None:
                folder = Path(tempfile.mkdtemp(prefix="fork-"))
                pid = os.fork()
                if not pid:
                    _be_child(job, folder)
                running[pid] = _Child(job, folder, time.monotonic() + job.clock)
            if not running:
                return
            time.sleep(0.005)
            for pid, child in list(running.items()):
                ended, status = os.waitpid(pid, os.WNOHANG)
                if not ended and time.monotonic() < child.deadline:
                    continue
                del running[pid]
                yield child.job.subject, _outcome(pid, child, status if ended else None)
    finally:
        for pid, child in running.items():
            _outcome(pid, child, None)


def _outcome(pid: int, child: _Child[T], status: int | None) -> str | Limit:
    """What a child came to; status: None where it has to be killed. Nothing is left of it."""
    try:
        os.killpg(pid, signal.SIGKILL)
    except ProcessLookupError:
        if status is None:
            os.kill(pid, signal.SIGKILL)
    if status is None:
        os.waitpid(pid, 0)
    result = child.folder / "result"
    text = result.read_text("utf-8") if result.exists() else ""
    shutil.rmtree(child.folder, ignore_errors=True)
    match status and os.waitstatus_to_exitcode(status):
        case None:
            return Limit.CLOCK
        case 0:
            return text
        case code if code in (-signal.SIGXCPU, -signal.SIGKILL):
            return Limit.PROCESSOR
        case 1 if text:
            raise RuntimeError(f"{child.job.subject}: {text}")
        case _:
            return Limit.DIED


def _be_child(job: Job[T], folder: Path) -> NoReturn:
    code = 1
    try:
        os.setsid()
        # A collection would touch, hence copy, all that is shared with the parent.
        gc.freeze()
        allowed = int(job.processor) + 1
        resource.setrlimit(resource.RLIMIT_CPU, (allowed, allowed + 1))
        resource.setrlimit(resource.RLIMIT_DATA, (MOST_MEMORY, MOST_MEMORY))
        null = os.open(os.devnull, os.O_RDWR)
        for stream in range(3):
            os.dup2(null, stream)
        tempfile.tempdir = str(folder)
        (folder / "result").write_text(job.function(), "utf-8")
        code = 0
    except BaseException:
        (folder / "result").write_text(traceback.format_exc(), "utf-8")
    finally:
        sys.stdout.flush()
        os._exit(code)
