"""A pass of a whole transformer as stages that both owners run one after the other: embedding, blocks, head.

A stage takes this owner's share of what the one before it left, and says beforehand what material it takes and what it
sends. In the `known` mode every stage ends with a message that tells the data owner the stream: its share is the
stream itself then, and the model owner's is zero, which is how the next stage takes it. Of the head both modes tell
the data owner the result.

    share = input_share(public, images, pixels)
    for stage in stages(public, known=known):
        share = ... stage.prepared(party, images, layers)(share) ...
    result = logits(public, share)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

import torch
from torch.nn import functional

from tacit.parties.inference.block import BlockProgram, block_requests
from tacit.parties.inference.layer_norm import layer_norm, layer_norm_requests, normalised
from tacit.parties.inference.material import AnyBlockRequest, Fixed
from tacit.parties.inference.model import PublicModel
from tacit.parties.inference.operations import MODEL, FixedLinear, Party, Program, together
from tacit.parties.inference.scales import NORMALISED_SCALE, Lookup, Scales, encoded
from tacit.protocol.inference.schedule import FACTOR, block_layer_shapes, layer_shapes

GROUP_WORDS: Final = 1 << 18
"""Scores, or hidden values, of images that are computed together: temporaries of more leave the processor's caches, and
the allocator gives them back to the system each time, which together costs half as much again."""
Run = Callable[[torch.Tensor], Program[torch.Tensor]]
"""One use of a stage: from this owner's share of what goes in, to that of what comes out."""


