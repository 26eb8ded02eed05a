"""The passes of a session by CrypTen: embedding, blocks, head, each a stage on CrypTen's tensors.

The weight of a linear layer is masked once for a session, and a product costs one message of the data owner
(FixedLinear). computation.py has products of shared numbers, and truncation. There are no range checks: an image beyond
the interval of a polynomial gets a wrong result, and nobody learns it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any, ClassVar

import torch
from msgspec import structs
from torch.nn import functional

from tacit.parties.crypten.computation import META, Computation, Traced, as_program, shared, traced
from tacit.parties.crypten.student import BITS, PROTOCOL, PrivateStudent, PublicStudent, public_student
from tacit.parties.inference.data_owner import SessionKind
from tacit.parties.inference.material import AnyBlockRequest
from tacit.parties.inference.model_owner import ModelOwnerParty
from tacit.parties.inference.operations import DATA, FixedLinear, Party, PreparedLinear, Program
from tacit.parties.inference.passes import PassPlan
from tacit.parties.inference.ring import WORD_BITS, signed
from tacit.parties.inference.stages import Carried, PassStage, Run
from tacit.protocol.core.codec import Frame
from tacit.protocol.core.machine import Output, Step
from tacit.protocol.inference.data_owner import InferenceDataOwner
from tacit.protocol.inference.messages import Terms
from tacit.protocol.inference.model_owner import InferenceModelOwner
from tacit.protocol.inference.schedule import RESULT_BITS, Results, Round, layer_shapes
from tacit.protocol.inference.session import PassRounds
from tacit.protocol.inference.states import InferenceState

Products = Mapping[str, PreparedLinear]
"""Linear layers of a stage, prepared for one input, by their names in it."""
Compute = Callable[[Computation, Products, torch.Tensor], torch.Tensor]
"""Maps this party's share of the input to that of the output."""


@dataclass(frozen=True)
class CryptenStage:
    name: str
    public: PublicStudent
    layers: tuple[str, ...]
    """Names of its layers, see `layer_shapes`."""
    rows: tuple[int, ...]
    """Shape of a layer's input for an image, without the columns."""
    shape: tuple[int, ...]
    """Shape of the stage's input for an image."""
    compute: Compute
    like: CryptenStage | None = None
    """An earlier stage with the same requests and rounds, whose trace is used."""

    def requests(self, images: int, numbers: Mapping[str, int]) -> tuple[AnyBlockRequest, ...]:
        first = len(self.layers)
        found = self._traced(images).requests
        masks = zip(found[:first], self.layers, strict=True)
        return (*(structs.replace(request, weight=numbers[name]) for request, name in masks), *found[first:])

    def prepared(self, party: Party, images: int, layers: Mapping[str, FixedLinear]) -> Run:
        products = self._products(party, images, layers)
        supplied = party.supplied(self._traced(images).requests[len(self.layers) :])

        def run(carried: Carried) -> Program[Carried]:
            return Carried((yield from as_program(supplied, partial(self._computed, products, carried.share))))

        return run

    def rounds(self, images: int) -> tuple[Round, ...]:
        return self._traced(images).rounds

    def trace(self, images: int) -> Traced:
        def prepare(party: Party) -> Callable[[Computation], torch.Tensor]:
            shapes = layer_shapes(self.public.sizes)
            layers = {
                name: FixedLinear(0, torch.empty(shapes[name], dtype=torch.int64, device=META), None, WORD_BITS)
                for name in self.layers
            }
            products = self._products(party, images, layers)
            share = torch.empty((images, *self.shape), dtype=torch.int64, device=META)
            return partial(self._computed, products, share)

        return traced(prepare)

    def _traced(self, images: int) -> Traced:
        return _trace(self.like or self, images)

    def _computed(self, products: Products, share: torch.Tensor, computation: Computation) -> torch.Tensor:
        return self.compute(computation, products, share)

    def _products(self, party: Party, images: int, layers: Mapping[str, FixedLinear]) -> Products:
        return {
            name.rpartition(".")[2]: layers[name].prepared(party, (images, *self.rows), WORD_BITS)
            for name in self.layers
        }


@lru_cache(maxsize=1024)
def _trace(stage: CryptenStage, images: int) -> Traced:
    return stage.trace(images)


def _linear(computation: Computation, products: Products, name: str, share: torch.Tensor) -> torch.Tensor:
    product = computation.run(products[name].apply(name, share))
    return computation.truncated(product, 1 << BITS)


