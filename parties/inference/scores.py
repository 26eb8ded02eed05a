"""Attention scores on shares: range checks on query and key norms, the shared exponential, and a softmax by squarings.

The mean of an image's keys is subtracted, which a softmax ignores: the scores of a row then have the mean 0, and the
sum of their exponentials is at least their number, for every image. A score is a product of a query and a key, so a
bound of their norms bounds every score: two comparisons per token and head instead of one per score.

Exponentials of very different scores, and their sums, differ by more than a ring can resolve. But exp(s) is
exp(s / 2^L)^(2^L), so L times square and divide by the sum turns the softmax of s / 2^L into that of s. The shares of a
row need not add up to one in between: the division at the end removes any common factor of a row. So the inverse of a
sum is constant in steps (tables.py), and its lookup uses the keys of the sum's range check. The first sum depends on
the model; later ones do not: squares of T shares of one add up to between 1 / T and 1.

For L = 0 the exponential must be precise only up to the largest sum in range. Beyond that it must merely stay larger,
so that such a row is refused.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Final

import msgspec
import numpy as np
import torch
from msgspec import Meta

from tacit.models.friendly.polynomials import Interval
from tacit.models.friendly.transformer import Activation
from tacit.parties.inference.material import NORM_WAVE_BITS, NORM_WORDS, Lookup, Narrow
from tacit.parties.inference.operations import NarrowValue, Party, Program, cosine_bits
from tacit.parties.inference.ring import SPARE, WORD_BITS, shifted
from tacit.parties.inference.tables import (
    FILLED,
    BoundError,
    CheckedSum,
    LookedUp,
    SteppedInverse,
    fitted_steps,
    fitted_sum,
    largest,
    step_ratios,
)
from tacit.parties.inference.waves import LARGEST_HARMONICS, FitError, Floats, Wave, fitted_wave
from tacit.protocol.inference.schedule import MOST_SQUARINGS, PLACE, SHARES, SQUARED, VECTORS, WEIGHTED

SHARE_BITS: Final = WEIGHTED - 3
"""Fractional bits of a share of one."""
SQUARE_BITS: Final = SQUARED - 3
"""The same of its square before the next division."""
LAST_BITS: Final = SQUARE_BITS + 4
"""Fractional bits of the last shares, which the mixing truncates: the missing bits of their inverse are divided out
there."""
_ROUNDINGS: Final = 2
"""Largest total rounding error of both owners, in units."""


class Division(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Division of a row by about its sum."""

    cut: Annotated[int, Meta(ge=0, le=WORD_BITS - SQUARED)]
    """Bits truncated from the dividends, which leaves SHARES bits, or SQUARED of squares."""
    sums: SteppedInverse


Divisions = Annotated[tuple[Division, ...], Meta(max_length=MOST_SQUARINGS + 1)]


def squarings_of(divisions: Divisions) -> int:
    return max(len(divisions) - 1, 0)


def dividend_bits(number: int) -> int:
    return SQUARED if number else SHARES


def product_bits(number: int) -> int:
    """Bits of the products of its dividends and inverse sums, except in the last division."""
    return dividend_bits(number) + 8


def division_requests(shape: tuple[int, ...], divisions: Divisions, ring: int) -> Iterator[Lookup | Narrow]:
    for number, division in enumerate(divisions):
        last = number == len(divisions) - 1
        yield division.sums.request(shape[:-1])
        yield Narrow(shape, dividend_bits(number), 1, (*shape[:-1], 1), ring if last else product_bits(number))
        if not last:
            yield Narrow(shape, WEIGHTED, 2, None, SQUARED + divisions[number + 1].cut)


