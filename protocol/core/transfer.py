"""The receiver's side of an array that travels in chunks.

The receiver asks for chunks, a few at a time, and the sender answers in order. So both sides hold a bounded number of
chunks whatever the size of the array, nothing is sent that nobody wants any more, and every chunk is a sign of life.
"""

from __future__ import annotations

from typing import Final

from tacit.protocol.core.errors import Code, RemoteProtocolError

WINDOW: Final = 4
"""Chunks asked for and not yet received."""


def requests_after(received: int, chunks: int) -> range:
    """The chunks to ask for when so many of all have come: the first few at the start, then one for each that came."""
    return range(received and min(received + WINDOW - 1, chunks), min(received + WINDOW, chunks))


def check_due(chunk: int, received: int, chunks: int) -> None:
    """Refuse, when so many of all have come, a chunk that was not asked for, or not now."""
    if chunk != received or received == chunks:
        raise RemoteProtocolError(Code.UNEXPECTED, f"chunk {chunk} came where chunk {received} of {chunks} was due")
