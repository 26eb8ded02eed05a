"""Low-rank adapters beside the blocks of a frozen transformer (Tastan and Nandakumar 2025, Eq. 5 to 7).

With b_l the output of block l for l = 1 ... L, and z of T tokens and D values (docs/adaptation.md has the reasons):

    h_0 = b_L,   h_l = g_l(b_l + h_{l-1}) + h_{l-1},   logits = norm(class token of h_L) W^T + b
    g(z) = alpha (c + t),   c = f(z C_d^T) C_u^T,   t = T_u f(T_d (z + c))

C_u, T_u and the head start at zero. Linear probing is the same without adapters. The head reads only the class token,
so it uses one row of the last adapter's T_u; the other rows have gradient zero.

Stochastic block sampling (second version, Fig. 5) never gives the adapters b_l and b_{l+1} together: with s_l = 1 where
b_l is given, P(s_{l+1} = 1 | s_l = 1) = 0 and P(s_{l+1} = 1 | s_l = 0) = 1/2. The chain starts stationary, with
P(s_l = 1) = 1/3, and is conditioned on s_L = 1. A stationary chain of two states is the same backwards, so that it is
drawn from the last block to the first by the same rule, exactly; a block k before the last is given with probability
(1 + 2 (-1/2)^k) / 3. The adapters take zeros in place of a missing output.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from typing import Any, Final, Protocol

import numpy as np
import numpy.typing as npt
import torch
from timm.models.vision_transformer import VisionTransformer
from torch import nn
from torch.nn.functional import gelu

from tacit.models.adapters.configuration import AdapterConfiguration, ParallelConfiguration
from tacit.models.friendly.polynomials import quadratic_gelu
from tacit.models.friendly.transformer import FriendlyTransformer, LayerNorm
from tacit.models.training import EVALUATION_BATCH


@dataclass(frozen=True, kw_only=True)
class Activation:
    value: Callable[[torch.Tensor], torch.Tensor]
    slope: Callable[[torch.Tensor], torch.Tensor]
    """Derivative at the same argument."""


def _gelu_slope(x: torch.Tensor) -> torch.Tensor:
    """Return the derivative of x P(x), with P the distribution of a standard normal variable: P(x) + x P'(x)."""
    below: torch.Tensor = torch.special.ndtr(x)
    return below + x * torch.exp(x.square() / -2) / math.sqrt(2 * math.pi)


GELU: Final = Activation(value=gelu, slope=_gelu_slope)

QUADRATIC_GELU: Final = Activation(value=quadratic_gelu, slope=lambda x: (x + 1) / 4)
"""0.125 x^2 + 0.25 x + 0.5 (Tastan and Nandakumar 2025, Eq. 3); on shares one square, and its derivative is linear."""


Mask = npt.NDArray[np.bool_]
"""Bool [L], whether the output of each block is given; the last one always is."""


class BlockSampling(Protocol):
    def draw(self, blocks: int, generator: np.random.Generator) -> Mask:
        """Draw a mask for a backbone of L >= 1 blocks."""


@dataclass(frozen=True)
class AllBlocks:
    def draw(self, blocks: int, generator: np.random.Generator) -> Mask:
        return np.ones(blocks, dtype=np.bool_)


ALL_BLOCKS: Final = AllBlocks()

LARGEST_TOKEN: Final = 8.0
"""Norm of a token that adapters on shares read: they square their inputs, and token norms of a pretrained model's
blocks differ by factors of thirty."""
MOST_HALVINGS: Final = 16


@dataclass(frozen=True)
class StochasticBlocks:
    """The chain above: the last output, about a third of the others, and never two neighbours."""

    def draw(self, blocks: int, generator: np.random.Generator) -> Mask:
        return chain(generator.random(blocks - 1) < 0.5)


def chain(coins: Mask) -> Mask:
    """Return the mask [L] of fair coins [L - 1], each used only if the next block is not given."""
    mask = np.append(coins, True)
    for block in reversed(range(len(coins))):
        mask[block] &= not mask[block + 1]
    return mask


