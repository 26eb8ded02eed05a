"""Keystreams of a secure computation: where every random word comes from that two parties must draw alike.

A stream is AES-256-CTR under a key of its own. Its counter block is the number of the stream (64 bits, big-endian)
followed by the block within it, so one key gives 2^64 streams that never meet: request 17 of a session has stream 17,
whatever was drawn for the others. The bytes are read as little-endian words of 64 bits.

Keys are made when a session begins and live in its processes alone. Both ends of a link draw a fresh contribution from
the operating system and tell each other over the encrypted link; HKDF-SHA256 (RFC 5869) over both, salted with the
link's binding, gives the pair's secret, and once more with a purpose every key. A party that comes back from a snapshot
or a reconnection meets a peer with another contribution: it cannot get a used keystream again, whatever it replays.

What is drawn for what:

- material: one key for each party and the dealer; the number of the stream is the number of the request
- zero sharing: one stream for each ordered pair of neighbours (rank, next rank), known to those two parties
- common: one stream that all computing parties know and the dealer does not (public masks such as dropout's)
- local: one stream that nobody else knows
"""

from __future__ import annotations

import math
import os
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Annotated, Final

import msgspec
import numpy as np
import torch
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import AES256
from cryptography.hazmat.primitives.ciphers.modes import CTR
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from msgspec import Meta

from tacit.parties.mpc.link import Link

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


class Contribution(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What each end of a link brings to the secrets of a session; fresh for every link."""

    pair: Annotated[bytes, Meta(min_length=KEY_BYTES, max_length=KEY_BYTES)]
    common: Annotated[bytes, Meta(max_length=KEY_BYTES)] = b""
    """For what all computing parties share; empty towards the dealer."""

    def __repr__(self) -> str:
        return "Contribution(...)"


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


@dataclass(frozen=True, repr=False)
class ComputationStreams:
    """The streams of one computing party that its peers, not the dealer, draw from as well."""

    computation: bytes
    """32 bytes that name this computation, the same at every party and never the same twice; not secret."""
    previous: Keystream
    """Zero sharing with the previous rank."""
    following: Keystream
    """Zero sharing with the next rank."""
    common: Keystream
    local: Keystream


def derive(secret: bytes, purpose: Purpose, *, salt: bytes = b"", rank: int = 0) -> bytes:
    """HKDF-SHA256: 32 bytes for a purpose and, where there is one for each, a rank."""
    info = purpose.value + rank.to_bytes(1, "big")
    return HKDF(algorithm=SHA256(), length=KEY_BYTES, salt=salt, info=info).derive(secret)


def agree(link: Link, *, first: bool, common: bytes = b"") -> tuple[bytes, bytes]:
    """The 32-byte secret of this end and its peer, and what the peer brought to the common secret.

    `first` says which of the two this end is; they must not agree on that.
    """
    own = Contribution(pair=os.urandom(KEY_BYTES), common=common)
    link.send_fields("agree on keys", own)
    other = link.receive_fields("agree on keys", Contribution)
    secrets = own.pair + other.pair if first else other.pair + own.pair
    return derive(secrets, Purpose.PAIR, salt=link.binding), other.common


def agree_on_streams(rank: int, links: Mapping[int, Link]) -> ComputationStreams:
    """Make the streams of this rank with its peers; `links` leads to every other rank. MpcError: who is missing."""
    parties = len(links) + 1
    contributions = {rank: os.urandom(KEY_BYTES)}
    secrets: dict[int, bytes] = {}
    for peer, link in sorted(links.items()):
        secrets[peer], contributions[peer] = agree(link, first=rank < peer, common=contributions[rank])
    common = b"".join(contributions[party] for party in range(parties))
    previous = (rank - 1) % parties
    return ComputationStreams(
        computation=derive(common, Purpose.COMPUTATION),
        previous=Keystream(derive(secrets[previous], Purpose.ZERO_SHARING, rank=previous)),
        following=Keystream(derive(secrets[(rank + 1) % parties], Purpose.ZERO_SHARING, rank=rank)),
        common=Keystream(derive(common, Purpose.COMMON)),
        local=Keystream(os.urandom(KEY_BYTES)),
    )
