"""What a client remembers from round to round, on its disk: a safetensors file that only its owner reads.

It is written whole or not at all, before the contribution leaves from which something is remembered, and removed when
the session ends well. No key is in it. What is read is of this client, this run and this model, or is refused: nothing
is begun anew by itself, for what would be lost is nowhere else.
"""

from __future__ import annotations

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
