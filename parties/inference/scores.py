"""Attention scores on shares: range checks on query and key norms, the shared exponential, and a wide-range softmax.

The keys of an image lose their mean, which a softmax does not see: the scores of a row have the mean 0 then, and the
sum of its exponentials is no less than their number, whatever the image. A score is a product of a query and a key, so
a bound of their norms bounds every score: two comparisons for a token and head instead of one for each score. The
exponential is fitted, by a Fourier approximation, to all of these scores. It has to be precise only up to the largest
sum that is in range. Beyond that it merely has to stay larger: such a score has its row refused.

FarSoftmax serves scores whose exponentials, and their sums, differ by more than a ring can resolve. It takes two steps.
The exponentials of half the scores differ by the root of it, and so do their sums; divided by them they are shares of
one. The squares of these shares, divided by their own sum, are the softmax: exp(s) = exp(s / 2)^2, and the first
divisor of a row is divided out. The sum of squares of T shares of one is between 1 / T and 1.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Final

import msgspec
import numpy as np
import torch
from msgspec import Meta

from tacit.models.friendly.polynomials import Interval
from tacit.models.friendly.transformer import Activation
from tacit.parties.inference.material import NORM_WAVE_BITS, NORM_WORDS
from tacit.parties.inference.operations import NarrowValue, Party, Program, cosine_bits
from tacit.parties.inference.ring import SPARE, WORD_BITS, shifted
from tacit.parties.inference.tables import BoundError, CheckedSum, LookedUp, Table, fitted_sum, largest
from tacit.parties.inference.waves import FitError, Floats, Wave, fitted_wave
from tacit.protocol.inference.schedule import HALVES, PLACE, VECTORS, WEIGHTED

SHARE_BITS = WEIGHTED - 3
"""Fractional bits of a share of one."""
SHARE_RING = 48
"""Bits of the products of exponentials and inverse sums. What an inverse lacks in bits is the same for a whole row, and
divided out again with the sum of its squares."""


class Far(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Of a block."""

    cut: Annotated[int, Meta(ge=0, le=WORD_BITS - HALVES)]
    """Bits that are cut off the exponentials of half the scores."""
    totals: Table
    """Of their sums."""


class FarSoftmax:
    """One use, made ahead of the scores. ring: of the squares."""

    def __init__(self, party: Party, shape: tuple[int, ...], far: Far, ring: int) -> None:
        self._party, self._far = party, far
        self._totals = LookedUp(party, far.totals.request(shape[:-1]))
        self._half = NarrowValue(party, shape, HALVES, factor=(*shape[:-1], 1), ring=SHARE_RING)
        self._share = NarrowValue(party, shape, WEIGHTED, degree=2, ring=ring)

    def run(self, exponentials: torch.Tensor) -> Program[tuple[torch.Tensor, torch.Tensor]]:
        """From exponentials of half the scores modulo 2^(HALVES + cut) to squares of shares of one, with
        2 SHARE_BITS fractional bits; and how many sums are out of range."""
        party, far = self._party, self._far
        half = shifted(exponentials, HALVES + far.cut, far.cut) if far.cut else exponentials
        # A sum has more bits than what is narrow: of the wider ring.
        totals = exponentials.sum(-1) * far.totals.factor
        place = shifted(totals, HALVES + far.cut, HALVES + far.cut - PLACE) if far.cut else totals
        opened, opened_place = yield from party.open("softmax", self._half.masked(half), self._totals.masked(place))
        self._half.settle(opened)
        outside = self._totals.settle(opened_place, far.totals.limits)
        inverse = self._totals.value(*far.totals.words)[..., None]
        (opened_inverse,) = yield from party.open("softmax", self._half.masked_factor(inverse))
        share = shifted(self._half.times(opened_inverse), SHARE_RING, SHARE_RING - WEIGHTED)
        self._share.settle(*(yield from party.open("softmax", self._share.masked(share))))
        return self._share.polynomial((0, 0, 1)), outside


_WINDOWS: Final = (0.45, 0.5, 0.625, 0.75)
"""Parts of the ring that possible scores take; whatever needs fewer waves."""
_TOLERANCE: Final = 2.0**-7
"""Of an exponential: relative to itself, or to 1, of which the mean of a row is no less."""
_FAR_TOLERANCE: Final = 2.0**-11
"""The same where the exponential is squared."""
_NOISE: Final = 2.0**-11
"""Deviation of the roundings of words, and of factors, that the sum of a row has, relative to its least. They are
independent, so that each of T exponentials may have sqrt(T) times as much."""
_FAR_NOISE: Final = 2.0**-13
_NORM_LEVELS: Final = 20
"""Bits that are compared of what tells a norm, which is a small part of what is possible."""
_BITS: Final = 36
_FAR_BITS: Final = 44
"""Fractional bits of exponentials before they are cut, at most."""
_BEYOND: Final = 0.3
"""Relative tolerance of exponentials that alone are more than any sum in range."""
_BEND: Final = 6.0
"""How many times a sum in range an exponential is from where on its continuation grows slowly."""


@dataclass(frozen=True)
class VarianceBounds:
    """What variances, without epsilon, are in range before a LayerNorm."""

    interval: Interval
    """Of all tokens, the class token multiplied."""
    lift: int
    """By which the class token is multiplied, which LayerNorm does not see: it begins with hardly a variance, and a
    table has the precision of its largest argument."""


