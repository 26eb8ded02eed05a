"""A client's persisted state of former rounds, and its validity for the next model.

The next model shows a client whether a round was applied. If it is another model, the state after the last round is
valid. If it is the same, its round is repeated, and the state before that round is valid.

State is persisted atomically before the contribution that it belongs to is sent, and removed when the session ends
well. A file of another client, run or model is refused: the lost state is nowhere else.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, Literal

import msgspec
import numpy as np
from safetensors import SafetensorError, deserialize
from safetensors.numpy import save as serialise

from tacit.models.checkpoint import metadata_of
from tacit.models.file_system import FILES, FileSystem, replace_file
from tacit.models.layout import Flat
from tacit.parties.protections.sides import Memory, TaskError


class SetBackError(TaskError):
    """The server has gone back to before a client's persisted state."""


@dataclass(frozen=True)
class Remembered:
    """A protection's state after the client's last contribution, and before it."""

    before: Memory = field(repr=False)
    after: Memory = field(repr=False)
    round: int = 0
    """Round of the last contribution; 0 before the first."""
    model: bytes = b""
    plain: Flat | None = field(default=None, repr=False)
    """The last model of the server in the clear, float32 [D], if the server's is encrypted."""
    plain_round: int = 0
    """Round after which it was the server's model."""

    def at(self, model: bytes) -> Memory:
        """The valid state for training from the model of this digest."""
        return self.before if model == self.model else self.after

    def then(self, round: int, model: bytes, memory: Memory) -> Remembered:
        """The state after another contribution, to a round that began with the model of this digest."""
        return replace(self, before=self.at(model), after=memory, round=round, model=model)

    def check_round(self, round: int, model: bytes) -> None:
        """Raise SetBackError if the server has gone back to before the persisted state."""
        if round <= self.round and model != self.model:
            raise SetBackError(
                f"this client remembers round {self.round}, and the server begins round {round} with another model "
                "than was there then: it was set back"
            )

    def check_form(self, form: Memory, plain: Flat | None) -> None:
        """Raise TaskError unless these arrays have the form of the protection's state.

        plain: a model of the server, if it is encrypted."""
        if self.plain is not None and not fits(self.plain, plain):
            raise TaskError("it holds a model that is not one of this experiment")
        for memory in (self.before, self.after):
            for name, array in memory.items():
                if not fits(array, form.get(name)):
                    raise TaskError(f"it holds {name!r}, which is not what this protection remembers of this model")
        # Before its first round a client may have less state.
        if missing := sorted(form.keys() - (self.after if self.round else form).keys()):
            raise TaskError(f"it lacks {missing[0]!r}")


def fits(array: np.ndarray[Any, Any], form: np.ndarray[Any, Any] | None) -> bool:
    """Whether an array has shape and type of another one, and finite values."""
    return (
        form is not None and (array.shape, array.dtype) == (form.shape, form.dtype) and bool(np.isfinite(array).all())
    )


_KINDS: Final = {"F32": "<f4", "F64": "<f8", "I64": "<i8"}
_HEADER: Final = "remembered"
_PLAIN: Final = "plain"


class Belonging(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    client: str
    run: bytes
    layout: bytes


class _Header(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
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
        """Read the persisted state; None without a file. TaskError, with the remedy, for a file of another owner."""
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
        """Return when it is on disk. OSError, which leaves an earlier file, names the file and the remedy."""
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
        self.files.remove(self.path)


def _difference(found: Belonging, owner: Belonging) -> str:
    if found.client != owner.client:
        return f"what {found.client} remembers, and this is {owner.client}: give every client a folder of its own"
    if found.run != owner.run:
        return "of another experiment: delete it if that one is over, or move it away until it goes on"
    return (
        "of another model: restore the experiment as it was, or delete it, and this client goes on as one that is new"
    )
