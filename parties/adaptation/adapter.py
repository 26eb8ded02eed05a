"""One adapter on shares, forward and backward: g(z) = alpha (c + t), in the notation of models/adapters/gradients.py.

Ring extensions, called lifts (fixed_point.py), stand between the products. The activation x^2 / 8 + x / 4 + 1 / 2
comes with the lift of its argument. Every factor of a product is opened once, under one mask, and reused as an operand
of the backward products. Nothing is opened without a mask.

The forward pass takes nine rounds. It computes only the output tokens that a later step reads: behind the last adapter
that is the class token, for the head.

The backward pass takes the derivative e with respect to the output, and computes those with respect to the input and
the parameters, in eight rounds. All other factors were opened in the forward pass, so e is the only opening of the size
of the stream. Behind the last adapter it has the size of one token.

    S = alpha T_u,  U = alpha C_u,  K = T_d f(p)              before e is known, in rounds of the forward pass
    E_t = e f(q)^T,  E_c = e^T f(p)                           sums over the images
    dq = f'(q) * S^T e                                        [r, D] for every image
    k  = dq C_u                                               [r, r] for every image, instead of T_d^T dq [T, D]
    dp = f'(p) * (e U + T_d^T k)                              [T, r] for every image
    dT_u = alpha E_t,  dC_u = alpha E_c + dq^T K,  dalpha = <T_u, E_t> + <C_u, E_c>,  dT_d = dq u^T,  dC_d = dp^T z
    e += T_d^T dq + dp C_d

A slope (x + 1) / 4 is known before the other factor of its product, so lift and product take one round together. The
product is truncated, and opened in the remaining ring of SLOPED bits. Derivatives with respect to parameters are
truncated into one ring, and lifted together with those of other adapters.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Annotated, Final

import msgspec
import torch
from msgspec import Meta
from torch.nn.functional import pad

from tacit.parties.adaptation.fixed_point import (
    ACTIVATION,
    ARGUMENT,
    CHECKED,
    DERIVATIVE,
    GRADIENT,
    PARAMETER,
    SLOPE,
    SLOPED,
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
from tacit.parties.inference.operations import Operands, Party, Program, products_request
from tacit.parties.inference.ring import WORD_BITS, shifted, signed
from tacit.parties.inference.tables import CheckedSum

ACTIVATED: Final = 2 * ARGUMENT + 3
"""Fractional bits of x^2 / 8 + x / 4 + 1 / 2, computed as X^2 + 2^(ARGUMENT + 1) X + 2^(2 ARGUMENT + 2)."""
_ACTIVATION_FUNCTION: Final = (4 << (2 * ARGUMENT), 2 << ARGUMENT, 1)
LEAST_BACKWARDS: Final = 8
"""Smallest number of fractional bits of derivatives."""
_MIXED: Final = PARAMETER + ACTIVATED
"""Fractional bits of the values that an activation is multiplied with."""


@dataclass(frozen=True, kw_only=True)
class AdapterSizes:
    images: int
    tokens: int
    width: int
    rank: int
    read: int
    """Number R of output tokens that are read, counted from the first."""
    first: bool = False
    """True for the first adapter, which does not need the derivative with respect to its input."""

    @property
    def stream(self) -> tuple[int, int, int]:
        return (self.images, self.tokens, self.width)

    @property
    def output(self) -> tuple[int, int, int]:
        """Shape [B, R, D] of the output, and of the derivative with respect to it."""
        return (self.images, self.read, self.width)


class AdapterChecks(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Range checks on sums of squares, each over one row; bounds.py derives the bounds that follow from them."""

    inputs: CheckedSum
    """Squared norm of a token of z."""
    channels: CheckedSum
    """Squared norm of p of a token."""
    tokens: CheckedSum
    """Squared norm of a row of q."""
    derivatives: CheckedSum
    """Squared norm of one image's derivative with respect to h_l."""
    derivative_bits: Annotated[int, Meta(ge=0, le=DERIVATIVE)]
    """Fractional bits of the derivative that the check compares: its possible range far exceeds the permitted one."""
    backwards: Annotated[int, Meta(ge=LEAST_BACKWARDS, le=DERIVATIVE)]
    """Fractional bits of derivatives within an adapter."""

    @property
    def gradient(self) -> int:
        """Ring bits of the parameter derivatives that are lifted: products of a derivative that was multiplied by a
        slope and truncated, with an activation, truncated to GRADIENT fractional bits."""
        return WORD_BITS - SLOPE - (self.backwards + ACTIVATION - GRADIENT)


