"""One adapter on shares, forwards: g(z) = alpha (c + t), in the notation of models/adapters/gradients.py.

Between its products stand lifts (fixed_point.py). An activation x^2 / 8 + x / 4 + 1 / 2 comes with the lift of its
argument. Forwards are nine rounds. Every factor of a product is opened under one mask, as an operand that products
further back need as well (adapter_backwards.py): nothing is opened twice, and nothing but under a mask. Of the output
there are the tokens alone that something reads: behind the last adapter that is the head, which reads the class token.
"""

from __future__ import annotations

from collections.abc import Collection
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
    SLOPE,
    Cut,
    RangeCheck,
    check_request,
    lift,
    lifted,
    lifted_times,
    made,
    opened,
    squares,
)
from tacit.parties.inference.material import AnyBlockRequest, Narrow
from tacit.parties.inference.operands import Operands, products_request
from tacit.parties.inference.operations import Party, Program
from tacit.parties.inference.ring import WORD_BITS
from tacit.parties.inference.tables import CheckedSum

ACTIVATED: Final = 2 * ARGUMENT + 3
"""Fractional bits of x^2 / 8 + x / 4 + 1 / 2, computed as X^2 + 2^(ARGUMENT + 1) X + 2^(2 ARGUMENT + 2)."""
_ACTIVATION_FUNCTION: Final = (4 << (2 * ARGUMENT), 2 << ARGUMENT, 1)
LEAST_BACKWARDS: Final = 8
"""Fractional bits of derivatives, at least."""
_MIXED: Final = PARAMETER + ACTIVATED
"""Of what it is multiplied to."""


@dataclass(frozen=True, kw_only=True)
class AdapterSizes:
    """Of the adapters of one backbone, and a batch."""

    images: int
    tokens: int
    width: int
    rank: int
    read: int
    """Tokens R of the output that are read, from the first on."""
    first: bool = False
    """Whether nobody needs the derivative by the input: there is no adapter before it."""

    @property
    def stream(self) -> tuple[int, int, int]:
        """Shape of what goes in [B, T, D]."""
        return (self.images, self.tokens, self.width)

    @property
    def output(self) -> tuple[int, int, int]:
        """Shape of what comes out [B, R, D], and of the derivative by it."""
        return (self.images, self.read, self.width)


