"""Everything about a transformer that both owners know: its sizes and the scales of its numbers, no weights.

The model owner measures it in the clear on typical images and tells the data owner, who takes nothing that does not
stand within the limits declared here and in scales.py: within them, no value makes a party fail, allocate more than
the sizes permit, or compute anything but wrong numbers.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Annotated, Any, Final

import msgspec
import torch
from msgspec import Meta

from tacit.models.friendly.blocks import Block, with_parameters
from tacit.models.friendly.transformer import FriendlyTransformer
from tacit.parties.inference.material import Positive
from tacit.parties.inference.scales import (
    NORMALISED_SCALE,
    Bounds,
    Lookup,
    Scales,
    Shape,
    fitted,
    fitted_norm,
    measured,
    power_of_two,
    stream_scale,
)
from tacit.protocol.inference.schedule import FACTOR, Sizes

_HEAD_WEIGHT_SCALE: Final = 2.0**20
_SMALLEST_SPREAD: Final = 2.0**-20
PRINTABLE: Final = r"^[^\x00-\x1f\x7f-\x9f]*$"
"""Nothing that a terminal would obey."""

Share = Annotated[float, Meta(ge=0.0, le=1.0)]


class EmbeddingScales(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Of the patches."""

    pixel: Positive
    largest: Positive
    """Pixel, of either sign."""


class HeadScales(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Of the last LayerNorm and the linear layer behind it."""

    norm: Lookup
    logits: Positive


class Interface(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What goes in and what comes out, for people: all that a data owner cannot know of somebody else's model."""

    mean: tuple[Share, ...]
    """Of the pixels of every channel, as a fraction of 255; it is subtracted from all images."""
    std: tuple[Annotated[float, Meta(gt=0.0, le=1.0)], ...]
    """By which they are divided then."""
    white: Annotated[int, Meta(ge=1, le=255)]
    """The number of a white pixel."""
    classes: tuple[Annotated[str, Meta(min_length=1, max_length=256, pattern=PRINTABLE)], ...]
    """Their names, which the data owner's terminal shows."""


class PublicModel(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Made by `fitted_model`, or read from what the model owner said. ValueError for parts that do not fit."""

    sizes: Sizes
    embedding: EmbeddingScales
    blocks: Annotated[tuple[Scales, ...], Meta(min_length=1)]
    head: HeadScales
    interface: Interface | None = None
    """None where both ends know it from elsewhere."""

    def __post_init__(self) -> None:
        if len(self.blocks) != self.sizes.blocks or any(scales.stream != self.stream for scales in self.blocks):
            raise ValueError(f"{self.sizes.blocks} blocks have as many scales, and the residual stream has one for all")
        if (told := self.interface) is not None:
            sizes = self.sizes
            if (len(told.mean), len(told.std), len(told.classes)) != (sizes.channels, sizes.channels, sizes.classes):
                raise ValueError(
                    f"{sizes.channels} channels have as many means and deviations, {sizes.classes} classes names"
                )

    @property
    def stream(self) -> float:
        """The scale of the residual stream."""
        return self.blocks[0].stream

    def shape(self, images: int) -> Shape:
        """Sizes of a block's input."""
        sizes = self.sizes
        return Shape(images=images, tokens=sizes.tokens, width=sizes.width, heads=sizes.heads, hidden=sizes.hidden)


def fitted_model(transformer: FriendlyTransformer, images: torch.Tensor, *, margin: float) -> PublicModel:
    """Of a calibrated model, from typical images [N, C, S, S], whose largest values are widened by the margin.

    ValueError for a model or images that do not fit; BoundError for values that are too large for the rings.
    """
    exact = with_parameters(transformer, lambda name, tensor: tensor.double())
    rows = exact.patches(images.double())
    blocks: list[Block] = list(exact.blocks)  # type: ignore[arg-type]
    first, width = blocks[0], exact.size[1]
    projection: Any = exact.patch_embed.proj
    sizes = Sizes(
        side=images.shape[-1],
        channels=images.shape[1],
        patch=exact.patch_size,
        width=width,
        heads=first.attn.heads,
        hidden=first.mlp.fc1.weight.shape[0],
        blocks=len(blocks),
        classes=exact.head.weight.shape[0],
    )
    if sizes.tokens != exact.size[0]:
        raise ValueError(
            f"the model takes images of {exact.size[0] - 1} patches, not square ones of {sizes.side} pixels"
        )
    bounds = []
    with torch.no_grad():
        x = exact.embed(rows)
        for block in blocks:
            bounds.append(measured(block, x, margin=margin))
            x = block(x)
        logits = exact.classify(x)
    token = x[:, 0]
    centred = (token - token.mean(-1, keepdim=True)).abs().max().item() * margin
    bounds[-1] = replace(bounds[-1], centred=max(bounds[-1].centred, centred))
    shape = Shape(images=1, tokens=sizes.tokens, width=width, heads=sizes.heads, hidden=sizes.hidden)
    stream = min(stream_scale(shape, bound) for bound in bounds)
    variance, steps = exact.norm.variance.interval, exact.norm.steps
    if variance is None or steps is None:
        raise ValueError("the last LayerNorm is not calibrated, or no polynomial")
    # As coarse for the pixels as for the weights, beside what each of them typically is.
    pixels, weights = (
        max(values.double().square().mean().sqrt().item(), _SMALLEST_SPREAD) for values in (images, projection.weight)
    )
    return PublicModel(
        sizes=sizes,
        embedding=EmbeddingScales(
            pixel=2.0 ** round(math.log2(stream * weights / pixels) / 2),
            largest=max(images.abs().max().item() * margin, _SMALLEST_SPREAD),
        ),
        blocks=tuple(block_scales(block, shape, bound, stream) for block, bound in zip(blocks, bounds, strict=True)),
        head=HeadScales(
            norm=fitted_norm(width, stream, variance.high, steps=steps, eps=exact.norm.eps),
            logits=power_of_two(
                min(
                    2 ** (FACTOR - 2) / (max(logits.abs().max().item(), _SMALLEST_SPREAD) * margin),
                    NORMALISED_SCALE * _HEAD_WEIGHT_SCALE,
                )
            ),
        ),
    )


def block_scales(block: Block, shape: Shape, bounds: Bounds, stream: float) -> Scales:
    """The scales of a calibrated block; stream: of the residual stream. BoundError if values are too large."""
    degree, steps = block.attn.degree, block.attn.steps
    assert degree is not None  # `measured` has refused it.
    assert steps is not None
    epsilons = (block.norm1.eps, block.norm2.eps)
    return fitted(shape, bounds, scale=block.attn.scale, degree=degree, steps=steps, epsilons=epsilons, stream=stream)
