"""Where a result comes from: when, by which command, with which versions, on which machine, from which seed.

The server of a run writes it into its event log when a session begins, as the event `provenance`; summary, report and
comparisons read it there. It names no host and no user.
"""

from __future__ import annotations

import os
import platform
import re
import shlex
import sys
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path
from typing import Any, Final

import msgspec

DISTRIBUTION: Final = "tacit"


class Hardware(msgspec.Struct, frozen=True, kw_only=True):
    """What a session ran on."""

    system: str
    """Name and release of the kernel."""
    processor: str
    cores: int
    """That its processes may use."""
    memory_bytes: int
    device: str
    """Where models were trained: "cpu", or the name of the GPU."""


class Seed(msgspec.Struct, frozen=True, kw_only=True):
    """What a run was seeded with; never its keys, shares and masks, which no seed makes."""

    value: int
    drawn: bool
    """Whether the run drew it, because it was given none."""
    repeats: str
    """What `--seed` with this value repeats: "everything", bit for bit with the same versions on such a processor;
    "everything but keys", and with it rounding; or "split and initial weights"."""


class _Made(msgspec.Struct, frozen=True, kw_only=True):
    command: str
    """The command line."""
    versions: dict[str, str]
    """Of Tacit, Python, and what Tacit depends on."""
    machine: Hardware


class Provenance(_Made, frozen=True, kw_only=True):
    """What the event of a session says."""

    seed: Seed | None = None
    """Of the run; None between hosts, where nobody chooses any randomness."""


class Invocation(_Made, frozen=True, kw_only=True):
    """Where a session of a run comes from, as summaries and reports have it."""

    began: str
    """When, in UTC, after ISO 8601."""


def command_line() -> str:
    """The command of this process, as a shell takes it."""
    return shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]])


def provenance(command: str, *, device: str, seed: Seed | None = None) -> Provenance:
    """What is true of this process; device: the name of the GPU, or "cpu"."""
    return Provenance(command=command, versions=versions(), machine=machine(device), seed=seed)


def versions() -> dict[str, str]:
    """Versions of Tacit, of Python, and of the packages that it needs, as they are installed."""
    needed = [line for line in requires(DISTRIBUTION) or () if "extra ==" not in line]
    found = {DISTRIBUTION: version(DISTRIBUTION), "python": platform.python_version()}
    for name in (re.split(r"[^\w.-]", line, maxsplit=1)[0] for line in needed):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "missing"
    return found


def machine(device: str) -> Hardware:
    """The machine of this process."""
    return Hardware(
        system=f"{platform.system()} {platform.release()}",
        processor=_processor(),
        cores=len(os.sched_getaffinity(0)),
        memory_bytes=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        device=device,
    )


def _processor() -> str:
    """The model of the processor, or its architecture where Linux does not name the model."""
    try:
        names = re.search(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(), flags=re.MULTILINE)
    except OSError:
        names = None
    return names[1] if names else platform.machine()


def told(server: Iterable[Mapping[str, Any]]) -> tuple[list[Invocation], Seed | None]:
    """The sessions that the events of a server tell of, oldest first, and the seed of the run.

    Both are empty where an earlier version wrote the events. msgspec.ValidationError for events that are not ours.
    """
    found: list[Invocation] = []
    seed: Seed | None = None
    for event in server:
        if event["event"] == "provenance":
            began = f"{datetime.fromtimestamp(event['time'], UTC):%Y-%m-%dT%H:%M:%SZ}"
            found.append(msgspec.convert({**event, "began": began}, Invocation))
            seed = msgspec.convert(event["seed"], Seed | None)
    return found, seed
