"""Ranges of the values in a training step: which are checked on shares, and which bounds follow.

A lift silently returns another value if its argument exceeds the lift's bits. So the norms of a few values are compared
with bounds on shares. Every other value has a bound that follows from these by the Cauchy-Schwarz inequality, in an
order in which each value is bounded before it is lifted:

| check | value |
|---|---|
| `parameters` | every tensor of an adapter, and of the head, before it is used |
| `inputs` | every token of z |
| `channels` | p of every token |
| `tokens` | q of every image, row by row |
| `derivatives` | the derivative with respect to h_l of every image |
| variances, centred logits, sums of exponentials | see head.py |

For f(x) = x^2 / 8 + x / 4 + 1 / 2 of a vector x of n entries, |f(x)| is at most |x|^2 / 8 + |x| / 4 + sqrt(n) / 2, and
the slope of every entry is at most (|x| + 1) / 4. Bounds are public numbers, as in inference. A batch with a value out
of range is refused.

A check resolves a squared norm in 2^PLACE steps of its possible range, so a check of parameters is coarser the more a
step can move them. Each tensor has its own gradient bound, which differ by factors of hundreds. Parameters that no step
can produce are detected up to 2^8 times the bound.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from tacit.models.adapters.parallel import MOST_HALVINGS
from tacit.parties.adaptation.adapter import LEAST_BACKWARDS, WHOLE, AdapterChecks, AdapterSizes
from tacit.parties.adaptation.fixed_point import (
    ACTIVATION,
    ARGUMENT,
    CHECKED,
    DERIVATIVE,
    GRADIENT,
    LIFTED,
    LOOKED_AT,
    PARAMETER,
    USED,
)
from tacit.parties.adaptation.head import MEAN, HeadSizes, LearningHeadScales, fitted_head
from tacit.parties.inference.ring import SPARE, WORD_BITS
from tacit.parties.inference.tables import BoundError, CheckedSum, Positive, fitted_sum
from tacit.protocol.adaptation.schedule import HEAD_TENSORS
from tacit.protocol.inference.schedule import PLACE, STREAM

_LEVELS: Final = PLACE
"""Compared bits of a sum of squares, whose permitted range is a small part of the possible one."""
_DETECTABLE: Final = 2.0**8
"""Largest detectable multiple of the permitted range, beyond what a step can produce: nobody else verifies that the
parameters brought to a prediction were learned."""
LOGIT_SCALE: Final = 2.0**28
"""Scale of logits that are revealed or ranked, modulo 2^STREAM."""


@dataclass(frozen=True, kw_only=True)
class StepBounds:
    rate: float
    stream: float
    """Scale of the blocks' outputs, a power of two."""
    halvings: tuple[int, ...] = ()
    """Number of halvings of each block's output before a step reads it (models/adapters/parallel.py); empty: none."""
    outputs: float
    """Largest norm of a token of a block's output, halved; inference enforces it."""
    parameters: Mapping[str, float]
    """Largest norms of ADAPTER_TENSORS and HEAD_TENSORS over all their entries; for `scale` its magnitude."""
    inputs: float
    channels: float
    tokens: float
    derivatives: float
    variances: tuple[float, float]
    """Smallest and largest variance of the class token of h_L."""
    epsilon: float
    logits: float


