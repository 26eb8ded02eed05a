"""Requests of private inference to the dealer: each party's draws, the dealer's corrections, and the owners' orders.

docs/spec/inference-material.md specifies every request. `Narrow` extends the ring of a value of few bits, opened under
a mask r, to modulo 2^words without another message: the wrap of the sum follows from the highest bits of mask and sum,
and the dealer knows the powers of r for either outcome (Escudero et al., ePrint 2020/338, section 5.1). The dealer
learns neither the computed function nor its bounds: its randomness is the same for all functions.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from typing import Annotated, Final

import msgspec
import numpy as np
import torch
from msgspec import Meta

from tacit.parties.correlated.material import (
    Draw,
    Keystream,
    Linear,
    Product,
    Request,
    RequestError,
    Shape,
    Square,
    Truncation,
    Weight,
    check,
    correct,
    expand,
)
from tacit.parties.correlated.trees import point_keys, threshold_keys
from tacit.parties.inference.ring import WORD_BITS, contracted, contracted_shape, joined, product, signed, unpacked
from tacit.parties.inference.waves import LARGEST_HARMONICS, at, rounded, rounded_waves, waves
from tacit.protocol.inference.schedule import COARSE, FINEST, PLACE, THRESHOLD_LEVELS, byte_width

LARGEST_DEGREE: Final = 16
LARGEST_OPERANDS: Final = 32
"""Most operands of one request, and most products."""
NORM_WAVE_BITS: Final = 20
"""Fractional bits of the harmonics of queries and keys."""
CHECK_HARMONICS: Final = 3
NORM_WORDS: Final = 48
"""Ring bits of these harmonics, and of their sums."""
CHECK_WORDS: Final = 56
"""Ring bits of the harmonics that check hidden values, and of their sums."""
DATA_OWNER: Final = 1

Degree = Annotated[int, Meta(ge=1, le=LARGEST_DEGREE)]
Bits = Annotated[int, Meta(ge=2, le=WORD_BITS)]


class _SharedRequest(Request, frozen=True):
    @property
    def receiver(self) -> int:
        return DATA_OWNER


class Narrow(_SharedRequest, frozen=True):
    """Ring extension of a value of few bits: powers of its mask, and their products with the masks of a factor."""

    shape: Shape
    bits: Bits
    degree: Degree
    factor: Shape | None = None
    """Shape of the factor, which broadcasts."""
    words: Bits = WORD_BITS
    """Ring bits of the results; wider than the value."""

    def __post_init__(self) -> None:
        if self.words <= self.bits:
            raise ValueError(
                f"a value of {self.bits} bits is narrow only in a wider ring than that of {self.words} bits"
            )
        if self.factor is not None and np.broadcast_shapes(self.shape, self.factor) != self.shape:
            raise ValueError(f"a factor of shape {self.factor} is larger than a value of shape {self.shape}")

    def free(self, rank: int) -> list[Draw]:
        return [Draw(self.shape, self.bits), *([] if self.factor is None else [Draw(self.factor)])]

    def dependent(self) -> list[Draw]:
        count, quotient = self.degree + (self.factor is not None), Draw(self.shape, self.words - self.bits)
        return [quotient, *[Draw(self.shape, self.words)] * (count - 1), *[quotient] * count]

    def solve(self, free: Sequence[list[torch.Tensor]], weight: torch.Tensor | None) -> list[torch.Tensor]:
        total = free[0][0] + free[1][0]
        mask, found = total & ((1 << self.bits) - 1), []
        for wrapped in (signed(mask, self.bits), mask):
            powers = [wrapped]
            while len(powers) < self.degree:
                powers.append(powers[-1] * wrapped)
            if self.factor is not None:
                powers.append(wrapped * (free[0][1] + free[1][1]))
            found.append(powers)
        differences = (found[0][0] - total, *(one - other for other, one in zip(*found, strict=True)))
        first, *others = (difference >> self.bits for difference in differences)
        return [first, *found[0][1:], *others]


class Matrix(Product, frozen=True):
    """A product of matrices, for shares modulo 2^words. ValueError for any other operation."""

    words: Bits = WORD_BITS

    @property
    def receiver(self) -> int:
        return DATA_OWNER

    def __post_init__(self) -> None:
        if self.operation != "matmul" or min(len(self.left), len(self.right)) < 2:
            raise ValueError(f"{self}: only matrices are multiplied here")

    def dependent(self) -> list[Draw]:
        return [Draw(draw.shape, self.words) for draw in super().dependent()]

    def compute(self, left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
        return product(left, right, self.words)


class Contraction(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A product of two operands, given by their numbers from 0 (see ring.py)."""

    left: Annotated[int, Meta(ge=0, lt=LARGEST_OPERANDS)]
    right: Annotated[int, Meta(ge=0, lt=LARGEST_OPERANDS)]
    letters: Annotated[str, Meta(max_length=32)]


