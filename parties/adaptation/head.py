"""End of a training step on shares: the class token's norm, the head, the softmax of its logits, and their derivatives.

    x^ = (x - mean) / d,   logits = x^ W^T + b,   G = softmax(logits) - one-hot labels,
    loss = log(sum of exp(logits)) - logit of the label,
    dW = G^T x^,   db = sum of G over the images,   g = G W,   dx = (g - mean(g) - x^ mean(g x^)) / d

for the class token x of h_L and its standard deviation d. The head reads x^ without the factor and offset of the
backbone's last norm: both are part of the model, and a new head learns them anew. G belongs to the sum over the
images, not to their mean; the training step divides by their number.

The logits of an image are centred, which a softmax ignores: the sum of C exponentials is then at least C for every
image. Variances and centred logits are checked against public bounds, which together bound the sum of exponentials.
Labels belong to the data owner, who does not send them: it subtracts them from its own share.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated, Final

import msgspec
import numpy as np
import torch
from msgspec import Meta
from torch.nn.functional import one_hot

from tacit.parties.adaptation.fixed_point import (
    ACTIVATION,
    DERIVATIVE,
    GRADIENT,
    PARAMETER,
    Cut,
    LiftOrProduct,
    lift,
    lifted,
    lifted_times,
    made,
    matrices,
    multiplied,
)
from tacit.parties.inference.material import AnyBlockRequest, Lookup, Waves
from tacit.parties.inference.operations import MODEL, Party, Program, WaveValue
from tacit.parties.inference.ring import SPARE, WORD_BITS, shifted
from tacit.parties.inference.tables import (
    MOST_INDEX_BITS,
    BoundError,
    CheckedSum,
    Inverse,
    LookedUp,
    Positive,
    Range,
    Table,
    fitted_sum,
    fitted_table,
    interpolated,
)
from tacit.parties.inference.waves import FitError, Wave, fitted_wave
from tacit.protocol.inference.schedule import COARSE, PLACE

CENTRED: Final = 28
"""Ring bits of a class token that is opened under a mask."""
_VARIANCE_LEVELS: Final = 28
"""Compared bits of a variance, whose permitted range is a small part of the possible one."""
NORMALISED: Final = 40
"""Fractional bits of x^ before it is lifted."""
EXPONENTIAL: Final = 16
"""Fractional bits of an exponential that is lifted."""
_REACHES: Final = (2.0**-8, 2.0**8)
"""Smallest and largest range of centred logits: the table positions fit 64 bits for every number of classes."""
PROBABILITY: Final = 50
"""Fractional bits of the product of a lifted exponential with the inverse sum."""
_TOLERANCE: Final = 2.0**-12
"""Tolerance of an exponential, relative to itself or to 1, the least possible mean of an image."""
_WAVE_BITS: Final = 40
LOGIT: Final = 2.0 ** (2 * PARAMETER)
"""Scale of a logit before it is centred."""
_LEAST_TOTAL: Final = 0.9
"""Smallest sum of exponentials per class; it is 1 without approximation errors."""
_NARROWING: Final = 2.0**-4
"""Factor that narrows the range of logits until their sums can be represented."""


class LearningHeadScales(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Public numbers of a head, made by `fitted_head`. ValueError for unrepresentable logits or exponentials."""

    variances: Table
    token_cut: Annotated[int, Meta(ge=1, le=WORD_BITS - CENTRED)]
    """Bits truncated from a class token whose differences from the mean, times the width, are integers."""
    reach: Positive
    """Largest permitted magnitude of a centred logit."""
    logits: CheckedSum
    """Range check of a centred logit against `reach`."""
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
    """Scales for class tokens with variances of at most `most`, in the given interval if in range, and logits of at
    most `largest_logit`, centred and in range of at most `reach`. BoundError or FitError for unrepresentable values."""
    width, classes = sizes.width, sizes.classes
    most = max(most, variances[1])
    entry = math.sqrt(most * width)
    cut = ACTIVATION + PARAMETER + math.ceil(math.log2(width * entry)) - (CENTRED - 2)
    scale = width * 2.0 ** (ACTIVATION + PARAMETER - cut)
    wave = _exponential(reach)
    # Half of the possible values are below the mean.
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


