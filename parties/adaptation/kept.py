"""Shares that an owner keeps of images that passed the blocks, as input of training steps.

Linear probing keeps the tokens of the last block that the head reads; adapters keep the outputs of all blocks. Each
image also has a share of its number of values out of range. Every step that takes the image adds it to its count, and
it is never opened. A record states which passes the shares come from and how often they were used; both owners compare
it (protocol/adaptation/kept.py).

With a path the shares are on disk, so that they outlive the process and take no memory: one file of rows, and one with
the record, both accessible to their owner alone (0600). One owner's share is random words. Rows are written before the
record states them, and the record is written before a use opens anything.
"""

from __future__ import annotations

import math
import os
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, BinaryIO, Final

import msgspec
import numpy as np
import torch
from msgspec import Meta

from tacit.models.file_system import FILES, replace_file
from tacit.parties.inference.ring import byte_width, packed, unpacked
from tacit.protocol.adaptation.kept import KeptRecord, Prefix
from tacit.protocol.core.primitives import KEY_BYTES
from tacit.protocol.inference.schedule import PLACE, STREAM

_COUNT: Final = byte_width(PLACE)
"""Bytes of a row behind the outputs."""
_Chain = tuple[Annotated[int, Meta(ge=0)], Annotated[bytes, Meta(min_length=KEY_BYTES, max_length=KEY_BYTES)]]


class _StoredRecord(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    bound: bytes
    terms_digest: bytes
    last: _Chain
    before: _Chain
    uses: Annotated[int, Meta(ge=0)]


class KeptShares:
    """One owner's shares of the images of one data owner.

    path: the file of rows, with a record beside it; None: in memory; bound: identifies the source of the rows besides
    the terms; rows with another source are not used. ValueError for an invalid record."""

    def __init__(self, path: Path | None = None, *, bound: bytes = b"") -> None:
        self.record = KeptRecord()
        self._path, self._bound = path, bound
        self._shape: tuple[int, int, int] = (0, 0, 0)
        self._session = b""
        self._turn = threading.Lock()
        """Orders the keeping of a pass, in a thread, and the start of a later session."""
        self._row = _COUNT
        self._rows: list[bytes] = []
        """Rows in memory, without a file."""
        if path is not None:
            self._load(path)

    def resumed(self, shape: tuple[int, int, int], session: bytes, images: int) -> None:
        """Persist that both owners agreed to resume behind so many images. shape: [L, S, D] of the values that a step
        reads of an image. OSError; RuntimeError if there are others."""
        with self._turn:
            if self.record.last[0] != images:
                # An earlier session has kept its last pass since both compared what they keep.
                if self.record.before[0] != images:
                    raise RuntimeError(f"{self.record.last[0]} images are kept where {images} were agreed on")
                self.record.resume(self.record.terms_digest, self.record.before, self.record.uses)
            self._shape, self._session = shape, session
            self._row = byte_width(STREAM) * math.prod(shape) + _COUNT
            self._rows = self._rows[:images]
            if self._path is not None:
                self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                with _opened(self._path) as file:
                    file.truncate(images * self._row)
            self._save()

    def keep(self, session: bytes, number: int, outputs: Sequence[torch.Tensor], outside: torch.Tensor) -> None:
        """Keep the shares of a pass: of every block's output [B, S, D], and of the number of values out of range [B].
        OSError; RuntimeError if a later session has resumed the kept shares."""
        images = len(outside)
        words = torch.stack(list(outputs), 1).reshape(images, -1)
        octets = np.concatenate(
            [packed(words, STREAM).reshape(images, -1), packed(outside, PLACE).reshape(images, -1)], axis=1
        )
        with self._turn:
            if session != self._session:
                raise RuntimeError("a later session goes on with what is kept")
            if self._path is None:
                self._rows += [row.tobytes() for row in octets]
            else:
                with _opened(self._path) as file:
                    file.seek(self.record.last[0] * self._row)
                    file.write(octets.tobytes())
                    file.flush()
                    os.fsync(file.fileno())
            self.record.add(session, number, images)
            self._save()

    def use(self) -> None:
        """Persist one more use. OSError."""
        self.record.use()
        self._save()

    def batch(self, images: Sequence[int]) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the shares of these images for a step: int64 [L, B, S, D] modulo 2^STREAM, and the number of values
        out of range, modulo 2^PLACE. OSError; ValueError if rows are missing."""
        rows = self._read(images)
        if any(len(row) != self._row for row in rows):
            raise ValueError(f"{self._path} is shorter than its record says: remove its folder, at both owners")
        octets = np.frombuffer(b"".join(rows), np.uint8).reshape(len(images), -1)
        layers, tokens, width = self._shape
        words = unpacked(
            np.ascontiguousarray(octets[:, :-_COUNT]).reshape(-1, byte_width(STREAM)),
            STREAM,
            (len(images), layers, tokens, width),
        )
        counts = unpacked(np.ascontiguousarray(octets[:, -_COUNT:]), PLACE, (len(images),))
        return words.transpose(0, 1).contiguous(), counts.sum()

    def _read(self, images: Sequence[int]) -> list[bytes]:
        if self._path is None:
            return [self._rows[image] for image in images]
        rows = []
        with _opened(self._path) as file:
            for image in images:
                file.seek(image * self._row)
                rows.append(file.read(self._row))
        return rows

    def _load(self, path: Path) -> None:
        record = _record(path)
        try:
            found = msgspec.msgpack.decode(FILES.read(record), type=_StoredRecord)
        except FileNotFoundError:
            return
        except msgspec.MsgspecError as error:
            raise ValueError(
                f"{record} cannot be used ({error}): remove its folder; images then pass the blocks again"
            ) from None
        if found.bound == self._bound:
            self.record = KeptRecord(found.terms_digest, _prefix(found.last), _prefix(found.before), found.uses)

    def _save(self) -> None:
        if self._path is None:
            return
        own = self.record
        replace_file(
            _record(self._path),
            msgspec.msgpack.encode(
                _StoredRecord(
                    bound=self._bound, terms_digest=own.terms_digest, last=own.last, before=own.before, uses=own.uses
                )
            ),
        )


def _prefix(chain: _Chain) -> Prefix:
    images, digest = chain
    return images, digest


def _record(path: Path) -> Path:
    return path.with_suffix(".record")


def _opened(path: Path) -> BinaryIO:
    return os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT, 0o600), "r+b")