class Products(_SharedRequest, frozen=True):
    """Products of shared operands, each of which is masked and opened once for all its products."""

    operands: Annotated[tuple[Shape, ...], Meta(max_length=LARGEST_OPERANDS)]
    products: Annotated[tuple[Contraction, ...], Meta(max_length=LARGEST_OPERANDS)]
    words: Bits = WORD_BITS

    def __post_init__(self) -> None:
        if any(max(each.left, each.right) >= len(self.operands) for each in self.products):
            raise ValueError(f"{self}: products of more than {len(self.operands)} operands")

    def free(self, rank: int) -> list[Draw]:
        return [Draw(shape) for shape in self.operands]

    def dependent(self) -> list[Draw]:
        shapes = [
            contracted_shape(each.letters, self.operands[each.left], self.operands[each.right])
            for each in self.products
        ]
        return [Draw(shape, self.words) for shape in shapes]

    def solve(self, free: Sequence[list[torch.Tensor]], weight: torch.Tensor | None) -> Iterator[torch.Tensor]:
        masks = [one + other for one, other in zip(*free, strict=True)]
        return (contracted(each.letters, masks[each.left], masks[each.right], self.words) for each in self.products)


class Scores(_SharedRequest, frozen=True):
    """Products of queries [..., T, d] and keys [..., T, d], and the first harmonic of every entry of both.

    One period is the lowest `queries` or `keys` bits of the opened sum, and so of the mask."""

    shape: Annotated[Shape, Meta(min_length=2)]
    words: Bits
    queries: Annotated[int, Meta(ge=1, le=WORD_BITS)]
    keys: Annotated[int, Meta(ge=1, le=WORD_BITS)]

    def free(self, rank: int) -> list[Draw]:
        return [Draw(self.shape), Draw(self.shape)]

    def dependent(self) -> list[Draw]:
        products = Draw((*self.shape[:-1], self.shape[-2]), self.words)
        return [products, *[Draw((2, *self.shape), NORM_WORDS)] * 2]

    def solve(self, free: Sequence[list[torch.Tensor]], weight: torch.Tensor | None) -> list[torch.Tensor]:
        masks = [one + other for one, other in zip(*free, strict=True)]
        found = [product(masks[0], masks[1].transpose(-2, -1), self.words)]
        for mask, bits in zip(masks, (self.queries, self.keys), strict=True):
            pair = waves(1, turned(mask, bits))
            found.append(torch.stack([rounded(wave, NORM_WAVE_BITS) for wave in pair]))
        return found


def turned(words: torch.Tensor, bits: int) -> torch.Tensor:
    """The lowest `bits` bits, reduced to COARSE of them: the word's position in the period."""
    place = words >> (bits - COARSE) if bits > COARSE else words << (COARSE - bits)
    return place & ((1 << COARSE) - 1)


class Waves(_SharedRequest, frozen=True):
    """Harmonics of the mask of a value, whose lowest COARSE bits are one period.

    For wider values, CHECK_HARMONICS harmonics of the whole ring's period follow, with NORM_WAVE_BITS fractional bits,
    for the range check."""

    shape: Shape
    harmonics: Annotated[int, Meta(ge=1, le=LARGEST_HARMONICS)]
    precision: Annotated[int, Meta(ge=1, le=28)]
    """Fractional bits."""
    words: Bits
    bits: Annotated[int, Meta(ge=COARSE, le=FINEST)] = COARSE
    """Bits of the value."""

    def free(self, rank: int) -> list[Draw]:
        return [Draw(self.shape, self.bits)]

    def dependent(self) -> list[Draw]:
        checked = CHECK_HARMONICS if self.bits > COARSE else 0
        function, checks = (Draw(self.shape, words) for words in (self.words, CHECK_WORDS))
        return [function] * (2 * self.harmonics) + [checks] * (2 * checked)

    def solve(self, free: Sequence[list[torch.Tensor]], weight: torch.Tensor | None) -> Iterator[torch.Tensor]:
        mask = free[0][0] + free[1][0]
        device = mask.device
        found = [((mask & ((1 << COARSE) - 1)).int(), rounded_waves(self.harmonics, self.precision, device))]
        if self.bits > COARSE:
            found.append((turned(mask, self.bits).int(), rounded_waves(CHECK_HARMONICS, NORM_WAVE_BITS, device)))
        return (at(table, place).long() for place, tables in found for table in tables)


class Fixed(Linear, frozen=True):
    """A product with a weight that is masked once."""

    words: Bits = WORD_BITS

    def dependent(self) -> list[Draw]:
        return [Draw(draw.shape, self.words) for draw in super().dependent()]

    def solve(self, free: Sequence[list[torch.Tensor]], weight: torch.Tensor | None) -> list[torch.Tensor]:
        if weight is None:
            raise ValueError("a linear request needs the mask of its weight")
        (masks,) = (words[0] for words in free if words)
        return [product(masks, weight, self.words)]


