"""What CKKS computes with: vectors of real slots, of which sums, products and rotations are all that there is.

A product costs a level, and when levels are used up a ciphertext has to be refreshed. Refreshing is exact only for
values within -1 ... 1, so that each is preceded by a division by a public bound. Nobody sees an encrypted value; the
bounds come from a rehearsal: the same computation on typical images with a machine whose ciphertexts are plain arrays.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

Vector = NDArray[np.float64]

MARGIN: Final = 2.0
"""How much larger a value may be than in the rehearsal."""
SLOTS: Final = 32768
"""Of a ciphertext in a ring of dimension 65,536."""
LEVELS: Final = 17
"""Of a new ciphertext, and after a refresh."""


class SlotMachine(ABC):
    """The operations on ciphertexts. A ciphertext is never changed; both factors of a product have a level left."""

    @abstractmethod
    def level(self, a: Any) -> int:
        """Products that `a` still allows."""

    @abstractmethod
    def add(self, a: Any, b: Any) -> Any:
        """a + b for two ciphertexts."""

    @abstractmethod
    def shift(self, a: Any, by: Vector | float) -> Any:
        """a + by for what is public."""

    @abstractmethod
    def multiply(self, a: Any, b: Any) -> Any:
        """a * b for two ciphertexts. Costs a level."""

    @abstractmethod
    def scale(self, a: Any, by: Vector | float) -> Any:
        """a * by for what is public. Costs a level."""

    @abstractmethod
    def repeat(self, a: Any, times: int) -> Any:
        """a * times for a whole number. Costs nothing."""

    @abstractmethod
    def rotate(self, a: Any, steps: int) -> Any:
        """Slot i gets what slot i + steps has, around the end."""

    @abstractmethod
    def refresh(self, a: Any) -> Any:
        """The same values, with all levels again."""


@dataclass(frozen=True)
class _Rehearsed:
    values: Vector
    level: int


class Rehearsal(SlotMachine):
    """Computes in the clear, counts levels as CKKS does, and notes what each refresh has to hold."""

    def __init__(self) -> None:
        self.largest: list[float] = []
        """The largest absolute value of every refresh, in their order."""

    def new(self, values: Vector) -> Any:
        """What stands for a new ciphertext of these slots [SLOTS]."""
        return _Rehearsed(values, LEVELS)

    def values(self, a: Any) -> Vector:
        """The slots [SLOTS]."""
        rehearsed: _Rehearsed = a
        return rehearsed.values

    def level(self, a: Any) -> int:
        return int(a.level)

    def add(self, a: Any, b: Any) -> Any:
        return _Rehearsed(a.values + b.values, min(a.level, b.level))

    def shift(self, a: Any, by: Vector | float) -> Any:
        return _Rehearsed(a.values + by, a.level)

    def multiply(self, a: Any, b: Any) -> Any:
        return _Rehearsed(a.values * b.values, min(a.level, b.level) - 1)

    def scale(self, a: Any, by: Vector | float) -> Any:
        return _Rehearsed(a.values * by, a.level - 1)

    def repeat(self, a: Any, times: int) -> Any:
        return _Rehearsed(a.values * times, a.level)

    def rotate(self, a: Any, steps: int) -> Any:
        return _Rehearsed(np.roll(a.values, -steps), a.level)

    def refresh(self, a: Any) -> Any:
        self.largest.append(float(np.abs(a.values).max()))
        return _Rehearsed(a.values, LEVELS)


def refresh_bounds(rehearsals: Sequence[Rehearsal]) -> list[int]:
    """By what each refresh divides: a whole number, so that the way back costs no level."""
    found = zip(*(rehearsal.largest for rehearsal in rehearsals), strict=True)
    return [int(np.ceil(MARGIN * max(values))) for values in found]
