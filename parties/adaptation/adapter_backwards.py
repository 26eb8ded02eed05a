"""One adapter on shares, backwards: from the derivative e by its output to that by its input, and by its parameters.

What is multiplied by e, and by what follows from it, are operands that are open since the way forwards, so e is the
only thing of the size of the stream that is opened here, and of the size of a token behind the last adapter, whose
other tokens nothing reads:

    S = alpha T_u,  U = alpha C_u,  K = T_d f(p)              before e is known, in rounds that there are anyhow
    E_t = e f(q)^T,  E_c = e^T f(p)                           sums over the images
    dq = f'(q) * S^T e                                        [r, D] for every image
    k  = dq C_u                                               [r, r] for every image, instead of T_d^T dq [T, D]
    dp = f'(p) * (e U + T_d^T k)                              [T, r] for every image
    dT_u = alpha E_t,  dC_u = alpha E_c + dq^T K,  dalpha = <T_u, E_t> + <C_u, E_c>,  dT_d = dq u^T,  dC_d = dp^T z
    e += T_d^T dq + dp C_d

A slope (x + 1) / 4 is known before what it is multiplied by: it is the factor of a lift, so that lift and product are
one round. What a slope was multiplied to is cut, and opened in the ring of SLOPED bits that this leaves.
Backwards are eight rounds; derivatives by parameters are cut into one ring, to be lifted with those of other adapters.
"""

from __future__ import annotations

from typing import Final

import torch
from torch.nn.functional import pad

from tacit.parties.adaptation.adapter import (
    ACTIVATED,
    FORWARD_PRODUCTS,
    AdapterChecks,
    AdapterForwards,
    AdapterShares,
    AdapterSizes,
    Formulas,
    Shapes,
    forward_operands,
    forward_rest,
)
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
from tacit.parties.inference.operands import Operands, products_request
from tacit.parties.inference.operations import Party, Program
from tacit.parties.inference.ring import WORD_BITS, shifted, signed

WHOLE: Final = WORD_BITS - SLOPE
"""The ring of a derivative that was multiplied by a slope, and cut to `backwards` fractional bits."""
_FINER: Final = SLOPED - WHOLE
"""How many bits more it keeps where it is opened."""
_NAME: Final = "adapter backwards"
_SLOPE_FUNCTION: Final = (1 << ARGUMENT, 1)
"""Of X with ARGUMENT fractional bits: (x + 1) / 4 with SLOPE."""

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
"""Products of the derivative by the input alone."""


def _products(sizes: AdapterSizes) -> Formulas:
    """Those that somebody needs."""
    return {name: formula for name, formula in _PRODUCTS.items() if not (sizes.first and name in _BY_INPUT)}


def adapter_requests(sizes: AdapterSizes, checks: AdapterChecks) -> tuple[AnyBlockRequest, ...]:
    """What `AdapterProgram` asks for, in this order."""
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
    """One use of an adapter in one step of learning: `forwards`, `backwards`, and `by_input`."""

    def __init__(self, party: Party, sizes: AdapterSizes, checks: AdapterChecks) -> None:
        super().__init__(party, sizes, checks, Operands(party, _operands(sizes), _products(sizes)))
        lifts, _ = made(party, _lifts(sizes, checks))
        self._lifts |= lifts
        self._checks["e in range"] = RangeCheck(party, (sizes.images,), checks.derivatives)

    def backwards(self, by_output: torch.Tensor) -> Program[AdapterShares]:
        """From the derivative by h_l [B, R, D], DERIVATIVE + PARAMETER fractional bits modulo 2^(WHOLE + DERIVATIVE -
        backwards), to those by the parameters, of the sum over the images, GRADIENT fractional bits modulo
        2^gradient."""
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
        """Behind `backwards`, from what that took to the derivative by h_(l - 1) [B, T, D], in as many bits; not of the
        first adapter."""
        one, other = (self._operands.product(name) for name in _BY_INPUT)
        return self._padded(by_output) + (shifted(one + other, SLOPED, _FINER) << DERIVATIVE - self._scales.backwards)

    def _padded(self, share: torch.Tensor) -> torch.Tensor:
        """With zeros for the tokens, in the last dimension but one, that nothing reads."""
        return pad(share, (0, 0, 0, self._sizes.tokens - self._sizes.read))

    def _beside(self, parameters: AdapterShares) -> dict[str, torch.Tensor]:
        return {"alpha": parameters.scale.reshape(1)}

    def _sloped(
        self, name: str, argument: str, derivative: torch.Tensor, beside: torch.Tensor | None = None
    ) -> Program[torch.Tensor]:
        """A derivative of `backwards` + PARAMETER fractional bits, lifted, times the slope at an argument: SLOPE bits
        more than `backwards`. beside: derivatives by T_u and C_u that are lifted too."""
        slope = self._lifts[argument].polynomial(_SLOPE_FUNCTION)
        by = self._scales.backwards + ACTIVATED - GRADIENT
        others = [] if beside is None else [(self._lifts["E"], Cut(beside, by))]
        _, sloped = yield from lifted_times(
            self._party, _NAME, self._lifts[name], Cut(derivative, PARAMETER), slope, *others
        )
        return sloped


def _cut(share: torch.Tensor, by: int, bits: int, ring: int = WORD_BITS) -> torch.Tensor:
    """Modulo 2^bits, from 2^ring."""
    return signed(shifted(share, ring, by), bits)
