"""Integers modulo 2^bits as NumPy words, and the stochastic rounding of real numbers into them.

Updates are masked and summed in this group. A ring element lives in the smallest unsigned word that holds it. NumPy
adds words modulo 2^8, 2^16, 2^32 or 2^64, and 2^bits divides that modulus, so a sum stays right however many terms are
added before it is reduced. On the wire an element takes whole bytes, little-endian: a 24-bit element is 3 bytes, not 4.

Stochastic rounding keeps sums over many clients unbiased. A value x in [-limit, limit] becomes y = x * levels / limit
in [-levels, levels], levels = 2^(bits-1) - 1, and is rounded up with probability y - floor(y), else down. That is
floor(y + u) for a uniform u, written as floor(y) + [u < y - floor(y)] because y - floor(y) is exact in floating point
and y + u is not. The mean of the integer is y, and the error is below one step.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from tacit.secagg.work import WorkKind, work

Words = npt.NDArray[np.unsignedinteger[Any]]
"""Ring elements, dtype `Ring.word`."""


@dataclass(frozen=True)
class Ring:
    """The integers modulo 2^bits, 8 <= bits <= 64 (ValueError otherwise)."""

    bits: int

    def __post_init__(self) -> None:
        if not 8 <= self.bits <= 64:
            raise ValueError(f"a ring has 8 to 64 bits, not {self.bits}")

    @cached_property
    def word(self) -> np.dtype[Any]:
        """Smallest unsigned little-endian dtype that holds an element."""
        return np.dtype(next(f"<u{size}" for size in (1, 2, 4, 8) if 8 * size >= self.bits))

    @property
    def modulus(self) -> int:
        """2^bits, the number of elements."""
        return 1 << self.bits

    @property
    def wire_bytes(self) -> int:
        return -(-self.bits // 8)

    def reduce_into(self, words: Words) -> None:
        """Reduce `words` modulo 2^bits, in place."""
        if self.bits < 8 * self.word.itemsize:
            np.bitwise_and(words, self.word.type(self.modulus - 1), out=words)

    @work(WorkKind.SUMMING)
    def add_into(self, total: Words, words: Words) -> None:
        """total += words, in place. ValueError unless both have the same shape."""
        _check_same_shape(total, words)
        np.add(total, words, out=total)
        self.reduce_into(total)

    def subtract_into(self, total: Words, words: Words) -> None:
        """total -= words, in place. ValueError unless both have the same shape."""
        _check_same_shape(total, words)
        np.subtract(total, words, out=total)
        self.reduce_into(total)

    def signed(self, words: Words) -> npt.NDArray[np.int64]:
        """Read `words` in two's complement, as int64 of the same shape: from 2^(bits-1) on, w represents w - 2^bits."""
        return sign_extend(words.astype(np.int64), self.bits)

    def from_signed(self, numbers: npt.NDArray[np.signedinteger[Any]]) -> Words:
        """`numbers` modulo 2^bits, as words of the same shape."""
        words: Words = numbers.astype(self.word)
        self.reduce_into(words)
        return words

    @work(WorkKind.SERIALISATION)
    def pack(self, words: Words) -> memoryview:
        """The `words` [n] as n * wire_bytes bytes, little-endian; shares memory with `words` if no byte is dropped.

        ValueError unless `words` is a vector of `Ring.word`."""
        self.check_words(words)
        octets = np.ascontiguousarray(words).view(np.uint8)
        if self.wire_bytes < self.word.itemsize:
            columns = octets.reshape(-1, self.word.itemsize)
            octets = np.empty((words.size, self.wire_bytes), np.uint8)
            # One strided copy per byte position: several times faster than copying many rows of three bytes.
            for position in range(self.wire_bytes):
                octets[:, position] = columns[:, position]
        return octets.reshape(-1).data

    @work(WorkKind.SERIALISATION)
    def unpack(self, buffer: bytes | bytearray | memoryview) -> Words:
        """The words [n] of n * wire_bytes packed bytes; a read-only view of `buffer` if the widths agree.

        ValueError when the length is no multiple of wire_bytes, or an element is not below 2^bits."""
        octets = np.frombuffer(buffer, np.uint8)
        if octets.size % self.wire_bytes:
            raise ValueError(f"{octets.size} bytes are no whole number of {self.wire_bytes}-byte ring elements")
        if self.wire_bytes == self.word.itemsize:
            words: Words = octets.view(self.word)
            words.flags.writeable = False
        else:
            words = np.empty(octets.size // self.wire_bytes, self.word)
            # Each is read with the bytes behind it, which are masked off: in half the time of a copy byte by byte.
            words[:-1] = np.ndarray(max(0, words.size - 1), self.word, octets.data, strides=self.wire_bytes)
            words[-1:] = int.from_bytes(octets[-self.wire_bytes :].tobytes(), "little")
            words &= self.word.type((1 << 8 * self.wire_bytes) - 1)
        if self.bits < 8 * self.wire_bytes and words.size and int(words.max()) >= self.modulus:
            index = int(np.argmax(words >= self.modulus))
            raise ValueError(f"element {index} is {int(words[index])}, not below 2^{self.bits}")
        return words

    def check_words(self, words: Words) -> None:
        """ValueError unless `words` is a vector of `Ring.word`."""
        if words.ndim != 1 or words.dtype != self.word:
            raise ValueError(f"expected a vector of {self.word} words, got {words.dtype} of shape {words.shape}")


def sign_extend(numbers: npt.NDArray[np.int64], bits: int) -> npt.NDArray[np.int64]:
    """Read the low `bits` of each number in two's complement; higher bits are ignored."""
    spare = 64 - bits
    extended: npt.NDArray[np.int64] = (numbers << spare) >> spare
    return extended


def _check_same_shape(total: Words, words: Words) -> None:
    if total.shape != words.shape:
        raise ValueError(f"cannot add {words.shape} words to {total.shape}: NumPy would repeat them silently")


@dataclass(frozen=True)
class Quantiser:
    """Maps [-limit, limit] onto the integers of `bits` bits, 2 to 32 (ValueError otherwise)."""

    limit: float
    bits: int

    def __post_init__(self) -> None:
        if not 2 <= self.bits <= 32:
            raise ValueError(f"values take 2 to 32 bits, not {self.bits}")
        if not (math.isfinite(self.limit) and self.limit > 0):
            raise ValueError(f"the limit of values is a positive number, not {self.limit}")

    @property
    def levels(self) -> int:
        """The integer that represents `limit`."""
        return (1 << (self.bits - 1)) - 1

    @property
    def step(self) -> float:
        """Value of one integer step: the bound of the error of every value."""
        return self.limit / self.levels

    def quantise(
        self, values: npt.NDArray[np.floating[Any]], generator: np.random.Generator, *, offset: int = 0
    ) -> tuple[npt.NDArray[np.int32], int]:
        """The integers of `values` [n], and the number of values outside the limit, which were clipped to it.

        Draws n float64 from `generator`. Works on copies, about 40 bytes per value: pass long vectors block by block.
        ValueError on NaN and infinity, naming the first index; `offset` is the index of values[0] in the whole
        vector."""
        scaled = values.astype(np.float64)
        magnitudes = np.abs(scaled)
        largest = magnitudes.max(initial=0.0)
        if not math.isfinite(largest):
            index = int(np.argmin(np.isfinite(scaled)))
            raise ValueError(f"value {offset + index} is {scaled[index]}: only finite numbers can be aggregated")
        clipped = int(np.count_nonzero(magnitudes > self.limit)) if largest > self.limit else 0
        scaled *= self.levels / self.limit
        np.clip(scaled, -self.levels, self.levels, out=scaled)
        lower = np.floor(scaled)
        lower += generator.random(len(scaled)) < np.subtract(scaled, lower, out=scaled)
        return lower.astype(np.int32), clipped

    def dequantise(self, sums: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
        """The real numbers that integers, or sums of integers, represent."""
        return np.multiply(sums, self.step, dtype=np.float64)