@dataclass(frozen=True, repr=False, kw_only=True)
class AdapterShares:
    """One owner's shares modulo 2^64 of an adapter's parameters (PARAMETER fractional bits), or of derivatives with
    respect to them (other fractional bits)."""

    channel_down: torch.Tensor
    """C_d [r, D]."""
    channel_up: torch.Tensor
    """C_u [D, r]."""
    token_down: torch.Tensor
    """T_d [r, T]."""
    token_up: torch.Tensor
    """T_u [T, r]."""
    scale: torch.Tensor
    """Factor alpha, a tensor without dimensions."""


Shapes = dict[str, tuple[int, ...]]
Formulas = dict[str, tuple[str, str, str]]


def forward_requests(sizes: AdapterSizes, checks: AdapterChecks) -> tuple[AnyBlockRequest, ...]:
    """Correlated randomness that `AdapterForwards` requests by itself, in this order."""
    return (products_request(forward_operands(sizes), FORWARD_PRODUCTS), *forward_rest(sizes, checks))


def forward_rest(sizes: AdapterSizes, checks: AdapterChecks) -> tuple[AnyBlockRequest, ...]:
    found = _checked_rows(sizes, checks).values()
    return (*_forward_lifts(sizes).values(), *(check_request(rows, check) for rows, check in found))


def tokens_of(sizes: AdapterSizes) -> tuple[int, int]:
    return (sizes.images, sizes.tokens)


def _checked_rows(sizes: AdapterSizes, checks: AdapterChecks) -> dict[str, tuple[tuple[int, int], CheckedSum]]:
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
"""Letters: b images, t tokens, d channels, r rank."""


class AdapterForwards:
    """One forward pass of an adapter. operands: operands shared with later products; None: its own `Operands`."""

    def __init__(
        self, party: Party, sizes: AdapterSizes, checks: AdapterChecks, operands: Operands | None = None
    ) -> None:
        self._party, self._sizes, self._scales = party, sizes, checks
        self._operands = operands or Operands(party, forward_operands(sizes), FORWARD_PRODUCTS)
        self._lifts, _ = made(party, _forward_lifts(sizes))
        found = _checked_rows(sizes, checks)
        self._checks = {name: RangeCheck(party, rows, check) for name, (rows, check) in found.items()}

    def forwards(self, parameters: AdapterShares, z: torch.Tensor) -> Program[torch.Tensor]:
        """Map z [B, T, D] to alpha (c + t) [B, R, D], both with ACTIVATION + PARAMETER fractional bits."""
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
        return self._checks.values()

    def _beside(self, parameters: AdapterShares) -> dict[str, torch.Tensor]:
        return {}

    def _check(self, name: str) -> RangeCheck:
        return self._checks[name].of(squares(self._lifts[name]))

    def _open(self, shares: dict[str, torch.Tensor], *, check: RangeCheck | None = None) -> Program[None]:
        parts = [(name, Cut(share, 0)) for name, share in shares.items()]
        yield from opened(self._party, "adapter", self._operands, *parts, check=check)

    def _activated(self, name: str, argument: torch.Tensor) -> Program[torch.Tensor]:
        """Lift an argument of ACTIVATION + PARAMETER fractional bits; return the function's share, ACTIVATED bits."""
        value = self._lifts[name]
        yield from lifted(self._party, "adapter", (value, Cut(argument, ACTIVATION + PARAMETER - ARGUMENT)))
        return value.polynomial(_ACTIVATION_FUNCTION)


WHOLE: Final = WORD_BITS - SLOPE
"""Ring bits of a derivative that was multiplied by a slope and truncated to `backwards` fractional bits."""
_FINER: Final = SLOPED - WHOLE
"""Additional bits that it keeps at its opening."""
_NAME: Final = "adapter backwards"
_SLOPE_FUNCTION: Final = (1 << ARGUMENT, 1)
"""Coefficients of (x + 1) / 4 with SLOPE fractional bits, for X with ARGUMENT bits."""

