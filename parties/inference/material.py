"""The dealer's material of a block: what each party draws, what the dealer corrects (see correlated/material.py); and
how both owners order it.

| request | free words                | dependent words                                                              |
|---------|---------------------------|------------------------------------------------------------------------------|
| Narrow  | r modulo 2^bits, masks B  | powers of r_0 up to a degree, and r_0 B; then what those of r_1 differ by    |
| Matrix  | A, B                      | A B                                                                          |
| Fixed   | R at the data owner       | R V, for the mask V of a weight                                              |
| Table   | r modulo 2^bits           | a function's value and slope in every interval, turned round by r            |

Narrow. With x + 2^(bits - 2) within 0 ... 2^(bits - 1) - 1, and c = x + 2^(bits - 2) + r modulo 2^bits opened, the sum
has wrapped if the highest bit of r is set and that of c is not. So x = c - 2^(bits - 2) - r_h as whole numbers, where h
is the highest bit of c, r_1 = r, and r_0 is r read as signed. From the powers of r_h follow those of x, and every
polynomial of x, modulo 2^64 and without another message, although c has few bits: the trick of the truncation by
Escudero et al. (ePrint 2020/338, section 5.1), which knows r_h itself. B masks a factor f that x is multiplied by:
with f + B opened, x f = x (f + B) - (c - 2^(bits - 2)) B + r_h B.

Table. As one-time truth tables (Ishai et al., TCC 2013), but for the highest bits only. With c = x + r opened,
x lies in the interval number (c >> m) - (r >> m), at (c mod 2^m) - (r mod 2^m) from its lower end; the first is a place
in a table that the dealer has turned round, the second takes the slope there. Nothing wraps wrongly, because the table
goes round as well.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Annotated, Final, Literal

import msgspec
import numpy as np
import torch
from msgspec import Meta

from tacit.models.friendly.polynomials import goldschmidt_inverse, goldschmidt_inverse_root
from tacit.parties.correlated.dealing import RequestError
from tacit.parties.correlated.material import (
    Draw,
    Linear,
    Product,
    Request,
    Shape,
    Weight,
    check,
    correction_words,
    expand,
)
from tacit.parties.correlated.streams import Keystream
from tacit.parties.inference.ring import WORD_BITS, product, signed
from tacit.protocol.inference.schedule import SLOPE_BITS

Positive = Annotated[float, Meta(ge=2.0**-100, le=2.0**100)]
Steps = Annotated[int, Meta(ge=1, le=16)]
LARGEST_DEGREE: Final = 16
Degree = Annotated[int, Meta(ge=1, le=LARGEST_DEGREE)]
Bits = Annotated[int, Meta(ge=2, le=WORD_BITS)]


class Narrow(Request, frozen=True):
    """Powers of the mask of a value of few bits, and its products with the masks of a factor."""

    shape: Shape
    bits: Bits
    degree: Degree
    factor: Shape | None = None
    """Shape of the factor, which broadcasts."""

    def __post_init__(self) -> None:
        if self.factor is not None and np.broadcast_shapes(self.shape, self.factor) != self.shape:
            raise ValueError(f"a factor of shape {self.factor} is larger than a value of shape {self.shape}")

    def free(self, rank: int) -> list[Draw]:
        return [Draw(self.shape, self.bits), *([] if self.factor is None else [Draw(self.factor)])]

    def dependent(self) -> list[Draw]:
        return [Draw(self.shape)] * (2 * (self.degree + (self.factor is not None)))

    def solve(self, free: Sequence[list[torch.Tensor]], weight: torch.Tensor | None) -> list[torch.Tensor]:
        mask = (free[0][0] + free[1][0]) & ((1 << self.bits) - 1)
        found = []
        for wrapped in (signed(mask, self.bits), mask):
            powers = [wrapped]
            while len(powers) < self.degree:
                powers.append(powers[-1] * wrapped)
            if self.factor is not None:
                powers.append(wrapped * (free[0][1] + free[1][1]))
            found.append(powers)
        return found[0] + [one - other for other, one in zip(*found, strict=True)]


class Matrix(Product, frozen=True):
    """A product of matrices, for shares modulo 2^64 or less. ValueError for any other operation."""

    def __post_init__(self) -> None:
        if self.operation != "matmul" or self.arguments or min(len(self.left), len(self.right)) < 2:
            raise ValueError(f"{self}: only matrices are multiplied here")

    def compute(self, left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
        return product(left, right, WORD_BITS)


class Fixed(Linear, frozen=True):
    """A product with a weight that is masked once."""

    def solve(self, free: Sequence[list[torch.Tensor]], weight: torch.Tensor | None) -> list[torch.Tensor]:
        if weight is None:
            raise ValueError("a linear request needs the mask of its weight")
        (masks,) = (words[0] for words in free if words)
        return [product(masks, weight, WORD_BITS)]


class Curve(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How a function of one positive variable is computed, by the polynomial that stands for it in the clear."""

    steps: Steps
    """Of Goldschmidt's iteration."""
    unit: Positive
    """What one unit of the table's argument, of 2^bits, is worth."""
    offset: Annotated[float, Meta(ge=0.0, le=2.0**100)]
    """What is added to the table's argument."""
    divisor: Positive
    """What the variable is divided by first, as in the clear, to be where the iteration converges."""
    scale: Positive
    """What a value of 1 is in the result."""