@lru_cache(maxsize=64)
def told_reach(classes: int, reach: float) -> float:
    """Return the largest range of centred logits, up to this one, with representable exponentials and sums."""
    reach = min(reach, math.log(classes << MOST_INDEX_BITS))
    while True:
        try:
            _totals(classes, reach, unit=2.0 ** _exponential(reach).bits)
        except (BoundError, FitError):
            reach -= _NARROWING
        else:
            return reach


@lru_cache(maxsize=64)
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


_INVERSE: Final = 16
"""Fractional bits of 1 / d in products with derivatives."""
MEAN: Final = 28
"""Fractional bits of the means of g, and of g x^."""
HEAD_GRADIENT: Final = WORD_BITS - (DERIVATIVE + PARAMETER - GRADIENT)
"""Ring bits of derivatives with respect to the head's parameters."""
_WIDTH: Final = 13
"""Fractional bits of the inverse of the width, relative to itself."""
_COMPARED: Final = 26
"""Compared bits of a logit, and of the label's logit."""
_NOT_NEGATIVE: Final = Range(0, 1 << (_COMPARED - 1))


@dataclass(frozen=True, repr=False, kw_only=True)
class HeadShares:
    """One owner's shares of the head's parameters, or of derivatives with respect to them; see AdapterShares."""

    weight: torch.Tensor
    """W [C, D]."""
    bias: torch.Tensor


@dataclass(frozen=True, repr=False, kw_only=True)
class HeadResult:
    by_token: torch.Tensor
    """Derivative with respect to the class token [B, D], DERIVATIVE + PARAMETER fractional bits."""
    gradient: HeadShares
    """GRADIENT fractional bits modulo 2^HEAD_GRADIENT."""
    outside: torch.Tensor
    """Number of values out of range, modulo 2^PLACE."""
    loss: torch.Tensor
    """Sum of the losses of the images, times the classes, 2 PARAMETER fractional bits."""
    correct: torch.Tensor
    """Number of images whose largest logit is the label's, modulo 2^PLACE; among equal logits the first wins."""


def logit_requests(
    sizes: HeadSizes, scales: LearningHeadScales, *, backwards: bool = False
) -> tuple[AnyBlockRequest, ...]:
    return (*_forward_values(sizes, backwards=backwards).values(), scales.variances.request((sizes.images,)))


def head_requests(sizes: HeadSizes, scales: LearningHeadScales) -> tuple[AnyBlockRequest, ...]:
    logits, wave = (sizes.images, sizes.classes), scales.exponential
    return (
        *logit_requests(sizes, scales, backwards=True),
        *_backward_values(sizes).values(),
        Lookup(logits, levels=scales.logits.levels),
        Waves(logits, len(wave.cosines), wave.words, WORD_BITS),
        scales.totals.request((sizes.images,)),
        Lookup(logits, levels=_COMPARED),
        Lookup((sizes.images,), levels=PLACE),
    )


def _forward_values(sizes: HeadSizes, *, backwards: bool) -> dict[str, LiftOrProduct]:
    tokens, one = (sizes.images, sizes.width), (sizes.images, 1)
    return {
        "x": lift(tokens, bits=CENTRED, degree=2, factor=one),
        "x^": lift(tokens, factor=one if backwards else None),
        "x^ W^T": matrices(tokens, (sizes.width, sizes.classes)),
    }


def _backward_values(sizes: HeadSizes) -> dict[str, LiftOrProduct]:
    images, width, classes = sizes.images, sizes.width, sizes.classes
    tokens, logits, one = (images, width), (images, classes), (images, 1)
    return {
        "logits of labels": matrices((images, 1, classes), (images, classes, 1)),
        "exponentials": lift(logits, factor=one),
        "probabilities": lift(logits),
        "G^T x^": matrices((classes, images), tokens),
        "G W": matrices(logits, (classes, width)),
        "g": lift(tokens, factor=tokens),
        "means": lift((2, *one)),
        "dx": lift(tokens, factor=one),
    }


@dataclass(frozen=True, repr=False, kw_only=True)
class _SoftmaxResult:
    probabilities: torch.Tensor
    """int64 [B, C], DERIVATIVE fractional bits."""
    outside: torch.Tensor
    loss: torch.Tensor
    correct: torch.Tensor


