"""An MPC-friendly vision transformer: additions and products only, one code path for the clear and for shares.

Inputs are torch tensors or shared tensors of CrypTen, and so are parameters (`with_parameters`): every operator here
exists for both, +, *, / by a whole number, matmul, sum, mean, square, reshape, permute, transpose. Shapes: B images, T
tokens, D their width, H heads.

Names, shapes and order of the parameters are those of timm's `VisionTransformer`. `convert` takes the weights of such a
model, and names whatever it cannot convert with the reason. In the clear the functions themselves can stand in the
place of their polynomials (`Approximation`): the layers are then timm's own, and a stock model runs unchanged.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import torch
from timm import layers as timm_layers
from timm.models import vision_transformer as timm_vit
from timm.models.vision_transformer import Block as TimmBlock
from timm.models.vision_transformer import VisionTransformer
from torch import nn
from torch.nn.functional import gelu

from tacit.models.friendly.polynomials import (
    Gauge,
    Interval,
    goldschmidt_inverse,
    goldschmidt_inverse_root,
    quadratic_gelu,
    scaled,
    taylor_exponential,
    whole,
)

AnyModule = TypeVar("AnyModule", bound=nn.Module)


@dataclass(frozen=True, kw_only=True)
class Approximation:
    """How functions are approximated. None stands for the function itself, and so does a GELU that is not quadratic.

    Raises ValueError for a degree or a number of steps below 1.
    """

    softmax_degree: int | None = 6
    """Of the Taylor series in the softmax. Even ones keep it positive."""
    inverse_steps: int | None = 7
    """Of Goldschmidt's iterations, in the softmax and in LayerNorm."""
    quadratic_gelu: bool = True
    """Whether a square stands for GELU."""

    def __post_init__(self) -> None:
        for name, value in (("softmax_degree", self.softmax_degree), ("inverse_steps", self.inverse_steps)):
            if value is not None and value < 1:
                raise ValueError(f"{name} = {value}: at least 1 is needed")


STOCK: Final = Approximation(softmax_degree=None, inverse_steps=None, quadratic_gelu=False)
"""All functions themselves, as timm computes them."""


