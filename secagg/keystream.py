"""Masks and other pseudorandom words, expanded from 32-byte seeds with AES-256-CTR (docs/spec/primitives.md).

HKDF's Extract step is omitted, as section 3.3 of RFC 5869 allows: a seed is a uniformly random key already.

`apply_masks` processes the vector in blocks that stay in the processor's cache, and adds the same block of every mask
before the next one: memory traffic does not grow with the number of masks. The cipher and NumPy release the interpreter
lock: threads divide a long vector among them, and of a short one the masks.
"""

from __future__ import annotations

import hmac
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Literal

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, CipherContext
from cryptography.hazmat.primitives.ciphers.algorithms import AES256
from cryptography.hazmat.primitives.ciphers.modes import CTR

from tacit.secagg.ring import Ring, Words
from tacit.secagg.threads import in_threads, threads_for
from tacit.secagg.work import WorkKind, work

SEED_BYTES = 32
_CIPHER_BLOCK = 16
_ZEROS = memoryview(bytes(1 << 18))
"""Encrypted into keystream. These, the stream and the block of words fit an L2 cache."""
_BYTES_WORTH_A_THREAD = 1 << 21
"""Bytes of keystream that repay starting a thread."""
_MASK_WORTH_A_THREAD = 1 << 17
"""Bytes of a mask beside which the single-threaded preparation of its cipher is negligible."""
_SPAN_WORTH_A_THREAD = 1 << 20
"""Bytes of the vector that repay preparing every cipher once more."""


class Usage(bytes, Enum):
    """Purpose of a keystream. The labels are part of the protocol: changing one changes every stream."""

    PAIRWISE_MASK = b"tacit/1 pairwise mask"
    SELF_MASK = b"tacit/1 self mask"
    SHARE_COEFFICIENTS = b"tacit/1 share coefficients"
    RING_ORDER = b"tacit/1 ring order"
    BINARY_WEIGHTS = b"tacit/1 binary weights"
    MODEL_KEY = b"tacit/1 key of the model"
    INITIAL_MODEL = b"tacit/1 initial model"


@dataclass(slots=True)
class Mask:
    """One mask of a vector, to be added (sign +1) or subtracted (sign -1). ValueError unless the seed has 32 bytes."""

    seed: bytes = field(repr=False)
    usage: Usage
    sign: Literal[1, -1]

    def __post_init__(self) -> None:
        _check_seed(self.seed)
        if self.sign not in (1, -1):
            raise ValueError(f"the sign of a mask is +1 or -1, not {self.sign}")


def keystream(seed: bytes, usage: Usage, length: int) -> bytes:
    """The first `length` bytes of the stream of a 32-byte `seed`; ValueError for a seed of another length."""
    _check_seed(seed)
    return _encryptor(seed, usage, _counter(0)).update(bytes(length))


@work(WorkKind.MASKING)
def apply_masks(words: Words, masks: Sequence[Mask], ring: Ring, *, start: int = 0) -> None:
    """words[i] += sum over masks of sign * mask[start + i], modulo 2^bits, in place.

    `words` is a vector of `ring.word`. `start` is the position of words[0] in the masked vector, so that a long vector
    can be masked piece by piece; ValueError unless it lies on a cipher block (start * itemsize a multiple of 16 bytes).
    """
    ring.check_words(words)
    words_per_cipher_block = _CIPHER_BLOCK // ring.word.itemsize
    if start < 0 or start % words_per_cipher_block:
        raise ValueError(f"masks start at multiples of {words_per_cipher_block} words of {ring.word}, not at {start}")
    amount = words.nbytes * len(masks) if words.nbytes >= _MASK_WORTH_A_THREAD else 0
    threads = threads_for(amount, _BYTES_WORTH_A_THREAD)
    # All ciphers are prepared before threads start: preparation holds the lock, and threads would wait for each other.
    if words.nbytes < threads * _SPAN_WORTH_A_THREAD:
        steps = _prepared(masks, start // words_per_cipher_block)
        sums = [words, *(np.zeros_like(words) for _ in range(threads - 1))]
        parts = [(total, steps[first::threads]) for first, total in enumerate(sums)]
    else:
        span, sums = -(-words.size // (threads * words_per_cipher_block)) * words_per_cipher_block, []
        parts = [
            (words[low : low + span], _prepared(masks, (start + low) // words_per_cipher_block))
            for low in range(0, words.size, span)
        ]
    in_threads(lambda part: _take_steps(*part, ring), parts)
    for total in sums[1:]:
        ring.add_into(words, total)


def _prepared(masks: Sequence[Mask], first_block: int) -> list[tuple[CipherContext, np.ufunc]]:
    """For each mask its cipher, from this cipher block on, and the operation that applies its words."""
    counter = _counter(first_block)
    return [(_encryptor(mask.seed, mask.usage, counter), np.add if mask.sign == 1 else np.subtract) for mask in masks]


def _take_steps(words: Words, steps: Sequence[tuple[CipherContext, np.ufunc]], ring: Ring) -> None:
    # The cipher's interface requires a block, less a byte, of space beyond the output.
    scratch = bytearray(min(words.nbytes, len(_ZEROS)) + _CIPHER_BLOCK - 1)
    block_words = len(_ZEROS) // ring.word.itemsize
    for low in range(0, words.size, block_words):
        block = words[low : low + block_words]
        zeros = _ZEROS[: block.nbytes]
        stream = np.frombuffer(scratch, ring.word, block.size)
        for encryptor, combine in steps:
            encryptor.update_into(zeros, scratch)
            combine(block, stream, out=block)
        ring.reduce_into(block)


def _counter(first_block: int) -> CTR:
    return CTR(first_block.to_bytes(_CIPHER_BLOCK, "big"))


def _encryptor(seed: bytes, usage: Usage, counter: CTR) -> CipherContext:
    return Cipher(AES256(hmac.digest(seed, usage + b"\x01", "sha256")), counter).encryptor()


def _check_seed(seed: bytes) -> None:
    if len(seed) != SEED_BYTES:
        raise ValueError(f"a seed has {SEED_BYTES} bytes, not {len(seed)}")