class HeadForwards:
    def __init__(self, party: Party, sizes: HeadSizes, scales: LearningHeadScales, *, backwards: bool = False) -> None:
        self._party, self._sizes, self._scales = party, sizes, scales
        self._lifts, self._products = made(party, _forward_values(sizes, backwards=backwards))
        self._variances = LookedUp(party, scales.variances.request((sizes.images,)))
        self._standardised = self.outside = torch.zeros((), dtype=torch.int64)
        """Share modulo 2^PLACE of the number of values out of range, after the pass."""

    def forwards(self, parameters: HeadShares, token: torch.Tensor) -> Program[torch.Tensor]:
        """Map the class token of h_L [B, D], ACTIVATION + PARAMETER fractional bits, to logits [B, C], 2 PARAMETER
        bits."""
        party, lifts, width, table = self._party, self._lifts, self._sizes.width, self._scales.variances
        x = lifts["x"]
        centred = token * width - token.sum(-1, keepdim=True)
        yield from lifted(party, "norm", (x, Cut(centred, self._scales.token_cut)))
        squares = x.polynomial((0, 0, 1)).sum(-1) * table.factor
        (place,) = yield from party.open("norm", self._variances.masked(shifted(squares, WORD_BITS, WORD_BITS - PLACE)))
        self.outside = self._variances.settle(place, table.limits)
        (factor,) = yield from party.open("norm", x.masked_factor(self._variances.value(*table.words)[..., None]))
        normalised = Cut(x.times(factor), NORMALISED - PARAMETER)
        (self._standardised,) = yield from lifted(party, "norm", (lifts["x^"], normalised))
        product = (self._products["x^ W^T"], self._standardised, parameters.weight.T)
        (logits,) = yield from multiplied(party, "head", product)
        return logits + (parameters.bias << PARAMETER)


