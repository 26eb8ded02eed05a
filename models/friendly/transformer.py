"""An MPC-friendly vision transformer: additions and products only, one code path for the clear and for shares.

Inputs and parameters are torch tensors or shared tensors of CrypTen: every operator here exists for both. Shapes: B
images, T tokens, D their width, H heads. `convert` takes the weights of timm's `VisionTransformer`, with its names, but
for parts that fold exactly into others: LayerScale, register and distillation tokens, a second head. In the clear,
exact functions can replace their polynomials (`Approximation`).
"""

from __future__ import annotations

import copy
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Literal, TypeVar

import torch
from timm import layers as timm_layers
from timm.layers import activations as timm_activations
from timm.models import vision_transformer as timm_vit
from timm.models.deit import VisionTransformerDistilled
from timm.models.vision_transformer import Block as TimmBlock
from timm.models.vision_transformer import VisionTransformer
from torch import nn
from torch.nn.functional import gelu, unfold

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

Activation = Literal["gelu", "tanh gelu", "quick gelu"]
"""Functions between the layers of an MLP: GELU, its form by a tanh, and x sigmoid(1.702 x). None of them is above the
magnitude of its argument, or below -0.1701."""
ACTIVATIONS: Final[dict[Activation, Callable[[torch.Tensor], torch.Tensor]]] = {
    "gelu": gelu,
    "tanh gelu": partial(gelu, approximate="tanh"),
    "quick gelu": lambda x: x * torch.sigmoid(1.702 * x),
}
Pooling = Literal["token", "two tokens", "mean", "mean of normalised", "attention"]
"""Input rows of the last LayerNorm: the first token; the first two, whose results the head reads side by side; the mean
of the patches' tokens; or all of these, of whose results the head reads the mean. With "attention" there is no such
LayerNorm: the last block is a pool, and the head reads its first token."""


@dataclass(frozen=True, kw_only=True)
class Approximation:
    """Approximations of functions. None is the exact function, and so is a GELU that is not quadratic.

    Raises ValueError for a degree or a number of steps below 1.
    """

    softmax_degree: int | None = 6
    """Degree of the Taylor series in the softmax. Even degrees keep it positive."""
    inverse_steps: int | None = 7
    """Goldschmidt's iterations, in the softmax and in LayerNorm."""
    quadratic_gelu: bool = True

    def __post_init__(self) -> None:
        for name, value in (("softmax_degree", self.softmax_degree), ("inverse_steps", self.inverse_steps)):
            if value is not None and value < 1:
                raise ValueError(f"{name} = {value}: at least 1 is needed")


STOCK: Final = Approximation(softmax_degree=None, inverse_steps=None, quadratic_gelu=False)
"""Exact functions throughout, as timm computes them."""


class LinearLayer(nn.Module):
    """x W^T + b for W [out, in] and b [out], or None."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        super().__init__()
        self.weight = nn.Parameter(weight)
        self.bias = None if bias is None else nn.Parameter(bias)

    def forward(self, x: Any) -> Any:
        """Map [..., in] to [..., out]."""
        weight: Any = self.weight
        # On shares the weight may be a callable product, cheaper than with a shared weight.
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
        """Map [B, T, D] to the same shape."""
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
    """Return the divisor in LayerNorm that brings a variance up to `variance.high` within 1.5^2."""
    return whole(variance.high**0.5 / 1.5)


class Attention(nn.Module):
    """Multi-head self-attention with the Taylor softmax.

    The series is centred at zero, and a softmax is invariant to shifting all scores of a row; so the rows are centred,
    by centring the keys, which costs no product. (The paper does not, and has a wider range to cover.) The sums of the
    exponentials divide the weighted values, not the weights: the same quotient, and fewer products.
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
        """Map [B, T, D] to the same shape."""
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
    return nn.ModuleList(Gauge(positive=False, binding=False) for _ in range(heads))


def _norms(head: int) -> Callable[[torch.Tensor], torch.Tensor]:
    """Return a function from vectors [B, H, T, D/H] to the norms [B, T] of one head."""
    return lambda vectors: vectors[:, head].norm(dim=-1)


def products_bound(products: Interval) -> float:
    """Return the divisor that brings products of queries and keys within -1 ... 1."""
    return whole(max(abs(products.low), abs(products.high)))