def masked(outputs: torch.Tensor, mask: Mask) -> torch.Tensor:
    """Return outputs of all blocks [L, B, T, D], with zeros for those that are not given."""
    given = torch.from_numpy(mask).to(outputs.device)[:, None, None, None]
    return torch.where(given, outputs, torch.zeros_like(outputs))


_BOUNDS: Final[dict[str, Callable[[int, int], float]]] = {
    "kaiming": lambda inputs, outputs: math.sqrt(6 / inputs),
    "xavier": lambda inputs, outputs: math.sqrt(6 / (inputs + outputs)),
}
"""Largest magnitude of uniform weights, by inputs and outputs (He et al. 2015; Glorot and Bengio 2010)."""


@dataclass(frozen=True, kw_only=True, eq=False)
class AdapterParameters:
    """Trained parameters, or a gradient of them: A adapters (L, or 0 for linear probing) of rank r, C classes."""

    channel_down: torch.Tensor
    """C_d of every block [A, r, D]."""
    channel_up: torch.Tensor
    """C_u of every block [A, D, r]."""
    token_down: torch.Tensor
    """T_d of every block [A, r, T]."""
    token_up: torch.Tensor
    """T_u of every block [A, T, r]."""
    scale: torch.Tensor
    """The factor alpha of every block [A]."""
    head_weight: torch.Tensor
    """W of the head [C, D]."""
    head_bias: torch.Tensor
    """Offset b of the head [C]."""

    @property
    def tensors(self) -> dict[str, torch.Tensor]:
        return {field.name: getattr(self, field.name) for field in fields(self)}

    @property
    def count(self) -> int:
        return sum(tensor.numel() for tensor in self.tensors.values())


def each(function: Callable[..., torch.Tensor], *several: AdapterParameters) -> AdapterParameters:
    names = [field.name for field in fields(AdapterParameters)]
    return AdapterParameters(**{name: function(*(getattr(one, name) for one in several)) for name in names})