class HeadProgram(HeadForwards):
    def __init__(self, party: Party, sizes: HeadSizes, scales: LearningHeadScales) -> None:
        super().__init__(party, sizes, scales, backwards=True)
        lifts, products = made(party, _backward_values(sizes))
        self._lifts |= lifts
        self._products |= products
        logits, images = (sizes.images, sizes.classes), (sizes.images,)
        self._in_range = LookedUp(party, Lookup(logits, levels=scales.logits.levels))
        self._exponential = WaveValue(party, logits, scales.exponential, WORD_BITS)
        self._totals = LookedUp(party, scales.totals.request(images))
        self._larger = LookedUp(party, Lookup(logits, levels=_COMPARED))
        self._wrong = LookedUp(party, Lookup(images, levels=PLACE))

    def run(self, parameters: HeadShares, token: torch.Tensor, labels: torch.Tensor | None) -> Program[HeadResult]:
        """token: the class token of h_L [B, D], ACTIVATION + PARAMETER fractional bits; labels: int64 [B] at the data
        owner."""
        party, products = self._party, self._products
        logits = yield from self.forwards(parameters, token)
        wanted = torch.zeros_like(logits) if labels is None else one_hot(labels, self._sizes.classes)
        judged = yield from self._softmax(logits, wanted)
        probabilities = judged.probabilities - (wanted << DERIVATIVE)
        by_weight, g = yield from multiplied(
            party,
            "head backwards",
            (products["G^T x^"], probabilities.T, self._standardised),
            (products["G W"], probabilities, parameters.weight),
        )
        by_token = yield from self._through_norm(g)
        # The derivatives by the bias have fewer fractional bits, and as much of the ring.
        cut = WORD_BITS - HEAD_GRADIENT
        return HeadResult(
            by_token=by_token,
            gradient=HeadShares(
                weight=shifted(by_weight, WORD_BITS, cut),
                bias=shifted(probabilities.sum(0) << PARAMETER, WORD_BITS, cut),
            ),
            outside=self.outside + judged.outside,
            loss=judged.loss,
            correct=judged.correct,
        )

    def _softmax(self, logits: torch.Tensor, wanted: torch.Tensor) -> Program[_SoftmaxResult]:
        """wanted: one-hot labels [B, C] at the data owner, zeros at the model owner."""
        party, scales, classes = self._party, self._scales, self._sizes.classes
        centred = logits * classes - logits.sum(-1, keepdim=True)
        unit = classes * LOGIT
        # In a ring that one period of the Fourier approximation fills.
        turned = shifted(centred * round(2.0**WORD_BITS / (4 * scales.reach * unit)), WORD_BITS, WORD_BITS - COARSE)
        raised = centred + round(scales.reach * unit) if party.rank == MODEL else centred
        place = shifted(raised * scales.logits.factor, WORD_BITS, WORD_BITS - PLACE)
        of_labels = self._products["logits of labels"]
        opened, place, *both = yield from party.open(
            "softmax",
            self._exponential.masked(turned),
            self._in_range.masked(place),
            of_labels.masked_left(wanted[:, None]),
            of_labels.masked_right(centred[..., None]),
        )
        exponentials = self._exponential.settle(opened)
        outside = self._in_range.settle(place, scales.logits.limits)
        of_label = of_labels.settle(*both)[..., 0]
        value, table = self._lifts["exponentials"], scales.totals
        total = shifted(exponentials.sum(-1) * table.factor, WORD_BITS, WORD_BITS - PLACE)
        narrow = shifted(exponentials, WORD_BITS, scales.exponential.bits - EXPONENTIAL)
        difference = shifted((of_label - centred) * scales.logits.factor, WORD_BITS, WORD_BITS - PLACE)
        difference = difference + self._before_ties(wanted)
        opened, place, larger = yield from party.open(
            "softmax", value.masked(narrow), self._totals.masked(total), self._larger.masked(difference)
        )
        value.settle(opened)
        outside = outside + self._totals.settle(place, table.limits)
        self._larger.place(larger)
        wrong = self._larger.outside(_NOT_NEGATIVE).sum(-1)
        factor, wrong = yield from party.open(
            "softmax",
            value.masked_factor(self._totals.value(*table.words)[..., None]),
            self._wrong.masked(wrong),
        )
        product = Cut(value.times(factor), PROBABILITY - DERIVATIVE)
        (probabilities,) = yield from lifted(party, "softmax", (self._lifts["probabilities"], product))
        images = self._sizes.images if party.rank == MODEL else 0
        return _SoftmaxResult(
            probabilities=probabilities,
            outside=outside,
            loss=(self._totals.value(*_logarithms(table, unit)) - of_label[..., 0]).sum(),
            correct=images - self._wrong.settle(wrong, Range(0, 1)),
        )

    def _before_ties(self, wanted: torch.Tensor) -> torch.Tensor:
        """Offsets for the differences between a label's logit and all others, so that the first of equal logits counts
        as the largest. A difference has an error of one, and is compared in units of 2^(PLACE - _COMPARED)."""
        before = wanted.flip(-1).cumsum(-1).flip(-1) - wanted
        return int(self._party.rank == MODEL) - (before << (PLACE - _COMPARED)) - before

    def _through_norm(self, g: torch.Tensor) -> Program[torch.Tensor]:
        """Map g [B, D] to the derivative by the class token, both with DERIVATIVE + PARAMETER fractional bits."""
        party, name, lifts = self._party, "norm backwards", self._lifts
        g, along = yield from lifted_times(party, name, lifts["g"], Cut(g, PARAMETER), self._standardised)
        sums = torch.stack([g.sum(-1, keepdim=True) << PARAMETER, along.sum(-1, keepdim=True)])
        # Division by the width: multiply by an integer, then truncate.
        bits = _WIDTH + math.floor(math.log2(self._sizes.width))
        means = Cut(sums * round(2.0**bits / self._sizes.width), DERIVATIVE + PARAMETER + bits - MEAN)
        ((mean, along),) = yield from lifted(party, name, (lifts["means"], means))
        (factor,) = yield from party.open(name, lifts["x^"].masked_factor(along))
        aside = (mean << PARAMETER) + lifts["x^"].times(factor)
        difference = (g << (MEAN + PARAMETER - DERIVATIVE)) - aside
        cut = Cut(difference, MEAN + PARAMETER - DERIVATIVE)
        table = self._scales.variances
        inverse = msgspec.structs.replace(table.inverse, scale=2.0**_INVERSE)
        words = msgspec.structs.replace(table, inverse=inverse).words
        inverses = self._variances.value(*words)[..., None]
        _, by_token = yield from lifted_times(party, name, lifts["dx"], cut, inverses)
        return by_token


@lru_cache(maxsize=16)
def _logarithms(table: Table, scale: float) -> tuple[torch.Tensor, torch.Tensor]:
    unit = table.inverse.unit
    return interpolated(lambda ends: (ends * unit).clamp(min=unit).log() * scale, table.index, table.slope)
