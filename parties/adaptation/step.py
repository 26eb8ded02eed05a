"""One step of gradient descent on secret shares, for the adapters and the head of a frozen backbone, by one batch.

Both owners hold shares of block outputs, as a pass of private inference leaves them, and of the parameters; the data
owner knows the labels. After the step they hold shares of the updated parameters, as models/adapters/gradients.py
computes them in the clear, rounded as in fixed_point.py. All openings are masked. Not even the fact that the batch was
in range is opened. A batch with a value out of range, or with an image that was, leaves the parameters unchanged, and
its loss and correct answers count as zero:

    theta' = theta + b (theta_new - theta)

for the shared b, which is 1 if every value was in range and else 0. The new parameters are among the values compared
with bounds, so the selected ones are in range. b is shared modulo 2^64 as an integer, so the product is exact.

Parameters are kept with KEPT fractional bits modulo 2^64: those of a derivative plus those of the learning rate, which
is a multiple of 2^-(KEPT - GRADIENT). So a step adds a multiple of a share, without a message.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Final, Generic, TypeVar

import torch

from tacit.parties.adaptation.adapter import (
    AdapterChecks,
    AdapterForwards,
    AdapterProgram,
    AdapterShares,
    AdapterSizes,
    adapter_requests,
)
from tacit.parties.adaptation.bounds import StepScales
from tacit.parties.adaptation.fixed_point import (
    CHECKED,
    GRADIENT,
    KEPT,
    LOOKED_AT,
    PARAMETER,
    USED,
    Cut,
    RangeCheck,
    check_request,
    lift,
    lifted,
    matrices,
    multiplied,
    rows_outside,
)
from tacit.parties.adaptation.head import HeadProgram, HeadShares, HeadSizes, head_requests
from tacit.parties.inference.material import AnyBlockRequest, Lookup, Matrix, Narrow
from tacit.parties.inference.operations import MODEL, MatrixValue, NarrowValue, Party, Program
from tacit.parties.inference.ring import WORD_BITS
from tacit.parties.inference.tables import CheckedSum, LookedUp, Range
from tacit.protocol.adaptation.schedule import HEAD_TENSORS, READ, read_tokens
from tacit.protocol.inference.schedule import PLACE, STREAM

_RATE: Final = KEPT - GRADIENT
"""Fractional bits of a learning rate, divided by the images of a batch."""

Part = TypeVar("Part", AdapterShares, HeadShares)
Adapter = TypeVar("Adapter", bound=AdapterForwards)


@dataclass(frozen=True, kw_only=True)
class StepSizes:
    images: int
    tokens: int
    width: int
    classes: int
    adapters: int
    """One for every block; 0: linear probing."""
    rank: int

    @property
    def adapter(self) -> AdapterSizes:
        return AdapterSizes(images=self.images, tokens=self.tokens, width=self.width, rank=self.rank, read=self.tokens)

    @property
    def each(self) -> tuple[AdapterSizes, ...]:
        reads = enumerate(read_tokens(self.tokens, self.adapters))
        return tuple(replace(self.adapter, read=read, first=not number) for number, read in reads)

    @property
    def head(self) -> HeadSizes:
        return HeadSizes(images=self.images, width=self.width, classes=self.classes)

    @property
    def outputs(self) -> tuple[int, int, int, int]:
        """Shape of the block outputs that a step reads: of all blocks with adapters, else the tokens of the last block
        that the head reads."""
        if self.adapters:
            return self.adapters, *self.adapter.stream
        return 1, self.images, READ, self.width

    @property
    def kept(self) -> tuple[int, int, int]:
        layers, _, tokens, width = self.outputs
        return layers, tokens, width

    @property
    def parameters(self) -> int:
        each = 2 * self.rank * (self.tokens + self.width) + 1
        return self.adapters * each + self.classes * (self.width + 1)


@dataclass(frozen=True, repr=False, kw_only=True)
class ParameterShares:
    adapters: tuple[AdapterShares, ...]
    head: HeadShares


@dataclass(frozen=True, repr=False, kw_only=True)
class Stepped:
    parameters: ParameterShares
    """KEPT fractional bits; the parameters before the step if any value was out of range."""
    outside: torch.Tensor
    """Share modulo 2^PLACE of the number of values out of range: never opened."""
    refused: torch.Tensor
    """Share modulo 2^64 of 1 if any value was out of range, else of 0."""
    loss: torch.Tensor
    """Share of the sum of the losses before the step, see HeadResult; of 0 if any value was out of range."""
    correct: torch.Tensor
    """Share modulo 2^PLACE of the number of images classified correctly before the step; likewise."""


def step_requests(sizes: StepSizes, scales: StepScales) -> tuple[AnyBlockRequest, ...]:
    hidden = hidden_requests(sizes, scales, adapter_requests)
    return (
        *hidden,
        *head_requests(sizes.head, scales.head),
        _gradient(sizes, scales),
        *_norm_requests(sizes, scales),
        _COUNTED,
        _choice(sizes),
    )


_COUNTED: Final = Lookup((), levels=PLACE, words=WORD_BITS)
"""Comparison of the count of values out of range with zero, in the ring of the parameters."""


def _choice(sizes: StepSizes) -> Matrix:
    """Product of the parameters' move, the loss and the correct answers with one bit."""
    return matrices((sizes.parameters + 2, 1), (1, 1))