class AdapterChecks(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Of sums of squares, each of one row; bounds.py says what follows from them."""

    inputs: CheckedSum
    """Of a token of z."""
    channels: CheckedSum
    """Of p of a token."""
    tokens: CheckedSum
    """Of a row of q."""
    derivatives: CheckedSum
    """Of an image of the derivative by h_l."""
    derivative_bits: Annotated[int, Meta(ge=0, le=DERIVATIVE)]
    """Fractional bits of the derivative that are looked at: what is possible is far more than what is in range."""
    backwards: Annotated[int, Meta(ge=LEAST_BACKWARDS, le=DERIVATIVE)]
    """Fractional bits of derivatives within an adapter."""

    @property
    def gradient(self) -> int:
        """Bits of derivatives by parameters that are lifted: of products of a derivative that was multiplied by a
        slope, and cut, with an activation, cut to GRADIENT fractional bits."""
        return WORD_BITS - SLOPE - (self.backwards + ACTIVATION - GRADIENT)


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


Shapes = dict[str, tuple[int, ...]]
Formulas = dict[str, tuple[str, str, str]]
"""Products, as of `products_request`."""


def forward_requests(sizes: AdapterSizes, checks: AdapterChecks) -> tuple[AnyBlockRequest, ...]:
    """What `AdapterForwards` asks for by itself, in this order."""
    return (products_request(forward_operands(sizes), FORWARD_PRODUCTS), *forward_rest(sizes, checks))


def forward_rest(sizes: AdapterSizes, checks: AdapterChecks) -> tuple[AnyBlockRequest, ...]:
    """The same behind the products."""
    found = _checked_rows(sizes, checks).values()
    return (*_forward_lifts(sizes).values(), *(check_request(rows, check) for rows, check in found))


def tokens_of(sizes: AdapterSizes) -> tuple[int, int]:
    """Of a batch, each a row."""
    return (sizes.images, sizes.tokens)


def _checked_rows(sizes: AdapterSizes, checks: AdapterChecks) -> dict[str, tuple[tuple[int, int], CheckedSum]]:
    """What is checked, by the name of its lift."""
    return {
        "z": (tokens_of(sizes), checks.inputs),
        "p": (tokens_of(sizes), checks.channels),
        "q": ((sizes.images, sizes.rank), checks.tokens),
    }


def _forward_lifts(sizes: AdapterSizes) -> dict[str, Narrow]:
    images, tokens, width, rank = sizes.images, sizes.tokens, sizes.width, sizes.rank
    return {
        "z": lift(sizes.stream, bits=CHECKED, degree=2),
        "p": lift((images, tokens, rank), bits=CHECKED, degree=2),
        "c": lift(sizes.stream),
        "q": lift((images, rank, width), bits=CHECKED, degree=2),
        "c + t": lift(sizes.output, factor=(1, 1, 1)),
    }


def forward_operands(sizes: AdapterSizes) -> Shapes:
    """Shapes of the factors of products."""
    images, tokens, width, rank = sizes.images, sizes.tokens, sizes.width, sizes.rank
    return {
        "z": sizes.stream,
        "C_d": (rank, width),
        "f(p)": (images, tokens, rank),
        "C_u": (width, rank),
        "T_d": (rank, tokens),
        "u": sizes.stream,
        "T_u": (sizes.read, rank),
        "f(q)": (images, rank, width),
    }


FORWARD_PRODUCTS: Final[Formulas] = {
    "p": ("z", "C_d", "btd,rd->btr"),
    "c": ("f(p)", "C_u", "btr,dr->btd"),
    "q": ("T_d", "u", "rt,btd->brd"),
    "t": ("T_u", "f(q)", "tr,brd->btd"),
}
"""Letters: b images, t tokens, d channels, r of the rank."""


class AdapterForwards:
    """One use of an adapter. operands: those whose products go on behind it; `Operands` of its own without."""

    def __init__(
        self, party: Party, sizes: AdapterSizes, checks: AdapterChecks, operands: Operands | None = None
    ) -> None:
        self._party, self._sizes, self._scales = party, sizes, checks
        self._operands = operands or Operands(party, forward_operands(sizes), FORWARD_PRODUCTS)
        self._lifts, _ = made(party, _forward_lifts(sizes))
        found = _checked_rows(sizes, checks)
        self._checks = {name: RangeCheck(party, rows, check) for name, (rows, check) in found.items()}

    def forwards(self, parameters: AdapterShares, z: torch.Tensor) -> Program[torch.Tensor]:
        """From z [B, T, D], ACTIVATION + PARAMETER fractional bits, to alpha (c + t) [B, R, D], as many."""
        party, lifts, product, read = self._party, self._lifts, self._operands.product, self._sizes.read
        (z,) = yield from lifted(party, "adapter", (lifts["z"], Cut(z, PARAMETER)))
        yield from self._open({"z": z, "C_d": parameters.channel_down}, check=self._check("z"))
        activated = yield from self._activated("p", product("p"))
        yield from self._open({"f(p)": activated, "C_u": parameters.channel_up}, check=self._check("p"))
        c = product("c")
        (from_channels,) = yield from lifted(party, "adapter", (lifts["c"], Cut(c, _MIXED - ACTIVATION)))
        yield from self._open({"T_d": parameters.token_down, "u": z + from_channels})
        activated = yield from self._activated("q", product("q"))
        yield from self._open(
            {"T_u": parameters.token_up[:read], "f(q)": activated, **self._beside(parameters)}, check=self._check("q")
        )
        added = Cut(c[:, :read] + product("t"), _MIXED - ACTIVATION)
        _, scaled = yield from lifted_times(party, "adapter", lifts["c + t"], added, parameters.scale.reshape(1, 1, 1))
        return scaled

    @property
    def checks(self) -> Collection[RangeCheck]:
        """Afterwards: whether rows are in range."""
        return self._checks.values()

    def _beside(self, parameters: AdapterShares) -> dict[str, torch.Tensor]:
        """What else is opened."""
        return {}

    def _check(self, name: str) -> RangeCheck:
        return self._checks[name].of(squares(self._lifts[name]))

    def _open(self, shares: dict[str, torch.Tensor], *, check: RangeCheck | None = None) -> Program[None]:
        parts = [(name, Cut(share, 0)) for name, share in shares.items()]
        yield from opened(self._party, "adapter", self._operands, *parts, check=check)

    def _activated(self, name: str, argument: torch.Tensor) -> Program[torch.Tensor]:
        """An argument of ACTIVATION + PARAMETER fractional bits is lifted; the function's share, ACTIVATED bits."""
        value = self._lifts[name]
        yield from lifted(self._party, "adapter", (value, Cut(argument, ACTIVATION + PARAMETER - ARGUMENT)))
        return value.polynomial(_ACTIVATION_FUNCTION)
