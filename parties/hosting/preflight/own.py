"""What a party has on its own host, whatever its role: key, roster, folder, room on the disk, clock."""

from __future__ import annotations

import ctypes
import os
import shutil
import time
from pathlib import Path
from typing import Any, Final

from tacit.parties.hosting.folder import PartyFolder
from tacit.parties.hosting.preflight.checks import Caution, Check, NotFit, Subject, Untested, writable

MEGABYTE: Final = 1_000_000
EVENTS_MEGABYTES: Final = 50
"""Room for event logs, journal and report, which are small."""
CLOCK_SECONDS: Final = 60.0
"""So much may a file come from the future."""
_MODELS: Final = 2
"""A model is written beside the former one, which it then replaces."""
_TIME_ERROR: Final = 5
"""What Linux answers about a clock that nobody sets right (adjtimex)."""


def key(subject: Subject[Any]) -> str:
    """The key file is there, for its owner alone, and holds keys that fit each other."""
    return f"{subject.file.key} is of {subject.keys.name}, and its owner's alone"


def roster(subject: Subject[Any]) -> str:
    """The roster has this party with these keys and this role."""
    found = subject.roster
    groups = f" in {len(found.groups)} groups" if found.groups else ""
    return f"fingerprint {found.fingerprint}, {len(found.clients)} clients{groups}; compare it by telephone"


def folder(subject: Subject[Any]) -> str:
    """Everything that the party writes can be written."""
    place: PartyFolder = subject.folder
    if subject.running:
        return f"{place.path}; a process of this party has it now"
    parts = (place.path, *(place.path / name for name in ("events", "journal", "logs", "runs", "answers")))
    for part in parts:
        there = _nearest(part)
        if not there.is_dir():
            raise NotFit(f"{there} is no folder: move it away, or name another folder as `directory`")
        if not writable(there):
            raise NotFit(f"{there} cannot be written by this user: give it the folder, or name another `directory`")
    return f"{place.path}, which can be written"


def disk(subject: Subject[Any]) -> str:
    """There is room for logs and models."""
    log = subject.file.log
    needed = (EVENTS_MEGABYTES + log.megabytes * (log.files + 1)) * MEGABYTE + _MODELS * subject.model_bytes
    free = shutil.disk_usage(_nearest(subject.folder.path)).free
    room = f"{_megabytes(free)} free, {_megabytes(needed)} needed"
    if free < needed:
        raise NotFit(f"{room} for logs (log.megabytes, log.files) and models: make room, or name another `directory`")
    return room


def clock(subject: Subject[Any]) -> str:
    """The clock is not behind the party's own files, and somebody sets it right.

    No message has a time in it, and no deadline goes by this clock; logs do, and people who compare them.
    """
    now = time.time()
    for path in map(Path, (subject.file.key, subject.file.roster)):
        ahead = path.stat().st_mtime - now if path.exists() else 0.0
        if ahead > CLOCK_SECONDS:
            raise NotFit(f"it is {ahead / 60:.0f} min behind the file {path}: set it right, or touch the file")
    shown = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(now))
    synchronised = clock_is_synchronised()
    if synchronised is None:
        raise Untested(f"{shown}; this system does not say whether it is synchronised: compare it with the others")
    if not synchronised:
        raise Caution(
            f"{shown}; nothing synchronises it: switch NTP on (timedatectl set-ntp true), for the logs' times"
        )
    return f"{shown}, synchronised"


def clock_is_synchronised() -> bool | None:
    """Whether the kernel says so; None if it does not say."""
    try:
        adjtimex = ctypes.CDLL(None).adjtimex
    except (OSError, AttributeError):
        return None
    # A struct timex of zeros, which is more than 200 bytes long, asks and changes nothing.
    answer = int(adjtimex(ctypes.create_string_buffer(1024)))
    return None if answer < 0 else answer != _TIME_ERROR


def _nearest(path: Path) -> Path:
    """The path, or the nearest above it that exists."""
    path = Path(os.path.abspath(path))
    return next(place for place in (path, *path.parents) if place.exists())


def _megabytes(count: int) -> str:
    return f"{count / MEGABYTE:,.0f} MB"


KEY: Final = Check("key", key)
ROSTER: Final = Check("roster", roster, needs=("key",))
FOLDER: Final = Check("folder", folder)
DISK: Final = Check("disk", disk)
CLOCK: Final = Check("clock", clock)
