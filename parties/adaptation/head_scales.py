"""Public numbers of the head of a step of learning (head.py): what is checked of it, its exponential, and inverses."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Final

import msgspec
import numpy as np
from msgspec import Meta

from tacit.parties.adaptation.fixed_point import ACTIVATION, PARAMETER
from tacit.parties.inference.ring import SPARE, WORD_BITS
from tacit.parties.inference.tables import (
    MOST_INDEX_BITS,
    BoundError,
    CheckedSum,
    Inverse,
    Positive,
    Table,
    fitted_sum,
    fitted_table,
)
from tacit.parties.inference.waves import FitError, Wave, fitted_wave

CENTRED: Final = 28
"""Bits of a class token that is opened under a mask."""
_VARIANCE_LEVELS: Final = 28
"""Bits that are compared of a variance: what is in range is a small part of what is possible."""
NORMALISED: Final = 40
"""Fractional bits of x^ before it is lifted."""
EXPONENTIAL: Final = 16
"""Of an exponential that is lifted."""
_REACHES: Final = (2.0**-8, 2.0**8)
"""Of centred logits in range, from the least to the largest: their places fit 64 bits, whatever the classes."""
PROBABILITY: Final = 50
"""Of the product of a lifted exponential with the inverse sum."""
_TOLERANCE: Final = 2.0**-12
"""Of an exponential: relative to itself, or to 1, of which the mean of an image is no less."""
_WAVE_BITS: Final = 40
LOGIT: Final = 2.0 ** (2 * PARAMETER)
"""Scale of a logit before it is centred."""
_LEAST_TOTAL: Final = 0.9
"""Of a sum of exponentials, for each class: it is 1 without their errors."""
_NARROWER: Final = 2.0**-4
"""By which logits in range are narrowed until the sums can be told."""


class LearningHeadScales(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Public numbers of a head, made by `fitted_head`. ValueError for logits, or exponentials, that cannot be told."""

    variances: Table
    token_cut: Annotated[int, Meta(ge=1, le=WORD_BITS - CENTRED)]
    """What is cut off a class token whose differences from the mean, times the width, are whole."""
    reach: Positive
    """The largest magnitude of a centred logit that is in range."""
    logits: CheckedSum
    """Of a centred logit, and `reach`."""
    exponential: Wave
    totals: Table

    def __post_init__(self) -> None:
        least, largest = _REACHES
        if not least <= self.reach <= largest:
            raise ValueError(f"logits in range up to {self.reach:g}; {least:g} to {largest:g} can be told")
        if self.exponential.bits <= EXPONENTIAL:
            raise ValueError(
                f"exponentials of {self.exponential.bits} fractional bits; more than {EXPONENTIAL} are cut"
            )


@dataclass(frozen=True, kw_only=True)
class HeadSizes:
    """Of a head, and a batch."""

    images: int
    width: int
    classes: int


def fitted_head(
    sizes: HeadSizes,
    *,
    variances: tuple[float, float],
    most: float,
    epsilon: float,
    reach: float,
    largest_logit: float,
) -> LearningHeadScales:
    """For class tokens whose variances are `most` at most, and in range within an interval, and logits that are
    `largest_logit` at most, and in range, centred, up to `reach`. BoundError, and FitError, for what cannot be told on
    shares."""
    width, classes = sizes.width, sizes.classes
    most = max(most, variances[1])
    entry = math.sqrt(most * width)
    cut = ACTIVATION + PARAMETER + math.ceil(math.log2(width * entry)) - (CENTRED - 2)
    scale = width * 2.0 ** (ACTIVATION + PARAMETER - cut)
    wave = _exponential(reach)
    # Half of what is possible is below the mean.
    possible = 2 * max(2 * largest_logit, reach)
    return LearningHeadScales(
        variances=fitted_table(
            "variances of class tokens",
            Inverse(function="inverse root", unit=1.0, offset=epsilon, scale=2.0**NORMALISED / scale),
            bits=WORD_BITS,
            unit=width * scale**2,
            most=most,
            low=variances[0],
            high=variances[1],
            levels=_VARIANCE_LEVELS,
        ),
        token_cut=cut,
        reach=reach,
        logits=fitted_sum(
            "centred logits", bits=WORD_BITS, unit=classes * LOGIT, most=possible, low=0.0, high=2 * reach
        ),
        exponential=wave,
        totals=_totals(classes, reach, unit=2.0**wave.bits),
    )


def told_reach(classes: int, reach: float) -> float:
    """The largest magnitude of centred logits, up to this one, of which exponentials and their sums can be told."""
    reach = min(reach, math.log(classes << MOST_INDEX_BITS))
    while True:
        try:
            _totals(classes, reach, unit=2.0 ** _exponential(reach).bits)
        except (BoundError, FitError):
            reach -= _NARROWER
        else:
            return reach


def _exponential(reach: float) -> Wave:
    return fitted_wave(
        "the exponential of logits",
        np.exp,
        lambda values: _TOLERANCE * np.maximum(np.exp(values), 1.0),
        noise=_TOLERANCE / 2,
        period=4 * reach,
        low=-reach,
        high=reach,
        most_bits=_WAVE_BITS,
    )


def _totals(classes: int, reach: float, *, unit: float) -> Table:
    """Of the sums of exponentials. unit: what an exponential of 1 is."""
    return fitted_table(
        "sums of exponentials of logits",
        Inverse(function="inverse", unit=1.0, offset=0.0, scale=2.0 ** (PROBABILITY - EXPONENTIAL)),
        bits=WORD_BITS,
        unit=unit,
        most=classes * math.exp(reach) / SPARE,
        low=_LEAST_TOTAL * classes,
        # The others are less than 1 in the mean.
        high=math.exp(reach) + classes,
    )
