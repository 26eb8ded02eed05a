"""One adapter on shares: forwards, and backwards to the derivatives by its parameters and by its input.

The products are those of models/adapters/gradients.py, one after the other, in its notation; between them stand lifts
(fixed_point.py). An activation x^2 / 8 + x / 4 + 1 / 2 comes with the lift of its argument, and its slope (x + 1) / 4
is a product with what that lift has opened. Forwards are nine rounds, backwards twelve. Nothing is opened but under a
mask.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Annotated, Final

import msgspec
import torch
from msgspec import Meta

from tacit.parties.adaptation.fixed_point import (
    ACTIVATION,
    ARGUMENT,
    CHECKED,
    DERIVATIVE,
    GRADIENT,
    PARAMETER,
    Cut,
    LiftOrProduct,
    RangeCheck,
    check_request,
    lift,
    lifted,
    lifted_times,
    made,
    matrices,
    multiplied,
    squares,
)
from tacit.parties.inference.material import AnyBlockRequest
from tacit.parties.inference.operations import NarrowValue, Party, Program
from tacit.parties.inference.ring import WORD_BITS, shifted, signed
from tacit.parties.inference.tables import CheckedSum

ACTIVATED: Final = 2 * ARGUMENT + 3
"""Fractional bits of x^2 / 8 + x / 4 + 1 / 2, computed as X^2 + 2^(ARGUMENT + 1) X + 2^(2 ARGUMENT + 2)."""
_ACTIVATION_FUNCTION: Final = (4 << (2 * ARGUMENT), 2 << ARGUMENT, 1)
LEAST_BACKWARDS: Final = 8
"""Fractional bits of derivatives, at least."""
_MIXED: Final = PARAMETER + ACTIVATED
"""Of what it is multiplied to."""
_SLOPE: Final = PARAMETER + ARGUMENT + 2
"""What a derivative that was multiplied by a parameter, and by the slope (x + 1) / 4, has too much."""


@dataclass(frozen=True, kw_only=True)
class AdapterSizes:
    """Of the adapters of one backbone, and a batch."""

    images: int
    tokens: int
    width: int
    rank: int

    @property
    def stream(self) -> tuple[int, int, int]:
        """Shape of what goes in and comes out [B, T, D]."""
        return (self.images, self.tokens, self.width)


class AdapterChecks(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Of sums of squares, each of one row; bounds.py says what follows from them."""

    inputs: CheckedSum
    """Of a token of z."""
    channels: CheckedSum
    """Of p of a token."""
    tokens: CheckedSum
    """Of a row of q."""
    derivatives: CheckedSum
    """Of a token of the derivative by h_l."""
    derivative_bits: Annotated[int, Meta(ge=0, le=DERIVATIVE)]
    """Fractional bits of the derivative that are looked at: what is possible is far more than what is in range."""
    backwards: Annotated[int, Meta(ge=LEAST_BACKWARDS, le=DERIVATIVE)]
    """Fractional bits of derivatives within an adapter."""

    @property
    def gradient(self) -> int:
        """Bits of derivatives by parameters that are lifted."""
        return WORD_BITS - (self.backwards + ACTIVATED - GRADIENT)


@dataclass(frozen=True, repr=False, kw_only=True)
class AdapterShares:
    """An owner's shares modulo 2^64 of an adapter's parameters, PARAMETER fractional bits; or of other bits, of
    derivatives by them."""

    channel_down: torch.Tensor
    """C_d [r, D]."""
    channel_up: torch.Tensor
    """C_u [D, r]."""
    token_down: torch.Tensor
    """T_d [r, T]."""
    token_up: torch.Tensor
    """T_u [T, r]."""
    scale: torch.Tensor
    """Factor alpha, without a dimension."""


