"""GELU on shares: a Fourier approximation of hidden values, and the check of their range.

A hidden value's Cauchy-Schwarz bound can far exceed typical values, and the opening must be as wide as the bound, so
that no value wraps undetected. The period of the approximation follows from typical values: the opening is a power of
two of such periods, and GELU is fitted in the typical range alone. The first harmonics of the whole width verify that
no other value occurs: SPREAD is nearly zero in range and grows to 1, so its sum over the hundreds of values of a token
indicates the largest of them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

import msgspec
import numpy as np
import torch

from tacit.models.friendly.transformer import ACTIVATIONS
from tacit.parties.inference.material import CHECK_HARMONICS, CHECK_WORDS, NORM_WAVE_BITS
from tacit.parties.inference.ring import SPARE
from tacit.parties.inference.scores import Bounds, Functions
from tacit.parties.inference.tables import FILLED, BoundError, CheckedSum, fitted_sum
from tacit.parties.inference.waves import FitError, Wave, fitted_wave
from tacit.protocol.inference.schedule import ACTIVATED, COARSE, FINEST, PLACE, STREAM

POWER: Final = 6
"""Power of the sine of half an angle in SPREAD."""
SPREAD: Final = Wave(
    constant=10 << 15,
    cosines=(-15 << 15, 6 << 15, -1 << 15),
    sines=(0, 0, 0),
    precision=20,
    words=1,
)
"""Nearly zero in range, and 1 at half a turn. So a sum over the hidden values of a token is hardly more than the
contribution of the largest of them."""
_SPREAD_BITS: Final = 5
"""Fractional bits of its coefficients, which are exact."""
_LEAST_WORDS: Final = 11
"""Fractional bits of the words of GELU's harmonics: at least as many as SPREAD needs."""
SPREAD_LEVELS: Final = PLACE
"""Compared bits of such a sum, whose permitted range is a small part of the possible one."""
_WIDTHS: Final = tuple(2.0 ** (part / 4) for part in range(8))
"""Candidate widths of the opened ring, relative to the possible range; the one with the fewest harmonics is taken.
Wider rings allow permitted ranges close to the possible one, and better periods."""
_FULLEST: Final = 0.9
"""Largest part of a period for values in range: the rest connects both ends."""
GELU_CUT: Final = STREAM - ACTIVATED
"""Most bits truncated after GELU: values are modulo 2^STREAM before, and modulo 2^ACTIVATED then."""
_LEAST_PRECISION: Final = 12
"""Least precision of SPREAD with the words of GELU's harmonics."""
_GELU_NOISES: Final = (2.0**-12.5, 2.0**-12, 2.0**-11.5, 2.0**-10.5)
"""Candidates; the least one with few enough bits is taken."""
_GELU_TOLERANCE: Final = 2.0**-11.5
"""Tolerance of GELU, relative to its argument, or to 1 if that is larger."""
_USUAL_REACH: Final = 12.0
"""Beyond this range, tolerance and noise grow by its square root: the next layer's sums grow too, but most values stay
small, and in DINOv2's first block an error in all of them is the largest."""


@dataclass(frozen=True)
class FittedHidden:
    gelu: Wave | None
    spread: CheckedSum
    """Check of a token's hidden values."""
    scale: float
    """Scale of hidden values at their opening."""
    opened: int
    bits: int
    cut: int
    """Bits truncated from the values after GELU."""

    @property
    def octets(self) -> tuple[int, int]:
        """Approximate preprocessing bytes of a value, and the bits of the approximation."""
        assert self.gelu is not None
        checks = CHECK_HARMONICS if self.opened > COARSE else 0
        return 10 * len(self.gelu.cosines) + 14 * checks, self.gelu.bits


def fitted_hidden(functions: Functions, bounds: Bounds, ceiling: float, width: int, activated: int) -> FittedHidden:
    """Fit GELU for `width` hidden values of a token, bounded by the ceiling. activated: most fractional bits of its
    result. BoundError and FitError."""
    if functions.quadratic:
        return _quadratic(bounds.hidden**2, ceiling, width, activated)
    found: list[FittedHidden] = []
    failure: FitError | None = None
    for times in _WIDTHS:
        turn = 2 * ceiling / SPARE * times  # No possible value wraps.
        narrow = _fullest(turn, ceiling, bounds.hidden, width)
        for opened in sorted({COARSE, narrow, max(narrow - 1, COARSE)}):
            for noise in _GELU_NOISES:
                try:
                    found.append(_fitted(functions, turn, opened, ceiling, bounds.hidden, width, activated, noise))
                    break
                except FitError as error:
                    failure = error
    if failure is not None and not found:
        raise failure
    return min(found, key=lambda each: each.octets)