class SquaredSoftmax:
    """Softmax of scores, prepared ahead of them, used once. ring: of the last shares."""

    def __init__(self, party: Party, shape: tuple[int, ...], divisions: Divisions, ring: int) -> None:
        self._party = party
        self._divisions: list[tuple[Division, LookedUp, NarrowValue]] = []
        self._squares: list[NarrowValue] = []
        for number, division in enumerate(divisions):
            last = number == len(divisions) - 1
            looked_up = LookedUp(party, division.sums.request(shape[:-1]))
            factor = (*shape[:-1], 1)
            dividend = NarrowValue(
                party, shape, dividend_bits(number), factor=factor, ring=ring if last else product_bits(number)
            )
            self._divisions.append((division, looked_up, dividend))
            if not last:
                following = SQUARED + divisions[number + 1].cut
                self._squares.append(NarrowValue(party, shape, WEIGHTED, degree=2, ring=following))

    def run(self, words: torch.Tensor) -> Program[tuple[torch.Tensor, torch.Tensor]]:
        """Map exponentials of scores / 2^L modulo 2^(SHARES + cut) to shares of one modulo 2^ring, with LAST_BITS
        fractional bits; and return the number of sums out of range."""
        outside = torch.zeros((), dtype=torch.int64, device=words.device)
        for number, (division, looked_up, dividend) in enumerate(self._divisions):
            before = dividend_bits(number) + division.cut
            narrow = shifted(words, before, division.cut) if division.cut else words
            place = shifted(words.sum(-1) * division.sums.factor, before, before - PLACE)
            opened, opened_place = yield from self._party.open(
                "softmax", dividend.masked(narrow), looked_up.masked(place)
            )
            dividend.settle(opened)
            looked_up.place(opened_place)
            inverse, beyond = looked_up.stepped(division.sums)
            outside = outside + beyond
            (opened_inverse,) = yield from self._party.open("softmax", dividend.masked_factor(inverse[..., None]))
            words = dividend.times(opened_inverse)
            if number < len(self._squares):
                square, share = (
                    self._squares[number],
                    shifted(words, product_bits(number), product_bits(number) - WEIGHTED),
                )
                square.settle(*(yield from self._party.open("softmax", square.masked(share))))
                words = square.polynomial((0, 0, 1))
        return words, outside


def fitted_divisions(wave: Wave, largest: float, squarings: int, tokens: int) -> tuple[Divisions, Interval]:
    """Fit divisions for exponentials up to `largest`; also returns the interval of the final row sums. BoundError."""
    most = max(tokens, 4) * largest  # A single one leaves two bits for the ring extension.
    bits = min(math.floor(math.log2(2.0**SHARES * FILLED / most)), wave.bits)
    dividends, sums, found = (wave.bits, bits), Interval(SPARE * tokens, most), []
    if wave.bits - bits > WORD_BITS - SHARES:
        raise BoundError(f"exponentials of scores / {1 << squarings} reach {largest:.4g}, too far for {WORD_BITS} bits")
    for number in range(squarings + 1):
        before, after = dividends
        product = LAST_BITS if number == squarings else SHARE_BITS + product_bits(number) - WEIGHTED
        stepped = fitted_steps(
            "sums of exponentials",
            bits=dividend_bits(number) + before - after,
            unit=2.0**before,
            most=sums.high,
            low=sums.low,
            high=sums.high,
            scale=2.0 ** (product - after),
        )
        found.append(Division(cut=before - after, sums=stepped))
        lost = _ROUNDINGS * tokens * (2.0**-after / sums.low + 2.0**-SHARE_BITS)
        ratios = step_ratios(stepped)
        shares = Interval(ratios.low * (1 - lost), ratios.high * (1 + lost))
        dividends = (2 * SHARE_BITS, SQUARE_BITS)
        # T shares of one sum have the least squares if they are equal, and the largest if one has all.
        sums = Interval(shares.low**2 / tokens * SPARE, shares.high**2 / SPARE)
    return tuple(found), shares


_WINDOWS: Final = (0.45, 0.5, 0.625, 0.75)
"""Candidate parts of the ring for possible scores; the one with the fewest harmonics is taken."""
_TOLERANCE: Final = 2.0**-7
"""Tolerance of an exponential, relative to itself, or to 1, the least mean of a row."""
_NOISE: Final = 2.0**-11
"""Deviation of the rounding of a row's sum, by words and by factors, relative to the least sum. The errors are
independent, so each of T exponentials may have sqrt(T) times as much."""
_NORM_LEVELS: Final = 20
"""Compared bits of the norm measure, whose permitted range is a small part of the possible one."""
_BITS: Final = 36
_SQUARED_TOLERANCE: Final = 2.0**-8
_SQUARED_NOISE: Final = 2.0**-5
_SQUARED_BITS: Final = 44
"""Most fractional bits of exponentials before truncation: unsquared, and squared."""
_UNSQUARED_HARMONICS: Final = 12
_SQUARED_HARMONICS: Final = 24
"""Beyond this number another squaring is cheaper."""
_BASE_LIMIT: Final = 24.0
"""Largest base of squarings: exp(24) with the precision of one squaring exceeds the available bits."""
_TAIL_TOLERANCE: Final = 0.3
"""Relative tolerance of exponentials that exceed any sum in range by themselves."""
_BEND: Final = 6.0
"""Multiple of the largest sum in range beyond which the exponential's continuation grows slowly."""


