"""GELU on shares: the waves of hidden values, and what is in range of them.

A hidden value can reach far beyond what is typical (its Cauchy-Schwarz bound), and the period of the waves has to be as
wide as that, so that none goes round unseen. GELU itself is fitted to what is in range alone, which takes fewer waves.
That nothing else occurs is checked by the same waves of the same masks: SPREAD is next to nothing for what is in range
and grows to 1, so its sum over a token's values, of which there are hundreds, tells the largest of them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from operator import itemgetter
from typing import Final

import numpy as np
import torch

from tacit.models.friendly.transformer import ACTIVATIONS
from tacit.parties.inference.ring import SPARE
from tacit.parties.inference.scores import Bounds, Functions
from tacit.parties.inference.tables import BoundError, CheckedSum, fitted_sum
from tacit.parties.inference.waves import FitError, Floats, Wave, fitted_wave
from tacit.protocol.inference.schedule import COARSE, STREAM

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
_LEAST_WORDS: Final = 11
"""Fractional bits of the words of GELU's waves: as many as SPREAD takes, whatever GELU itself takes."""
SPREAD_LEVELS: Final = 26
"""Bits that are compared of such a sum, which is a small part of what is possible."""
_HIDDEN_WINDOWS: Final = (1.0, 0.625)
"""Parts of the ring that possible hidden values take; whatever needs fewer waves."""
_GELU_BITS: Final = 29
"""Fractional bits before the cut, at most: a word has seven bytes then."""
_GELU_NOISE: Final = 2.0**-12.5
_GELU_TOLERANCE: Final = 2.0**-11.5
"""Of GELU: relative to its argument, or to 1, if that is larger."""


@dataclass(frozen=True)
class FittedHidden:
    """Of a block."""

    gelu: Wave | None
    """None: the quadratic one."""
    spread: CheckedSum
    """Of a token."""
    scale: float
    """Of hidden values in the ring of COARSE bits."""
    bits: int
    """Their fractional bits where GELU is quadratic, else 0."""


def fitted_hidden(functions: Functions, bounds: Bounds, ceiling: float, width: int) -> FittedHidden:
    """Of so many hidden values of a token, which can reach the ceiling. BoundError, and FitError."""
    if functions.quadratic:
        return _quadratic(bounds.hidden_spread[0], ceiling, width)
    found: list[tuple[tuple[int, int], FittedHidden]] = []
    failure: FitError | None = None
    slack = spread_slack(width)
    activation = ACTIVATIONS[functions.activation]
    for period, spread in zip(hidden_periods(ceiling), bounds.hidden_spread, strict=True):
        high = spread + 2 * slack
        # No single value of a token in range has more than the sum of all; comparisons are a little coarser than that.
        sine = min((high + 2.0**-20 * width) ** (1 / 6), 1.0)
        reach = min(period / np.pi * math.asin(sine), ceiling / SPARE)
        limits = {"low": -reach, "high": reach}
        try:
            wave = fitted_wave(
                "GELU",
                lambda values: activation(torch.from_numpy(values)).numpy(),
                _gelu_tolerance,
                period=period,
                noise=_GELU_NOISE,
                most_bits=_GELU_BITS,
                least_words=_LEAST_WORDS,
                **limits,
            )
        except FitError as error:
            failure = error
            continue
        unit, most = 2.0 ** (SPREAD.precision + wave.words), width + 2 * slack
        place = _place(wave.bits, unit=unit, most=most, high=high)
        fitted = FittedHidden(wave, place, 2.0**COARSE / period, 0)
        found.append(((len(wave.cosines), wave.bits), fitted))
    if failure is not None and not found:
        raise failure
    return min(found, key=itemgetter(0))[1]


def _quadratic(squares: float, ceiling: float, width: int) -> FittedHidden:
    bits = min(math.floor(math.log2(2 ** (COARSE - 2) * SPARE / ceiling)), 12)
    if bits < 4:
        raise BoundError(f"hidden values can reach {ceiling:.6g}: that leaves {bits} fractional bits; 4 are needed")
    place = _place(2 * bits + 3, unit=4.0**bits, most=width * ceiling**2, high=squares)
    return FittedHidden(None, place, 2.0**bits, bits)


def _place(bits: int, *, unit: float, most: float, high: float) -> CheckedSum:
    """bits: fractional ones of the values behind GELU, before they are cut."""
    ring = STREAM + gelu_cut(bits)
    return fitted_sum("hidden values", bits=ring, unit=unit, most=most, low=0.0, high=high, levels=SPREAD_LEVELS)


def gelu_cut(bits: int) -> int:
    """What is cut off so many fractional bits."""
    return max(bits - _ACTIVATED_BITS, 0)


def spread_slack(width: int) -> float:
    """What is added to a sum of SPREAD over so many values, lest rounding make it negative: with _LEAST_WORDS the
    deviation of the rounding of a term is below 2^-13.7, and this is six times that of the sum at least."""
    return 2.0**-11 * math.sqrt(width)


def hidden_periods(ceiling: float) -> tuple[float, ...]:
    """Of the waves of hidden values that can reach so far: none goes round. The wider one serves where what is in range
    is hardly less than what is possible."""
    return tuple(2 * ceiling / (SPARE * window) for window in _HIDDEN_WINDOWS)


def _gelu_tolerance(values: Floats) -> Floats:
    return _GELU_TOLERANCE * np.maximum(1.0, np.abs(values))