_PRODUCTS: Final[Formulas] = {
    **FORWARD_PRODUCTS,
    "S": ("alpha", "T_u", "a,tr->atr"),
    "U": ("alpha", "C_u", "a,dr->adr"),
    "K": ("T_d", "f(p)", "rt,btk->brk"),
    "S^T e": ("S", "e", "tr,btd->brd"),
    "e U": ("e", "U", "btd,dr->btr"),
    "E_t": ("e", "f(q)", "btd,brd->tr"),
    "E_c": ("e", "f(p)", "btd,btr->dr"),
    "T_d^T dq": ("T_d", "dq", "rt,brd->btd"),
    "dq u^T": ("dq", "u", "brd,btd->rt"),
    "k": ("dq", "C_u", "brd,dk->brk"),
    "dq^T K": ("dq", "K", "brd,brk->dk"),
    "alpha E_t": ("alpha", "E_t", "a,tr->atr"),
    "alpha E_c": ("alpha", "E_c", "a,dr->adr"),
    "<T_u, E_t>": ("T_u", "E_t", "tr,tr->"),
    "<C_u, E_c>": ("C_u", "E_c", "dr,dr->"),
    "T_d^T k": ("T_d", "k", "rt,brk->btk"),
    "dp^T z": ("dp", "z", "btr,btd->rd"),
    "dp C_d": ("dp", "C_d", "btr,rd->btd"),
}

_BY_INPUT: Final = ("T_d^T dq", "dp C_d")
"""Products that only the derivative with respect to the input needs."""


def _products(sizes: AdapterSizes) -> Formulas:
    return {name: formula for name, formula in _PRODUCTS.items() if not (sizes.first and name in _BY_INPUT)}


def adapter_requests(sizes: AdapterSizes, checks: AdapterChecks) -> tuple[AnyBlockRequest, ...]:
    return (
        products_request(_operands(sizes), _products(sizes)),
        *forward_rest(sizes, checks),
        *_lifts(sizes, checks).values(),
        check_request((sizes.images,), checks.derivatives),
    )


def _operands(sizes: AdapterSizes) -> Shapes:
    images, tokens, width, rank = sizes.images, sizes.tokens, sizes.width, sizes.rank
    return {
        **forward_operands(sizes),
        "alpha": (1,),
        "S": (sizes.read, rank),
        "U": (width, rank),
        "K": (images, rank, rank),
        "e": sizes.output,
        "E_t": (sizes.read, rank),
        "E_c": (width, rank),
        "dq": (images, rank, width),
        "k": (images, rank, rank),
        "dp": (images, tokens, rank),
    }


def _lifts(sizes: AdapterSizes, checks: AdapterChecks) -> dict[str, Narrow]:
    images, tokens, width, rank = sizes.images, sizes.tokens, sizes.width, sizes.rank
    small, reduced, channels = (sizes.read + width, rank), (images, rank, width), (images, tokens, rank)
    return {
        "e": lift(sizes.output),
        "e in range": lift(sizes.output, bits=CHECKED, degree=2),
        "S and U": lift(small),
        "K": lift((images, rank, rank)),
        "S^T e": lift(reduced, factor=reduced),
        "E": lift(small, bits=checks.gradient),
        "k": lift((images, rank, rank)),
        "by f(p)": lift(channels, factor=channels),
    }