@dataclass(frozen=True)
class ModelStage:
    """One of three kinds."""

    name: str
    public: PublicModel
    known: bool
    layers: tuple[str, ...]
    """Names of its layers, as in `layer_shapes`."""

    def requests(self, images: int, numbers: Mapping[str, int]) -> tuple[AnyBlockRequest, ...]:
        """What `prepared` asks `Party.take` for, in this order.

        numbers: by the name of a layer, the number of the request for the mask of its weight. Nothing is computed.
        """
        return tuple(request for group in self._groups(images) for request in self._requests(group, numbers))

    def prepared(self, party: Party, images: int, layers: Mapping[str, FixedLinear]) -> Run:
        """Ready for one batch of so many images: takes the material, computes what does not depend on the images."""
        numbers = {name: layers[name].number for name in self.layers}
        groups = self._groups(images)
        runs = [self._prepared(party.supplied(self._requests(group, numbers)), group, layers) for group in groups]

        def run(share: torch.Tensor) -> Program[torch.Tensor]:
            parts = zip(runs, torch.split(share.to(party.device), groups), strict=True)
            return torch.cat((yield from together([one(part) for one, part in parts])))

        return run

    def _requests(self, images: int, numbers: Mapping[str, int]) -> tuple[AnyBlockRequest, ...]:
        """Of one group."""
        raise NotImplementedError

    def _prepared(self, party: Party, images: int, layers: Mapping[str, FixedLinear]) -> Run:
        raise NotImplementedError

    def _groups(self, images: int) -> list[int]:
        """Images of a batch that are computed together, group after group. What a batch opens travels together."""
        sizes = self.public.sizes
        most = max(1, GROUP_WORDS // (sizes.tokens * max(sizes.heads * sizes.tokens, sizes.hidden)))
        return [min(most, images - start) for start in range(0, images, most)]

    def _sizes(self, name: str) -> tuple[int, int]:
        return layer_shapes(self.public.sizes)[name]

    def _known(self, party: Party, stream: torch.Tensor, norm: Lookup) -> torch.Tensor:
        """What the data owner computes from the stream that it was told; zeros at the model owner."""
        if party.rank == MODEL:
            return torch.zeros_like(stream)
        return encoded(normalised(stream.double() / self.public.stream, norm.curve), NORMALISED_SCALE)


class Embedding(ModelStage):
    """Patches [B, T - 1, C P P] of the data owner to the stream [B, T, D]."""

    def _requests(self, images: int, numbers: Mapping[str, int]) -> tuple[AnyBlockRequest, ...]:
        return (Fixed(MODEL, self._rows(images), numbers["embedding"], self._sizes("embedding")),)

    def _prepared(self, party: Party, images: int, layers: Mapping[str, FixedLinear]) -> Run:
        linear = layers["embedding"].prepared(party, self._rows(images))

        def run(share: torch.Tensor) -> Program[torch.Tensor]:
            patches = yield from linear.multiplied("embedding", share, FACTOR)
            stream = functional.pad(patches, (0, 0, 1, 0))  # The class token has no pixels.
            if linear.linear.bias is not None:
                stream += linear.linear.bias
            return (yield from party.told("result", stream, FACTOR)) if self.known else stream

        return run

    def _rows(self, images: int) -> tuple[int, int]:
        return images, self.public.sizes.tokens - 1


@dataclass(frozen=True)
class BlockStage(ModelStage):
    """The stream to the stream."""

    index: int

    @property
    def scales(self) -> Scales:
        """Those of this block."""
        return self.public.blocks[self.index]

    def _requests(self, images: int, numbers: Mapping[str, int]) -> tuple[AnyBlockRequest, ...]:
        own = {_short(name): numbers[name] for name in self.layers}
        return block_requests(self.public.shape(images), self.scales, own, known=self.known)

    def _prepared(self, party: Party, images: int, layers: Mapping[str, FixedLinear]) -> Run:
        own = {_short(name): layers[name] for name in self.layers}
        program = BlockProgram(party, self.public.shape(images), self.scales, own)

        def run(share: torch.Tensor) -> Program[torch.Tensor]:
            if not self.known:
                return (yield from program.run(share))
            stream = yield from program.run(share, self._known(party, share, self.scales.first_norm))
            return (yield from party.told("result", stream, FACTOR))

        return run


class Head(ModelStage):
    """The stream [B, T, D] to the logits [B, classes] of its class tokens."""

    def _requests(self, images: int, numbers: Mapping[str, int]) -> tuple[AnyBlockRequest, ...]:
        shape = (images, 1, self.public.sizes.width)
        linear = Fixed(MODEL, (images,), numbers["head"], self._sizes("head"))
        return (linear, *(() if self.known else layer_norm_requests(shape, self.public.head.norm)))

    def _prepared(self, party: Party, images: int, layers: Mapping[str, FixedLinear]) -> Run:
        linear = layers["head"].prepared(party, (images,))
        norm = self.public.head.norm

        def run(share: torch.Tensor) -> Program[torch.Tensor]:
            tokens = share[:, :1]
            if self.known:
                normal = self._known(party, tokens, norm)
            else:
                normal = yield from layer_norm(party, "final norm", tokens, norm)
            result = yield from linear.apply("head", normal[:, 0], FACTOR)
            return (yield from party.told("result", result, FACTOR))

        return run


def stages(public: PublicModel, *, known: bool) -> tuple[ModelStage, ...]:
    """Those of a pass, in order. known: whether the data owner is told what goes into every block."""
    names = tuple(block_layer_shapes(public.sizes.width, public.sizes.hidden))
    blocks = (
        BlockStage(f"block {index}", public, known, tuple(f"{index}.{name}" for name in names), index)
        for index in range(public.sizes.blocks)
    )
    return (Embedding("embedding", public, known, ("embedding",)), *blocks, Head("head", public, known, ("head",)))


def _short(name: str) -> str:
    """The name of a layer within its block."""
    return name.partition(".")[2]


def input_share(public: PublicModel, images: int, pixels: torch.Tensor | None) -> torch.Tensor:
    """What an owner begins a pass with: the data owner's pixels [B, C, S, S] as rows of patches, or zeros.

    ValueError for pixels of another shape, that are not finite, or larger than the model owner allows.
    """
    sizes, scales = public.sizes, public.embedding
    if pixels is None:
        return torch.zeros(images, sizes.tokens - 1, sizes.pixels, dtype=torch.int64)
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


def logits(public: PublicModel, share: torch.Tensor) -> torch.Tensor:
    """Float64 [B, classes], from what the data owner was told at the end."""
    return share.cpu().double() / public.head.logits