class LinearLayer(nn.Module):
    """x W^T + b for W [out, in] and b [out], or None."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        super().__init__()
        self.weight = nn.Parameter(weight)
        self.bias = None if bias is None else nn.Parameter(bias)

    def forward(self, x: Any) -> Any:
        """[..., in] to [..., out]."""
        weight: Any = self.weight
        # On shares the weight may be a product that knows how to compute itself, at less cost than with a shared one.
        product = weight(x) if callable(weight) else x.matmul(weight.transpose(0, 1))
        return product if self.bias is None else product + self.bias


class LayerNorm(nn.Module):
    """(x - mean) / sqrt(variance + eps) * weight + bias over the last axis.

    x - mean is scaled first, so that its variance is at most 1.5^2 and the iteration for the inverse square root
    converges; the result does not depend on the scale.
    """

    def __init__(self, norm: nn.LayerNorm, approximation: Approximation) -> None:
        super().__init__()
        self.weight = nn.Parameter(norm.weight.detach().clone())
        self.bias = nn.Parameter(norm.bias.detach().clone())
        self.eps = norm.eps
        self.steps = approximation.inverse_steps
        self.variance = Gauge(positive=True, binding=self.steps is not None)
        self.centred = Gauge(positive=False, binding=False)

    def forward(self, x: Any) -> Any:
        """[B, T, D] to the same shape."""
        centred = x - x.mean(-1, keepdim=True)
        self.centred.note(centred)
        if self.steps is None:
            self.variance.note(centred, of=self._variance)
            normalised = centred / self._variance(centred).sqrt()
        else:
            bound = norm_bound(self.variance(centred, of=self._variance))
            centred = scaled(centred, bound)
            variance = centred.square().mean(-1, keepdim=True) + self.eps / bound**2
            normalised = centred * goldschmidt_inverse_root(variance, self.steps)
        return normalised * self.weight + self.bias

    def _variance(self, centred: Any) -> Any:
        return centred.square().mean(-1, keepdim=True) + self.eps


def norm_bound(variance: Interval) -> float:
    """What LayerNorm divides by, so that a variance up to `variance.high` becomes at most 1.5^2."""
    return whole(variance.high**0.5 / 1.5)


class Attention(nn.Module):
    """Multi-head self-attention with the Taylor softmax.

    The series is one around zero, and a softmax does not change when all scores of a row are shifted; so the rows are
    centred, by centring the keys, which costs no product. (The paper does not, and has a wider range to cover.) The
    sums of the exponentials divide the weighted values, not the weights: the same quotient, and fewer products.
    """

    def __init__(
        self, qkv: LinearLayer, proj: LinearLayer, *, heads: int, scale: float, approximation: Approximation
    ) -> None:
        super().__init__()
        self.qkv = qkv
        self.proj = proj
        self.heads = heads
        self.scale = scale
        self.degree = approximation.softmax_degree
        self.steps = approximation.inverse_steps
        self.queries = _gauges(heads)
        self.keys = _gauges(heads)
        self.products = Gauge(positive=False, binding=self.degree is not None)
        self.totals = Gauge(positive=True, binding=None not in (self.degree, self.steps))
        self.value = Gauge(positive=False, binding=False)

    def forward(self, x: Any) -> Any:
        """[B, T, D] to the same shape."""
        images, tokens, width = x.shape
        joint = self.qkv(x).reshape(images, tokens, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        query, key, value = joint[0], joint[1], joint[2]  # [B, H, T, D/H]
        key = key - key.mean(2, keepdim=True)
        for head in range(self.heads):
            self.queries[head].note(query, of=_norms(head))
            self.keys[head].note(key, of=_norms(head))
        self.value.note(value)
        products = query.matmul(key.transpose(2, 3))
        if self.degree is None:
            self.products.note(products)
            self.totals.note(products, of=self._totals)
            mixed = (products * self.scale).softmax(-1).matmul(value)
        else:
            bound = products_bound(self.products(products))
            powers = taylor_exponential(scaled(products, bound), self.scale * bound, self.degree)
            mixed = self._divided(powers.matmul(value), powers.sum(-1, keepdim=True))
        return self.proj(mixed.permute(0, 2, 1, 3).reshape(images, tokens, width))

    def _divided(self, weighted: Any, totals: Any) -> Any:
        if self.steps is None:
            self.totals.note(totals)
            return weighted / totals
        bound = whole(self.totals(totals).high)
        return scaled(weighted * goldschmidt_inverse(scaled(totals, bound), self.steps), bound)

    def _totals(self, products: torch.Tensor) -> torch.Tensor:
        return (products * self.scale).exp().sum(-1)


def _gauges(heads: int) -> Any:
    """For the norm of the vectors of every head."""
    return nn.ModuleList(Gauge(positive=False, binding=False) for _ in range(heads))


def _norms(head: int) -> Callable[[torch.Tensor], torch.Tensor]:
    """From vectors [B, H, T, D/H] the norms [B, T] of one head."""
    return lambda vectors: vectors[:, head].norm(dim=-1)


def products_bound(products: Interval) -> float:
    """What products of queries and keys are divided by, to be within -1 ... 1."""
    return whole(max(abs(products.low), abs(products.high)))


class Mlp(nn.Module):
    """Two linear layers with GELU between them, the quadratic one or GELU itself: x times the normal distribution's
    probability below x."""

    def __init__(self, fc1: LinearLayer, fc2: LinearLayer, approximation: Approximation) -> None:
        super().__init__()
        self.fc1 = fc1
        self.fc2 = fc2
        self.quadratic = approximation.quadratic_gelu
        self.hidden = Gauge(positive=False, binding=False)

    def forward(self, x: Any) -> Any:
        """[B, T, D] to the same shape."""
        hidden = self.fc1(x)
        self.hidden.note(hidden)
        return self.fc2(quadratic_gelu(hidden) if self.quadratic else gelu(hidden))


class Block(nn.Module):
    """A pre-norm transformer block."""

    def __init__(self, norm1: LayerNorm, attn: Attention, norm2: LayerNorm, mlp: Mlp) -> None:
        super().__init__()
        self.norm1 = norm1
        self.attn = attn
        self.norm2 = norm2
        self.mlp = mlp
        self.stream = Gauge(positive=False, binding=False)

    def forward(self, x: Any) -> Any:
        """[B, T, D] to the same shape."""
        middle = x + self.attn(self.norm1(x))
        output = middle + self.mlp(self.norm2(middle))
        for values in (x, middle, output):
            self.stream.note(values)
        return output


def with_parameters(module: AnyModule, make: Callable[[str, torch.Tensor], Any]) -> AnyModule:
    """A copy of a module whose parameters are what `make(name, tensor)` gives for them: shared tensors of the same
    shape, or for the weight of a LinearLayer a callable that multiplies by it. The copy is for evaluation only."""
    copied = copy.deepcopy(module).eval().requires_grad_(False)
    for path, part in copied.named_modules():
        for name, parameter in list(part.named_parameters(recurse=False)):
            delattr(part, name)
            setattr(part, name, make(f"{path}.{name}" if path else name, parameter.data))
    return copied


class Projection(nn.Module):
    """Patches to tokens: a convolution whose stride is its size, which is a product with one matrix."""

    def __init__(self, convolution: nn.Conv2d) -> None:
        super().__init__()
        self.weight = nn.Parameter(convolution.weight.detach().clone())
        bias = torch.zeros(convolution.out_channels) if convolution.bias is None else convolution.bias
        self.bias = nn.Parameter(bias.detach().clone())

    def forward(self, patches: Any) -> Any:
        """[B, T, C P P] to [B, T, D], without bias."""
        weight: Any = self.weight
        if callable(weight):
            return weight(patches)
        return patches.matmul(weight.reshape(self.bias.shape[0], patches.shape[-1]).transpose(0, 1))


class FriendlyTransformer(nn.Module):
    """A vision transformer with a class token, for images in the clear or patches on shares."""

    def __init__(
        self,
        *,
        cls_token: torch.Tensor,
        pos_embed: torch.Tensor,
        projection: Projection,
        blocks: list[Block],
        norm: LayerNorm,
        head: LinearLayer,
    ) -> None:
        super().__init__()
        self.cls_token = nn.Parameter(cls_token.detach().clone())
        self.pos_embed = nn.Parameter(pos_embed.detach().clone())
        self.patch_embed = nn.ModuleDict({"proj": projection})  # As timm names it.
        self.blocks = nn.Sequential(*blocks)
        self.norm = norm
        self.head = head
        self.pixel = Gauge(positive=False, binding=False)
        self.logits = Gauge(positive=False, binding=False)
        self.patch_size: int = projection.weight.shape[-1]
        self.size: tuple[int, ...] = tuple(pos_embed.shape[1:])
        """Tokens and their width."""

    def patches(self, images: torch.Tensor) -> torch.Tensor:
        """Images [B, C, S, S] as rows of pixels [B, 1 + patches, C P P]; the first row, of the class token, is zero.

        What their owner does before it shares them. ValueError for another size, or a pixel that is not finite.
        """
        batch, channels, height, width = images.shape
        edge = self.patch_size
        if height % edge or width % edge or 1 + (height // edge) * (width // edge) != self.size[0]:
            raise ValueError(
                f"images of {height} x {width} pixels do not have the {self.size[0] - 1} patches of {edge} x {edge} "
                "that this model takes"
            )
        if not bool(images.isfinite().all()):
            raise ValueError("an image holds a pixel that is not finite")
        grid = images.reshape(batch, channels, height // edge, edge, width // edge, edge)
        rows = grid.permute(0, 2, 4, 1, 3, 5).reshape(batch, self.size[0] - 1, channels * edge * edge)
        return torch.cat([torch.zeros_like(rows[:, :1]), rows], dim=1)

    def embed(self, patches: Any) -> Any:
        """Rows of `patches` to tokens [B, T, D] with their positions."""
        self.pixel.note(patches)
        first = torch.zeros(self.size[0], 1, dtype=torch.int64)
        first[0] = 1
        first = first.to(getattr(patches, "device", "cpu"))
        projection: Any = self.patch_embed.proj
        offsets = self.pos_embed + self.cls_token * first + projection.bias * (1 - first)
        return projection(patches) + offsets

    def classify(self, tokens: Any) -> Any:
        """Tokens after the last block, [B, T, D], to logits [B, classes]."""
        logits = self.head(self.norm(tokens[:, 0]))
        self.logits.note(logits)
        return logits

    def through_blocks(self, x: Any) -> Any:
        """Images [B, C, S, S] in the clear, or the rows of `patches` of either kind, to tokens [B, T, D] after the last
        block. Raises as `patches` does, and ActivationError (polynomials.py)."""
        return self.blocks(self.embed(self.patches(x) if x.dim() == 4 else x))

    def forward(self, x: Any) -> Any:
        """The same, to logits [B, classes]."""
        return self.classify(self.through_blocks(x))


# timm does not declare what it exports; attention is at this place in every version.
_layers: Any = timm_layers
_Attention: Any = vars(timm_vit)["Attention"]

_NOTHING: Final = (nn.Identity, nn.Dropout, _layers.DropPath)
"""Layers that do nothing in a trained model."""
_NORM: Final = (nn.LayerNorm, _layers.LayerNorm)
_LAYERS: Final[dict[str, tuple[tuple[type[nn.Module], ...], str]]] = {
    r"patch_embed": ((_layers.PatchEmbed,), "patches have to come from one convolution"),
    r"patch_embed\.proj": ((nn.Conv2d,), "patches have to come from one convolution"),
    r"blocks": ((nn.Sequential,), "the blocks have to follow each other"),
    r"blocks\.\d+": ((TimmBlock,), "only pre-norm blocks are supported"),
    r"blocks\.\d+\.norm[12]|norm": (_NORM, "only LayerNorm is supported"),
    r"blocks\.\d+\.attn": ((_Attention,), "only plain multi-head self-attention is supported"),
    r"blocks\.\d+\.attn\.(qkv|proj)": ((nn.Linear,), "only linear layers are supported"),
    r"blocks\.\d+\.mlp": ((_layers.Mlp,), "only two linear layers with GELU between them are supported"),
    r"blocks\.\d+\.mlp\.fc[12]|head": ((nn.Linear,), "only linear layers are supported"),
    r"blocks\.\d+\.mlp\.act": ((nn.GELU, _layers.GELU, _layers.GELUTanh), "only GELU is supported"),
}
"""What may stand where. Elsewhere only layers that do nothing may."""


class ConversionError(ValueError):
    """A model that cannot be converted; the message names every layer concerned, and why."""


def convert(model: nn.Module, approximation: Approximation) -> FriendlyTransformer:
    """The friendly form of timm's `VisionTransformer`, with copies of its weights, not calibrated.

    With the approximation STOCK it computes what timm's does. Dropout is left out. Raises ConversionError for another
    model or one with other layers, and where GELU itself is to be kept for one that is computed by a tanh.
    """
    if not isinstance(model, VisionTransformer):
        raise ConversionError(f"a {type(model).__name__} cannot be converted; only timm's VisionTransformer can")
    if problems := [*_wrong_layers(model), *_wrong_settings(model), *_other_gelu(model, approximation)]:
        raise ConversionError(f"the model cannot be converted: {'; '.join(problems)}")
    timm: Any = model
    friendly = FriendlyTransformer(
        cls_token=timm.cls_token,
        pos_embed=timm.pos_embed,
        projection=Projection(timm.patch_embed.proj),
        blocks=[_block(block, approximation) for block in timm.blocks],
        norm=LayerNorm(timm.norm, approximation),
        head=_linear(timm.head),
    )
    for name, part in friendly.named_modules():
        if isinstance(part, Gauge):
            part.name = name
    return friendly


def _block(block: Any, approximation: Approximation) -> Block:
    attention = Attention(
        _linear(block.attn.qkv),
        _linear(block.attn.proj),
        heads=block.attn.num_heads,
        scale=block.attn.scale,
        approximation=approximation,
    )
    return Block(
        LayerNorm(block.norm1, approximation),
        attention,
        LayerNorm(block.norm2, approximation),
        Mlp(_linear(block.mlp.fc1), _linear(block.mlp.fc2), approximation),
    )


def _linear(layer: nn.Linear) -> LinearLayer:
    bias: torch.Tensor | None = layer.bias
    return LinearLayer(layer.weight.detach().clone(), None if bias is None else bias.detach().clone())


def _wrong_layers(model: nn.Module) -> list[str]:
    problems: dict[str, str] = {}
    for name, layer in model.named_modules():
        if not name or any(name.startswith(f"{other}.") for other in problems):
            continue
        expected, reason = next(
            (found for pattern, found in _LAYERS.items() if re.fullmatch(pattern, name)),
            (_NOTHING, "the friendly transformer has no such layer"),
        )
        # Not isinstance: a subclass may compute something else.
        if type(layer) not in expected:
            problems[name] = reason
    kinds = dict(model.named_modules())
    return [f"{name} ({type(kinds[name]).__name__}): {reason}" for name, reason in problems.items()]


def _other_gelu(model: nn.Module, approximation: Approximation) -> list[str]:
    if approximation.quadratic_gelu:
        return []
    return [
        f"{name} ({type(layer).__name__}): only GELU itself is supported, not the one by a tanh"
        for name, layer in model.named_modules()
        if isinstance(layer, _layers.GELUTanh) or (isinstance(layer, nn.GELU) and layer.approximate != "none")
    ]


def _wrong_settings(model: Any) -> list[str]:
    norms = [(name, layer) for name, layer in model.named_modules() if type(layer) in _NORM]
    settings = {
        "global_pool": (model.global_pool != "token", "the class token has to be classified"),
        "cls_token": (model.cls_token is None, "there has to be a class token"),
        "reg_token": (getattr(model, "reg_token", None) is not None, "register tokens are not supported"),
        "pos_embed": (model.pos_embed is None, "there has to be a position embedding"),
        "no_embed_class": (model.no_embed_class, "the class token has to have a position"),
        "dynamic_img_size": (model.dynamic_img_size, "the size of the images has to be fixed"),
        **{
            name: (layer.weight is None or layer.bias is None, "LayerNorm has to have weight and bias")
            for name, layer in norms
        },
    }
    return [f"{name}: {reason}" for name, (wrong, reason) in settings.items() if wrong]
