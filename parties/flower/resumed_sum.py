"""A client's part in one secure sum, between two messages that Flower hands to two different processes.

A SuperNode starts a process for every message, and its simulation gives a node's messages to whichever worker is free:
no machine lives from one message to the next. So what has happened to the machine is kept in a file of its owner, and
every message makes the machine again: it draws the same random bytes, and hears and is given the same things in the
same order. Machines draw nothing else and read no clock, so that it is the same one; a hash of all it said shows that.

The file is locked while a message is worked on, so that two messages at once never find the same state, and it is on
the disk before an answer leaves: a machine never answers in two ways. For both reasons it is not kept in Flower's
Context, of which every process gets a copy. Flower's time limits are those of its messages; here no clock runs.
"""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt

from tacit.models.file_system import replace_file
from tacit.protocol.core.roster import PartyKeys, Roster
from tacit.protocol.session.one_sum import SumClient, SumSettings
from tacit.protocol.sum.exchange import ClientAborted, Contributed

_NOW = 0.0


class ResumedSumError(Exception):
    """The sum that a message is about cannot go on at this client; the message says why."""


class _Happened(msgspec.Struct, frozen=True, array_like=True):
    """What a machine was fed with: a message of the server, or its vector, float64 little-endian, with a weight."""

    message: bytes
    weight: int = 0


class _File(msgspec.Struct):
    settings: SumSettings
    drawn: list[bytes]
    happened: list[_Happened]
    said: bytes


@dataclass
class _Draws:
    """The random bytes of a machine: first those that it drew before, then new ones, which are noted."""

    drawn: list[bytes]
    used: int = 0

    def __call__(self, count: int) -> bytes:
        if self.used == len(self.drawn):
            self.drawn.append(os.urandom(count))
        self.used += 1
        return self.drawn[self.used - 1]


class ResumedSum:
    """One client in one sum. The caller has the client's journal, and with it the lock, while it uses this."""

    def __init__(self, path: Path, kept: _File, roster: Roster, keys: PartyKeys) -> None:
        self._path = path
        self._kept = kept
        self._hasher = hashlib.sha256()
        self._client = SumClient(kept.settings, roster, keys, entropy=_Draws(kept.drawn))
        self.first = self._told(self._client.start(_NOW))
        """The first frames to the server."""
        for happened in kept.happened:
            self._feed(happened)

    @classmethod
    def begin(cls, path: Path, settings: SumSettings, roster: Roster, keys: PartyKeys) -> ResumedSum:
        """Enter a sum; what was left of another one is forgotten. ValueError as of SumClient."""
        kept = cls(path, _File(settings, [], [], b""), roster, keys)
        kept.save()
        return kept

    @classmethod
    def read(cls, path: Path, title: str, roster: Roster, keys: PartyKeys) -> ResumedSum:
        """The sum of this title as it was saved. ResumedSumError if there is none."""
        try:
            file = msgspec.msgpack.decode(path.read_bytes(), type=_File)
        except FileNotFoundError:
            raise ResumedSumError(
                f"{keys.name!r} is in no secure sum: it was never asked, or that sum is over"
            ) from None
        except msgspec.MsgspecError:
            raise ResumedSumError(f"{path} is no secure sum of this version: remove it") from None
        if file.settings.title != title:
            raise ResumedSumError(
                f"{keys.name!r} was asked to go on with the sum {title!r}, and is in {file.settings.title!r}: one "
                "client is in one run at a time"
            )
        kept = cls(path, file, roster, keys)
        if kept._hasher.digest() != file.said:
            raise ResumedSumError(f"{path}: its machine cannot be made again: it is of another version; remove it")
        return kept

    @property
    def title(self) -> str:
        """Of the sum."""
        return self._kept.settings.title

    @property
    def outcome(self) -> Contributed | ClientAborted | None:
        """As of SumClient."""
        return self._client.outcome

    def hear(self, message: bytes) -> list[bytes]:
        """What there is to answer to a message of the server."""
        return self._new(_Happened(message))

    def contribute(self, vector: npt.NDArray[np.float64], weight: int) -> list[bytes]:
        """Give it its vector. ValueError as of SumClient."""
        return self._new(_Happened(vector.astype("<f8").tobytes(), weight))

    def save(self) -> None:
        """Return when all of it is on the disk; of a sum that is over nothing is left there."""
        if self.outcome is not None:
            self.forget(self._path)
            return
        self._kept.said = self._hasher.digest()
        replace_file(self._path, msgspec.msgpack.encode(self._kept))

    @staticmethod
    def forget(path: Path) -> None:
        """Take no further part: what the sum needs is removed."""
        path.unlink(missing_ok=True)

    def _new(self, happened: _Happened) -> list[bytes]:
        said = self._feed(happened)
        self._kept.happened.append(happened)
        return said

    def _feed(self, happened: _Happened) -> list[bytes]:
        if happened.weight:
            vector = np.frombuffer(happened.message, "<f8")
            return self._told(self._client.contribute(vector, _NOW, weight=happened.weight))
        return self._told(self._client.receive(happened.message, _NOW))

    def _told(self, said: list[bytes]) -> list[bytes]:
        for message in said:
            self._hasher.update(message)
        return said