def _fullest(turn: float, ceiling: float, norm: float, width: int) -> int:
    """The most bits of a turn whose lowest COARSE hold the values in range."""
    reach = _reach(turn, ceiling, _high(turn, norm, width, FINEST), width)
    return COARSE + min(max(math.floor(math.log2(turn * _FULLEST / (2 * reach))), 0), FINEST - COARSE)


def _high(turn: float, norm: float, width: int, opened: int) -> float:
    """Largest sum of SPREAD over a token of this norm: no sine is larger than its angle."""
    return min((math.pi * norm / turn) ** POWER, width) + 2 * spread_slack(width, opened)


def _reach(turn: float, ceiling: float, high: float, width: int) -> float:
    """Largest value if the sum of SPREAD over its token is `high`: one value has at most the whole sum, and comparisons
    are a little coarser than that."""
    sine = min((high + 2.0 ** (1 - SPREAD_LEVELS) / FILLED * width) ** (1 / POWER), 1.0)
    return min(turn / np.pi * math.asin(sine), ceiling / SPARE)


def _fitted(
    functions: Functions,
    turn: float,
    opened: int,
    ceiling: float,
    norm: float,
    width: int,
    activated: int,
    noise: float,
) -> FittedHidden:
    activation, high = ACTIVATIONS[functions.activation], _high(turn, norm, width, opened)
    reach = _reach(turn, ceiling, high, width)
    activated = min(activated, _room(reach))
    coarser = math.sqrt(max(reach / _USUAL_REACH, 1.0))
    wave = fitted_wave(
        "GELU",
        lambda values: activation(torch.from_numpy(values)).numpy(),
        lambda values: _GELU_TOLERANCE * coarser * np.maximum(1.0, np.abs(values)),
        period=turn / (1 << (opened - COARSE)),
        noise=noise * coarser,
        low=-reach,
        high=reach,
        most_bits=activated + GELU_CUT,
        least_words=_LEAST_WORDS,
    )
    spread = spread_wave(wave, opened, width)
    if spread.precision < _LEAST_PRECISION:
        raise FitError(f"GELU takes words of {wave.words} bits, which leave {spread.precision} to its check")
    most = width + 2 * spread_slack(width, opened)
    place = _place(spread_ring(opened), unit=2.0**spread.bits, most=most, high=high)
    return FittedHidden(wave, place, 2.0**opened / turn, opened, 0, max(wave.bits - activated, 0))


def _room(largest: float) -> int:
    return math.floor(math.log2(2 ** (ACTIVATED - 2) * SPARE / largest))


def spread_ring(opened: int) -> int:
    return STREAM if opened == COARSE else CHECK_WORDS


def spread_wave(gelu: Wave, opened: int, width: int) -> Wave:
    """SPREAD with the words that check so many hidden values of so many bits."""
    if opened > COARSE:
        return msgspec.structs.replace(SPREAD, words=NORM_WAVE_BITS)
    room = math.floor(math.log2(2**STREAM * FILLED / (width + 2 * spread_slack(width, opened))))
    precision = max(min(SPREAD.precision, room - gelu.words), _SPREAD_BITS)
    whole = tuple(each >> (SPREAD.precision - precision) for each in SPREAD.cosines)
    constant = SPREAD.constant >> (SPREAD.precision - precision)
    return Wave(constant=constant, cosines=whole, sines=SPREAD.sines, precision=precision, words=gelu.words)


def _quadratic(squares: float, ceiling: float, width: int, activated: int) -> FittedHidden:
    activated = min(activated, _room((ceiling**2 + 2 * ceiling + 4) / 8))
    bits = math.floor(math.log2(2 ** (COARSE - 2) * SPARE / ceiling))
    # The sum of all squares must fit, and so must the truncated bits.
    fitting = math.floor(math.log2(2**STREAM * FILLED / (width * ceiling**2)) / 2)
    bits = min(bits, fitting, (activated + GELU_CUT - 3) // 2)
    if bits < 4:
        raise BoundError(f"hidden values can reach {ceiling:.6g}: that leaves {bits} fractional bits; 4 are needed")
    place = _place(STREAM, unit=4.0**bits, most=width * ceiling**2, high=squares)
    return FittedHidden(None, place, 2.0**bits, COARSE, bits, max(2 * bits + 3 - activated, 0))


def _place(ring: int, *, unit: float, most: float, high: float) -> CheckedSum:
    return fitted_sum("hidden values", bits=ring, unit=unit, most=most, low=0.0, high=high, levels=SPREAD_LEVELS)


def spread_slack(width: int, opened: int) -> float:
    """Offset of a sum of SPREAD over so many values, so that rounding cannot make it negative. The standard deviation
    of a term's rounding is below 2^-13 with the words of GELU (2^-13.8 with _LEAST_WORDS, 2^-13 with _LEAST_PRECISION),
    and below 2^-20.6 with the checking words alone, where the factors' rounding dominates; this is at least six times
    that of the sum."""
    return 2.0 ** -(10.4 if opened == COARSE else 18) * math.sqrt(width)
