"""One party's view in an audited run: its received messages and random draws.

A recording takes every message from the link, passes the operating system's randomness on, and stores the party's own
results. It contains nothing that only another party knows. Only an audit asks for recordings. The file is a sequence of
msgpack arrays, each the kind of a record and its fields.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_args

import msgpack
import msgspec
import numpy as np
import numpy.typing as npt

from tacit.parties.session.shell import Hooks
from tacit.protocol.group_key.agreement import GroupKey


@dataclass(frozen=True)
class HeardMessage:
    sender: str
    frames: tuple[bytes, ...] = field(repr=False)


@dataclass(frozen=True)
class DrawnOctets:
    """Randomness that the operating system gave the party's machine."""

    octets: bytes = field(repr=False)


@dataclass(frozen=True)
class OpenedSum:
    """A sum that a server opened: values float64 [D], weights int64 (), [T] or [D] depending on the protection."""

    round: int
    survivors: tuple[str, ...]
    values: npt.NDArray[np.float64] = field(repr=False)
    weights: npt.NDArray[np.int64] = field(repr=False)


@dataclass(frozen=True)
class OwnWords:
    """A client's own ring words of a round, before they were masked; as unsigned integers of 64 bits."""

    round: int
    words: npt.NDArray[np.uint64] = field(repr=False)


@dataclass(frozen=True)
class HeldKey:
    """A client's group key in a round."""

    round: int
    key: GroupKey = field(repr=False)


@dataclass(frozen=True)
class ToldOutputs:
    """Batch outputs that a data owner of an adaptation received: of some blocks, float32 [B, T, D], by the number of
    the block, each in an order of its own."""

    rows: Mapping[int, npt.NDArray[np.float32]] = field(repr=False)
    labels: npt.NDArray[np.int64] = field(repr=False)
    """Labels revealed with the last block's outputs, [B] in their order."""
    patches: npt.NDArray[np.int64] = field(repr=False)
    """Its own images of the batch [B, N, P], as it shares them."""


Record = HeardMessage | DrawnOctets | OpenedSum | OwnWords | HeldKey | ToldOutputs
_KINDS = {kind.__name__: kind for kind in get_args(Record)}


class Recording(Hooks):
    """Records a party's received messages and draws in FOLDER/PARTY.recording, which only its owner may read."""

    def __init__(self, folder: Path, party: str) -> None:
        super().__init__()
        folder.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(place(folder, party), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self._file = os.fdopen(descriptor, "ab", buffering=0)

    def heard(self, sender: str, frames: Sequence[memoryview]) -> None:
        self.keep(HeardMessage(sender, tuple(map(bytes, frames))))

    def entropy(self, count: int) -> bytes:
        drawn = super().entropy(count)
        self.keep(DrawnOctets(drawn))
        return drawn

    def keep(self, record: Record) -> None:
        # In one piece: training runs in a thread of its own.
        self._file.write(msgspec.msgpack.encode((type(record).__name__, record), enc_hook=_stored))


def _stored(array: npt.NDArray[Any]) -> tuple[str, tuple[int, ...], bytes]:
    return array.dtype.str, array.shape, array.tobytes()


def _array(kind: type, stored: tuple[str, Sequence[int], bytes]) -> npt.NDArray[Any]:
    dtype, shape, octets = stored
    return np.frombuffer(octets, dtype).reshape(shape)


def place(folder: Path, party: str) -> Path:
    return folder / f"{party}.recording"


def read(folder: Path, party: str) -> Iterator[Record]:
    """Yield the records in order. FileNotFoundError without a recording, ValueError for another file."""
    with place(folder, party).open("rb") as file:
        for kind, fields in msgpack.Unpacker(file, max_buffer_size=0, strict_map_key=False):
            if kind not in _KINDS:
                raise ValueError(f"{file.name} is no recording: it has a record of kind {kind!r}")
            yield msgspec.convert(fields, _KINDS[kind], dec_hook=_array)
