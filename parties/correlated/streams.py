"""Keystreams of a secure computation: where every random word comes from that two parties must draw alike.

A stream is AES-256-CTR under a key of its own. Its counter block is the number of the stream (64 bits, big-endian)
followed by the block within it, so one key gives 2^64 streams that never meet: request 17 of a session has stream 17,
whatever was drawn for the others. The bytes are read as little-endian words of 64 bits.

Keys are made when a session begins and live in its processes alone: HKDF-SHA256 (RFC 5869) over what both ends of a
link brought gives the pair's secret, and once more with a purpose every key.

What is drawn for what:

- material: one key for each party and the dealer; the number of the stream is the number of the request
- zero sharing: one stream for each ordered pair of neighbours (rank, next rank), known to those two parties
- common: one stream that all computing parties know and the dealer does not (public masks such as dropout's)
- local: one stream that nobody else knows
"""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from enum import Enum
from typing import Final

import numpy as np
import torch
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import AES256
from cryptography.hazmat.primitives.ciphers.modes import CTR
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

KEY_BYTES: Final = 32
WORD_BITS: Final = 64
_WORD_BYTES = 8
_CIPHER_BLOCK = 16
_COUNTER = struct.Struct(">QQ")
_ZEROS = memoryview(bytes(1 << 17))


class Purpose(bytes, Enum):
    """What a key is for: the info string of its derivation."""

    PAIR = b"tacit/1 mpc pair"
    MATERIAL = b"tacit/1 mpc material"
    ZERO_SHARING = b"tacit/1 mpc zero sharing"
    COMMON = b"tacit/1 mpc common"
    COMPUTATION = b"tacit/1 mpc computation"


class Keystream:
    """The words of one stream, drawn one after the other. Not thread-safe."""

    __slots__ = ("_encryptor", "drawn")

    def __init__(self, key: bytes, number: int = 0) -> None:
        """ValueError unless the key has 32 bytes and the number lies in [0, 2^64)."""
        if len(key) != KEY_BYTES or not 0 <= number < 1 << WORD_BITS:
            raise ValueError(f"a stream has a key of {KEY_BYTES} bytes and a number of {WORD_BITS} bits")
        self._encryptor = Cipher(AES256(key), CTR(_COUNTER.pack(number, 0))).encryptor()
        self.drawn = 0
        """Words drawn so far; both ends of a stream must agree on it."""

    def draw(self, shape: Sequence[int], bits: int = WORD_BITS) -> torch.Tensor:
        """The next words of the stream, int64 of this shape: uniform over the ring, or [0, 2^bits) if bits < 64."""
        count = math.prod(shape)
        # The cipher's interface asks for room of one cipher block, less a byte, beyond the output.
        words = np.empty(count + _CIPHER_BLOCK // _WORD_BYTES, "<i8")
        room = memoryview(words.data).cast("B")
        for low in range(0, count * _WORD_BYTES, len(_ZEROS)):
            self._encryptor.update_into(_ZEROS[: count * _WORD_BYTES - low], room[low:])
        self.drawn += count
        drawn = torch.from_numpy(words[:count]).reshape(tuple(shape))
        return drawn if bits == WORD_BITS else drawn.bitwise_and_((1 << bits) - 1)


def derive(secret: bytes, purpose: Purpose, *, salt: bytes = b"", rank: int = 0) -> bytes:
    """HKDF-SHA256: 32 bytes for a purpose and, where there is one for each, a rank."""
    info = purpose.value + rank.to_bytes(1, "big")
    return HKDF(algorithm=SHA256(), length=KEY_BYTES, salt=salt, info=info).derive(secret)