class Mlp(nn.Module):
    """Two linear layers with an activation, or with the quadratic GELU in its place."""

    def __init__(
        self, fc1: LinearLayer, fc2: LinearLayer, approximation: Approximation, activation: Activation = "gelu"
    ) -> None:
        super().__init__()
        self.fc1 = fc1
        self.fc2 = fc2
        self.quadratic = approximation.quadratic_gelu
        self.activation: Activation = activation
        self.hidden = Gauge(positive=False, binding=False)

    def forward(self, x: Any) -> Any:
        """Map [B, T, D] to the same shape."""
        hidden = self.fc1(x)
        self.hidden.note(hidden)
        return self.fc2(quadratic_gelu(hidden) if self.quadratic else ACTIVATIONS[self.activation](hidden))


class Block(nn.Module):
    """A pre-norm transformer block; or an attention pool, whose attention replaces its input. The query of a pool is
    the same for all tokens, and so is its output."""

    def __init__(self, norm1: LayerNorm, attn: Attention, norm2: LayerNorm, mlp: Mlp, *, residual: bool = True) -> None:
        super().__init__()
        self.residual = residual
        self.norm1 = norm1
        self.attn = attn
        self.norm2 = norm2
        self.mlp = mlp
        self.stream = Gauge(positive=False, binding=False)

    def forward(self, x: Any) -> Any:
        """Map [B, T, D] to the same shape."""
        middle = self.attended(x)
        output = middle + self.mlp(self.norm2(middle))
        for values in (x, middle, output):
            self.stream.note(values)
        return output

    def attended(self, x: Any) -> Any:
        """Return the input of the second half, [B, T, D]."""
        added = self.attn(self.norm1(x))
        return x + added if self.residual else added


def with_parameters(module: AnyModule, make: Callable[[str, torch.Tensor], Any]) -> AnyModule:
    """Copy a module with `make(name, tensor)` in place of its parameters: shared tensors of the same shape, or for the
    weight of a LinearLayer a callable that multiplies by it. The copy is for evaluation only."""
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
        """Map [B, T, C P P] to [B, T, D], without bias."""
        weight: Any = self.weight
        if callable(weight):
            return weight(patches)
        return patches.matmul(weight.reshape(self.bias.shape[0], patches.shape[-1]).transpose(0, 1))