def _gradient(sizes: StepSizes, scales: StepScales) -> Narrow:
    return lift((sizes.parameters,), bits=scales.gradient)


def hidden_requests(
    sizes: StepSizes, scales: StepScales, asked: Callable[[AdapterSizes, AdapterChecks], tuple[AnyBlockRequest, ...]]
) -> tuple[AnyBlockRequest, ...]:
    """Correlated randomness that `HiddenProgram` requests, in this order. asked: the requests of an adapter."""
    checks = scales.adapter
    return (
        lift(sizes.outputs, bits=STREAM - scales.cut),
        lift((sizes.parameters,), bits=USED),
        *_norm_requests(sizes, scales),
        *(request for each in sizes.each if checks is not None for request in asked(each, checks)),
    )


def _norm_requests(sizes: StepSizes, scales: StepScales) -> tuple[AnyBlockRequest, ...]:
    return (
        lift((sizes.parameters,), bits=CHECKED, degree=2),
        *(check_request(rows, check) for rows, check in _tensors(sizes, scales).values()),
    )


def _tensors(sizes: StepSizes, scales: StepScales) -> dict[str, tuple[tuple[int, ...], CheckedSum]]:
    return {
        name: ((1,) if name in HEAD_TENSORS else (sizes.adapters,), check) for name, check in scales.parameters.items()
    }


class ParameterNorms:
    """Range check of every parameter tensor, for one use. `part` is lifted with other values, and `checked`
    afterwards."""

    def __init__(self, party: Party, sizes: StepSizes, scales: StepScales) -> None:
        self._party, self._sizes = party, sizes
        # Coarser than parameters in use, and wide enough for every possible parameter.
        self._value = NarrowValue(party, (sizes.parameters,), CHECKED, degree=2)
        self._named = {name: RangeCheck(party, rows, check) for name, (rows, check) in _tensors(sizes, scales).items()}

    def part(self, words: torch.Tensor) -> tuple[NarrowValue, Cut]:
        return self._value, Cut(words, KEPT - LOOKED_AT)

    def checked(self, operation: str) -> Program[None]:
        """Compare the norms of the lifted parameters with their bounds."""
        own = shaped(self._value.polynomial((0, 0, 1)), self._sizes)
        for name, check in self._named.items():
            parts = [own.head] if name in HEAD_TENSORS else own.adapters
            check.of(torch.stack([getattr(part, name).sum() for part in parts]))
        opened = yield from self._party.open(operation, *(check.masked() for check in self.checks))
        for check, words in zip(self.checks, opened, strict=True):
            check.settle(words)

    @property
    def checks(self) -> list[RangeCheck]:
        return [*self._named.values()]


class HiddenProgram(Generic[Adapter]):
    def __init__(
        self,
        party: Party,
        sizes: StepSizes,
        scales: StepScales,
        kind: Callable[[Party, AdapterSizes, AdapterChecks], Adapter],
    ) -> None:
        self._party, self._sizes, self._cut = party, sizes, scales.cut
        # Outputs that are halved less are doubled instead, so that one ring serves all.
        doubled = [max(scales.halvings) - times for times in scales.halvings] or [0]
        self._doubled = torch.tensor(doubled)[:, None, None, None]
        self._outputs = NarrowValue(party, sizes.outputs, STREAM - scales.cut)
        self._parameters = NarrowValue(party, (sizes.parameters,), USED)
        self._norms = ParameterNorms(party, sizes, scales)
        self.adapters = [kind(party, each, scales.adapter) for each in sizes.each if scales.adapter is not None]

    def run(self, parameters: ParameterShares, outputs: torch.Tensor) -> Program[tuple[HeadShares, torch.Tensor]]:
        """Map the arguments of `StepProgram.run` to the head's parameters, PARAMETER fractional bits, and its input
        tokens of h_L [B, READ, D], ACTIVATION + PARAMETER bits."""
        words = flat(parameters)
        lifted_outputs, lifted_parameters, _ = yield from lifted(
            self._party,
            "lift",
            (self._outputs, Cut(outputs << self._doubled, self._cut, STREAM)),
            (self._parameters, Cut(words, KEPT - PARAMETER)),
            self._norms.part(words),
        )
        own = shaped(lifted_parameters, self._sizes)
        yield from self._norms.checked("parameters")
        hidden = lifted_outputs[-1] << PARAMETER
        for program, adapter, output in zip(self.adapters, own.adapters, lifted_outputs, strict=False):
            added = yield from program.forwards(adapter, (output << PARAMETER) + hidden)
            hidden = hidden[:, : added.shape[1]] + added
        return own.head, hidden[:, :READ]

    @property
    def outside(self) -> torch.Tensor:
        """Share modulo 2^PLACE of the number of parameter tensors and rows out of range, after the pass and all
        backward passes of its adapters."""
        return rows_outside([*self._norms.checks, *(each for adapter in self.adapters for each in adapter.checks)])


