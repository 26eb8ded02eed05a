"""Fourier approximations of functions, whose period is the ring, so that they can be computed on a masked argument.

With c = x + r opened and the mask r known to the dealer, a harmonic of x is a sum of products of harmonics of c and r:

    cos(k x) = cos(k c) cos(k r) + sin(k c) sin(k r)

so f(x) = sum over k of a_k cos(k x) + b_k sin(k x) needs the dealer's shares of cos(k r) and sin(k r), rounded, and
public factors of c. Wrapping is harmless: the harmonics have the period of the ring. A function without a period is
fitted within a window of the ring, and arbitrary outside (Fourier extension).

Both owners must have equal factors to the last bit: a difference of one unit gives a random result. Cosines of
different libraries differ, so the harmonics come from one table of integers, made by integer arithmetic alone
(`cosines`), and the coefficients are integers in the terms.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache, lru_cache
from hashlib import sha256
from typing import Annotated, Any, Final

import msgspec
import numpy as np
import torch
from msgspec import Meta

from tacit.protocol.inference.schedule import COARSE

PLACES: Final = 1 << COARSE
SCALE_BITS: Final = 30
"""A cosine of 1 is 2^SCALE_BITS in the table."""
FEWEST_HARMONICS: Final = 3
"""Least harmonics of a fit: as many as in the sum that checks hidden values (hidden.py), which uses the same words."""
LARGEST_HARMONICS: Final = 64
_WORKING_BITS: Final = 80
_CUTOFFS: Final = tuple(10.0**-power for power in range(3, 12))
"""Cutoffs relative to the largest singular value: a fit ignores smaller ones, which would only inflate coefficients."""
_POINTS: Final = 1000

LARGEST_COEFFICIENT: Final = 1 << 32
"""Times a cosine of the table, twice, it stays below 2^63."""
Coefficient = Annotated[int, Meta(ge=-LARGEST_COEFFICIENT, le=LARGEST_COEFFICIENT)]
Floats = np.ndarray[Any, np.dtype[np.float64]]


class FitError(ValueError):
    """A function that few harmonics cannot approximate; the message names it and the error."""


class Wave(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """f(x) = constant + sum of cosines[k - 1] cos(k x) + sines[k - 1] sin(k x) for k = 1 ..., times 2^precision.

    x is an integer modulo 2^COARSE and represents the angle 2 pi x / 2^COARSE."""

    constant: Coefficient
    cosines: Annotated[tuple[Coefficient, ...], Meta(min_length=1, max_length=LARGEST_HARMONICS)]
    sines: Annotated[tuple[Coefficient, ...], Meta(min_length=1, max_length=LARGEST_HARMONICS)]
    precision: Annotated[int, Meta(ge=1, le=28)]
    """Fractional bits of the coefficients."""
    words: Annotated[int, Meta(ge=1, le=28)]
    """Fractional bits of the dealer's words."""

    def __post_init__(self) -> None:
        if len(self.cosines) != len(self.sines):
            raise ValueError(f"{len(self.cosines)} cosines come with {len(self.sines)} sines")

    @property
    def bits(self) -> int:
        return self.precision + self.words

    @property
    def largest(self) -> int:
        return max(abs(each) for each in (self.constant, *self.cosines, *self.sines))