@dataclass(frozen=True)
class VarianceBounds:
    """Permitted variances, without epsilon, before a LayerNorm."""

    interval: Interval
    """Interval for all tokens, after multiplication."""
    lift: tuple[int, int] = (1, 1)
    """Factors of the class token and of all others, which LayerNorm ignores: that token may begin with a tiny or a
    large variance, and a table has the precision of its largest argument."""


@dataclass(frozen=True, kw_only=True)
class Bounds:
    """Permitted ranges: those of typical images, widened by the margin."""

    first_variance: VarianceBounds
    second_variance: VarianceBounds
    vectors: float
    """Norm of a query, and of a centred key, balanced: the largest product over all heads is at most its square."""
    total: float
    """Sum of the exponentials of a row, at least the number of tokens, since the mean of the scores is 0."""
    hidden: float
    """Norm of the hidden values of a token, of order hidden.POWER; the Euclidean one if GELU is quadratic."""


@dataclass(frozen=True, kw_only=True)
class Functions:
    scale: float
    degree: int | None
    """Degree of the Taylor series, None for the exponential itself."""
    inverse_steps: int | None
    quadratic: bool
    epsilons: tuple[float, float]
    activation: Activation = "gelu"

    def exponential(self, scores: Floats) -> Floats:
        """Exponential of centred scores times the attention's scale."""
        if self.degree is None:
            return np.exp(scores)
        found: Floats = sum(
            (scores**power / math.factorial(power) for power in range(self.degree + 1)), np.zeros_like(scores)
        )
        return found


@dataclass(frozen=True)
class NormCheck:
    scale: float
    """Scale in the ring of VECTORS bits."""
    turn: int
    place: CheckedSum
    norm: float
    """Largest norm that passes the check."""


@dataclass(frozen=True)
class FittedScores:
    query: NormCheck
    key: NormCheck
    squarings: int
    exponential: Wave
    """Function of scores / 2^L."""
    largest: float
    """Its largest value."""

    @property
    def octets(self) -> int:
        """Approximate bytes of a score, in correlated randomness and in messages."""
        return 14 * len(self.exponential.cosines) + 37 * self.squarings + (26 if self.squarings else 0)


def fitted_scores(
    functions: Functions, bounds: Bounds, vector_entries: tuple[float, float], *, tokens: int, size: int
) -> FittedScores:
    """size: of a query; for the others see scales.fitted(). BoundError and FitError."""
    checks = [_norm_checks(functions, bounds, vector_entries, window, tokens, size) for window in _WINDOWS]
    best: FittedScores | None = None
    failure: FitError | None = None
    # Squarings need an exponential; a polynomial does not turn sums into products.
    for squarings in range(1 if functions.degree is not None else MOST_SQUARINGS + 1):
        found = []
        for window, (reach, query, key) in zip(_WINDOWS, checks, strict=True):
            try:
                wave = _fitted_exponential(functions, bounds, tokens, reach, 2 * reach / window, squarings)
            except FitError as error:
                failure = error
                continue
            found.append(FittedScores(query, key, squarings, wave, _largest(wave, window)))
        if best is not None and min((each.octets for each in found), default=best.octets) >= best.octets:
            break
        best = min(found, key=lambda each: (each.octets, each.exponential.bits), default=best)
    if best is None:
        assert failure is not None
        raise failure
    return best


def _norm_checks(
    functions: Functions,
    bounds: Bounds,
    vector_entries: tuple[float, float],
    window: float,
    tokens: int,
    size: int,
) -> tuple[float, NormCheck, NormCheck]:
    """Largest magnitude of scores, and the checks of queries and keys that ensure it."""
    inflation = 1.0
    while True:
        # Bounds in integer units admit a little more than requested.
        inflation *= 1.02
        reach = functions.scale * (bounds.vectors * inflation) ** 2
        scale = math.sqrt(functions.scale * 2.0**VECTORS * window / (2 * reach))
        # Centring computes T times a key less the sum of all; the weights leave room for it.
        scales = (scale / math.sqrt(tokens), scale * math.sqrt(tokens))
        query, key = (
            _norm_check(name, bounds.vectors, entry, each, size)
            for name, entry, each in zip(("queries", "keys"), vector_entries, scales, strict=True)
        )
        if query.norm * key.norm <= (bounds.vectors * inflation) ** 2:
            return reach, query, key