class StepScales(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    halvings: tuple[Annotated[int, Meta(ge=0, le=MOST_HALVINGS)], ...]
    """See `StepBounds.halvings`."""
    cut: Annotated[int, Meta(ge=1, le=STREAM - 2)]
    """Bits truncated from the output of the most halved block. All other outputs are first doubled to its scale, so
    that one ring serves all."""
    rate: Positive
    """Largest learning rate, which bounds how far a step moves a parameter."""
    parameters: dict[str, CheckedSum]
    moved: dict[str, Positive]
    """Largest norms of tensors in range after a step with a batch in range."""
    adapter: AdapterChecks | None
    """None without adapters."""
    head: LearningHeadScales

    @property
    def gradient(self) -> int:
        return LIFTED if self.adapter is None else self.adapter.gradient


def fitted_step(sizes: AdapterSizes, head: HeadSizes, bounds: StepBounds, *, adapters: int) -> StepScales:
    """Derive the scales from the bounds. BoundError or FitError if the values do not fit the rings."""
    cut = round(math.log2(bounds.stream)) + max(bounds.halvings, default=0) - ACTIVATION
    if not fits_cut(bounds.stream, bounds.halvings, cut):
        raise BoundError(f"outputs of blocks of scale {bounds.stream:g}: a power of two, and 2^22 at least, is needed")
    _within("an output of a block", bounds.outputs, 2.0 ** (STREAM - cut - 2 - ACTIVATION))
    largest = 2.0 ** (USED - 2 - PARAMETER)
    for name, norm in bounds.parameters.items():
        _within(f"an entry of {name}", norm, largest)
    width = sizes.width
    largest_logit = math.sqrt(width) * bounds.parameters["weight"] + bounds.parameters["bias"]
    # The softmax compares differences of two logits.
    _within("a logit", largest_logit, 2.0 ** (STREAM - 2) / LOGIT_SCALE)
    by_logits = math.sqrt(2.0) * bounds.parameters["weight"]
    by_token = by_logits / math.sqrt(bounds.variances[0])
    by_head = math.sqrt(2.0 * (width + 1))
    checks, last, gradients = _adapter_checks(sizes, bounds, by_token) if adapters else (None, bounds.outputs, {})
    gradients |= dict.fromkeys(HEAD_TENSORS, by_head)
    # They were in range before a step with a bounded gradient; the mean over owners is no larger.
    moved = {name: bounds.parameters[name] + bounds.rate * gradient for name, gradient in gradients.items()}
    parameters = {}
    for name, most in moved.items():
        _within(f"an entry of {name}, after a step", most, _checked(LOOKED_AT))
        astray = min(_DETECTABLE * bounds.parameters[name], _checked(LOOKED_AT))
        parameters[name] = _squares(name, bounds.parameters[name], max(most, astray), LOOKED_AT)
    _within("the derivative by a class token", by_logits, 2.0 ** (LIFTED - 2 - DERIVATIVE))
    _within("the gradient of the head", head.images * by_head, 2.0 ** (LIFTED - 2 - GRADIENT))
    _within("its mean", by_logits / math.sqrt(width), 2.0 ** (LIFTED - 2 - MEAN))
    fitted = fitted_head(
        head,
        variances=bounds.variances,
        most=last**2 / width,
        epsilon=bounds.epsilon,
        reach=bounds.logits,
        largest_logit=largest_logit,
    )
    return StepScales(
        halvings=bounds.halvings,
        cut=cut,
        rate=bounds.rate,
        parameters=parameters,
        moved=moved,
        adapter=checks,
        head=fitted,
    )


def fits_cut(stream: float, halvings: Sequence[int], cut: int) -> bool:
    """Return whether block outputs of this scale keep ACTIVATION fractional bits within LIFTED after halving and
    truncation."""
    return stream * 2.0 ** max(halvings, default=0) == 2.0 ** (cut + ACTIVATION) and cut >= STREAM - LIFTED


def _adapter_checks(
    sizes: AdapterSizes, bounds: StepBounds, by_token: float
) -> tuple[AdapterChecks, float, dict[str, float]]:
    """Return the checks, the largest norm of a token of h_l, and those of an image's derivative with respect to each of
    ADAPTER_TENSORS. by_token: the largest norm of the derivative with respect to the class token of h_L."""
    norm = bounds.parameters
    rank, width, tokens = sizes.rank, sizes.width, math.sqrt(sizes.tokens)
    activated_channels = _activated(bounds.channels, rank)
    activated_tokens = math.sqrt(rank) * _activated(bounds.tokens, width)
    from_channels = activated_channels * norm["channel_up"]
    added = from_channels + activated_tokens * norm["token_up"]
    # h is z less an output, so every check of z bounds it anew.
    hidden = bounds.inputs + bounds.outputs + norm["scale"] * added
    inputs = hidden + bounds.outputs
    channels = bounds.inputs * norm["channel_down"]
    middle = tokens * (bounds.inputs + from_channels)
    reduced = middle * norm["token_down"]
    _within("z", inputs, _checked(ACTIVATION))
    _within("p", channels, _checked(ARGUMENT))
    _within("q", reduced, _checked(ARGUMENT))
    _within("c", from_channels, 2.0 ** (LIFTED - 2 - ACTIVATION))
    _within("c + t", added, 2.0 ** (LIFTED - 2 - ACTIVATION))
    # Backward, over a whole image. A value multiplied by alpha T_u or alpha C_u is a derivative as well.
    derivative = bounds.derivatives
    scaled = derivative * norm["scale"]
    by_activated_tokens = scaled * norm["token_up"]
    by_tokens = by_activated_tokens * (bounds.tokens + 1) / 4
    by_middle = by_tokens * norm["token_down"]
    by_activated_channels = (scaled + by_middle) * norm["channel_up"]
    by_channels = by_activated_channels * (bounds.channels + 1) / 4
    before = derivative + by_middle + by_channels * norm["channel_down"]
    before = max(before, by_token)
    in_lifts = max(by_activated_tokens, by_tokens * norm["channel_up"], by_activated_channels)
    in_products = max(by_tokens, by_channels)
    # The derivatives by T_u and C_u are lifted before their product with alpha as well.
    gradients = {
        "channel_down": by_channels * tokens * bounds.inputs,
        "channel_up": max(derivative, scaled + by_middle) * tokens * activated_channels,
        "token_down": by_tokens * middle,
        "token_up": max(derivative, scaled) * activated_tokens,
        "scale": derivative * tokens * added,
    }
    gradient = sizes.images * max(gradients.values())
    looked_at = min(CHECKED - 2 - _bits(before / SPARE), DERIVATIVE)
    backwards = min(
        LIFTED - 2 - _bits(in_lifts / SPARE),
        WHOLE - 1 - _bits(in_products / SPARE),
        WHOLE - 2 - ACTIVATION - _bits(gradient / SPARE),
        # The sum of a derivative and its addend keeps as many bits as the check compares.
        looked_at + WHOLE - PARAMETER - CHECKED,
        DERIVATIVE,
    )
    reduced_channels = norm["token_down"] * tokens * activated_channels
    _within("T_d f(p)", reduced_channels, 2.0 ** (LIFTED - 2 - ACTIVATION))
    _within("alpha T_u", norm["scale"] * norm["token_up"], 2.0 ** (LIFTED - 2 - PARAMETER))
    _within("alpha C_u", norm["scale"] * norm["channel_up"], 2.0 ** (LIFTED - 2 - PARAMETER))
    _within("the derivative by h", bounds.derivatives, 2.0 ** (LIFTED - 2 - DERIVATIVE))
    if min(backwards, looked_at) < LEAST_BACKWARDS:
        raise BoundError(
            f"derivatives can reach {max(in_lifts, in_products):.4g} within an adapter, {before:.4g} behind it, and "
            f"{gradient:.4g} in the sum over {sizes.images} images: that leaves {min(backwards, looked_at)} fractional "
            f"bits, {LEAST_BACKWARDS} are needed; take narrower bounds, or smaller batches"
        )
    checks = AdapterChecks(
        inputs=_squares("z", bounds.inputs, inputs, ACTIVATION),
        channels=_squares("p", bounds.channels, channels, ARGUMENT),
        tokens=_squares("q", bounds.tokens, reduced, ARGUMENT),
        derivatives=_squares("the derivative by h", bounds.derivatives, before, looked_at),
        derivative_bits=looked_at,
        backwards=backwards,
    )
    return checks, hidden, gradients


def _activated(norm: float, entries: int) -> float:
    return norm**2 / 8 + norm / 4 + math.sqrt(entries) / 2


def _squares(name: str, norm: float, most: float, bits: int) -> CheckedSum:
    most = max(most, norm) / SPARE
    return fitted_sum(
        f"the norm of {name}", bits=WORD_BITS, unit=4.0**bits, most=most**2, low=0.0, high=norm**2, levels=_LEVELS
    )


def _bits(value: float) -> int:
    return max(math.ceil(math.log2(value)), 0)


def _checked(bits: int) -> float:
    return 2.0 ** (CHECKED - 2 - bits)


def _within(name: str, value: float, limit: float) -> None:
    if value > limit * SPARE:
        raise BoundError(
            f"{name} can reach {value:.4g} in a step of learning, where {limit:.4g} fits; take narrower bounds, or "
            "smaller weights"
        )
