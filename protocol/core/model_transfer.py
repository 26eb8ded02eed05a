"""A model on its way between two parties: announced by digest and length, fetched chunk by chunk, each chunk once."""

from __future__ import annotations

from typing import Final

import numpy as np

from tacit.protocol.core.codec import Frame
from tacit.protocol.core.errors import Code, RemoteProtocolError
from tacit.protocol.core.messages import CHUNK_BYTES
from tacit.protocol.core.primitives import Label, digest
from tacit.protocol.core.transfer import Transfer

NO_MODEL: Final = bytes(32)
"""Stands where the digest of a model is expected and there is none."""


def model_digest(model: bytes | bytearray) -> bytes:
    """32 bytes that identify a model."""
    return digest(Label.MODEL, model)


class IncomingModel:
    """What the receiver has of a model, and asks for next. size: bytes, at least one."""

    def __init__(self, expected: bytes, size: int) -> None:
        self._expected = expected
        self._size = size
        self._transfer = Transfer(-(-size // CHUNK_BYTES))
        self._data = bytearray()

    def first_requests(self) -> range:
        """The chunks to ask for at the start."""
        return self._transfer.first_requests()

    def take(self, chunk: int, payload: Frame | None) -> int | None:
        """Keep a chunk; returns the one to ask for now, if any. A refusal ends the transfer.

        Refuses what was not asked for, another length, and at the end a model that is not the announced one or has
        numbers that are not finite.
        """
        self._transfer.check(chunk)
        expected = min(self._size - len(self._data), CHUNK_BYTES)
        if payload is None or len(payload) != expected:
            raise RemoteProtocolError(Code.MODEL, f"chunk {chunk} of the model does not have {expected} bytes")
        self._data += payload
        if self.complete:
            self._check()
        self._transfer.advance()
        return self._transfer.request_after(chunk)

    @property
    def complete(self) -> bool:
        """Whether all of it is here."""
        return len(self._data) == self._size

    @property
    def data(self) -> bytes:
        """The complete model."""
        return bytes(self._data)

    def _check(self) -> None:
        if model_digest(self._data) != self._expected:
            raise RemoteProtocolError(Code.MODEL, "the model that came is not the one that was announced")
        if not np.isfinite(np.frombuffer(self._data, "<f4")).all():
            raise RemoteProtocolError(Code.MODEL, "the model has numbers that are not finite")


class OutgoingModel:
    """What one receiver has fetched of a model."""

    def __init__(self, model: bytes) -> None:
        self._model = model
        self._due = 0

    def check(self, chunk: int) -> None:
        """Refuse a request for another chunk than the next: so nothing goes out twice."""
        if chunk != self._due:
            raise RemoteProtocolError(
                Code.UNEXPECTED,
                f"it asks for chunk {chunk} of the model, not for {self._due}: each goes out once",
            )
        if chunk * CHUNK_BYTES >= len(self._model):
            raise RemoteProtocolError(Code.MODEL, f"chunk {chunk} is beyond the end of the model")

    def advance(self) -> memoryview:
        """The chunk that `check` admitted."""
        start = self._due * CHUNK_BYTES
        self._due += 1
        return memoryview(self._model)[start : start + CHUNK_BYTES]

    def is_last(self, chunk: int) -> bool:
        """Whether the model ends with this chunk."""
        return (chunk + 1) * CHUNK_BYTES >= len(self._model)