class Lookup(Request, frozen=True):
    """DPF and DCF keys of a value of PLACE bits, for table lookups and comparisons with bounds."""

    shape: Shape
    domain: Annotated[int, Meta(ge=1, le=PLACE)] = PLACE
    """Functions depend on the lowest so many bits."""
    index: Annotated[int, Meta(ge=0, le=14)] = 0
    """A function has a value and a slope for each of 2^index intervals; 0: bounds alone."""
    slope: Annotated[int, Meta(ge=0, le=16)] = 0
    """Bits of a position within its interval."""
    levels: Annotated[int, Meta(ge=1, le=PLACE)] = THRESHOLD_LEVELS
    """Number of highest bits that are compared with bounds."""
    words: Annotated[int, Meta(ge=PLACE, le=WORD_BITS)] = PLACE
    """Ring bits of the shares of a comparison's outcome."""

    def __post_init__(self) -> None:
        if self.index + self.slope > self.domain:
            raise ValueError(f"{self}: {self.index} + {self.slope} bits are more than {self.domain}")

    @property
    def receivers(self) -> tuple[int, ...]:
        return (0, 1)

    def free(self, rank: int) -> list[Draw]:
        roots = [Draw((*self.shape, 2))] * (1 + (self.index > 0))
        return [Draw(self.shape, PLACE), *roots]

    def dependent(self) -> list[Draw]:
        shape, levels = self.shape, self.levels
        threshold = [Draw((*shape, levels, 2)), Draw((*shape, levels), 8), Draw((*shape, levels + 1), self.words)]
        point = [Draw((*shape, self.index, 2)), Draw((*shape, self.index), 8), Draw((*shape, 2))]
        return threshold + (point if self.index else [])

    def place(self, words: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        lowest = (words & ((1 << self.domain) - 1)) >> (self.domain - self.index - self.slope)
        return lowest >> self.slope, lowest & ((1 << self.slope) - 1)

    def solve(self, free: Sequence[list[torch.Tensor]], weight: torch.Tensor | None) -> list[torch.Tensor]:
        free = [[words.cpu() for words in each] for each in free]  # Keys are made there.
        mask = ((free[0][0] + free[1][0]) & ((1 << PLACE) - 1)).reshape(-1)
        roots = [[_unsigned(root).reshape(-1, 2) for root in words[1:]] for words in free]
        high = _unsigned(mask >> (PLACE - self.levels))
        threshold = threshold_keys((roots[0][0], roots[1][0]), high, self.levels)
        keys: list[np.ndarray] = [threshold.seeds, threshold.controls, threshold.values]
        if self.index:
            interval, rest = self.place(mask)
            values = _unsigned(torch.stack([torch.ones_like(rest), rest], 1))
            point = point_keys((roots[0][1], roots[1][1]), _unsigned(interval), self.index, values)
            keys += [point.seeds, point.controls, point.values]
        return [
            torch.from_numpy(part.astype(np.int64)).reshape(draw.shape)
            for part, draw in zip(keys, self.dependent(), strict=True)
        ]


def _unsigned(words: torch.Tensor) -> np.ndarray[tuple[int, ...], np.dtype[np.uint64]]:
    return words.numpy().view(np.uint64)


AnyBlockRequest = Narrow | Matrix | Products | Scores | Waves | Fixed | Lookup | Weight | Product | Square | Truncation
"""Requests that a dealer accepts; the last three are those of CrypTen (parties/crypten/computation.py)."""

_OWNERS: Final = 2


def encoded_requests(requests: Sequence[AnyBlockRequest]) -> bytes:
    return msgspec.msgpack.encode(requests)


def decoded_requests(data: bytes) -> tuple[AnyBlockRequest, ...]:
    """The inverse. RequestError for invalid requests, or more than a dealer serves at once."""
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
    return sum(math.prod(draw.shape) * byte_width(draw.bits) for draw in request.dependent())


def drawn(request: AnyBlockRequest, *, rank: int, key: bytes) -> list[torch.Tensor]:
    """An owner's random words for a request, from its own key."""
    return expand(request, rank, Keystream(key))


def openable(request: AnyBlockRequest) -> bool:
    """Whether the streams of a request may be revealed if it was not used: not those that mask weights."""
    return not isinstance(request, Weight | Linear)


def recomputed(request: AnyBlockRequest, keys: Sequence[bytes]) -> bytes:
    """Recompute the dealer's correction for a request from both owners' keys of it, the model owner's first."""
    return bytes(encoded_correction(request, correct(request, [Keystream(key) for key in keys])) or b"")


def corrected(request: AnyBlockRequest, data: bytearray) -> list[torch.Tensor]:
    """The dependent words of a request, decoded from the dealer's correction."""
    octets, start = np.frombuffer(data, np.uint8), 0
    found: list[torch.Tensor] = []
    # Words of the same kind, which most are, share one allocation, large enough to return to the system after use.
    for draw, equal in groupby(request.dependent()):
        shape = (len(list(equal)), *draw.shape)
        end = start + math.prod(shape) * byte_width(draw.bits)
        found += unpacked(octets[start:end], draw.bits, shape).unbind()
        start = end
    return found


def encoded_correction(request: AnyBlockRequest, words: Iterable[torch.Tensor]) -> memoryview | None:
    """The dependent words of a request, encoded for their receivers; None if it has none."""
    draws = request.dependent()
    parts = zip(words, [draw.bits for draw in draws], strict=True)
    octets = joined(parts, correction_bytes(request))
    return octets.data if draws else None
