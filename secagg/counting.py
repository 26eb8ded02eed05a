"""Counts of contributors as ring words: several small fields share a word, so that counting costs little traffic.

A client contributes zero or one to every coordinate. The sum over n clients needs b = bit_length(n) bits, and no field
can carry into the next, so a word of 64 bits holds 64 // b coordinates: 21 for up to seven clients, 9 for a hundred.
Field f of all words comes first to last: coordinate f * words + w stands in bits f * b and up of word w.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from tacit.secagg.ring import Ring, Words

COUNTING_RING: Final = Ring(64)


@dataclass(frozen=True)
class CountPacking:
    """The counts of `size` coordinates over at most `clients` clients. ValueError unless both are positive."""

    clients: int
    size: int

    def __post_init__(self) -> None:
        if self.clients < 1 or self.size < 1:
            raise ValueError(f"cannot count {self.size} coordinates over {self.clients} clients")

    @property
    def bits(self) -> int:
        """Bits of a count."""
        return self.clients.bit_length()

    @property
    def length(self) -> int:
        """Words of the vector."""
        return -(-self.size // (64 // self.bits))

    def encode(self, contributes: npt.NDArray[np.bool_]) -> Words:
        """Which coordinates [size] a client contributes to, as words [length]. ValueError for another shape."""
        if contributes.shape != (self.size,) or contributes.dtype != np.bool_:
            raise ValueError(f"expected bool [{self.size}], got {contributes.dtype} {list(contributes.shape)}")
        words = np.zeros(self.length, COUNTING_RING.word)
        for field, start in enumerate(range(0, self.size, self.length)):
            part = contributes[start : start + self.length]
            words[: len(part)] |= part.astype(COUNTING_RING.word) << np.uint64(field * self.bits)
        return words

    def decode(self, total: Words, *, contributors: int) -> npt.NDArray[np.uint16]:
        """The counts [size] in a sum. ValueError if it cannot be one of so many honest contributions."""
        if total.shape != (self.length,) or total.dtype != COUNTING_RING.word:
            raise ValueError(f"expected {self.length} words of 64 bits, got {total.dtype} {list(total.shape)}")
        counts = np.empty(self.size, np.uint16)
        mask = np.uint64((1 << self.bits) - 1)
        used = 0
        for start in range(0, self.size, self.length):
            part: npt.NDArray[Any] = counts[start : start + self.length]
            part[...] = (total[: len(part)] >> np.uint64(used)) & mask
            used += self.bits
        if counts.max() > contributors:
            raise ValueError(f"coordinate {counts.argmax()} counts {counts.max()} of {contributors} contributors")
        return counts
