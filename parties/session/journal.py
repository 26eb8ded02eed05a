"""What a client persists: a journal of its group and rounds, and its state from round to round.

The journal is JSON lines, appended and synchronised one by one; each entry is on disk before anything of it leaves. No
secret is in it. One process has it from `open` on until `close`, or its death: two of the same client would enter the
same rounds.

The state is a safetensors file that only its owner reads, without keys. It is written whole or not at all, before the
contribution leaves that it belongs to, and removed when the session ends well. A file of another client, run or model
is refused: nothing starts anew silently, because the lost state is nowhere else.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

import msgspec
import numpy as np
from safetensors import SafetensorError, deserialize
from safetensors.numpy import save as serialise

from tacit.models.checkpoint import metadata_of
from tacit.models.file_system import FILES, FileSystem, replace_file
from tacit.parties.learning.remembered import Remembered
from tacit.parties.protections.sides import TaskError
from tacit.parties.session.event_log import remove_incomplete_line
from tacit.protocol.session.rounds import JournalLine

_DECODER: Final = msgspec.json.Decoder(JournalLine)


class JournalError(Exception):
    """The journal cannot be read or written; the message names the file and what to do."""


class JournalFile:
    """The journal of one client in one file; a missing file is an empty journal."""

    def __init__(self, path: Path, files: FileSystem = FILES) -> None:
        self._path = path
        self._files = files
        self._named = False
        """Whether the name of the file is on the disk for sure."""
        self._release: Callable[[], None] | None = None

    def open(self, client: str) -> list[JournalLine]:
        """Every line, of a journal that no other process may open until this one closes it. client: whose it is."""
        try:
            self._release = self._files.lock(self._path)
        except BlockingIOError as error:
            raise JournalError(f"{client!r} is running already, and has {self._path}: stop it first") from error
        except OSError as error:
            raise JournalError(f"{self._path} cannot be opened ({error.strerror}): make it accessible") from error
        return self.read()

    def close(self) -> None:
        """Let others have it. Closing twice is harmless."""
        if self._release is not None:
            release, self._release = self._release, None
            release()

    def read(self) -> list[JournalLine]:
        """Every line. A line cut off by a crash was never relied on, and is skipped."""
        try:
            lines = remove_incomplete_line(self._path, self._files).splitlines()
            return [_DECODER.decode(line) for line in lines]
        except FileNotFoundError:
            return []
        except (OSError, msgspec.MsgspecError) as error:
            raise JournalError(f"{self._path} cannot be read ({error}): restore it, or start with new keys") from error

    def write(self, entry: JournalLine) -> None:
        """Append, and return when it is on the disk."""
        try:
            self._files.append(self._path, msgspec.json.encode(entry) + b"\n")
            self._files.synchronise(self._path)
            if not self._named:
                # Without this a failure of power may take a new file away, although its content is on the disk; new it
                # may be even where it is not empty, if the process that made it was killed here.
                self._files.synchronise(self._path.parent)
                self._named = True
        except OSError as error:
            raise JournalError(
                f"{self._path} cannot be written ({error.strerror}): make room, then start again"
            ) from error


_KINDS: Final = {"F32": "<f4", "F64": "<f8", "I64": "<i8"}
_HEADER: Final = "remembered"
_PLAIN: Final = "plain"


class Belonging(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Whose memory it is."""

    client: str
    run: bytes
    """Task.run."""
    layout: bytes
    """The digest of the model's layout."""


class _Header(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What stands beside the arrays."""

    version: Literal[1] = 1
    owner: Belonging
    round: int
    model: bytes
    plain_round: int


@dataclass(frozen=True)
class MemoryFile:
    """The file of one client; it may be missing."""

    path: Path
    files: FileSystem = FILES

    def read(self, owner: Belonging) -> Remembered | None:
        """What is remembered; None without a file. TaskError, with the remedy, for a file that is not the owner's."""
        try:
            content = self.files.read(self.path)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise TaskError(f"{self.path} cannot be read ({error.strerror}): make it accessible") from error
        try:
            parts = dict(deserialize(content))  # type: ignore[no-untyped-call]
            header = msgspec.json.decode(metadata_of(content).get(_HEADER, ""), type=_Header)
            arrays = {
                name: np.frombuffer(part["data"], _KINDS[part["dtype"]]).reshape(part["shape"])
                for name, part in parts.items()
            }
            memories: dict[str, dict[str, Any]] = {"before": {}, "after": {}}
            plain = arrays.pop(_PLAIN, None)
            for name, array in arrays.items():
                which, _, own = name.partition("/")
                memories[which][own] = array
        except (SafetensorError, msgspec.MsgspecError, KeyError, ValueError) as error:
            raise TaskError(
                f"{self.path} is damaged, or not what a client remembers ({error}): restore it, or delete it, and this "
                "client goes on as one that is new"
            ) from error
        if header.owner != owner:
            raise TaskError(f"{self.path} is {_difference(header.owner, owner)}")
        return Remembered(
            **memories, round=header.round, model=header.model, plain=plain, plain_round=header.plain_round
        )

    def write(self, owner: Belonging, remembered: Remembered) -> None:
        """Return when it is on the disk. OSError, which leaves an earlier file, names the file and the remedy."""
        header = _Header(
            owner=owner, round=remembered.round, model=remembered.model, plain_round=remembered.plain_round
        )
        arrays = {
            f"{which}/{name}": array
            for which, memory in (("before", remembered.before), ("after", remembered.after))
            for name, array in memory.items()
        }
        if remembered.plain is not None:
            arrays[_PLAIN] = remembered.plain
        content = serialise(arrays, metadata={_HEADER: msgspec.json.encode(header).decode()})
        try:
            self.path.parent.mkdir(mode=0o700, exist_ok=True)
            replace_file(self.path, content, self.files)
        except OSError as error:
            raise OSError(
                f"{self.path} cannot be written ({error.strerror or error}): make room, then start again"
            ) from error

    def remove(self) -> None:
        """The run is over. OSError if it cannot be removed."""
        self.files.remove(self.path)


def _difference(found: Belonging, owner: Belonging) -> str:
    """Of whom a file is that is another's, and what to do."""
    if found.client != owner.client:
        return f"what {found.client} remembers, and this is {owner.client}: give every client a folder of its own"
    if found.run != owner.run:
        return "of another experiment: delete it if that one is over, or move it away until it goes on"
    return (
        "of another model: restore the experiment as it was, or delete it, and this client goes on as one that is new"
    )