def _embedding(
    public: PublicStudent, computation: Computation, products: Products, share: torch.Tensor
) -> torch.Tensor:
    linear = products["embedding"]
    patches = computation.run(linear.multiplied("embedding", share))
    stream = functional.pad(patches, (0, 0, public.sizes.prefix, 0))  # Other tokens have no pixels.
    if linear.linear.bias is not None:
        stream = stream + linear.linear.bias
    return computation.truncated(stream, 1 << BITS)


def _block(
    public: PublicStudent, number: int, computation: Computation, products: Products, share: torch.Tensor
) -> torch.Tensor:
    def linear(name: str) -> Callable[[Any], Any]:
        return lambda x: shared(_linear(computation, products, name, x.share))

    found: torch.Tensor = public.block(number, linear)(shared(share)).share
    return found


def _head(
    public: PublicStudent, results: Results, computation: Computation, products: Products, share: torch.Tensor
) -> torch.Tensor:
    sizes, tokens = public.sizes, shared(share)
    if sizes.pooling in ("token", "two tokens"):
        rows = tokens[:, : sizes.normed]
    else:
        patches = tokens[:, sizes.prefix :]
        rows = patches.mean(1, keepdim=True) if sizes.pooling == "mean" else patches
    normal = public.norm()(rows)
    if sizes.pooling == "mean of normalised":
        normal = normal.mean(1, keepdim=True)
    read = normal.share.reshape(len(share), sizes.read)
    logits = _linear(computation, products, "head", read)
    if results.bits < BITS:
        logits = computation.truncated(logits, 1 << (BITS - results.bits))
    other = computation.run(computation.party.tell("result", (logits, RESULT_BITS), to=DATA))
    return torch.zeros_like(logits) if other is None else signed(logits + other, RESULT_BITS)


@lru_cache(maxsize=64)
def crypten_stages(public: PublicStudent, results: Results) -> tuple[CryptenStage, ...]:
    sizes = public.sizes
    stream, patches = (sizes.tokens, sizes.width), (sizes.patches, sizes.pixels)
    names = tuple(layer_shapes(sizes))
    passed = [CryptenStage("embedding", public, ("embedding",), patches[:1], patches, partial(_embedding, public))]
    kinds: dict[tuple[int, ...], CryptenStage] = {}
    for number in range(sizes.blocks):
        layers = tuple(name for name in names if name.startswith(f"{number}."))
        compute, like = partial(_block, public, number), kinds.get(public.kind(number))
        block = CryptenStage(f"block {number}", public, layers, stream[:1], stream, compute, like)
        kinds.setdefault(public.kind(number), block)
        passed.append(block)
    return (*passed, CryptenStage("head", public, ("head",), (), stream, partial(_head, public, results)))


def crypten_plan(public: PublicStudent, terms: Terms) -> PassPlan:
    passed: tuple[PassStage, ...] = crypten_stages(public, terms.results)
    return PassPlan(public, lambda number: passed, terms.sizes.classes)


def _rounds(terms: Terms, images: int) -> tuple[Round, ...]:
    stages = crypten_stages(public_student(terms), terms.results)
    return tuple(each for stage in stages for each in stage.rounds(images))


class _DataOwner(InferenceDataOwner):
    def _rounds_of(self, images: int) -> tuple[Round, ...]:
        return _rounds(self.agreed.terms, images)


class _ModelOwner(InferenceModelOwner):
    _passed: PassRounds | None = None

    def _rounds_of(self, images: int) -> tuple[Round, ...]:
        return _rounds(self.agreed.terms, images)

    def on_give(self, step: int, data: Frame, now: float) -> Step[InferenceState]:
        self._passed = self.at(PassRounds)
        return super().on_give(step, data, now)

    def _judged(self, in_range: bool | None) -> list[Output]:
        over = self._passed is not None and self._passed.over
        self._passed = None
        return super()._judged(True if over else in_range)


class CryptenSession(SessionKind):
    MACHINE: ClassVar[type[InferenceDataOwner]] = _DataOwner
    protocol: ClassVar[str] = PROTOCOL

    def __init__(self) -> None:
        super().__init__(lambda terms: crypten_plan(public_student(terms), terms))


class CryptenModelOwner(ModelOwnerParty):
    MACHINE: ClassVar[type[InferenceModelOwner]] = _ModelOwner

    def _planned(self, terms: Terms, model: PrivateStudent) -> PassPlan:
        return crypten_plan(model.public, terms)