def forward_requests(
    sizes: AdapterSizes, checks: AdapterChecks, *, sloped: bool = False
) -> tuple[AnyBlockRequest, ...]:
    """What `AdapterForwards` asks for, in this order."""
    found = _forward_rows(sizes, checks).values()
    return (*_forward_values(sizes, sloped=sloped).values(), *(check_request(rows, check) for rows, check in found))


def adapter_requests(sizes: AdapterSizes, checks: AdapterChecks) -> tuple[AnyBlockRequest, ...]:
    """What `AdapterProgram` asks for, in this order."""
    return (
        *forward_requests(sizes, checks, sloped=True),
        *_backward_values(sizes, checks).values(),
        check_request(_tokens_of(sizes), checks.derivatives),
    )


def _tokens_of(sizes: AdapterSizes) -> tuple[int, int]:
    return (sizes.images, sizes.tokens)


def _forward_rows(sizes: AdapterSizes, checks: AdapterChecks) -> dict[str, tuple[tuple[int, int], CheckedSum]]:
    """What is checked, by the name of its lift."""
    return {
        "z": (_tokens_of(sizes), checks.inputs),
        "lifted p": (_tokens_of(sizes), checks.channels),
        "lifted q": ((sizes.images, sizes.rank), checks.tokens),
    }


def _forward_values(sizes: AdapterSizes, *, sloped: bool) -> dict[str, LiftOrProduct]:
    images, tokens, width, rank = sizes.images, sizes.tokens, sizes.width, sizes.rank
    rows = images * tokens
    arguments, reduced = (images, tokens, rank), (images, rank, width)
    return {
        "z": lift(sizes.stream, bits=CHECKED, degree=2),
        "p": matrices((rows, width), (width, rank)),
        "lifted p": lift(arguments, bits=CHECKED, degree=2, factor=arguments if sloped else None),
        "c": matrices((rows, rank), (rank, width)),
        "lifted c": lift(sizes.stream),
        "q": matrices((rank, tokens), sizes.stream),
        "lifted q": lift(reduced, bits=CHECKED, degree=2, factor=reduced if sloped else None),
        "t": matrices((tokens, rank), reduced),
        "added": lift(sizes.stream, factor=(1, 1, 1)),
    }


def _backward_values(sizes: AdapterSizes, checks: AdapterChecks) -> dict[str, LiftOrProduct]:
    images, tokens, width, rank = sizes.images, sizes.tokens, sizes.width, sizes.rank
    rows, reduced = images * tokens, (images, rank, width)
    return {
        "e": lift(sizes.stream, factor=(1, 1, 1)),
        "e in range": lift(sizes.stream, bits=CHECKED, degree=2),
        "s": lift(sizes.stream),
        "T_u^T s": matrices((rank, tokens), sizes.stream),
        "dT_u": matrices((tokens, images * width), (images * width, rank)),
        "dalpha": matrices((1, rows * width), (rows * width, 1)),
        "dq": lift(reduced),
        "T_d^T dq": matrices((tokens, rank), reduced),
        "dT_d": matrices((rank, images * width), (images * width, tokens)),
        "dc": lift(sizes.stream),
        "dc C_u": matrices((rows, width), (width, rank)),
        "dC_u": matrices((width, rows), (rows, rank)),
        "dp": lift((images, tokens, rank)),
        "dC_d": matrices((rank, rows), (rows, width)),
        "dp C_d": matrices((rows, rank), (rank, width)),
        "gradient": lift((2 * rank * (tokens + width) + 1,), bits=checks.gradient),
    }


