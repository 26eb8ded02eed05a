"""Fixed-point numbers on shares: the fractional bits of values between the products of a training step.

A shared value is an integer modulo 2^64 with a known number of fractional bits. A product has the fractional bits of
both factors. A *lift* brings it back: both owners truncate their shares, which leaves a value of few bits in a narrow
ring, and one opening under a mask extends the ring to modulo 2^64 again (`NarrowValue`,
parties/inference/operations.py). The value's magnitude must be below 2^(bits - 2). A lift costs 4 bytes of each owner.
The square of the value, or its product with a factor, comes with it without another message.

| value | fractional bits |
|---|---|
| activations | ACTIVATION |
| parameters in use, and standardised class tokens | PARAMETER |
| parameters in norm checks | LOOKED_AT |
| arguments of the activation function | ARGUMENT |
| derivatives by h, and by logits | DERIVATIVE |
| derivatives within an adapter | as many, or fewer: `AdapterChecks.backwards` |
| derivatives by parameters | GRADIENT |
| parameters as they are kept from step to step | KEPT |
| sums over adapters: h, and the derivative by it | ACTIVATION + PARAMETER, DERIVATIVE + PARAMETER |
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

import torch

from tacit.parties.inference.material import Lookup, Matrix, Narrow
from tacit.parties.inference.operations import MatrixValue, NarrowValue, Operands, Party, Program, Words
from tacit.parties.inference.ring import WORD_BITS, shifted, signed
from tacit.parties.inference.tables import CheckedSum, LookedUp, Range, outside
from tacit.protocol.adaptation.schedule import CHECKED as CHECKED
from tacit.protocol.adaptation.schedule import LIFTED as LIFTED
from tacit.protocol.adaptation.schedule import SLOPED as SLOPED
from tacit.protocol.adaptation.schedule import USED as USED
from tacit.protocol.inference.schedule import PLACE

ACTIVATION: Final = 14
PARAMETER: Final = 16
LOOKED_AT: Final = 10
ARGUMENT: Final = 12
SLOPE: Final = ARGUMENT + 2
"""Fractional bits of the slope (x + 1) / 4, computed as X + 2^ARGUMENT."""
DERIVATIVE: Final = 20
GRADIENT: Final = 18
KEPT: Final = 44
LiftOrProduct = Narrow | Matrix


def lift(
    shape: tuple[int, ...], *, bits: int = LIFTED, degree: int = 1, factor: tuple[int, ...] | None = None
) -> Narrow:
    return Narrow(shape, bits, degree, factor)


def matrices(left: tuple[int, ...], right: tuple[int, ...]) -> Matrix:
    """Request for a product modulo 2^64; the shapes broadcast as those of torch.matmul."""
    return Matrix("matmul", left, right)


class Cut(NamedTuple):
    share: torch.Tensor
    """Share modulo 2^ring."""
    by: int
    """Number of truncated fractional bits."""
    ring: int = WORD_BITS
    """At least as many bits remain as the lift opens."""


class RangeCheck:
    """Range check on sums of squares of a lifted value over its last dimension; it opens with a later message."""

    def __init__(self, party: Party, rows: tuple[int, ...], check: CheckedSum) -> None:
        self._check = check
        self._lookup = LookedUp(party, check_request(rows, check))
        self._squares = torch.zeros((), dtype=torch.int64)

    def of(self, squares: torch.Tensor) -> RangeCheck:
        self._squares = squares
        return self

    def masked(self) -> Words:
        place = shifted(self._squares * self._check.factor, WORD_BITS, WORD_BITS - PLACE)
        return self._lookup.masked(place)

    def settle(self, opened: torch.Tensor) -> None:
        self._lookup.place(opened)

    @property
    def compared(self) -> tuple[LookedUp, Range]:
        return self._lookup, self._check.limits


def rows_outside(checks: Iterable[RangeCheck]) -> torch.Tensor:
    """Share modulo 2^PLACE of the number of rows out of range, for checks that were opened; together, to share
    rounds."""
    by_levels: defaultdict[int, list[tuple[LookedUp, Range]]] = defaultdict(list)
    for check in checks:
        looked_up, limits = check.compared
        by_levels[looked_up.levels].append((looked_up, limits))
    counts = [each.sum() for several in by_levels.values() for each in outside(several)]
    return torch.stack(counts).sum()


def check_request(rows: tuple[int, ...], check: CheckedSum) -> Lookup:
    return Lookup(rows, levels=check.levels)


def squares(value: NarrowValue) -> torch.Tensor:
    """Shares modulo 2^64 of the sums of squares over the last dimension of a value lifted with degree 2."""
    return value.polynomial((0, 0, 1)).sum(-1)


def lifted(party: Party, operation: str, *parts: tuple[NarrowValue, Cut]) -> Program[list[torch.Tensor]]:
    """Lift values in one round: their shares modulo 2^64."""
    opened = yield from party.open(operation, *(value.masked(_cut(cut)) for value, cut in parts))
    for (value, _), words in zip(parts, opened, strict=True):
        value.settle(words)
    return [value.value() for value, _ in parts]


def lifted_times(
    party: Party,
    operation: str,
    value: NarrowValue,
    cut: Cut,
    factor: torch.Tensor,
    *beside: tuple[NarrowValue, Cut],
) -> Program[tuple[torch.Tensor, torch.Tensor]]:
    """Lift a value and multiply it by a factor modulo 2^64 in one round: both shares. beside: other values to lift."""
    both = [(value, cut), *beside]
    masked = [each.masked(_cut(part)) for each, part in both]
    opened_factor, *opened = yield from party.open(operation, value.masked_factor(factor), *masked)
    for (each, _), words in zip(both, opened, strict=True):
        each.settle(words)
    return value.value(), value.times(opened_factor)


def multiplied(
    party: Party, operation: str, *parts: tuple[MatrixValue, torch.Tensor, torch.Tensor]
) -> Program[list[torch.Tensor]]:
    """Products of matrices in one round: their shares modulo 2^64."""
    masked = [words for value, left, right in parts for words in (value.masked_left(left), value.masked_right(right))]
    opened = yield from party.open(operation, *masked)
    pairs = zip(opened[::2], opened[1::2], strict=True)
    return [value.settle(*pair) for (value, _, _), pair in zip(parts, pairs, strict=True)]


def opened(
    party: Party, operation: str, operands: Operands, *parts: tuple[str, Cut], check: RangeCheck | None = None
) -> Program[None]:
    """Open operands of products in one round, modulo 2 to the power of the bits left by truncation. check: a range
    check opened in the same message."""
    masked = [operands.masked(name, _cut(cut), cut.ring - cut.by) for name, cut in parts]
    if check is not None:
        masked.append(check.masked())
    words = yield from party.open(operation, *masked)
    if check is not None:
        check.settle(words.pop())
    for (name, _), sums in zip(parts, words, strict=True):
        operands.settle(name, sums)


def made(party: Party, requests: Mapping[str, LiftOrProduct]) -> tuple[dict[str, NarrowValue], dict[str, MatrixValue]]:
    """Lifts and products for these requests, in the order in which the party receives their correlated randomness."""
    lifts: dict[str, NarrowValue] = {}
    products: dict[str, MatrixValue] = {}
    for name, request in requests.items():
        if isinstance(request, Narrow):
            lifts[name] = NarrowValue(
                party, request.shape, request.bits, degree=request.degree, factor=request.factor, ring=request.words
            )
        else:
            products[name] = MatrixValue(party, request.left, request.right, request.words)
    return lifts, products


def _cut(cut: Cut) -> torch.Tensor:
    return shifted(cut.share, cut.ring, cut.by) if cut.by else signed(cut.share, cut.ring)
