"""A transformer for private inference: its public sizes and scales, and its weights as integers.

The model owner measures the scales in the clear on typical images and sends them to the data owner. The data owner
refuses values beyond the limits declared here and in scales.py: within them, no value makes a party fail, allocate more
than the sizes permit, or compute anything but wrong numbers.

The scale and shift of LayerNorm are folded into the layer behind it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Annotated, Any, Final

import msgspec
import numpy as np
import torch
from msgspec import Meta

from tacit.models.datasets.samples import LEAST_CROP, Interpolation, Scaling
from tacit.models.friendly.calibration import block_ceiling, folded, logit_ceiling, token_ceiling
from tacit.models.friendly.transformer import Block, FriendlyTransformer, LayerNorm, LinearLayer, with_parameters
from tacit.parties.inference.ring import SPARE, WORD_BITS
from tacit.parties.inference.scales import (
    HEAD_INPUT,
    Scales,
    Shape,
    TypicalWeights,
    before_norm,
    checked_norm,
    coarse,
    fitted,
    fitted_norm,
    functions_of,
    mean_scale,
    measured,
    power_of_two,
    stream_scale,
)
from tacit.parties.inference.scores import VarianceBounds
from tacit.parties.inference.tables import BoundError, Norm, Positive
from tacit.parties.inference.waves import FitError, table_digest
from tacit.protocol.inference.schedule import POOLED, STREAM, VECTORS, Sizes, layer_shapes

_LOGITS: Final = 2.0**28
"""Scale of logits before truncation, unless they may be too large for it."""
_SMALLEST_SPREAD: Final = 2.0**-20
PRINTABLE: Final = r"^[^\x00-\x1f\x7f-\x9f]*$"
"""Excludes control characters, which a terminal would obey."""

Share = Annotated[float, Meta(ge=0.0, le=1.0)]


class NormPreScales(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    stream: Positive
    norm: Norm


class EmbeddingScales(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    pixel: Positive
    largest: Positive
    """Largest magnitude of a pixel."""
    norm_pre: NormPreScales | None = None
    """None without a LayerNorm before the blocks."""


class HeadScales(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    norm: Norm | None
    """None behind an attention pool."""
    logits: Positive
    """Scale before truncation."""


class Interface(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Input and output of a model, for people: all that a data owner cannot know of another party's model."""

    mean: tuple[Share, ...]
    """Mean of each channel's pixels, as a fraction of 255; it is subtracted from all images."""
    std: tuple[Annotated[float, Meta(gt=0.0, le=1.0)], ...]
    """Divisor of each channel after that."""
    white: Annotated[int, Meta(ge=1, le=255)]
    interpolation: Interpolation = "bilinear"
    """Interpolation of image files; with `squash` and `crop` as in tacit.models.datasets.samples.Scaling."""
    squash: bool = True
    crop: Annotated[float, Meta(ge=LEAST_CROP, le=1.0)] = 1.0
    classes: tuple[Annotated[str, Meta(min_length=1, max_length=256, pattern=PRINTABLE)], ...]
    """Class names, shown on the data owner's terminal; empty: results are features, not logits of classes."""

    @property
    def scaling(self) -> Scaling:
        return Scaling(interpolation=self.interpolation, squash=self.squash, crop=self.crop)