@cache
def cosines() -> torch.Tensor:
    """int64 [PLACES]: cos(2 pi x / PLACES) times 2^SCALE_BITS, by integer arithmetic alone.

    Half angles by integer square roots at _WORKING_BITS, sums of angles by products that are rounded down, then
    rounded to the nearest: the specification has the same steps, and the table's digest."""
    unit = 1 << _WORKING_BITS
    powers = [(0, unit)]  # Cosine and sine of a quarter, an eighth ... of a turn.
    while len(powers) < COARSE - 1:
        cosine, _ = powers[-1]
        powers.append((math.isqrt(unit * (unit + cosine) // 2), math.isqrt(unit * (unit - cosine) // 2)))
    quarter = [(unit, 0)]
    for turn_cosine, turn_sine in reversed(powers):
        quarter += [
            (
                (cosine * turn_cosine - sine * turn_sine) >> _WORKING_BITS,
                (sine * turn_cosine + cosine * turn_sine) >> _WORKING_BITS,
            )
            for cosine, sine in quarter
        ]
    half = 1 << (_WORKING_BITS - SCALE_BITS - 1)
    first = torch.tensor([(cosine + half) >> (_WORKING_BITS - SCALE_BITS) for cosine, _ in quarter[: PLACES // 4 + 1]])
    half_turn = torch.cat([first, -first[:-1].flip(0)])
    return torch.cat([half_turn, half_turn[1:-1].flip(0)])


@cache
def table_digest() -> bytes:
    """SHA-256 of the table as little-endian 64-bit words."""
    return sha256(np.ascontiguousarray(cosines().numpy(), "<i8").data).digest()


def waves(number: int, places: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """cos(number x) and sin(number x) at positions x modulo PLACES, times 2^SCALE_BITS."""
    table, angle = _table(places.device), places * number
    return at(table, angle & (PLACES - 1)), at(table, (angle - PLACES // 4) & (PLACES - 1))


def at(table: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
    """Entries of a table, in the shape of their positions: equals `take`, three times as fast, and faster still for
    positions and entries of int32."""
    return table.index_select(0, places.reshape(-1)).reshape(places.shape)


def rounded(values: torch.Tensor, bits: int) -> torch.Tensor:
    """Harmonics at so many fractional bits, rounded to the nearest."""
    by = SCALE_BITS - bits
    return (values + (1 << (by - 1))) >> by


_BLOCKS: Final = 64
"""Cached functions: a pass needs the same ones in the same order again and again."""


@lru_cache(maxsize=_BLOCKS)
def rounded_waves(harmonics: int, bits: int, device: torch.device) -> tuple[torch.Tensor, ...]:
    """cos(k x), sin(k x) for k = 1 ... harmonics at so many fractional bits, at all positions: int32 [PLACES] each,
    which stay in a processor's cache."""
    numbers, places = range(1, harmonics + 1), torch.arange(PLACES, device=device)
    return tuple(rounded(wave, bits).int() for number in numbers for wave in waves(number, places))


@lru_cache(maxsize=_BLOCKS)
def factors(wave: Wave, device: torch.device) -> tuple[torch.Tensor, ...]:
    """The public factors of a sum c at all positions, [PLACES] each: of cos(k r), then of sin(k r), for k = 1 ... They
    are int32, or int64 if that cannot hold them."""
    found, kind = [], torch.int32 if 2 * wave.largest < 1 << 31 else torch.int64
    places = torch.arange(PLACES, device=device)
    for number, (cosine, sine) in enumerate(zip(wave.cosines, wave.sines, strict=True), 1):
        of_cosine, of_sine = waves(number, places)
        found.append(rounded(cosine * of_cosine + sine * of_sine, 0).to(kind))
        found.append(rounded(cosine * of_sine - sine * of_cosine, 0).to(kind))
    return tuple(found)


def fitted_wave(
    name: str,
    function: Callable[[Floats], Floats],
    tolerance: Callable[[Floats], Floats],
    *,
    noise: float,
    period: float,
    low: float,
    high: float,
    most_bits: int,
    least_words: int = 1,
    most_harmonics: int = LARGEST_HARMONICS,
) -> Wave:
    """Fit the fewest harmonics of a period within half a tolerance of a function everywhere on low ... high.

    Each of both roundings, of factors and of words, adds a deviation of `noise`; they have most_bits together at most,
    and words have least_words at least. FitError if most_harmonics do not suffice."""
    middle, reach = (low + high) / 2, (high - low) / 2
    points = middle + reach * np.cos(np.pi * (np.arange(_POINTS) + 0.5) / _POINTS)  # Denser at the ends.
    checked = np.linspace(low, high, 4 * _POINTS + 1)
    weights, values = 1 / tolerance(points), function(points)
    exact, allowed = function(checked), tolerance(checked)
    # Decomposed once for all harmonics: the remaining problem has a row per harmonic, not per point.
    rotation, design = np.linalg.qr(_basis(points, period, most_harmonics) * weights[:, None])
    rotated, basis = rotation.T @ (values * weights), _basis(checked, period, most_harmonics)

    def found(harmonics: int) -> tuple[float, Wave | None]:
        """The least error, and a fit within half a tolerance and the bits, if any."""
        taken = [*range(harmonics + 1), *range(most_harmonics + 1, most_harmonics + 1 + harmonics)]
        left, singular, right = np.linalg.svd(design[:, taken], full_matrices=False)
        projected, part, least = left.T @ rotated, basis[:, taken], math.inf
        for cutoff in _CUTOFFS:  # The largest that serves has the smallest coefficients, and so the fewest bits.
            kept = singular > cutoff * singular[0]
            coefficients = right[kept].T @ (projected[kept] / singular[kept])
            error = float((np.abs(part @ coefficients - exact) / allowed).max())
            wave = _rounded_wave(coefficients, noise, least_words) if error <= 0.5 else None
            if wave is not None and wave.bits <= most_bits and wave.largest <= LARGEST_COEFFICIENT:
                return error, wave
            least = min(least, error)
        return least, None

    low_count, high_count = FEWEST_HARMONICS, most_harmonics
    error, _ = found(most_harmonics)
    if error > 0.5:
        raise FitError(
            f"{name} on {low:.4g} ... {high:.4g} is {error:.2g} tolerances away from {most_harmonics} waves of period "
            f"{period:.4g}; train with smaller weights, or distil"
        )
    # The error falls with the number of harmonics. The bits do not, so more harmonics may take fewer.
    while low_count < high_count:
        count = (low_count + high_count) // 2
        low_count, high_count = (low_count, count) if found(count)[0] <= 0.5 else (count + 1, high_count)
    for count in range(high_count, most_harmonics + 1):
        if (wave := found(count)[1]) is not None:
            return wave
    raise FitError(
        f"{name} on {low:.4g} ... {high:.4g} takes more than {most_bits} fractional bits, or coefficients of 32; train "
        "with smaller weights, or distil"
    )


def _rounded_wave(coefficients: Floats, noise: float, least_words: int) -> Wave:
    harmonics = len(coefficients) // 2
    unit = noise * math.sqrt(12)  # Width of a uniform rounding error.
    norm = float(np.linalg.norm(coefficients[1:])) + 2.0**-20
    precision = min(max(math.ceil(math.log2(math.sqrt(harmonics) / unit)), 1), 28)
    words = min(max(math.ceil(math.log2(norm / unit)), least_words), 28)
    whole = [round(value * 2**precision) for value in coefficients.tolist()]
    return Wave(
        constant=whole[0],
        cosines=tuple(whole[1 : harmonics + 1]),
        sines=tuple(whole[harmonics + 1 :]),
        precision=precision,
        words=words,
    )


def _basis(points: Floats, period: float, harmonics: int) -> Floats:
    """1, then cos(k x), then sin(k x) for k = 1 ... harmonics at all points, one column each."""
    angles = 2 * np.pi / period * np.outer(points, np.arange(1, harmonics + 1))
    basis: Floats = np.concatenate([np.ones((len(points), 1)), np.cos(angles), np.sin(angles)], 1)
    return basis


@lru_cache(maxsize=4)
def _table(device: torch.device) -> torch.Tensor:
    return cosines().to(device)