@dataclass(frozen=True, kw_only=True)
class Bounds:
    """What is in range: what typical images reach, widened by the margin."""

    first_variance: VarianceBounds
    second_variance: VarianceBounds
    vectors: float
    """Norm of a query, and of a key less the mean of its image, each brought to the same: their product over all heads
    is at most its square."""
    total: float
    """Sum of the exponentials of a row. It is no less than the number of tokens: the mean of the scores is 0."""
    half_total: float
    """The same of half the scores."""
    hidden_spread: tuple[float, ...]
    """Sum of hidden.SPREAD over the hidden values of a token, for each of hidden.hidden_periods(); of their squares,
    where GELU is quadratic."""


@dataclass(frozen=True, kw_only=True)
class Functions:
    """What a block computes between its layers, and how."""

    scale: float
    """Of the attention."""
    degree: int | None
    """Of the Taylor series, None for the exponential itself."""
    inverse_steps: int | None
    quadratic: bool
    """Whether a square stands for the activation."""
    epsilons: tuple[float, float]
    activation: Activation = "gelu"

    def exponential(self, scores: Floats) -> Floats:
        """Of centred scores times the attention's scale."""
        if self.degree is None:
            return np.exp(scores)
        found: Floats = sum(
            (scores**power / math.factorial(power) for power in range(self.degree + 1)), np.zeros_like(scores)
        )
        return found


@dataclass(frozen=True)
class NormCheck:
    """Of queries, or of keys."""

    scale: float
    """In the ring of VECTORS bits."""
    turn: int
    """Bits of a turn."""
    place: CheckedSum
    norm: float
    """What nothing in range exceeds."""


@dataclass(frozen=True)
class FittedScores:
    """Of a block."""

    query: NormCheck
    key: NormCheck
    exponential: Wave
    """Where scores reach far, of half of them."""
    largest: float
    """Of its values."""


def fitted_scores(
    functions: Functions,
    bounds: Bounds,
    vector_entries: tuple[float, float],
    *,
    tokens: int,
    size: int,
    far: bool,
) -> FittedScores:
    """size: of a query; for the others see scales.fitted(). BoundError, and FitError."""
    found: list[FittedScores] = []
    failure: FitError | None = None
    for window in _WINDOWS:
        inflation = 1.0
        while True:
            # What bounds of whole units let through is a little more than what they are for.
            inflation *= 1.02
            reach = functions.scale * (bounds.vectors * inflation) ** 2
            scale = math.sqrt(functions.scale * 2.0**VECTORS * window / (2 * reach))
            # The mean of the keys is taken away as T times a key less the sum of all, which the weights leave room for.
            scales = (scale / math.sqrt(tokens), scale * math.sqrt(tokens))
            query, key = (
                _norm_check(name, bounds.vectors, entry, each, size)
                for name, entry, each in zip(("queries", "keys"), vector_entries, scales, strict=True)
            )
            if query.norm * key.norm <= (bounds.vectors * inflation) ** 2:
                break
        try:
            wave = _fitted_exponential(functions, bounds, tokens, reach, 2 * reach / window, far=far)
        except FitError as error:
            failure = error
            continue
        found.append(FittedScores(query, key, wave, _largest(wave, window)))
    if failure is not None and not found:
        raise failure
    return min(found, key=lambda each: (len(each.exponential.cosines), each.exponential.bits))


def _fitted_exponential(
    functions: Functions, bounds: Bounds, tokens: int, reach: float, period: float, *, far: bool
) -> Wave:
    """Of scores within -reach ... reach."""
    total = bounds.half_total if far else bounds.total
    bend, precise = _BEND * total, _FAR_TOLERANCE if far else _TOLERANCE

    def exponential(scores: Floats) -> Floats:
        return functions.exponential(scores / 2 if far else scores)

    def function(scores: Floats) -> Floats:
        plain = exponential(scores)
        continued = bend * (1 + np.log(np.maximum(plain / bend, 1.0)))
        found: Floats = np.where(plain <= bend, plain, continued)
        return found

    def tolerance(scores: Floats) -> Floats:
        relative = np.where(exponential(scores) <= total, precise, _BEYOND)
        found: Floats = relative * np.maximum(function(scores), 1.0)
        return found

    return fitted_wave(
        "the exponential",
        function,
        tolerance,
        noise=(_FAR_NOISE if far else _NOISE) * math.sqrt(tokens),
        period=period,
        low=-reach,
        high=reach,
        most_bits=_FAR_BITS if far else _BITS,
    )


def _largest(wave: Wave, window: float) -> float:
    """Of a wave's values where scores can be; elsewhere it is what it likes."""
    angles = np.outer(np.linspace(-np.pi * window, np.pi * window, 4097), np.arange(1, len(wave.cosines) + 1))
    values = wave.constant + np.cos(angles) @ np.array(wave.cosines) + np.sin(angles) @ np.array(wave.sines)
    return float(np.abs(values).max()) / 2.0**wave.precision / SPARE


def _norm_check(name: str, norm: float, entry: float, scale: float, size: int) -> NormCheck:
    """Of vectors in range up to this norm.

    The sum over the entries of 1 - cos(theta) for theta = 2 pi scale x / 2^turn is at most |theta|^2 / 2. Where it is
    at most t < 1, every |theta| is at most arccos(1 - t) =: a, and it is at least |theta|^2 / 2 (1 - a^2 / 12).
    """
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
