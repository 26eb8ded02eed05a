"""Low-rank adapters beside the blocks of a frozen transformer (Tastan and Nandakumar 2025, Eq. 5 to 7).

With b_l the output of block l for l = 1 ... L, T tokens of D values:

    h_0 = b_L,   h_l = g_l(b_l + h_{l-1}) + h_{l-1},   logits = norm(class token of h_L) W^T + b.

Nothing of this feeds back into the backbone: its outputs are all that training needs (features.py). The paper writes
g(z) = alpha W_u f(W_d z) and takes the function from LoSA (Mercea et al. 2024, "Time-, Memory- and Parameter-Efficient
Visual Adaptation"), whose low-rank mixers alternate channels and tokens; its table of parameters (Table 4) fits one
pair of matrices for each, of rank 8, without biases. So here, for z [T, D]:

    c = f(z C_d^T) C_u^T           channels of every token
    t = T_u f(T_d (z + c))         tokens of every channel
    g(z) = alpha (c + t)           what a mixer of residual form adds to its input

The matrices C_u and T_u begin at zero, hence g = 0 and h_L = b_L: what is computed at first is linear probing of
norm(b_L), exactly. The norm is the backbone's final one, which stays as it is; without it a new head would see tokens
of another scale than the backbone's own head did. The head begins at zero, as where vision transformers are fine-tuned
(Dosovitskiy et al. 2021, section 3.2). Linear probing is the same with no adapters, so there is one code path for both.

The head reads the class token alone. Of the last adapter that uses one row of T_u; its other rows have gradient zero.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Final

import torch

from tacit.models.adapters.activation import QUADRATIC_GELU, Activation
from tacit.models.adapters.configuration import AdapterConfiguration, ParallelConfiguration

_BOUNDS: Final[dict[str, Callable[[int, int], float]]] = {
    "kaiming": lambda inputs, outputs: math.sqrt(6 / inputs),
    "xavier": lambda inputs, outputs: math.sqrt(6 / (inputs + outputs)),
}
"""Largest magnitude of uniform weights, by inputs and outputs (He et al. 2015; Glorot and Bengio 2010)."""


@dataclass(frozen=True, kw_only=True, eq=False)
class AdapterParameters:
    """What is trained; also a gradient of it. A adapters, which are L, or 0 for linear probing; rank r, C classes."""

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
        """All by their names, in this order."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    @property
    def count(self) -> int:
        """How many numbers are trained."""
        return sum(tensor.numel() for tensor in self.tensors.values())


def each(function: Callable[..., torch.Tensor], *several: AdapterParameters) -> AdapterParameters:
    """What a function makes of the tensors of the same name."""
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
    """What is added to the variance of a token."""

    def standardised(self, tokens: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """For tokens x [B, D]: (x - mean) / d [B, D], and 1 / d [B, 1], d the root of variance and epsilon."""
        centred = tokens - tokens.mean(-1, keepdim=True)
        inverse = (centred.square().mean(-1, keepdim=True) + self.epsilon).rsqrt()
        return centred * inverse, inverse

    def __call__(self, tokens: torch.Tensor) -> torch.Tensor:
        """[B, D] to the same shape."""
        return self.standardised(tokens)[0] * self.weight + self.bias


def initial(
    configuration: AdapterConfiguration, *, blocks: int, tokens: int, width: int, classes: int, seed: int
) -> AdapterParameters:
    """What training begins with, float32, for a backbone of L blocks and T tokens of D values; random by the seed."""
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
    """What an adapter computes on its way from z [B, T, D], for the backward pass."""

    channels: torch.Tensor
    """Argument of f in the channel mixing, z C_d^T [B, T, r]."""
    activated_channels: torch.Tensor
    """What f makes of it [B, T, r]."""
    middle: torch.Tensor
    """Input of the token mixing, z + c [B, T, D]."""
    tokens: torch.Tensor
    """Argument of f in the token mixing, T_d (z + c) [B, r, D]."""
    activated_tokens: torch.Tensor
    """What f makes of it [B, r, D]."""
    added: torch.Tensor
    """The output c + t before it is scaled [B, T, D]."""


def mix(parameters: AdapterParameters, block: int, z: torch.Tensor, activation: Activation) -> Mixed:
    """The adapter of a block, counted from 0, for z [B, T, D]."""
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
    """Of images whose blocks have the outputs b_1 ... b_L [L, B, T, D]: [B, C]. ValueError for outputs that do not
    fit."""
    check(parameters, outputs)
    hidden = outputs[-1]
    for block, scale in enumerate(parameters.scale):
        hidden = hidden + scale * mix(parameters, block, outputs[block] + hidden, activation).added
    return norm(hidden[:, 0]) @ parameters.head_weight.T + parameters.head_bias


def check(parameters: AdapterParameters, outputs: torch.Tensor) -> None:
    """Raise ValueError unless outputs [L, B, T, D] are those of a backbone for which the parameters are."""
    width, adapters = parameters.head_weight.shape[1], len(parameters.scale)
    wanted = (adapters or "L", "B", parameters.token_up.shape[1] if adapters else "T", width)
    fits = outputs.dim() == 4 and len(outputs) > 0
    fits = fits and all(isinstance(size, str) or size == had for size, had in zip(wanted, outputs.shape, strict=True))
    if not fits:
        raise ValueError(
            f"outputs of blocks have the shape {list(outputs.shape)}, and the adapters are for "
            f"[{', '.join(map(str, wanted))}]; take the adapters of this backbone and images of its size"
        )