class AdapterForwards:
    """One use of an adapter. sloped: whether the slopes of the activations are wanted behind it."""

    def __init__(self, party: Party, sizes: AdapterSizes, checks: AdapterChecks, *, sloped: bool = False) -> None:
        self._party, self._sizes, self._scales = party, sizes, checks
        self._lifts, self._products = made(party, _forward_values(sizes, sloped=sloped))
        found = _forward_rows(sizes, checks)
        self._checks = {name: RangeCheck(party, rows, check) for name, (rows, check) in found.items()}

    def forwards(self, parameters: AdapterShares, z: torch.Tensor) -> Program[torch.Tensor]:
        """From z [B, T, D], ACTIVATION + PARAMETER fractional bits, to alpha (c + t), as many."""
        party, sizes, lifts, products = self._party, self._sizes, self._lifts, self._products
        self._parameters = parameters
        (z,) = yield from lifted(party, "adapter", (lifts["z"], Cut(z, PARAMETER)))
        self._z = z.reshape(-1, sizes.width)
        (p,) = yield from multiplied(
            party, "adapter", (products["p"], self._z, parameters.channel_down.T), check=self._check("z")
        )
        self._p, self._activated_p = yield from self._activated("lifted p", p.reshape(*z.shape[:2], -1))
        rows = self._activated_p.reshape(-1, sizes.rank)
        (c,) = yield from multiplied(
            party, "adapter", (products["c"], rows, parameters.channel_up.T), check=self._check("lifted p")
        )
        c = c.reshape(sizes.stream)
        (from_channels,) = yield from lifted(party, "adapter", (lifts["lifted c"], Cut(c, _MIXED - ACTIVATION)))
        self._middle = z + from_channels
        (q,) = yield from multiplied(party, "adapter", (products["q"], parameters.token_down, self._middle))
        self._q, self._activated_q = yield from self._activated("lifted q", q)
        (t,) = yield from multiplied(
            party, "adapter", (products["t"], parameters.token_up, self._activated_q), check=self._check("lifted q")
        )
        added = Cut(c + t, _MIXED - ACTIVATION)
        self._added, scaled = yield from lifted_times(
            party, "adapter", lifts["added"], added, parameters.scale.reshape(1, 1, 1)
        )
        return scaled

    @property
    def checks(self) -> Collection[RangeCheck]:
        """Afterwards: whether rows are in range."""
        return self._checks.values()

    def _check(self, name: str) -> RangeCheck:
        return self._checks[name].of(squares(self._lifts[name]))

    def _activated(self, name: str, argument: torch.Tensor) -> Program[tuple[NarrowValue, torch.Tensor]]:
        """An argument of ACTIVATION + PARAMETER fractional bits, lifted, and the function's share, ACTIVATED bits."""
        value = self._lifts[name]
        yield from lifted(self._party, "adapter", (value, Cut(argument, ACTIVATION + PARAMETER - ARGUMENT)))
        return value, value.polynomial(_ACTIVATION_FUNCTION)