class Table(Request, frozen=True):
    """A function by its values and slopes."""

    shape: Shape
    index_bits: Annotated[int, Meta(ge=1, le=16)]
    """The table has 2^index_bits intervals."""
    function: Literal["inverse", "inverse root"]
    curve: Curve

    @property
    def bits(self) -> int:
        """Of the argument."""
        return self.index_bits + SLOPE_BITS

    def free(self, rank: int) -> list[Draw]:
        return [Draw(self.shape, self.bits)]

    def dependent(self) -> list[Draw]:
        return [Draw((*self.shape, 1 << self.index_bits))] * 2

    def solve(self, free: Sequence[list[torch.Tensor]], weight: torch.Tensor | None) -> list[torch.Tensor]:
        mask = (free[0][0] + free[1][0]) & ((1 << self.bits) - 1)
        interval = (torch.arange(1 << self.index_bits) - (mask >> SLOPE_BITS)[..., None]) & ((1 << self.index_bits) - 1)
        values, slopes = (words[interval] for words in self.words())
        return [values - slopes * (mask & ((1 << SLOPE_BITS) - 1))[..., None], slopes]

    def words(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Value at the lower end of every interval, and the slope for one unit of the argument: int64."""
        ends = torch.arange(-1, (1 << self.index_bits) + 1, dtype=torch.float64) * (1 << SLOPE_BITS)
        curve = self.curve
        points = (ends * curve.unit + curve.offset).clamp(min=0) / curve.divisor
        if self.function == "inverse":
            values = curve.scale / curve.divisor * goldschmidt_inverse(points, curve.steps)
        else:
            values = curve.scale / math.sqrt(curve.divisor) * goldschmidt_inverse_root(points, curve.steps)
        slopes = (values[2:] - values[:-2]) / (2 << SLOPE_BITS)
        return values[1:-1].round().long(), slopes.round().long()


AnyBlockRequest = Narrow | Matrix | Fixed | Table | Weight

_WORD_BYTES: Final = 8
_OWNERS: Final = 2


def encoded_requests(requests: Sequence[AnyBlockRequest]) -> bytes:
    """As an order carries them."""
    return msgspec.msgpack.encode(requests)


def decoded_requests(data: bytes) -> tuple[AnyBlockRequest, ...]:
    """The inverse. RequestError for anything else, or more than a dealer deals at once."""
    try:
        requests = msgspec.msgpack.decode(data, type=tuple[AnyBlockRequest, ...])
        for request in requests:
            check(request, _OWNERS)
    except (ValueError, msgspec.MsgspecError, RecursionError) as error:
        raise RequestError(str(error)) from error
    if encoded_requests(requests) != data:
        raise RequestError("the requests are not in their canonical encoding")
    return requests


def correction_bytes(request: AnyBlockRequest) -> int:
    """Of what the dealer sends for it."""
    return _WORD_BYTES * correction_words(request)


def drawn(request: AnyBlockRequest, number: int, *, rank: int, key: bytes) -> list[torch.Tensor]:
    """What an owner draws for a request from its own stream."""
    return expand(request, rank, Keystream(key, number))


def corrected(request: AnyBlockRequest, data: bytearray) -> list[torch.Tensor]:
    """The dependent words of a request, out of what the dealer sent."""
    words, start, found = torch.frombuffer(data, dtype=torch.int64), 0, []
    for draw in request.dependent():
        end = start + math.prod(draw.shape)
        found.append(words[start:end].reshape(draw.shape))
        start = end
    return found


def encoded_correction(words: Sequence[torch.Tensor]) -> memoryview | None:
    """The dependent words of a request as its receiver is sent them; None where there are none."""
    return np.concatenate([each.numpy().reshape(-1).view(np.uint8) for each in words]).data if words else None