class AdapterProgram(AdapterForwards):
    def __init__(self, party: Party, sizes: AdapterSizes, checks: AdapterChecks) -> None:
        super().__init__(party, sizes, checks, Operands(party, _operands(sizes), _products(sizes)))
        lifts, _ = made(party, _lifts(sizes, checks))
        self._lifts |= lifts
        self._checks["e in range"] = RangeCheck(party, (sizes.images,), checks.derivatives)

    def backwards(self, by_output: torch.Tensor) -> Program[AdapterShares]:
        """Map the derivative by h_l [B, R, D], DERIVATIVE + PARAMETER fractional bits modulo 2^(WHOLE + DERIVATIVE -
        backwards), to those by the parameters, summed over the images, GRADIENT fractional bits modulo 2^gradient."""
        party, operands, lifts, product = self._party, self._operands, self._lifts, self._operands.product
        bits, looked_at = self._scales.backwards, self._scales.derivative_bits
        fewer, gradient = DERIVATIVE - bits, self._scales.gradient
        ring = min(WHOLE + fewer, WORD_BITS)
        e, _, small, reduced = yield from lifted(
            party,
            _NAME,
            (lifts["e"], Cut(by_output, PARAMETER + fewer, ring)),
            (lifts["e in range"], Cut(by_output, PARAMETER + DERIVATIVE - looked_at, ring)),
            (lifts["S and U"], Cut(torch.cat([product("S")[0], product("U")[0]]), PARAMETER)),
            (lifts["K"], Cut(product("K"), PARAMETER + ACTIVATED - ACTIVATION)),
        )
        rows = [self._sizes.read, self._sizes.width]
        s, u = torch.split(small, rows)
        parts = {"e": e, "S": s, "U": u, "K": reduced}
        check = self._checks["e in range"].of(squares(lifts["e in range"]).sum(-1))
        yield from opened(party, _NAME, operands, *((n, Cut(each, 0)) for n, each in parts.items()), check=check)
        by_up = torch.cat([product("E_t"), product("E_c")])
        by_tokens = yield from self._sloped("S^T e", "q", product("S^T e"), by_up)
        by_token_up, by_channel_up = torch.split(lifts["E"].value(), rows)
        yield from opened(
            party,
            _NAME,
            operands,
            ("dq", Cut(by_tokens, SLOPE - _FINER)),
            ("E_t", Cut(by_token_up, 0)),
            ("E_c", Cut(by_channel_up, 0)),
        )
        (k,) = yield from lifted(party, _NAME, (lifts["k"], Cut(product("k"), PARAMETER + _FINER, SLOPED)))
        yield from opened(party, _NAME, operands, ("k", Cut(k, 0)))
        by_channels = yield from self._sloped("by f(p)", "p", self._padded(product("e U")) + product("T_d^T k"))
        yield from opened(party, _NAME, operands, ("dp", Cut(by_channels, SLOPE - _FINER)))
        by_activation = bits + _FINER + ACTIVATION - GRADIENT
        return AdapterShares(
            channel_down=_cut(product("dp^T z"), by_activation, gradient, SLOPED),
            channel_up=_cut(product("alpha E_c")[0], PARAMETER, gradient)
            + _cut(product("dq^T K"), by_activation, gradient, SLOPED),
            token_down=_cut(product("dq u^T"), by_activation, gradient, SLOPED),
            token_up=self._padded(_cut(product("alpha E_t")[0], PARAMETER, gradient)),
            scale=_cut(product("<T_u, E_t>") + product("<C_u, E_c>"), PARAMETER, gradient),
        )

    def by_input(self, by_output: torch.Tensor) -> torch.Tensor:
        """Return the derivative with respect to h_(l - 1) [B, T, D] after `backwards`, from the same argument and with
        as many bits; not for the first adapter."""
        one, other = (self._operands.product(name) for name in _BY_INPUT)
        return self._padded(by_output) + (shifted(one + other, SLOPED, _FINER) << DERIVATIVE - self._scales.backwards)

    def _padded(self, share: torch.Tensor) -> torch.Tensor:
        """Pad the last dimension but one with zeros for the tokens that nothing reads."""
        return pad(share, (0, 0, 0, self._sizes.tokens - self._sizes.read))

    def _beside(self, parameters: AdapterShares) -> dict[str, torch.Tensor]:
        return {"alpha": parameters.scale.reshape(1)}

    def _sloped(
        self, name: str, argument: str, derivative: torch.Tensor, beside: torch.Tensor | None = None
    ) -> Program[torch.Tensor]:
        """Lift a derivative of `backwards` + PARAMETER fractional bits and multiply it by the slope at an argument,
        which adds SLOPE bits. beside: derivatives by T_u and C_u that are lifted in the same round."""
        slope = self._lifts[argument].polynomial(_SLOPE_FUNCTION)
        by = self._scales.backwards + ACTIVATED - GRADIENT
        others = [] if beside is None else [(self._lifts["E"], Cut(beside, by))]
        _, sloped = yield from lifted_times(
            self._party, _NAME, self._lifts[name], Cut(derivative, PARAMETER), slope, *others
        )
        return sloped


def _cut(share: torch.Tensor, by: int, bits: int, ring: int = WORD_BITS) -> torch.Tensor:
    return signed(shifted(share, ring, by), bits)