class StepProgram:
    def __init__(self, party: Party, sizes: StepSizes, scales: StepScales) -> None:
        self._party, self._sizes, self._rate = party, sizes, scales.rate
        self._hidden = HiddenProgram(party, sizes, scales, AdapterProgram)
        self._head = HeadProgram(party, sizes.head, scales.head)
        self._gradient = NarrowValue(party, (sizes.parameters,), scales.gradient)
        self._norms = ParameterNorms(party, sizes, scales)
        self._counted = LookedUp(party, _COUNTED)
        choice = _choice(sizes)
        self._choice = MatrixValue(party, choice.left, choice.right, choice.words)

    def run(
        self,
        parameters: ParameterShares,
        outputs: torch.Tensor,
        labels: torch.Tensor | None,
        *,
        rate: float,
        outside: torch.Tensor,
    ) -> Program[Stepped]:
        """Run the step. ValueError for a rate that is too small or too large to represent, or above that of the bounds.

        outputs: shape `StepSizes.outputs`, modulo 2^STREAM, at the scale of the bounds; labels: int64 [B] at the data
        owner; outside: share modulo 2^PLACE of the number of values out of range before the step."""
        by = whole_rate(rate, self._sizes.images)
        if rate > self._rate:
            raise ValueError(f"a learning rate of {rate:g}: the bounds are for {self._rate:g} at most")
        head, hidden = yield from self._hidden.run(parameters, outputs)
        found = yield from self._head.run(head, hidden[:, 0], labels)
        derivative = found.by_token[:, None]
        gradients: list[AdapterShares] = []
        for number, program in reversed(list(enumerate(self._hidden.adapters))):
            gradients.insert(0, (yield from program.backwards(derivative)))
            if number:
                derivative = program.by_input(derivative)
        cut = Cut(flat(ParameterShares(adapters=tuple(gradients), head=found.gradient)), 0)
        (gradient,) = yield from lifted(self._party, "parameters backwards", (self._gradient, cut))
        move = -by * gradient
        yield from lifted(self._party, _AFTER, self._norms.part(flat(parameters) + move))
        yield from self._norms.checked(_AFTER)
        outside = outside + self._hidden.outside + found.outside + rows_outside(self._norms.checks)
        (place,) = yield from self._party.open("count", self._counted.masked(outside))
        refused = self._counted.settle(place, Range(0, 1))
        chosen = yield from self._chosen(refused, move, found.loss, found.correct)
        return Stepped(
            parameters=shaped(flat(parameters) + chosen[:-2], self._sizes),
            outside=outside,
            refused=refused,
            loss=chosen[-2],
            correct=chosen[-1],
        )

    def _chosen(self, refused: torch.Tensor, *parts: torch.Tensor) -> Program[torch.Tensor]:
        """Concatenated words, or as many zeros if any value was out of range."""
        in_range = int(self._party.rank == MODEL) - refused
        words = torch.cat([part.reshape(-1) for part in parts])
        product = (self._choice, words[:, None], in_range.reshape(1, 1))
        (chosen,) = yield from multiplied(self._party, "choice", product)
        return chosen[:, 0]


_AFTER: Final = "parameters after"


def whole_rate(rate: float, images: int) -> int:
    """A learning rate over so many images, in integer units. ValueError."""
    found = round(rate / images * 2.0**_RATE)
    if not 16 <= found <= 1 << _RATE:
        raise ValueError(
            f"a learning rate of {rate:g} for batches of {images} images is {found} units of 2^-{_RATE}; 16 to "
            f"{1 << _RATE} can be told on shares"
        )
    return found


def flat(parameters: ParameterShares) -> torch.Tensor:
    """All words [n], adapter after adapter, then the head."""
    each: list[AdapterShares | HeadShares] = [*parameters.adapters, parameters.head]
    return torch.cat([part.reshape(-1) for shares in each for part in _parts(shares)])


def _parts(each: AdapterShares | HeadShares) -> list[torch.Tensor]:
    return [getattr(each, field.name) for field in fields(each)]


def shaped(words: torch.Tensor, sizes: StepSizes) -> ParameterShares:
    rank, tokens, width, classes = sizes.rank, sizes.tokens, sizes.width, sizes.classes
    adapter = ((rank, width), (width, rank), (rank, tokens), (tokens, rank), ())
    rest = words

    def taken(kind: type[Part], shapes: Sequence[tuple[int, ...]]) -> Part:
        nonlocal rest
        parts = []
        for shape in shapes:
            count = math.prod(shape)
            parts.append(rest[:count].reshape(shape))
            rest = rest[count:]
        return kind(**{field.name: part for field, part in zip(fields(kind), parts, strict=True)})

    adapters = tuple(taken(AdapterShares, adapter) for _ in range(sizes.adapters))
    return ParameterShares(adapters=adapters, head=taken(HeadShares, ((classes, width), (classes,))))
