"""A client's journal: the models that it contributed to, on disk before its vector leaves.

JSON lines, appended and synchronised one by one; the last line of a round counts. No secret is in it.
"""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from tacit.parties.session.event_log import remove_incomplete_line
from tacit.protocol.sum.results import Contribution


class JournalError(Exception):
    """The journal cannot be read or written; the message names the file and what to do."""


class Journal:
    """The journal of one client in one file; a missing file is an empty journal."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def read(self) -> list[Contribution]:
        """Every contribution, once per round. A line cut off by a crash was never relied on, and is skipped."""
        try:
            remove_incomplete_line(self._path)
            lines = self._path.read_bytes().splitlines() if self._path.exists() else []
            entries = [msgspec.json.decode(line, type=Contribution) for line in lines]
        except (OSError, msgspec.MsgspecError) as error:
            raise JournalError(f"{self._path} cannot be read ({error}): restore it, or start with new keys") from error
        return list({(entry.session, entry.round): entry for entry in entries}.values())

    def write(self, contribution: Contribution) -> None:
        """Append, and return when it is on the disk."""
        try:
            with self._path.open("ab") as file:
                is_new = file.tell() == 0
                file.write(msgspec.json.encode(contribution) + b"\n")
                file.flush()
                os.fsync(file.fileno())
            if is_new:
                _synchronise_directory(self._path.parent)
        except OSError as error:
            raise JournalError(
                f"{self._path} cannot be written ({error.strerror}): make room, then start again"
            ) from error


def _synchronise_directory(path: Path) -> None:
    """Without this a power failure may take the whole new file, although its content is on the disk."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
