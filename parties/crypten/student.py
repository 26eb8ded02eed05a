"""A distilled student for CrypTen: its public part, its weights in fixed point, and a module of the public part.

Public are the sizes, the degrees of the polynomials, and the calibrated intervals, by which arguments are scaled. The
scale and shift of a LayerNorm are folded into the layer behind it, so that all secret numbers are weights and biases of
linear layers.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Final

import msgspec
import torch
from msgspec import Meta
from torch import nn

from tacit.models.friendly.calibration import folded
from tacit.models.friendly.polynomials import Gauge, Interval, whole
from tacit.models.friendly.transformer import (
    Approximation,
    Attention,
    Block,
    FriendlyTransformer,
    LayerNorm,
    LinearLayer,
    Mlp,
    norm_bound,
    products_bound,
    with_parameters,
)
from tacit.parties.inference.model import EmbeddingScales, IntegerWeight, Interface, weight_octets
from tacit.parties.inference.private_model import offered, stated
from tacit.protocol.core.primitives import digest
from tacit.protocol.inference.messages import Terms
from tacit.protocol.inference.schedule import Results, Sizes, layer_shapes
from tacit.protocol.inference.states import InferenceLabel

PROTOCOL: Final = "crypten"
BITS: Final = 16
LARGEST: Final = 2.0**12
"""Largest magnitude of interval ends, pixels and weights: a product of two is within the 2^30 that a truncation takes,
with room for a sum of 64 of them. Values must also be well above the last bit, 2^-16."""

Reach = Annotated[float, Meta(gt=0.0, le=LARGEST)]
Repeats = Annotated[int, Meta(ge=1, le=64)]


class BlockIntervals(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Largest magnitudes of the arguments of a block's polynomials, as calibrated."""

    first_variance: Reach
    products: Reach
    """Products of queries and keys."""
    totals: Reach
    """Sums of the exponentials of a row of scores."""
    second_variance: Reach