class AdapterProgram(AdapterForwards):
    """One use of an adapter in one step of learning: `forwards`, then `backwards`."""

    def __init__(self, party: Party, sizes: AdapterSizes, checks: AdapterChecks) -> None:
        super().__init__(party, sizes, checks, sloped=True)
        lifts, products = made(party, _backward_values(sizes, checks))
        self._lifts |= lifts
        self._products |= products
        self._checks["e in range"] = RangeCheck(party, _tokens_of(sizes), checks.derivatives)

    def backwards(self, by_output: torch.Tensor) -> Program[tuple[torch.Tensor, AdapterShares]]:
        """From the derivative by h_l [B, T, D], DERIVATIVE + PARAMETER fractional bits, to that by h_(l - 1), as many,
        and those by the parameters, GRADIENT fractional bits; of the sum over the images."""
        party, sizes, lifts, products = self._party, self._sizes, self._lifts, self._products
        own, name, bits = self._parameters, "adapter backwards", self._scales.backwards
        fewer = DERIVATIVE - bits
        e, scaled = yield from lifted_times(
            party,
            name,
            lifts["e"],
            Cut(by_output, PARAMETER),
            own.scale.reshape(1, 1, 1),
            beside=(lifts["e in range"], Cut(by_output, PARAMETER + DERIVATIVE - self._scales.derivative_bits)),
        )
        (s,) = yield from lifted(
            party, name, (lifts["s"], Cut(scaled, PARAMETER + fewer)), check=self._check("e in range")
        )
        by_activated, by_up, by_scale = yield from multiplied(
            party,
            name,
            (products["T_u^T s"], own.token_up.T, s),
            (products["dT_u"], _tokens(s), _columns(self._activated_q)),
            (products["dalpha"], e.reshape(1, -1), self._added.reshape(-1, 1)),
        )
        q = yield from self._sloped(lifts["dq"], self._q, by_activated)
        through_tokens, by_down = yield from multiplied(
            party,
            name,
            (products["T_d^T dq"], own.token_down.T, q),
            (products["dT_d"], _tokens(q), _columns(self._middle)),
        )
        through_tokens = through_tokens << fewer
        (c,) = yield from lifted(party, name, (lifts["dc"], Cut(scaled + through_tokens, PARAMETER + fewer)))
        c = c.reshape(-1, sizes.width)
        by_activated, by_channel_up = yield from multiplied(
            party,
            name,
            (products["dc C_u"], c, own.channel_up),
            (products["dC_u"], c.T, self._activated_p.reshape(-1, sizes.rank)),
        )
        p = yield from self._sloped(lifts["dp"], self._p, by_activated.reshape(*self._activated_p.shape))
        p = p.reshape(-1, sizes.rank)
        by_channel_down, through_channels = yield from multiplied(
            party, name, (products["dC_d"], p.T, self._z), (products["dp C_d"], p, own.channel_down)
        )
        by_input = by_output + through_tokens + (through_channels.reshape(sizes.stream) << fewer)
        plain, activated = bits + ACTIVATION - GRADIENT, bits + ACTIVATED - GRADIENT
        found = {
            "channel_down": (by_channel_down, plain),
            "channel_up": (by_channel_up, activated),
            "token_down": (by_down, plain),
            "token_up": (by_up, activated),
            "scale": (by_scale.reshape(()), plain + fewer),
        }
        gradient = yield from self._gradient(found)
        return by_input, gradient

    def _sloped(self, result: NarrowValue, argument: NarrowValue, derivative: torch.Tensor) -> Program[torch.Tensor]:
        """A derivative that was multiplied by a parameter, times the slope at an argument; lifted."""
        party, name = self._party, "adapter backwards"
        (opened,) = yield from party.open(name, argument.masked_factor(derivative))
        sloped = argument.times(opened) + (derivative << ARGUMENT)
        (share,) = yield from lifted(party, name, (result, Cut(sloped, _SLOPE)))
        return share

    def _gradient(self, found: Mapping[str, tuple[torch.Tensor, int]]) -> Program[AdapterShares]:
        """Lift derivatives by parameters together: shares by name, and what is cut off them."""
        widest = max(by for _, by in found.values())
        # All in the ring of those that are cut most.
        cut = [_in_ring(share, by, WORD_BITS - widest) for share, by in found.values()]
        joint = torch.cat([share.reshape(-1) for share in cut])
        (joint,) = yield from lifted(
            self._party, "adapter backwards", (self._lifts["gradient"], Cut(joint, 0, WORD_BITS - widest))
        )
        parts = torch.split(joint, [share.numel() for share in cut])
        shaped = {
            name: part.reshape(share.shape) for (name, (share, _)), part in zip(found.items(), parts, strict=True)
        }
        return AdapterShares(**shaped)


def _in_ring(share: torch.Tensor, by: int, ring: int) -> torch.Tensor:
    return signed(shifted(share, WORD_BITS, by), ring)


def _tokens(x: torch.Tensor) -> torch.Tensor:
    """[B, n, D] as n rows of B D."""
    return x.transpose(0, 1).reshape(x.shape[1], -1)


def _columns(x: torch.Tensor) -> torch.Tensor:
    """[B, n, D] as B D rows of n."""
    return x.transpose(1, 2).reshape(-1, x.shape[1])