def _fitted_exponential(
    functions: Functions, bounds: Bounds, tokens: int, reach: float, period: float, squarings: int
) -> Wave:
    divisor = float(1 << squarings)
    if functions.degree is None and reach / divisor > _BASE_LIMIT:
        raise FitError(
            f"scores can reach {reach:.4g}, and {_BASE_LIMIT * 2**MOST_SQUARINGS:.4g} is the most that a softmax with "
            f"{MOST_SQUARINGS} squarings serves"
        )
    if squarings:
        # An error of the exponential doubles with every squaring.
        tolerance = _SQUARED_TOLERANCE / divisor
        return fitted_wave(
            "the exponential",
            lambda scores: np.exp(scores / divisor),
            lambda scores: tolerance * np.maximum(np.exp(scores / divisor), 1.0),
            noise=tolerance * _SQUARED_NOISE * math.sqrt(tokens),
            period=period,
            low=-reach,
            high=reach,
            most_bits=_SQUARED_BITS,
            most_harmonics=_SQUARED_HARMONICS,
        )
    bend = _BEND * bounds.total

    def function(scores: Floats) -> Floats:
        plain = functions.exponential(scores)
        continued = bend * (1 + np.log(np.maximum(plain / bend, 1.0)))
        found: Floats = np.where(plain <= bend, plain, continued)
        return found

    def allowed(scores: Floats) -> Floats:
        relative = np.where(functions.exponential(scores) <= bounds.total, _TOLERANCE, _TAIL_TOLERANCE)
        found: Floats = relative * np.maximum(function(scores), 1.0)
        return found

    return fitted_wave(
        "the exponential",
        function,
        allowed,
        noise=_NOISE * math.sqrt(tokens),
        period=period,
        low=-reach,
        high=reach,
        most_bits=_BITS,
        most_harmonics=_UNSQUARED_HARMONICS if functions.degree is None else LARGEST_HARMONICS,
    )


def _largest(wave: Wave, window: float) -> float:
    """Largest value of the approximation at possible scores; elsewhere it is arbitrary."""
    angles = np.outer(np.linspace(-np.pi * window, np.pi * window, 4097), np.arange(1, len(wave.cosines) + 1))
    values = wave.constant + np.cos(angles) @ np.array(wave.cosines) + np.sin(angles) @ np.array(wave.sines)
    return float(np.abs(values).max()) / 2.0**wave.precision / SPARE


def _norm_check(name: str, norm: float, entry: float, scale: float, size: int) -> NormCheck:
    """Check of vectors in range up to this norm.

    The sum over the entries of 1 - cos(theta) for theta = 2 pi scale x / 2^turn is at most |theta|^2 / 2. If it is at
    most t < 1, every |theta| is at most arccos(1 - t) =: a, and it is at least |theta|^2 / 2 (1 - a^2 / 12)."""
    turn = max(math.ceil(math.log2(2 * entry * scale / SPARE)), math.ceil(math.log2(2 * np.pi * norm * scale)), 1)
    if turn > VECTORS:
        raise BoundError(f"{name} can reach {entry:.6g}, and {norm:.6g} is in range: too far apart for their ring")
    unit = 2.0 ** (NORM_WAVE_BITS + cosine_bits(size))
    angle = 2 * np.pi * scale * norm / 2.0**turn
    slack = 2 * size * (2.0**-NORM_WAVE_BITS + 2.0 ** -cosine_bits(size))
    most = 2.0**NORM_WORDS / unit * 0.89  # So that the factor is 1.
    place = fitted_sum(
        name, bits=NORM_WORDS, unit=unit, most=most, low=0.0, high=angle**2 / 2 + slack, levels=_NORM_LEVELS
    )
    total = largest(place, bits=NORM_WORDS, unit=unit)
    a = math.acos(1 - min(total, 1.0))
    return NormCheck(scale, turn, place, math.sqrt(2 * total / (1 - a**2 / 12)) * 2.0**turn / (2 * np.pi * scale))
