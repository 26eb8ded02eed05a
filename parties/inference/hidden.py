"""GELU on shares: the waves of hidden values, and what is in range of them.

A hidden value can reach far beyond what is typical (its Cauchy-Schwarz bound), and the period of the waves has to be as
wide as that, so that none goes round unseen. GELU itself is fitted to what is in range alone, which takes fewer waves.
That nothing else occurs is checked by the same waves of the same masks: SPREAD is next to nothing for what is in range
and grows to 1, so its sum over a token's values, of which there are hundreds, tells the largest of them.
"""

from __future__ import annotations

import math
from typing import Final

import numpy as np

from tacit.parties.inference.scores import Bounds, Functions
from tacit.parties.inference.tables import BoundError, CheckedSum, fitted_sum
from tacit.parties.inference.waves import FitError, Floats, Wave, fitted_wave
from tacit.protocol.inference.schedule import COARSE, STREAM

_SPARE: Final = 0.97
_ACTIVATED_BITS: Final = 13
"""Fractional bits of the values behind GELU, at most."""
SPREAD: Final = Wave(
    constant=10 << 11,
    cosines=(-15 << 11, 6 << 11, -1 << 11),
    sines=(0, 0, 0),
    precision=16,
    words=1,
)
"""The sixth power of the sine of half an angle: next to nothing for what is in range, and 1 at half a turn. With it a
sum over the hidden values of a token is hardly more than what the largest of them adds."""
SPREAD_LEVELS: Final = 26
"""Bits that are compared of such a sum, which is a small part of what is possible."""
_HIDDEN_WINDOWS: Final = (1.0, 0.625)
"""Parts of the ring that possible hidden values take; whatever needs fewer waves."""
_GELU_BITS: Final = 29
"""Fractional bits before the cut, at most: a word has seven bytes then."""
_GELU_TOLERANCE: Final = 2.0**-12
"""Of GELU: relative to its argument, or to 1, if that is larger."""


def fitted_gelu(
    functions: Functions, bounds: Bounds, ceiling: float, width: int
) -> tuple[Wave | None, CheckedSum, float, int]:
    """GELU of hidden values that can reach the ceiling: its waves and what is in range of a token, the scale of its
    argument, or its fractional bits."""
    failure = FitError()
    if functions.quadratic:
        bits = min(math.floor(math.log2(2 ** (COARSE - 2) * _SPARE / ceiling)), 12)
        if bits < 4:
            raise BoundError(f"hidden values can reach {ceiling:.6g}: that leaves {bits} fractional bits; 4 are needed")
        squares = fitted_sum(
            "hidden values",
            bits=STREAM + gelu_cut(2 * bits + 3),
            unit=4.0**bits,
            most=width * ceiling**2,
            low=0.0,
            high=bounds.hidden_spread[0],
            levels=SPREAD_LEVELS,
        )
        return None, squares, 2.0**bits, bits
    found = []
    for period, spread in zip(hidden_periods(ceiling), bounds.hidden_spread, strict=True):
        slack = spread_slack(width)
        high = spread + 2 * slack
        # No single value of a token in range has more than the sum of all; comparisons are a little coarser than that.
        sine = min((high + 2.0**-20 * width) ** (1 / 6), 1.0)
        reach = min(period / np.pi * math.asin(sine), ceiling / _SPARE)
        limits = {"low": -reach, "high": reach}
        try:
            wave = fitted_wave("GELU", _true_gelu, _gelu_tolerance, period=period, most_bits=_GELU_BITS, **limits)
        except FitError as error:
            failure = error
            continue
        bits = STREAM + gelu_cut(wave.bits)
        unit, most = 2.0 ** (SPREAD.precision + wave.words), width + 2 * slack
        place = fitted_sum("hidden values", bits=bits, unit=unit, most=most, low=0.0, high=high, levels=SPREAD_LEVELS)
        found.append((wave, place, 2.0**COARSE / period, 0))
    if not found:
        raise failure
    return min(found, key=lambda each: (len(each[0].cosines), each[0].bits))


def gelu_cut(bits: int) -> int:
    """What is cut off so many fractional bits."""
    return max(bits - _ACTIVATED_BITS, 0)


def spread_slack(width: int) -> float:
    """What is added to a sum of SPREAD over so many values, lest rounding make it negative: the deviation of the
    rounding of a term is below 2^-14, and this is eight times that of the sum."""
    return 2.0**-11 * math.sqrt(width)


def hidden_periods(ceiling: float) -> tuple[float, ...]:
    """Of the waves of hidden values that can reach so far: none goes round. The wider one serves where what is in range
    is hardly less than what is possible."""
    return tuple(2 * ceiling / (_SPARE * window) for window in _HIDDEN_WINDOWS)


def _true_gelu(values: Floats) -> Floats:
    return np.array([value / 2 * (1 + math.erf(value / math.sqrt(2))) for value in values.tolist()])


def _gelu_tolerance(values: Floats) -> Floats:
    return _GELU_TOLERANCE * np.maximum(1.0, np.abs(values))
