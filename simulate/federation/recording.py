"""One party's view in an audited run: its received messages and random draws.

A recording takes every message from the link, passes the operating system's randomness on, and stores the party's own
results. It contains nothing that only another party knows. Only an audit asks for recordings. The file is a sequence of
msgpack arrays, each a kind and its fields.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgpack
import numpy as np
import numpy.typing as npt

from tacit.parties.session.shell import Hooks
from tacit.protocol.group_key.agreement import GroupKey
from tacit.protocol.session.rounds import RoundDone
from tacit.secagg.packing import Total
from tacit.secagg.ring import Words


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


class Recording(Hooks):
    """Records a party's received messages and draws in FOLDER/PARTY.recording, which only its owner may read."""

    def __init__(self, folder: Path, party: str) -> None:
        super().__init__()
        folder.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(place(folder, party), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self._file = os.fdopen(descriptor, "ab", buffering=0)

    def heard(self, sender: str, frames: Sequence[memoryview]) -> None:
        self._keep("heard", sender, [bytes(frame) for frame in frames])

    def entropy(self, count: int) -> bytes:
        drawn = super().entropy(count)
        self._keep("drew", drawn)
        return drawn

    def keep_sum(self, done: RoundDone, total: Total) -> None:
        weights = np.asarray(total.weights, "<i8")
        self._keep(
            "opened",
            done.round,
            list(done.survivors),
            total.values.astype("<f8").tobytes(),
            list(weights.shape),
            weights.tobytes(),
        )

    def keep_own(self, round: int, words: Words) -> None:
        self._keep("contributed", round, words.astype("<u8").tobytes())

    def keep_key(self, round: int, key: GroupKey) -> None:
        self._keep("held", round, key.epoch, key.key, list(key.members), key.transcript)

    def keep_told(self, told: ToldOutputs) -> None:
        rows = [(block, list(each.shape), each.astype("<f4").tobytes()) for block, each in told.rows.items()]
        labels, patches = (each.astype("<i8").tobytes() for each in (told.labels, told.patches))
        self._keep("told", rows, labels, list(told.patches.shape), patches)

    def _keep(self, *fields: object) -> None:
        # In one piece: training runs in a thread of its own.
        self._file.write(msgpack.packb(list(fields)))


def place(folder: Path, party: str) -> Path:
    return folder / f"{party}.recording"


def read(folder: Path, party: str) -> Iterator[Record]:
    """Yield the records in order. FileNotFoundError without a recording, ValueError for another file."""
    with place(folder, party).open("rb") as file:
        for kind, *fields in msgpack.Unpacker(file, max_buffer_size=0):
            match kind, fields:
                case "heard", [sender, frames]:
                    yield HeardMessage(sender, tuple(frames))
                case "drew", [octets]:
                    yield DrawnOctets(octets)
                case "opened", [round, survivors, values, shape, weights]:
                    counted = np.frombuffer(weights, "<i8").reshape(shape)
                    yield OpenedSum(round, tuple(survivors), np.frombuffer(values, "<f8"), counted)
                case "contributed", [round, words]:
                    yield OwnWords(round, np.frombuffer(words, "<u8"))
                case "held", [round, epoch, key, members, transcript]:
                    yield HeldKey(round, GroupKey(epoch, key, tuple(members), transcript))
                case "told", [each, labels, own, patches]:
                    rows = {block: np.frombuffer(told, "<f4").reshape(shape) for block, shape, told in each}
                    images = np.frombuffer(patches, "<i8").reshape(own)
                    yield ToldOutputs(rows, np.frombuffer(labels, "<i8"), images)
                case _:
                    raise ValueError(f"{file.name} is no recording: it has a record of kind {kind!r}")
