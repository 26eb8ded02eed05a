"""The journal of a client's group and rounds.

It is JSON lines, appended and synchronised one by one; each entry is on disk before any message that depends on it. It
contains no secret. One process holds it from `open` until `close` or its death: two of the same client would enter the
same rounds.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final

import msgspec

from tacit.models.file_system import FILES, FileSystem
from tacit.parties.links.tokens import TokenFile
from tacit.parties.session.event_log import remove_incomplete_line
from tacit.protocol.session.rounds import JournalEntry as JournalEntry
from tacit.protocol.session.rounds import JournalLine

_DECODER: Final = msgspec.json.Decoder(JournalLine)


class JournalError(Exception):
    """The journal cannot be read or written; the message names the file and the remedy."""


class JournalFile:
    """The journal of one client in one file; a missing file is an empty journal."""

    def __init__(self, path: Path, files: FileSystem = FILES, *, tokens: TokenFile | None = None) -> None:
        """tokens: of the party, which record the journal's length; None: not recorded."""
        self._path = path
        self._tokens = tokens
        self._lines = 0
        self._files = files
        self._named = False
        """Whether the directory entry of the file is known to be durable."""
        self._release: Callable[[], None] | None = None

    def open(self, client: str) -> list[JournalLine]:
        """Read every line, and lock the journal until it is closed. client: its owner."""
        try:
            self._release = self._files.lock(self._path)
        except BlockingIOError as error:
            raise JournalError(f"{client!r} is running already, and has {self._path}: stop it first") from error
        except OSError as error:
            raise JournalError(f"{self._path} cannot be opened ({error.strerror}): make it accessible") from error
        return self.read()

    def close(self) -> None:
        """Release the lock. Closing twice is harmless."""
        if self._release is not None:
            release, self._release = self._release, None
            release()

    def read(self) -> list[JournalLine]:
        """Read every line. A line truncated by a crash was never relied on, and is skipped."""
        try:
            lines = remove_incomplete_line(self._path, self._files).splitlines()
            entries = [_DECODER.decode(line) for line in lines]
        except FileNotFoundError:
            entries = []
        except (OSError, msgspec.MsgspecError) as error:
            raise JournalError(f"{self._path} cannot be read ({error}): restore it, or start with new keys") from error
        self._lines = len(entries)
        if self._tokens is not None and self._lines < (known := self._tokens.journal):
            raise JournalError(
                f"{self._path} has {self._lines} lines, and {known} were written: it is a backup, or was removed, "
                "and has forgotten rounds, and what they cost of the budget; restore the newest one, or if it is lost "
                "remove the file of tokens as well, and have the operator of the server take this client out of its own"
            )
        return entries

    def write(self, entry: JournalLine) -> None:
        try:
            self._files.append(self._path, msgspec.json.encode(entry) + b"\n")
            self._files.synchronise(self._path)
            self._lines += 1
            if not self._named:
                # Without this a power failure may remove a new file, although its content is on disk. Even a non-empty
                # file may be new, if the process that created it was killed here.
                self._files.synchronise(self._path.parent)
                self._named = True
        except OSError as error:
            raise JournalError(
                f"{self._path} cannot be written ({error.strerror}): make room, then start again"
            ) from error
        if self._tokens is not None:
            self._tokens.journal_written(self._lines)