class FriendlyTransformer(nn.Module):
    """A vision transformer, for images in the clear or patches on shares.

    Its first tokens, the `prefix`, have no pixels: class token, distillation token, registers. A model without a head
    has the identity instead.
    """

    def __init__(
        self,
        *,
        cls_token: torch.Tensor | None,
        pos_embed: torch.Tensor,
        prefix: int,
        projection: Projection,
        norm_pre: LayerNorm | None,
        blocks: list[Block],
        norm: LayerNorm | None,
        pooling: Pooling,
        head: LinearLayer,
    ) -> None:
        super().__init__()
        self.cls_token = None if cls_token is None else nn.Parameter(cls_token.detach().clone())
        self.pos_embed = nn.Parameter(pos_embed.detach().clone())
        self.patch_embed = nn.ModuleDict({"proj": projection})  # As timm names it.
        self.norm_pre = norm_pre
        self.blocks = nn.Sequential(*blocks)
        self.norm = norm
        self.head = head
        self.pixel = Gauge(positive=False, binding=False)
        self.logits = Gauge(positive=False, binding=False)
        self.patch_size: int = projection.weight.shape[-1]
        self.size: tuple[int, ...] = tuple(pos_embed.shape[1:])
        """Tokens and their width."""
        self.prefix = prefix
        self.pooling: Pooling = pooling

    def patches(self, images: torch.Tensor) -> torch.Tensor:
        """Return images [B, C, S, S] as rows of pixels [B, T, C P P]; those of the prefix are zero.

        The owner computes it before sharing. ValueError for another size, or a pixel that is not finite.
        """
        batch, _, height, width = images.shape
        edge, wanted = self.patch_size, self.size[0] - self.prefix
        if height % edge or width % edge or (height // edge) * (width // edge) != wanted:
            raise ValueError(
                f"images of {height} x {width} pixels do not have the {wanted} patches of {edge} x {edge} "
                "that this model takes"
            )
        if not bool(images.isfinite().all()):
            raise ValueError("an image holds a pixel that is not finite")
        rows = unfold(images, edge, stride=edge).transpose(1, 2)
        return torch.cat([rows.new_zeros(batch, self.prefix, rows.shape[-1]), rows], dim=1)

    @property
    def offsets(self) -> Any:
        """Return positions, class token and the projection's bias, [1, T, D], to be added to the projected patches."""
        patch = torch.ones(self.size[0], 1, dtype=torch.int64)
        patch[: self.prefix] = 0
        first = torch.zeros_like(patch)
        first[0] = 1
        device = getattr(self.pos_embed, "device", "cpu")
        projection: Any = self.patch_embed.proj
        offsets = self.pos_embed + projection.bias * patch.to(device)
        return offsets if self.cls_token is None else offsets + self.cls_token * first.to(device)

    def project(self, patches: Any) -> Any:
        """Map rows of `patches` to tokens [B, T, D] with their positions, before the LayerNorm of some models."""
        self.pixel.note(patches)
        projection: Any = self.patch_embed.proj
        return projection(patches) + self.offsets

    def embed(self, patches: Any) -> Any:
        """Map rows of `patches` to tokens [B, T, D], the input of the first block."""
        tokens = self.project(patches)
        return tokens if self.norm_pre is None else self.norm_pre(tokens)

    def pooled(self, tokens: Any) -> Any:
        """Return rows [B, R, D] of the last block's tokens [B, T, D]: the input of the last LayerNorm or the head."""
        if self.pooling in ("token", "two tokens", "attention"):
            return tokens[:, : 2 if self.pooling == "two tokens" else 1]
        patches = tokens[:, self.prefix :]
        return patches.mean(1, keepdim=True) if self.pooling == "mean" else patches

    def classify(self, tokens: Any) -> Any:
        """Map tokens after the last block, [B, T, D], to logits [B, classes], or features without a head."""
        normal = self.pooled(tokens) if self.norm is None else self.norm(self.pooled(tokens))
        if self.pooling == "mean of normalised":
            normal = normal.mean(1, keepdim=True)
        logits = self.head(normal.reshape(normal.shape[0], -1))
        self.logits.note(logits)
        return logits

    def through_blocks(self, x: Any) -> Any:
        """Map images [B, C, S, S] in the clear, or rows of `patches` of either kind, to tokens [B, T, D] after the last
        block. Raises as `patches` does, and ActivationError (polynomials.py)."""
        return self.blocks(self.embed(self.patches(x) if x.dim() == 4 else x))

    def forward(self, x: Any) -> Any:
        """Map the same to logits [B, classes], or features."""
        return self.classify(self.through_blocks(x))


# timm does not declare what it exports; attention is at this place in every version.
_layers: Any = timm_layers
_Attention: Any = vars(timm_vit)["Attention"]

_NOTHING: Final = (nn.Identity, nn.Dropout, _layers.DropPath)
"""Layers that do nothing in a trained model."""
_NORM: Final = (nn.LayerNorm, _layers.LayerNorm)
_ACTIVATION_LAYERS: Final[dict[type[nn.Module], Activation]] = {
    nn.GELU: "gelu",
    _layers.GELU: "gelu",
    _layers.GELUTanh: "tanh gelu",
    timm_activations.QuickGELU: "quick gelu",
}
_KINDS: Final = (VisionTransformer, VisionTransformerDistilled)
_LAYERS: Final[dict[str, tuple[type[nn.Module], ...]]] = {
    r"patch_embed": (_layers.PatchEmbed,),
    r"patch_embed\.proj": (nn.Conv2d,),
    r"norm_pre|norm|fc_norm": (*_NORM, nn.Identity),
    r"blocks": (nn.Sequential,),
    r"blocks\.\d+": (TimmBlock,),
    r"blocks\.\d+\.norm[12]": _NORM,
    r"blocks\.\d+\.attn": (_Attention,),
    r"blocks\.\d+\.ls[12]": (_layers.LayerScale, nn.Identity),
    r"blocks\.\d+\.mlp": (_layers.Mlp,),
    r"blocks\.\d+\.(attn\.(qkv|proj)|mlp\.fc[12])": (nn.Linear,),
    r"blocks\.\d+\.mlp\.act": tuple(_ACTIVATION_LAYERS),
    r"attn_pool": (_layers.AttentionPoolLatent,),
    r"attn_pool\.(q|kv|proj|mlp\.fc[12])": (nn.Linear,),
    r"attn_pool\.norm": _NORM,
    r"attn_pool\.mlp": (_layers.Mlp,),
    r"attn_pool\.mlp\.act": tuple(_ACTIVATION_LAYERS),
    r"head|head_dist": (nn.Linear, nn.Identity),
}
"""Supported layers, by place. Elsewhere only layers without effect are."""
SUPPORTED: Final = (
    "supported are timm's VisionTransformer and its distilled DeiT: patches by one convolution, class and register "
    "tokens, positions that were learned, a LayerNorm before the blocks, pre-norm blocks of plain attention and an MLP "
    "with GELU, tanh GELU or quick GELU, LayerScale, the class token, the mean of the patches or an attention pool, a "
    "linear head or none"
)


class ConversionError(ValueError):
    """A model that cannot be converted; the message names the first unsupported part, and the supported ones."""


def convert(model: nn.Module, approximation: Approximation) -> FriendlyTransformer:
    """Convert timm's `VisionTransformer` to MPC-friendly form, with copies of its weights, not calibrated.

    With the approximation STOCK it computes the same as timm's. Dropout is left out. Raises ConversionError for another
    model, or one with other layers or settings.
    """
    if problem := unsupported(model):
        raise ConversionError(f"{problem}; {SUPPORTED}")
    timm: Any = model
    prefix: int = timm.num_prefix_tokens
    norm = timm.fc_norm if isinstance(timm.norm, nn.Identity) else timm.norm
    blocks = [_block(block, approximation) for block in timm.blocks]
    pooling: Pooling = "token"
    if timm.attn_pool is not None:
        if approximation != STOCK:
            raise ConversionError(f"attn_pool has no form of polynomials; {SUPPORTED}")
        pooling = "attention"
        blocks.append(_pool(norm, timm.attn_pool, approximation))
    elif timm.global_pool == "avg":
        pooling = "mean" if norm is timm.fc_norm else "mean of normalised"
    elif type(model) is VisionTransformerDistilled:
        pooling = "two tokens"
    friendly = FriendlyTransformer(
        cls_token=timm.cls_token,
        pos_embed=_positions(timm, prefix),
        prefix=prefix,
        projection=Projection(timm.patch_embed.proj),
        norm_pre=None if isinstance(timm.norm_pre, nn.Identity) else LayerNorm(timm.norm_pre, approximation),
        blocks=blocks,
        norm=None if pooling == "attention" else LayerNorm(norm, approximation),
        pooling=pooling,
        head=_head(timm, pooling),
    )
    for name, part in friendly.named_modules():
        if isinstance(part, Gauge):
            part.name = name
    return friendly


def _positions(timm: Any, prefix: int) -> torch.Tensor:
    """Return all positions, [1, T, D]; rows of the prefix after the class token include the tokens themselves."""
    with torch.no_grad():
        width, count = timm.embed_dim, timm.patch_embed.num_patches
        positions: torch.Tensor = timm.patch_embed.proj.weight.new_zeros(1, prefix + count, width)
        if timm.pos_embed is not None:
            positions[:, -timm.pos_embed.shape[1] :] = timm.pos_embed
        others = getattr(timm, "dist_token", None) if timm.reg_token is None else timm.reg_token
        if others is not None:
            positions[:, prefix - others.shape[1] : prefix] += others
        return positions


def _head(timm: Any, pooling: Pooling) -> LinearLayer:
    """Return the linear layer behind the last LayerNorm; of two heads, the mean: one layer that reads both tokens."""
    heads = [timm.head, timm.head_dist] if pooling == "two tokens" else [timm.head]
    identity = torch.eye(timm.embed_dim, dtype=timm.patch_embed.proj.weight.dtype)
    layers = [LinearLayer(identity, None) if isinstance(head, nn.Identity) else _linear(head) for head in heads]
    if len(layers) == 1:
        return layers[0]
    with torch.no_grad():
        weights = torch.cat([layer.weight for layer in layers], 1) / 2
        biases: list[torch.Tensor] = [layer.bias for layer in layers if layer.bias is not None]
        return LinearLayer(weights, torch.stack(biases).sum(0) / 2 if biases else None)


def _block(block: Any, approximation: Approximation) -> Block:
    attention = Attention(
        _linear(block.attn.qkv),
        _linear(block.attn.proj, block.ls1),
        heads=block.attn.num_heads,
        scale=block.attn.scale,
        approximation=approximation,
    )
    mlp = block.mlp
    return Block(
        LayerNorm(block.norm1, approximation),
        attention,
        LayerNorm(block.norm2, approximation),
        Mlp(_linear(mlp.fc1), _linear(mlp.fc2, block.ls2), approximation, _activation(mlp.act)),
    )


def _pool(norm: nn.LayerNorm, pool: Any, approximation: Approximation) -> Block:
    """Return an attention pool with the LayerNorm before it: a block whose queries are its one query, as their bias."""
    with torch.no_grad():
        query = pool.q(pool.latent)[0, 0]
        weight = torch.cat([torch.zeros_like(pool.q.weight), pool.kv.weight])
        bias = torch.cat([query, torch.zeros(len(pool.kv.weight)).to(query) if pool.kv.bias is None else pool.kv.bias])
    qkv, mlp = LinearLayer(weight, bias), pool.mlp
    return Block(
        LayerNorm(norm, approximation),
        Attention(qkv, _linear(pool.proj), heads=pool.num_heads, scale=pool.scale, approximation=approximation),
        LayerNorm(pool.norm, approximation),
        Mlp(_linear(mlp.fc1), _linear(mlp.fc2), approximation, _activation(mlp.act)),
        residual=False,
    )


def _activation(layer: nn.Module) -> Activation:
    if isinstance(layer, nn.GELU) and layer.approximate == "tanh":
        return "tanh gelu"
    return _ACTIVATION_LAYERS[type(layer)]


def _linear(layer: nn.Linear, scale: nn.Module | None = None) -> LinearLayer:
    """Copy a layer; scale: the LayerScale behind it, or the identity."""
    factor: torch.Tensor | None = getattr(scale, "gamma", None)
    with torch.no_grad():
        weight, bias = layer.weight.clone(), None if layer.bias is None else layer.bias.clone()
        if factor is not None:
            weight *= factor[:, None]
            bias = None if bias is None else bias * factor
        return LinearLayer(weight, bias)


def unsupported(model: nn.Module) -> str:
    """Return the first part of a model that prevents conversion; empty if none does. Weights are not read."""
    # Not isinstance: a subclass may compute something else.
    if type(model) not in _KINDS:
        return f"the architecture {type(model).__name__} is not supported"
    for name, layer in model.named_modules():
        expected = next((found for pattern, found in _LAYERS.items() if re.fullmatch(pattern, name)), _NOTHING)
        if name and type(layer) not in expected:
            return f"{name} ({type(layer).__name__}) is not supported"
    return _wrong_setting(model)


def _one_query(pool: Any) -> bool:
    return bool(pool.latent_len == 1 and pool.pool == "token" and pool.pos_embed is None)


def _wrong_setting(model: Any) -> str:
    """Return the first setting with which the same layers compute something else."""
    convolution = model.patch_embed.proj
    settings = {
        f'global_pool = "{model.global_pool}"': model.global_pool not in ("token", "avg", "map"),
        "pool_include_prefix": model.global_pool == "avg" and model.pool_include_prefix,
        "attn_pool without the tokens before the patches": (
            model.global_pool == "map" and model.num_prefix_tokens > 0 and not model.pool_include_prefix
        ),
        "attn_pool of another form": model.global_pool == "map" and not _one_query(model.attn_pool),
        "attn_pool with a LayerNorm behind it": (
            model.global_pool == "map" and not isinstance(model.fc_norm, nn.Identity)
        ),
        "no LayerNorm behind the blocks": isinstance(model.norm, nn.Identity) == isinstance(model.fc_norm, nn.Identity),
        f"a convolution of {convolution.kernel_size} with a stride of {convolution.stride}": (
            convolution.kernel_size != convolution.stride or len(set(convolution.kernel_size)) > 1
        ),
        f"heads whose width is not that of a token over {model.blocks[0].attn.num_heads}": any(
            block.attn.qkv.out_features != 3 * model.embed_dim for block in model.blocks
        ),
        **{
            f"{name} without weight and bias": layer.weight is None or layer.bias is None
            for name, layer in model.named_modules()
            if type(layer) in _NORM
        },
    }
    return next((f"{name} is not supported" for name, wrong in settings.items() if wrong), "")
