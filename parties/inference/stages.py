"""A pass of a whole transformer as stages that both owners run one after the other: embedding, blocks, head.

A stage takes this owner's share of the previous output, and states beforehand the correlated randomness that it takes
and the messages that it sends. Every stage counts values out of range on shares. Before the head reveals the result to
the data owner, it opens one bit: whether that count is zero. The machines evaluate it; the program of a pass out of
range is not advanced any more.

    carried = Carried(input_share(public, images, pixels))
    for stage in stages(public, results=results):
        carried = ... stage.prepared(party, images, layers)(carried) ...
    result = logits(carried.share, results)  # Or labels.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final, Protocol

import torch
from torch.nn import functional

from tacit.parties.inference.block import BlockProgram, block_requests
from tacit.parties.inference.material import AnyBlockRequest, Fixed, Lookup, Narrow, correction_bytes
from tacit.parties.inference.model import PublicModel
from tacit.parties.inference.operations import DATA, MODEL, FixedLinear, NarrowValue, Party, Program, together
from tacit.parties.inference.private_model import AskedModel
from tacit.parties.inference.ranking import rankings, reduced, result_requests
from tacit.parties.inference.ring import shifted
from tacit.parties.inference.scales import Scales, mean_factor
from tacit.parties.inference.tables import LayerNormProgram, LookedUp, Range, layer_norm_requests
from tacit.protocol.inference.schedule import (
    LOGITS,
    PLACE,
    POOLED,
    RANGE,
    STREAM,
    WORD_BITS,
    Results,
    Sizes,
    block_layer_shapes,
    layer_shapes,
)

GROUP_WORDS: Final = 1 << 18
"""Most scores, or hidden values, of images that are computed together: larger temporaries exceed the processor's
caches, and the allocator returns them to the system each time, which together costs half as much again."""

COUNTED: Final = Lookup((), levels=PLACE)


@dataclass(frozen=True, repr=False)
class Carried:
    share: torch.Tensor
    """int64 [images, ...]."""
    outside: torch.Tensor = field(default_factory=lambda: torch.zeros((), dtype=torch.int64))
    """Share modulo 2^PLACE of the number of values out of range: never opened."""


Run = Callable[[Carried], Program[Carried]]


class PassStage(Protocol):
    @property
    def name(self) -> str: ...

    def requests(self, images: int, numbers: Mapping[str, int]) -> tuple[AnyBlockRequest, ...]: ...

    def prepared(self, party: Party, images: int, layers: Mapping[str, FixedLinear]) -> Run: ...


def material_bytes(stages: Iterable[PassStage], images: int, sizes: Sizes) -> tuple[int, int]:
    """Bytes that the dealer sends to the model owner, and to the data owner, for these stages of a pass of so many
    images."""
    numbers = {name: number for number, name in enumerate(layer_shapes(sizes))}
    sums = [0, 0]
    for stage in stages:
        for request in stage.requests(images, numbers):
            for rank in request.receivers:
                sums[rank] += correction_bytes(request)
    return sums[MODEL], sums[DATA]


@dataclass(frozen=True)
class ModelStage:
    name: str
    public: PublicModel
    layers: tuple[str, ...]
    """Names of its layers, see `layer_shapes`."""
    apart: bool = field(default=False, kw_only=True)
    """Compute images one by one, to count the values out of range of each."""

    def requests(self, images: int, numbers: Mapping[str, int]) -> tuple[AnyBlockRequest, ...]:
        """Requests that `prepared` passes to `Party.take`, in this order. Nothing is computed.

        numbers: by the name of a layer, the number of the request for the mask of its weight."""
        return tuple(request for group in self._groups(images) for request in self._requests(group, numbers))

    def prepared(self, party: Party, images: int, layers: Mapping[str, FixedLinear]) -> Run:
        """Prepare for one batch of so many images: take the correlated randomness, and compute all that does not depend
        on the images."""
        numbers = {name: layers[name].number for name in self.layers}
        groups = self._groups(images)
        runs = [self._prepared(party.supplied(self._requests(group, numbers)), group, layers) for group in groups]

        def run(carried: Carried) -> Program[Carried]:
            parts = zip(runs, torch.split(carried.share.to(party.device), groups), strict=True)
            found = yield from together([one(Carried(part)) for one, part in parts])
            counts = torch.stack([part.outside for part in found])
            outside = (counts if self.apart else counts.sum()) + carried.outside.to(party.device)
            return replace(carried, share=torch.cat([part.share for part in found]), outside=outside)

        return run

    def _requests(self, images: int, numbers: Mapping[str, int]) -> tuple[AnyBlockRequest, ...]:
        raise NotImplementedError

    def _prepared(self, party: Party, images: int, layers: Mapping[str, FixedLinear]) -> Run:
        raise NotImplementedError

    def _groups(self, images: int) -> list[int]:
        """Numbers of images computed together, group after group. The openings of a batch travel together."""
        sizes = self.public.sizes
        most = GROUP_WORDS // (sizes.tokens * max(sizes.heads * sizes.tokens, sizes.hidden))
        most = 1 if self.apart else max(1, most)
        return [min(most, images - start) for start in range(0, images, most)]

    def _sizes(self, name: str) -> tuple[int, int]:
        return layer_shapes(self.public.sizes)[name]


class Embedding(ModelStage):
    """Map the data owner's patches [B, P, C P P] to the stream [B, T, D]; includes the LayerNorm before the blocks, if
    any, with the scale of each channel as a linear layer behind it."""

    def _requests(self, images: int, numbers: Mapping[str, int]) -> tuple[AnyBlockRequest, ...]:
        sizes, before = self.public.sizes, self.public.embedding.norm_pre
        embedding = Fixed(MODEL, (images, sizes.patches), numbers["embedding"], self._sizes("embedding"), STREAM)
        if before is None:
            return (embedding,)
        scaled = Fixed(MODEL, (images, sizes.tokens), numbers["norm_pre"], self._sizes("norm_pre"), STREAM)
        return (embedding, scaled, *layer_norm_requests(self._stream(images), before.norm))

    def _prepared(self, party: Party, images: int, layers: Mapping[str, FixedLinear]) -> Run:
        sizes, before = self.public.sizes, self.public.embedding.norm_pre
        linear = layers["embedding"].prepared(party, (images, sizes.patches), STREAM)

        def embedded(carried: Carried) -> Program[torch.Tensor]:
            patches = yield from linear.multiplied("embedding", carried.share)
            stream = functional.pad(patches, (0, 0, sizes.prefix, 0))  # Other tokens have no pixels.
            if linear.linear.bias is not None:
                stream += linear.linear.bias
            return stream

        def run(carried: Carried) -> Program[Carried]:
            return Carried((yield from embedded(carried)))

        if before is None:
            return run
        scaled = layers["norm_pre"].prepared(party, (images, sizes.tokens), STREAM)
        norm = LayerNormProgram(party, "norm pre", self._stream(images), before.norm)

        def normalised(carried: Carried) -> Program[Carried]:
            normal, outside = yield from norm.run((yield from embedded(carried)))
            return Carried((yield from scaled.apply("norm pre", normal)), outside)

        return normalised

    def _stream(self, images: int) -> tuple[int, int, int]:
        return images, self.public.sizes.tokens, self.public.sizes.width


@dataclass(frozen=True)
class BlockStage(ModelStage):
    index: int

    @property
    def pool(self) -> bool:
        return self.public.sizes.is_pool(self.index)

    @property
    def scales(self) -> Scales:
        return self.public.blocks[self.index]

    def _requests(self, images: int, numbers: Mapping[str, int]) -> tuple[AnyBlockRequest, ...]:
        own = {_short(name): numbers[name] for name in self.layers}
        return block_requests(self.public.shape(images), self.scales, own, pool=self.pool)

    def _prepared(self, party: Party, images: int, layers: Mapping[str, FixedLinear]) -> Run:
        own = {_short(name): layers[name] for name in self.layers}
        program = BlockProgram(party, self.public.shape(images), self.scales, own, pool=self.pool)

        def run(carried: Carried) -> Program[Carried]:
            return Carried(*(yield from program.run(carried.share)))

        return run


@dataclass(frozen=True)
class Head(ModelStage):
    """Map the stream [B, T, D] to the revealed logits [B, classes], labels or features, if every value was in range."""

    results: Results

    def requests(self, images: int, numbers: Mapping[str, int]) -> tuple[AnyBlockRequest, ...]:
        results = result_requests(images, self.public.sizes.classes, self.results)
        return (*super().requests(images, numbers), COUNTED, *results)

    def _requests(self, images: int, numbers: Mapping[str, int]) -> tuple[AnyBlockRequest, ...]:
        linear = Fixed(MODEL, (images,), numbers["head"], self._sizes("head"), STREAM)
        pooled, norm = _pooled_request(self.public.sizes, images), self.public.head.norm
        return (
            linear,
            *(() if pooled is None else (pooled,)),
            *(() if norm is None else layer_norm_requests(self._normed(images), norm)),
        )

    def prepared(self, party: Party, images: int, layers: Mapping[str, FixedLinear]) -> Run:
        computed = super().prepared(party, images, layers)
        lookup = LookedUp(party, COUNTED)
        ready = rankings(party, images, self.public.sizes.classes, self.results)

        def run(carried: Carried) -> Program[Carried]:
            found = yield from computed(carried)
            yield from in_range(party, found.outside, lookup)
            return Carried((yield from reduced(party, found.share, self.public.head.logits, self.results, ready)))

        return run

    def _prepared(self, party: Party, images: int, layers: Mapping[str, FixedLinear]) -> Run:
        sizes = self.public.sizes
        linear = layers["head"].prepared(party, (images,), STREAM)
        request = _pooled_request(sizes, images)
        wide = None if request is None else _TokenExtension(party, request)
        scales = self.public.head.norm
        norm = None if scales is None else LayerNormProgram(party, "final norm", self._normed(images), scales)

        def run(carried: Carried) -> Program[Carried]:
            stream = carried.share
            if norm is None:
                assert wide is not None
                rows = yield from wide.run(stream[:, :1])
                return Carried((yield from linear.apply("head", rows[:, 0])))
            if wide is not None:
                tokens = yield from wide.run(stream[:, sizes.prefix :])
                rows = tokens.sum(1, keepdim=True) * mean_factor(sizes.patches)
            elif sizes.pooling == "mean of normalised":
                rows = stream[:, sizes.prefix :]
            else:
                rows = stream[:, : sizes.normed]
            normal, outside = yield from norm.run(rows)
            if sizes.pooling == "mean of normalised":
                normal = normal.sum(1)  # The weights are divided by their number.
            return Carried((yield from linear.apply("head", normal.reshape(images, -1))), outside)

        return run

    def _normed(self, images: int) -> tuple[int, int, int]:
        return images, self.public.sizes.normed, self.public.sizes.width


def _pooled_request(sizes: Sizes, images: int) -> Narrow | None:
    """Request for tokens that the head takes in a wider ring: the stream's has no room for their sum, or for their
    product with a weight. None otherwise."""
    if sizes.pooling == "mean":
        return Narrow((images, sizes.patches, sizes.width), POOLED, 1, None, STREAM)
    if sizes.pooling == "attention":
        return Narrow((images, 1, sizes.read), POOLED, 1, None, STREAM)
    return None


class _TokenExtension:
    """The POOLED highest bits of tokens, opened under a mask: shares of them modulo 2^STREAM. Used once."""

    def __init__(self, party: Party, request: Narrow) -> None:
        self._party = party
        self._value = NarrowValue(party, request.shape, request.bits, ring=request.words)

    def run(self, stream: torch.Tensor) -> Program[torch.Tensor]:
        """Shares modulo 2^STREAM, at the scale of the stream divided by 2^(STREAM - POOLED)."""
        highest = shifted(stream, STREAM, STREAM - POOLED)
        self._value.settle(*(yield from self._party.open("pooling", self._value.masked(highest))))
        return self._value.value()


def in_range(party: Party, outside: torch.Tensor, lookup: LookedUp) -> Program[None]:
    """Open whether all bits of a shared count are zero: words whose sum is 0 modulo 2^64 if so."""
    (place,) = yield from party.open("count", lookup.masked(outside))
    share = lookup.settle(place, Range(0, 1))
    yield from party.open(RANGE, (share << (WORD_BITS - PLACE), WORD_BITS))


def stages(public: PublicModel, *, results: Results = LOGITS) -> tuple[ModelStage, ...]:
    return (*backbone_stages(public), Head("head", public, ("head",), results))


def backbone_stages(public: PublicModel) -> tuple[ModelStage, ...]:
    blocks = (block_stage(public, index) for index in range(public.sizes.blocks))
    layers = ("embedding", "norm_pre") if public.sizes.norm_pre else ("embedding",)
    return (Embedding("embedding", public, layers), *blocks)


def block_stage(public: PublicModel, index: int) -> BlockStage:
    names = block_layer_shapes(public.sizes.width, public.sizes.hidden)
    return BlockStage(f"block {index}", public, tuple(f"{index}.{name}" for name in names), index)


def _short(name: str) -> str:
    return name.partition(".")[2]


def input_share(public: AskedModel, images: int, pixels: torch.Tensor | None) -> torch.Tensor:
    """An owner's input of a pass: the data owner's pixels [B, C, S, S] as rows of patches, or zeros.

    ValueError for pixels of another shape, that are not finite, or larger than the model owner allows."""
    sizes, scales = public.sizes, public.embedding
    if pixels is None:
        return torch.zeros(images, sizes.patches, sizes.pixels, dtype=torch.int64)
    expected = (images, sizes.channels, sizes.side, sizes.side)
    if tuple(pixels.shape) != expected:
        raise ValueError(f"images of shape {tuple(pixels.shape)} were given; the model takes {expected}")
    largest = pixels.abs().max().item()
    if not largest <= scales.largest:
        raise ValueError(
            f"an image reaches {largest:.6g}, the model takes pixels up to {scales.largest:.6g}: normalise images as "
            "for training"
        )
    rows = functional.unfold(pixels.double(), sizes.patch, stride=sizes.patch).transpose(1, 2)
    return encoded(rows, scales.pixel)


def encoded(x: torch.Tensor, scale: float) -> torch.Tensor:
    """Floats as integers, rounded to the nearest."""
    return (x.double() * scale).round().long()