class PublicModel(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Made by `fitted_model`, or read from a model owner's message. ValueError for inconsistent parts."""

    sizes: Sizes
    waves: Annotated[bytes, Meta(min_length=32, max_length=32)]
    """Digest of the table of cosines (waves.py): owners whose tables differ in one unit get random results."""
    embedding: EmbeddingScales
    blocks: Annotated[tuple[Scales, ...], Meta(min_length=1)]
    head: HeadScales
    interface: Interface | None = None
    """None if both owners know it otherwise."""

    def __post_init__(self) -> None:
        if self.sizes.whole:
            raise ValueError("weights that are masked modulo 2^64 in every layer are of another protocol: CrypTen's")
        if self.waves != table_digest():
            raise ValueError(
                f"a table of cosines with the digest {self.waves.hex()}, where this party has one with "
                f"{table_digest().hex()}; both owners need the table of the specification"
            )
        if len(self.blocks) != self.sizes.blocks or any(scales.stream != self.stream for scales in self.blocks):
            raise ValueError(f"{self.sizes.blocks} blocks have as many scales, and the residual stream has one for all")
        for number, scales in enumerate(self.blocks):
            if scales.form != self.sizes.form(number):
                raise ValueError(f"block {number} has {scales.form}, and the sizes say {self.sizes.form(number)}")
        if (self.head.norm is None) is not (self.sizes.pooling == "attention"):
            raise ValueError(f"pooling = {self.sizes.pooling!r} is said of the sizes, and something else of the head")
        if (self.embedding.norm_pre is None) is self.sizes.norm_pre:
            raise ValueError(f"norm_pre = {self.sizes.norm_pre} is said of the sizes, and something else of the scales")
        if (interface := self.interface) is not None:
            sizes = self.sizes
            channels = (len(interface.mean), len(interface.std))
            if channels != (sizes.channels, sizes.channels) or len(interface.classes) not in (0, sizes.classes):
                raise ValueError(
                    f"{sizes.channels} channels have as many means and deviations, {sizes.classes} classes names, or "
                    "none"
                )

    @property
    def stream(self) -> float:
        return self.blocks[0].stream

    @property
    def epsilon(self) -> float:
        """Addend of the variance of the token that the head reads. ValueError unless it is the first alone."""
        if self.sizes.pooling != "token" or self.head.norm is None:
            raise ValueError(
                f"learning needs a model whose head reads its first token: this one has {self.sizes.pooling}"
            )
        return self.head.norm.variance.inverse.offset

    def shape(self, images: int) -> Shape:
        sizes = self.sizes
        return Shape(images=images, tokens=sizes.tokens, width=sizes.width, heads=sizes.heads, hidden=sizes.hidden)


@dataclass(frozen=True, repr=False)
class FittedModel:
    public: PublicModel
    balances: tuple[torch.Tensor, ...]
    """float64 [H]: factor of queries and divisor of keys, which balances their magnitudes."""


def fitted_model(transformer: FriendlyTransformer, images: torch.Tensor, *, margin: float) -> FittedModel:
    """Fit scales to typical images [N, C, S, S], with room for their values times the margin.

    ValueError for an unsupported model or images; BoundError for values that are too large for the rings, or have no
    bound."""
    if margin < 1:
        raise ValueError(f"a margin of {margin} is below 1")
    exact = with_parameters(transformer, lambda name, tensor: tensor.double())
    blocks: list[Block] = list(exact.blocks)  # type: ignore[arg-type]
    projection: Any = exact.patch_embed.proj
    sizes = Sizes(
        side=images.shape[-1],
        channels=images.shape[1],
        patch=exact.patch_size,
        width=exact.size[1],
        heads=blocks[0].attn.heads,
        hidden=blocks[0].mlp.fc1.weight.shape[0],
        blocks=len(blocks),
        classes=exact.head.weight.shape[0],
        prefix=exact.prefix,
        norm_pre=exact.norm_pre is not None,
        pooling=exact.pooling,
    )
    if sizes.tokens != exact.size[0]:
        raise ValueError(
            f"the model takes images of {exact.size[0] - exact.prefix} patches, not square ones of {sizes.side} pixels"
        )
    ceilings = [block_ceiling(block, sizes.tokens) for block in blocks]
    found, last = measured(exact, images, margin)
    largest = max(images.abs().max().item() * margin, _SMALLEST_SPREAD)
    shape = Shape(images=1, tokens=sizes.tokens, width=sizes.width, heads=sizes.heads, hidden=sizes.hidden)
    embedded = _embedded_norms(exact, largest)
    norm_pre = None if exact.norm_pre is None else _norm_pre(exact, images, embedded, margin)
    first = embedded if exact.norm_pre is None else _normalised_norms(exact.norm_pre)
    # A first scale, and a finer one when all norms are known.
    stream = 2.0**24
    reach: list[float] = []
    for _ in range(2):
        norms = first
        reach = []
        for index, ((bounds, _), ceiling) in enumerate(zip(found, ceilings, strict=True)):
            for variance, half in ((bounds.first_variance, ceiling.attention), (bounds.second_variance, ceiling.mlp)):
                reach.append(coarse(norms.before(variance)))
                with _named(f"block {index}"):
                    norms = norms.after(variance, half.norm, sizes.width, blocks[0].norm1.steps, stream, reach[-1])
        # The norm of a mean is at most the largest norm of its terms.
        last_norms = {"token": norms.first, "two tokens": max(norms.first, norms.others)}
        reach.append(coarse(last_norms.get(sizes.pooling, norms.others)))
        # Inference does not read the other tokens of the last block's output, adapters do.
        stream = stream_scale(max(*reach, norms.others))
    pixels, weights = (
        max(values.double().square().mean().sqrt().item(), _SMALLEST_SPREAD) for values in (images, projection.weight)
    )

    scales = []
    for index, (block, (bounds, balance), ceiling) in enumerate(zip(blocks, found, ceilings, strict=True)):
        with _named(f"block {index}"):
            scales.append(
                fitted(
                    shape,
                    bounds,
                    replace(ceiling, value=coarse(ceiling.value), hidden=coarse(ceiling.hidden)),
                    functions_of(block),
                    stream=stream,
                    norms=(reach[2 * index], reach[2 * index + 1]),
                    vector_entries=_entries(block, balance, sizes.tokens),
                    weights=_typical(block, balance),
                )
            )
    sizes = msgspec.structs.replace(sizes, forms=tuple(block.form for block in scales))
    entering = stream if norm_pre is None else norm_pre.stream
    pooled = mean_scale(sizes.patches) if sizes.pooling == "mean" else 1.0
    public = PublicModel(
        sizes=sizes,
        waves=table_digest(),
        embedding=EmbeddingScales(
            # As coarse for the pixels as for the weights, relative to their typical values.
            pixel=2.0 ** round(math.log2(entering * weights / pixels) / 2),
            largest=largest,
            norm_pre=norm_pre,
        ),
        blocks=tuple(scales),
        head=HeadScales(
            norm=None
            if exact.norm is None
            else fitted_norm(
                VarianceBounds(last),
                width=sizes.width,
                epsilon=exact.norm.eps,
                steps=exact.norm.steps,
                stream=stream * pooled,
                norm=reach[-1],
                normalised=HEAD_INPUT,
            ),
            logits=min(power_of_two(2.0 ** (STREAM - 2) / logit_ceiling(exact)), _LOGITS),
        ),
    )
    return FittedModel(public, tuple(balance for _, balance in found))


@contextmanager
def _named(part: str) -> Iterator[None]:
    try:
        yield
    except (BoundError, FitError) as error:
        raise type(error)(f"{part}: {error}") from error


@dataclass(frozen=True)
class TokenNorms:
    """Largest norms of tokens of the residual stream."""

    first: float
    """Norm of the first token, the class token if there is one."""
    others: float

    def before(self, bounds: VarianceBounds) -> float:
        first, others = bounds.lift
        return max(self.first * first, self.others * others)

    def after(
        self, bounds: VarianceBounds, half: float, width: int, steps: int | None, stream: float, reach: float
    ) -> TokenNorms:
        """Norms after the half of a block that begins with this LayerNorm, and adds at most `half` to a token."""
        norm = fitted_norm(
            bounds, width=width, epsilon=0.0, steps=steps, stream=stream, norm=reach, normalised=HEAD_INPUT
        )
        checked = checked_norm(norm, width, stream)
        found = (
            min(known, checked / lift) + half
            for known, lift in zip((self.first, self.others), bounds.lift, strict=True)
        )
        return TokenNorms(*(norm / SPARE for norm in found))


def _embedded_norms(exact: FriendlyTransformer, pixel: float) -> TokenNorms:
    """Bounds before any LayerNorm: norms of offsets, and for patches the pixels times the largest singular value."""
    projection: Any = exact.patch_embed.proj
    weight = projection.weight.flatten(1)
    patch = pixel * math.sqrt(weight.shape[1]) * torch.linalg.matrix_norm(weight, 2).item()
    norms = exact.offsets[0].norm(dim=-1)
    norms[exact.prefix :] = (norms[exact.prefix :] + patch).clamp(max=math.hypot(*token_ceiling(exact, pixel)))
    return TokenNorms(norms[0].item(), norms[1:].max().item())


def _norm_pre(exact: FriendlyTransformer, images: torch.Tensor, embedded: TokenNorms, margin: float) -> NormPreScales:
    """Scales of the LayerNorm before the blocks, whose input has a separate scale."""
    bounds, layer = before_norm(exact, images, margin), exact.norm_pre
    assert layer is not None
    norm = coarse(embedded.before(bounds))
    stream = stream_scale(norm)
    return NormPreScales(
        stream=stream,
        norm=fitted_norm(
            bounds,
            width=exact.size[1],
            epsilon=layer.eps,
            steps=layer.steps,
            stream=stream,
            norm=norm,
            normalised=HEAD_INPUT,
        ),
    )


def _normalised_norms(layer: LayerNorm) -> TokenNorms:
    """Bounds behind a LayerNorm, whose normalised values have a norm of sqrt(width) at most."""
    largest = layer.weight.abs().max().item() * math.sqrt(len(layer.weight)) + layer.bias.norm().item()
    return TokenNorms(largest / SPARE, largest / SPARE)


def _entries(block: Block, balance: torch.Tensor, tokens: int) -> tuple[float, float]:
    """Largest magnitudes of a query's entry, and of a centred key's entry, both balanced, by Cauchy-Schwarz (see
    models/friendly/calibration.py)."""
    weight, bias = folded(block.norm1, block.attn.qkv)
    width = weight.shape[1]
    entries = (weight.norm(dim=-1) * math.sqrt(width)).reshape(3, len(balance), -1)
    offsets = bias[:width].reshape(len(balance), -1)
    query = (entries[0] + offsets.abs()) * balance[:, None]
    key = 2 * (1 - 1 / tokens) * entries[1] / balance[:, None]
    return coarse(query.max().item()), coarse(key.max().item())


def _typical(block: Block, balance: torch.Tensor) -> TypicalWeights:
    """The weights of outputs in the middle: half of them have larger ones."""
    weight, _ = folded(block.norm1, block.attn.qkv)
    entries = weight.square().mean(-1).sqrt().reshape(3, len(balance), -1)

    def middle(rows: torch.Tensor) -> float:
        return rows.median().item()

    def added(layer: LinearLayer) -> float:
        return middle(_stream(layer, mean=False)[0].square().mean(-1).sqrt())

    return TypicalWeights(
        query=middle(entries[0] * balance[:, None]),
        key=middle(entries[1] / balance[:, None]),
        proj=added(block.attn.proj),
        fc2=added(block.mlp.fc2),
    )


WEIGHT_BITS_LIMIT: Final = 26
"""Most bits of the greatest entry of a weight, including the sign."""
LEAST_WEIGHT_BITS: Final = 5
"""Least bits of a typical entry of a column: rounding then changes each entry by one percent, and sums by far less."""


@dataclass(frozen=True, repr=False)
class IntegerWeight:
    """y = x words + bias."""

    words: torch.Tensor
    bias: torch.Tensor
    """int64 (out), at the scale of the product; of the embedding (tokens, out)."""
    bits: int
    """Bits of the greatest word, including the sign."""


def integer_model(
    transformer: FriendlyTransformer, public: PublicModel, balances: Sequence[torch.Tensor]
) -> dict[str, IntegerWeight]:
    """Integer weights of every layer, by the names and in the order of tacit.protocol.inference.schedule.layer_shapes.

    balances: of every block, see FittedModel. ValueError for a model that does not match the public one, and for
    weights that are too large, too coarse, or not finite."""
    pixel, norm_pre = public.embedding.pixel, public.embedding.norm_pre
    if (transformer.norm_pre is None) is not (norm_pre is None):
        raise ValueError("the model, or the public one, has a LayerNorm before the blocks, and the other has none")
    projection: Any = transformer.patch_embed.proj
    blocks: list[Block] = list(transformer.blocks)  # type: ignore[arg-type]
    if len(blocks) != public.sizes.blocks:
        raise ValueError(f"the model has {len(blocks)} blocks, the public one {public.sizes.blocks}")
    with torch.no_grad():
        offsets = _centred(with_parameters(transformer, lambda name, tensor: tensor.double()).offsets[0], -1)
        patches = _centred(projection.weight.double().flatten(1), 0)
    entering = public.stream if norm_pre is None else norm_pre.stream
    head, bias, before = _head(transformer, public)
    found = {
        "embedding": _integer("embedding", patches, offsets, pixel, entering),
        **_scaled(transformer.norm_pre, public),
        **{
            f"{index}.{name}": weight
            for index, (block, scales, balance) in enumerate(zip(blocks, public.blocks, balances, strict=True))
            for name, weight in integer_weights(block, scales, balance, public.sizes.tokens).items()
        },
        "head": _integer("head", head, bias, before, public.head.logits),
    }
    shapes = {name: tuple(weight.words.shape) for name, weight in found.items()}
    if list(shapes.items()) != list(layer_shapes(public.sizes).items()):
        raise ValueError(f"the model does not have the public sizes {public.sizes}")
    return found


def _head(transformer: FriendlyTransformer, public: PublicModel) -> tuple[torch.Tensor, torch.Tensor, float]:
    """Weight and bias of the head, and the scale of its input. Behind a pool the input is values and their mean."""
    if transformer.norm is None or public.head.norm is None:
        with torch.no_grad():
            weight = transformer.head.weight.double()
            bias = transformer.head.bias
            shift = torch.zeros(len(weight), dtype=torch.float64) if bias is None else bias.double()
        return torch.cat([weight, weight.sum(1, keepdim=True)], 1), shift, public.stream / 2.0 ** (STREAM - POOLED)
    weight, shift = folded(transformer.norm, transformer.head)
    if public.sizes.pooling == "mean of normalised":
        weight = weight / public.sizes.patches  # It reads their sum.
    return weight, shift, public.head.norm.normalised


def _scaled(layer: LayerNorm | None, public: PublicModel) -> dict[str, IntegerWeight]:
    """The scale of each channel of a LayerNorm before the blocks, as a linear layer."""
    before = public.embedding.norm_pre
    if layer is None or before is None:
        return {}
    weight, bias = folded(layer, LinearLayer(torch.eye(len(layer.weight)), None))
    integer = _integer("norm_pre", _centred(weight, 0), _centred(bias, 0), before.norm.normalised, public.stream)
    return {"norm_pre": integer}


def weight_octets(weights: Mapping[str, IntegerWeight]) -> Iterator[memoryview]:
    """Words and bias of every layer in order, as little-endian int64: the committed bytes."""
    for weight in weights.values():
        for words in (weight.words, weight.bias):
            yield np.ascontiguousarray(words.cpu().numpy(), "<i8").data.cast("B")


def integer_weights(block: Block, scales: Scales, balance: torch.Tensor, tokens: int) -> dict[str, IntegerWeight]:
    """Integer weights of every layer. ValueError for weights that are too large, too coarse, or not finite."""
    weight, bias = folded(block.norm1, block.attn.qkv)
    width = weight.shape[1]
    bias[width : 2 * width] = 0.0  # All keys have it, so it goes with their mean.
    balance = balance.repeat_interleave(width // len(balance))
    # Scales of the columns of a product, before truncation.
    joint = torch.cat(
        [
            balance * scales.query * 2.0 ** (WORD_BITS - VECTORS),
            scales.key / tokens * 2.0 ** (WORD_BITS - VECTORS) / balance,
            torch.full((width,), scales.value * 2.0 ** (WORD_BITS - STREAM), dtype=torch.float64),
        ]
    )
    hidden = scales.hidden * 2.0 ** (STREAM - scales.hidden_opened)
    return {
        "qkv": _integer("qkv", weight, bias, scales.first_norm.normalised, joint),
        "proj": _integer("proj", *_stream(block.attn.proj, mean=not block.residual), scales.mixed, scales.stream),
        "fc1": _integer("fc1", *folded(block.norm2, block.mlp.fc1), scales.second_norm.normalised, hidden),
        "fc2": _integer("fc2", *_stream(block.mlp.fc2, mean=not block.residual), scales.activated, scales.stream),
    }


def _stream(layer: LinearLayer, *, mean: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """Weight and bias of a layer that adds to the residual stream, without the mean that LayerNorm would remove. mean:
    append that mean as one more output."""
    with torch.no_grad():
        weight = layer.weight.double()
        bias = torch.zeros(len(weight), dtype=torch.float64) if layer.bias is None else layer.bias.double()
    means = (weight.mean(0, keepdim=True), bias.mean(0, keepdim=True)) if mean else (weight[:0], bias[:0])
    return torch.cat([_centred(weight, 0), means[0]]), torch.cat([_centred(bias, 0), means[1]])


def _centred(values: torch.Tensor, axis: int) -> torch.Tensor:
    return values - values.mean(axis, keepdim=True)


def _integer(
    name: str, weight: torch.Tensor, bias: torch.Tensor, before: float, after: float | torch.Tensor
) -> IntegerWeight:
    """Round a weight [out, in] whose input has the scale `before` and whose output has `after`."""
    scaled, shift = weight.double().T * after / before, bias * after
    if not bool(scaled.isfinite().all() and shift.isfinite().all()):
        raise ValueError(f"{name} holds a value that is not finite")
    words = scaled.round().long().contiguous()
    spread, least = scaled.square().mean(0).sqrt().max().item(), 2.0**LEAST_WEIGHT_BITS
    if 0 < spread < least:
        raise ValueError(
            f"{name}: weights of {spread:.3g} last bits on average are too coarse, {least:.0f} are needed: what they "
            "are multiplied by reaches too far beyond what is typical"
        )
    bits = int(words.abs().max()).bit_length() + 1
    if bits > WEIGHT_BITS_LIMIT:
        raise ValueError(f"{name}: a weight of {bits} bits is too large; {WEIGHT_BITS_LIMIT} fit")
    return IntegerWeight(words, shift.round().long(), bits)