class PublicStudent(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="protocol", tag=PROTOCOL
):
    """Made by `prepared_student`, or read from a model owner's message. ValueError for inconsistent parts."""

    sizes: Sizes
    softmax_degree: Repeats
    inverse_steps: Repeats
    epsilon: Annotated[float, Meta(gt=0.0, le=1.0)]
    """Added to variances."""
    blocks: Annotated[tuple[BlockIntervals, ...], Meta(min_length=1)]
    last_variance: Reach
    interface: Interface

    def __post_init__(self) -> None:
        sizes, interface = self.sizes, self.interface
        if sizes.norm_pre or sizes.pooling == "attention":
            raise ValueError(_PARTS)
        if not sizes.whole:
            raise ValueError("weights that are masked modulo less than 2^64 are of another protocol than CrypTen's")
        if len(self.blocks) != sizes.blocks:
            raise ValueError(f"{sizes.blocks} blocks come with intervals of {len(self.blocks)}")
        if {len(interface.mean), len(interface.std)} != {sizes.channels} or len(interface.classes) not in (
            0,
            sizes.classes,
        ):
            raise ValueError(
                f"{sizes.channels} channels have as many means and deviations, {sizes.classes} classes names, or none"
            )

    @property
    def embedding(self) -> EmbeddingScales:
        return EmbeddingScales(pixel=2.0**BITS, largest=LARGEST)

    @property
    def approximation(self) -> Approximation:
        return Approximation(softmax_degree=self.softmax_degree, inverse_steps=self.inverse_steps)

    def block(self, number: int, linear: Callable[[str], Any]) -> Block:
        """A block without weights. linear: the product with the weight of a layer, by the layer's name."""
        sizes, own, chosen = self.sizes, self.blocks[number], self.approximation
        layers = {name: LinearLayer(torch.empty(0), None) for name in ("qkv", "proj", "fc1", "fc2")}
        scale = (sizes.width // sizes.heads) ** -0.5
        attention = Attention(layers["qkv"], layers["proj"], heads=sizes.heads, scale=scale, approximation=chosen)
        attention.products.interval = Interval(-own.products, own.products)
        attention.totals.interval = Interval(0.0, own.totals)
        mlp = Mlp(layers["fc1"], layers["fc2"], chosen)
        block = Block(self._norm(own.first_variance), attention, self._norm(own.second_variance), mlp)
        found: Block = _without_weights(block, lambda path: linear(path.split(".")[1]))
        return found

    def kind(self, number: int) -> tuple[int, ...]:
        """For each argument of a block whether it is divided, unchanged, or multiplied by an integer: blocks of one
        kind make the same requests and rounds."""
        own = self.blocks[number]
        bounds = (
            norm_bound(Interval(0.0, own.first_variance)),
            products_bound(Interval(-own.products, own.products)),
            whole(own.totals),
            norm_bound(Interval(0.0, own.second_variance)),
        )
        return tuple((bound > 1) - (bound < 1) for bound in bounds)

    def norm(self) -> LayerNorm:
        found: LayerNorm = _without_weights(self._norm(self.last_variance), lambda path: None)
        return found

    def _norm(self, variance: float) -> LayerNorm:
        norm = LayerNorm(nn.LayerNorm(self.sizes.width, eps=self.epsilon), self.approximation)
        norm.variance.interval = Interval(0.0, variance)
        return norm


def _without_weights(module: Any, linear: Callable[[str], Any]) -> Any:
    """A copy whose norms multiply by 1 and add 0, which is free on shares, and whose layers are `linear`."""

    def make(path: str, _weight: torch.Tensor) -> Any:
        owner, _, name = path.rpartition(".")
        if owner and not owner.startswith("norm"):
            return linear(path)
        return {"weight": 1, "bias": 0}[name]

    return with_parameters(module, make)


@dataclass(frozen=True)
class PrivateStudent:
    public: PublicStudent
    weights: Mapping[str, IntegerWeight] = field(repr=False)
    commitment: bytes

    def terms(self, *, most_images: int, most_batch: int, results: Results, audited: int) -> Terms:
        """See OwnedModel. ValueError for labels alone."""
        check_results(results)
        return offered(self, most_images, most_batch, results, audited)


def check_results(results: Results) -> None:
    """ValueError for results that this protocol cannot reveal. Both owners check: neither trusts the other."""
    if results.labels:
        raise ValueError(
            f'the protocol "{PROTOCOL}" reveals logits alone: labels alone need comparisons, which it has not'
        )


def public_student(terms: Terms) -> PublicStudent:
    """The model owner's description of its student. ValueError if it does not fit its terms."""
    public = stated(terms, PublicStudent)
    if public.sizes != terms.sizes:
        raise ValueError(f"intervals for {public.sizes} come with terms for {terms.sizes}")
    check_results(terms.results)
    return public


_PARTS: Final = (
    f'the protocol "{PROTOCOL}" computes students with neither a LayerNorm before their blocks nor an attention pool'
)


def prepared_student(model: FriendlyTransformer, interface: Interface, *, salt: bytes | None = None) -> PrivateStudent:
    """A calibrated student with its weights in fixed point; salt: of the commitment, see prepared_model().

    ValueError for a model that shares cannot compute: not calibrated, with functions other than polynomials, with
    intervals or weights beyond LARGEST, or with weights that are not finite."""
    blocks: list[Any] = list(model.blocks)
    norm = model.norm
    if norm is None or model.norm_pre is not None:
        raise ValueError(_PARTS)
    check_polynomials(model)
    projection: Any = model.patch_embed.proj
    channels, edge = projection.weight.shape[1:3]
    sizes = Sizes(
        side=math.isqrt(model.size[0] - model.prefix) * edge,
        channels=channels,
        patch=edge,
        width=model.size[1],
        heads=blocks[0].attn.heads,
        hidden=len(blocks[0].mlp.fc1.weight),
        blocks=len(blocks),
        classes=len(model.head.weight),
        prefix=model.prefix,
        pooling=model.pooling,
        whole=True,
    )
    if sizes.tokens != model.size[0]:
        raise ValueError(f"the model takes images of {model.size[0] - model.prefix} patches, not square ones")
    public = PublicStudent(
        sizes=sizes,
        softmax_degree=blocks[0].attn.degree,
        inverse_steps=norm.steps or 0,
        epsilon=norm.eps,
        blocks=tuple(
            BlockIntervals(
                first_variance=_reach(block.norm1.variance),
                products=_reach(block.attn.products),
                totals=_reach(block.attn.totals),
                second_variance=_reach(block.norm2.variance),
            )
            for block in blocks
        ),
        last_variance=_reach(norm.variance),
        interface=interface,
    )
    weights = _fixed_weights(model, blocks, norm)
    assert {name: tuple(each.words.shape) for name, each in weights.items()} == layer_shapes(sizes)
    salt = os.urandom(32) if salt is None else salt
    commitment = digest(InferenceLabel.WEIGHTS, salt, *weight_octets(weights))
    return PrivateStudent(public, weights, commitment)


def check_polynomials(model: FriendlyTransformer) -> None:
    """ValueError for a model with functions that shares cannot compute."""
    for part in model.modules():
        for name in ("degree", "steps", "quadratic"):
            if getattr(part, name, 1) in (None, False):
                raise ValueError(
                    f'the protocol "{PROTOCOL}" computes polynomials alone, and this model has the {_NAMES[name]} '
                    'itself: make a student of it with `tacit distill`, or take protocol "tacit"'
                )


_NAMES: Final = {"degree": "softmax", "steps": "LayerNorm", "quadratic": "GELU"}


def _reach(gauge: Gauge) -> float:
    if gauge.interval is None:
        raise ValueError(f"{gauge.name} is not calibrated; calibrate the model in the clear first")
    largest = max(map(abs, gauge.interval))
    if largest > LARGEST:
        raise ValueError(
            f"{gauge.name}: values up to {largest:.6g} are too large for fixed-point numbers, which take {LARGEST:g}; "
            "distil with a smaller largest_score"
        )
    return largest


def _fixed_weights(model: FriendlyTransformer, blocks: list[Any], norm: LayerNorm) -> dict[str, IntegerWeight]:
    exact = with_parameters(model, lambda name, tensor: tensor.double())
    projection: Any = model.patch_embed.proj
    layers: dict[str, tuple[torch.Tensor, torch.Tensor]] = {
        "embedding": (projection.weight.detach().double().flatten(1), exact.offsets[0].detach())
    }
    for number, block in enumerate(blocks):
        layers[f"{number}.qkv"] = folded(block.norm1, block.attn.qkv)
        layers[f"{number}.proj"] = _plain(block.attn.proj)
        layers[f"{number}.fc1"] = folded(block.norm2, block.mlp.fc1)
        layers[f"{number}.fc2"] = _plain(block.mlp.fc2)
    layers["head"] = folded(norm, model.head)
    return {name: _fixed(name, *layer) for name, layer in layers.items()}


def _plain(layer: LinearLayer) -> tuple[torch.Tensor, torch.Tensor]:
    weight = layer.weight.detach().double()
    bias = weight.new_zeros(len(weight)) if layer.bias is None else layer.bias.detach().double()
    return weight, bias


def _fixed(name: str, weight: torch.Tensor, bias: torch.Tensor) -> IntegerWeight:
    # Of the sum, not of each: neither is below it.
    if not max(weight.abs().max().item(), bias.abs().max().item()) <= LARGEST:
        raise ValueError(f"{name} holds a value that is not finite, or beyond {LARGEST:g}")
    words = (weight.T * 2.0**BITS).round().long().contiguous()
    bits = int(words.abs().max()).bit_length() + 1
    return IntegerWeight(words, (bias * 2.0 ** (2 * BITS)).round().long(), bits)