@dataclass(frozen=True, kw_only=True, eq=False)
class FinalNorm:
    """The LayerNorm between the last block and the head, which is not trained."""

    weight: torch.Tensor
    """Factor gamma of every channel [D]."""
    bias: torch.Tensor
    """Offset beta of every channel [D]."""
    epsilon: float

    @classmethod
    def plain(cls, width: int, epsilon: float, dtype: torch.dtype = torch.float64) -> FinalNorm:
        """Return the norm of a pass on shares, whose factor and offset the model keeps: 1 and 0."""
        return cls(weight=torch.ones(width, dtype=dtype), bias=torch.zeros(width, dtype=dtype), epsilon=epsilon)

    def standardised(self, tokens: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return (x - mean) / d [B, D] and 1 / d [B, 1] for tokens x [B, D]; d is the root of variance plus epsilon."""
        centred = tokens - tokens.mean(-1, keepdim=True)
        inverse = (centred.square().mean(-1, keepdim=True) + self.epsilon).rsqrt()
        return centred * inverse, inverse

    def __call__(self, tokens: torch.Tensor) -> torch.Tensor:
        """Map [B, D] to the same shape."""
        return self.standardised(tokens)[0] * self.weight + self.bias


def initial(
    configuration: AdapterConfiguration, *, blocks: int, tokens: int, width: int, classes: int, seed: int
) -> AdapterParameters:
    """Return float32 initial parameters for a backbone of L blocks and T tokens of D values, random by the seed."""
    if isinstance(configuration, ParallelConfiguration):
        rank, scale, bound = configuration.rank, configuration.scale, _BOUNDS[configuration.initialisation]
    else:
        blocks, rank, scale, bound = 0, 0, 0.0, _BOUNDS["kaiming"]
    generator = torch.Generator().manual_seed(seed)

    def uniform(inputs: int) -> torch.Tensor:
        return (torch.rand(blocks, rank, inputs, generator=generator) * 2 - 1) * bound(inputs, rank)

    return AdapterParameters(
        channel_down=uniform(width),
        channel_up=torch.zeros(blocks, width, rank),
        token_down=uniform(tokens),
        token_up=torch.zeros(blocks, tokens, rank),
        scale=torch.full((blocks,), scale),
        head_weight=torch.zeros(classes, width),
        head_bias=torch.zeros(classes),
    )


@dataclass(frozen=True, kw_only=True, eq=False)
class Mixed:
    """Intermediate results of an adapter on z [B, T, D], for the backward pass."""

    channels: torch.Tensor
    """Argument of f in the channel mixing, z C_d^T [B, T, r]."""
    activated_channels: torch.Tensor
    middle: torch.Tensor
    """Input of the token mixing, z + c [B, T, D]."""
    tokens: torch.Tensor
    """Argument of f in the token mixing, T_d (z + c) [B, r, D]."""
    activated_tokens: torch.Tensor
    added: torch.Tensor
    """Output c + t before scaling [B, T, D]."""


def mix(parameters: AdapterParameters, block: int, z: torch.Tensor, activation: Activation) -> Mixed:
    """Run the adapter of a block, counted from 0, on z [B, T, D]."""
    channels = z @ parameters.channel_down[block].T
    activated_channels = activation.value(channels)
    from_channels = activated_channels @ parameters.channel_up[block].T
    middle = z + from_channels
    tokens = parameters.token_down[block] @ middle
    activated_tokens = activation.value(tokens)
    return Mixed(
        channels=channels,
        activated_channels=activated_channels,
        middle=middle,
        tokens=tokens,
        activated_tokens=activated_tokens,
        added=from_channels + parameters.token_up[block] @ activated_tokens,
    )


def logits(
    parameters: AdapterParameters,
    norm: FinalNorm,
    outputs: torch.Tensor,
    *,
    activation: Activation = QUADRATIC_GELU,
) -> torch.Tensor:
    """Return logits [B, C] of images whose blocks have the outputs b_1 ... b_L [L, B, T, D]. ValueError for outputs
    that do not fit."""
    check(parameters, outputs)
    hidden = outputs[-1]
    for block, scale in enumerate(parameters.scale):
        hidden = hidden + scale * mix(parameters, block, outputs[block] + hidden, activation).added
    return norm(hidden[:, 0]) @ parameters.head_weight.T + parameters.head_bias


def check(parameters: AdapterParameters, outputs: torch.Tensor) -> None:
    """Raise ValueError unless outputs [L, B, T, D] are those of a backbone that fits the parameters."""
    width, adapters = parameters.head_weight.shape[1], len(parameters.scale)
    wanted = (adapters or "L", "B", parameters.token_up.shape[1] if adapters else "T", width)
    fits = outputs.dim() == 4 and len(outputs) > 0
    fits = fits and all(isinstance(size, str) or size == had for size, had in zip(wanted, outputs.shape, strict=True))
    if not fits:
        raise ValueError(
            f"outputs of blocks have the shape {list(outputs.shape)}, and the adapters are for "
            f"[{', '.join(map(str, wanted))}]; take the adapters of this backbone and images of its size"
        )


@torch.no_grad()
def block_outputs(backbone: nn.Module, images: torch.Tensor, *, batch_size: int = EVALUATION_BATCH) -> torch.Tensor:
    """Return b_1 ... b_L of images [B, C, S, S]: float32 [L, B, T, D] without gradients, on the device of the images.

    The backbone computes where its parameters are, `batch_size` images at a time, and stays unchanged. All outputs of
    an image together take 4 L T D bytes: 21 MB for ViT-B of 384 x 384 pixels. Raises ValueError as `final_norm` does,
    and for no images; for a FriendlyTransformer, ActivationError (polynomials.py) beyond its calibrated intervals.
    """
    final_norm(backbone)
    if len(images) == 0:
        raise ValueError("the outputs of blocks were asked for of no images; at least one is needed")
    device = next(backbone.parameters()).device
    # The polynomial of an MPC-friendly model's final norm is unused, so it must not refuse values out of its range.
    run = backbone.through_blocks if isinstance(backbone, FriendlyTransformer) else backbone
    with _evaluating(backbone), noted(backbone) as seen:
        parts = []
        for batch in torch.split(images, batch_size):
            seen.clear()
            run(batch.to(device))
            parts.append(torch.stack(seen).to(images.device, torch.float32))
    return torch.cat(parts, dim=1)


def read_outputs(
    backbone: nn.Module, images: torch.Tensor, *, blocks: int, tokens: int, halvings: Sequence[int] = ()
) -> torch.Tensor:
    """Return the inputs of a step on shares for images [B, C, S, S]: float64 [blocks, B, tokens, D], the first tokens
    of the last blocks, less their mean, and halved. Takes the memory of these, and of all outputs of a batch. Raises as
    `block_outputs` does."""
    parts = []
    for batch in torch.split(images, EVALUATION_BATCH):
        outputs = block_outputs(backbone, batch)[-blocks:, :, :tokens].double()
        parts.append(halved(outputs - outputs.mean(-1, keepdim=True), halvings))
    return torch.cat(parts, dim=1)


def halved(outputs: torch.Tensor, halvings: Sequence[int]) -> torch.Tensor:
    """Halve each block's outputs [L, B, T, D] so often; return them unchanged without halvings."""
    return outputs * torch.tensor([0.5**times for times in halvings] or [1.0], dtype=outputs.dtype)[:, None, None, None]


def halvings_of(outputs: torch.Tensor) -> tuple[int, ...]:
    """Return the halvings of each block's output [L, B, T, D] that bring all token norms within LARGEST_TOKEN;
    MOST_HALVINGS at most."""
    largest = outputs.norm(dim=-1).flatten(1).amax(1) / LARGEST_TOKEN
    return tuple(largest.log2().ceil().clamp(0, MOST_HALVINGS).int().tolist())


def final_norm(backbone: nn.Module) -> FinalNorm:
    """Return the norm between the last block and the head, with float32 copies of its weights. For a
    FriendlyTransformer it is LayerNorm itself: its polynomial is calibrated for b_L, and adapters may leave its
    interval.

    ValueError for a backbone of neither kind, or whose head does not see the class token through this norm alone.
    """
    network: Any = backbone
    if isinstance(backbone, FriendlyTransformer):
        if backbone.pooling != "token":
            raise ValueError(
                f"this model classifies the {backbone.pooling}; adapters need one that reads its class token"
            )
        norm: nn.LayerNorm | LayerNorm = network.norm
    elif type(backbone) is not VisionTransformer:
        raise ValueError(
            f"a {type(backbone).__name__} has no adapters; timm's VisionTransformer and a FriendlyTransformer can have"
        )
    else:
        norm = network.norm
        if not (
            network.global_pool == "token" and network.has_class_token and isinstance(network.fc_norm, nn.Identity)
        ):
            raise ValueError(
                f'this VisionTransformer has global_pool = "{network.global_pool}"; adapters need one that '
                'classifies its class token, with global_pool = "token" and no fc_norm'
            )
        if not isinstance(norm, nn.LayerNorm) or norm.weight is None or norm.bias is None:
            raise ValueError(
                f"the final norm of this VisionTransformer is {norm}; adapters need a LayerNorm with weight and bias"
            )
    weight, bias = (tensor.detach().to(torch.float32, copy=True) for tensor in (norm.weight, norm.bias))
    return FinalNorm(weight=weight, bias=bias, epsilon=norm.eps)


@contextmanager
def noted(backbone: Any) -> Iterator[list[torch.Tensor]]:
    """Yield a list to which every block adds its output."""
    seen: list[torch.Tensor] = []
    handles = [
        block.register_forward_hook(lambda _block, _inputs, output: seen.append(output)) for block in backbone.blocks
    ]
    try:
        yield seen
    finally:
        for handle in handles:
            handle.remove()


@contextmanager
def _evaluating(model: nn.Module) -> Iterator[None]:
    before = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(before)
