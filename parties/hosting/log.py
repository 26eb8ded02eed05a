"""The log for people: a line for every event of a party, in a file that is put aside when it is large.

The same events are in the event log for programs; here their weight can be chosen. Neither has secrets, because no
event has.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import Any

from tacit.parties.hosting.party_schema import LogConfiguration
from tacit.parties.hosting.state import ERRORS

_MEGABYTE = 1_000_000
_DETAILS = frozenset({"phase", "traffic", "work", "update", "alive", "waiting", "joined", "answered", "pass", "batch"})


def weight(event: str, fields: dict[str, Any]) -> int:
    """How much an event weighs, as a level of `logging`."""
    if event in ERRORS or fields.get("code") is not None:
        return logging.WARNING
    return logging.DEBUG if event in _DETAILS else logging.INFO


def line(event: str, fields: dict[str, Any]) -> str:
    """An event as one line: its name, and what it says."""
    said = ", ".join(f"{name} {_plain(value)}" for name, value in fields.items() if value not in (None, "", [], ()))
    return f"{event}: {said}" if said else event


@contextmanager
def logging_to(path: Path, chosen: LogConfiguration) -> Iterator[logging.Logger]:
    """A logger that writes into this file. OSError if it cannot be written."""
    handler = RotatingFileHandler(
        path, maxBytes=chosen.megabytes * _MEGABYTE, backupCount=chosen.files, encoding="utf-8"
    )
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    logger = logging.Logger(f"tacit.{path.stem}", chosen.level.upper())
    logger.addHandler(handler)
    try:
        yield logger
    finally:
        handler.close()


def _plain(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    text = ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
    return " ".join(text.split())
