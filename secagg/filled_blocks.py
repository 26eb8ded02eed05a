"""Ring words without blocks of zeros: a bitmap of the blocks, then the packed words of those that hold anything.

A block is 64 words, the last one possibly fewer. The bitmap has one bit for each, the first in the least significant
bit of the first byte, set where a word of the block is not zero; unused bits are zero. All else is refused.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from tacit.secagg.ring import Ring, Words

BLOCK_WORDS: Final = 64
BYTE_WORDS: Final = 8 * BLOCK_WORDS
"""Words that a byte of the bitmap speaks of."""


def pack_filled(ring: Ring, words: Words) -> bytes:
    """The `words` [n] without their empty blocks. ValueError when they are not a vector of `Ring.word`."""
    filled = _filled(words)
    return np.packbits(filled, bitorder="little").tobytes() + bytes(ring.pack(words[_spread(filled, len(words))]))


def unpack_filled(ring: Ring, buffer: bytes | bytearray | memoryview, length: int) -> Words:
    """The words [length] that `pack_filled` encodes so.

    ValueError for another number of bytes than the bitmap says, an unused bit that is set, a block that is said to hold
    something and is zero, and an element that is not below 2^bits.
    """
    blocks = -(-length // BLOCK_WORDS)
    start = -(-blocks // 8)
    if len(buffer) < start:
        raise ValueError(f"{len(buffer)} bytes are no bitmap of {blocks} blocks")
    bits = np.unpackbits(np.frombuffer(buffer, np.uint8, start), bitorder="little").view(np.bool_)
    filled = bits[:blocks]
    if bits[blocks:].any():
        raise ValueError(f"the bitmap speaks of more than {blocks} blocks")
    present = _spread(filled, length)
    expected = start + int(np.count_nonzero(present)) * ring.wire_bytes
    if len(buffer) != expected:
        raise ValueError(f"{len(buffer)} bytes, where the bitmap says {expected}")
    words = np.zeros(length, ring.word)
    words[present] = ring.unpack(memoryview(buffer)[start:])
    if not np.array_equal(_filled(words), filled):
        raise ValueError(f"block {int(np.argmax(_filled(words) != filled))} is said to hold something, and is zero")
    return words


def most_bytes(ring: Ring, length: int) -> int:
    """Bytes of so many words without an empty block."""
    return -(-length // BYTE_WORDS) + length * ring.wire_bytes


def _filled(words: Words) -> npt.NDArray[np.bool_]:
    """Which blocks are not zero as a whole."""
    filled: npt.NDArray[np.bool_] = np.logical_or.reduceat(words != 0, np.arange(0, len(words), BLOCK_WORDS))
    return filled


def _spread(filled: npt.NDArray[np.bool_], length: int) -> npt.NDArray[np.bool_]:
    """For each word whether its block is filled."""
    return np.repeat(filled, BLOCK_WORDS)[:length]
