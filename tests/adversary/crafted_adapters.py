"""A frozen backbone and adapters that a dishonest server hands out, so that the gradients of the adapters alone, summed
over clients, give images back: Sami et al. 2025, "Gradient Inversion Attacks on Parameter-Efficient Fine-Tuning"
(PEFTLeak), for the adapters of this house (models/adapters/parallel.py).

The backbone is made to carry patches unchanged to where adapters read: its patch embedding copies the pixels of a patch
into channels of the token, its position embedding marks each token with a channel of its own, and its blocks add
nothing. The rows of C_d are bins: row k of position n lets pass what exceeds c_k, and only of tokens that are marked n;
the mark is also what the threshold is multiplied with, as these adapters have no biases. With a steep activation of the
kind of a ReLU, as GELU is at this scale, two neighbouring rows' gradients differ by the tokens between c_k and c_(k+1)
alone. The derivative of the mark counts them, and the quotient is the patch. All else is the same for every row, so
that sums over clients do not change this (crafted.py).

Two things are not the paper's, which sorts patches by what is in them: the attention of the first block, whose queries
and keys are zero, hands every token the same mean over all of them, which is what bins measure. So patches of one image
are in the bins of the same number, and are joined. And where these adapters hand on to the class token, from which the
loss is computed, is the token mixing T_d, T_u, which passes on the mean of the patches.

The activation decides. That of the house, 0.125 x^2 + 0.25 x + 0.5, has a linear derivative, with which no row is
without any image: nothing is read.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any, Final

import torch
from torch import nn

from tacit.models.adapters.methods import AdaptedTransformer
from tacit.models.adapters.parallel import GELU, Activation, AdapterParameters, block_outputs, final_norm
from tacit.models.attacks.closed_form import PatchEmbedding, taken

STEEP: Final = 100.0
"""How much the argument of the activation grows from one bin to the next, on average."""
_BEYOND: Final = 10.0
"""Threshold of tokens of other positions, in ranges of what is measured."""
_LOGITS: Final = 0.02
"""Standard deviation of the weights of the head; with zeros nothing would come back from it."""


@torch.no_grad()
def crafted_adapters(
    backbone: nn.Module, alike: torch.Tensor, *, rank: int, classes: int, activation: Activation = GELU
) -> AdaptedTransformer:
    """A crafted copy of timm's VisionTransformer, and adapters of this rank, for images like those, [n, C, S, S].

    Bins are as many as the rank, divided by the positions that an adapter has to read so that all are read. ValueError
    for a backbone that is no such, of fewer than C P P + N + 3 channels, N the patches of an image, and a rank with
    less than two bins.
    """
    final_norm(backbone)
    crafted: Any = copy.deepcopy(backbone).eval()
    embedding = PatchEmbedding.of(crafted)
    width, pixels = embedding.weight.shape
    patches, blocks = embedding.patches, len(crafted.blocks)
    # Pixels; the marks of patches and of the class token; what is measured; where adapters write.
    mark, of_class, measured, spare = pixels, pixels + patches, pixels + patches + 1, pixels + patches + 2
    each = -(-patches // blocks)
    bins = rank // each
    if spare >= width or embedding.others != 1:
        raise ValueError(
            f"the backbone has {width} channels and {embedding.others} other tokens with positions; patches of "
            f"{pixels} values at {patches} positions take {spare + 1}, and a class token alone"
        )
    if bins < 2:
        raise ValueError(f"rank {rank}: {each} positions for each of {blocks} adapters take {2 * each} at least")
    for name, parameter in crafted.named_parameters():
        parameter.fill_(1.0 if "norm" in name and name.endswith("weight") else 0.0)
    crafted.patch_embed.proj.weight.flatten(1)[:pixels] = torch.eye(pixels)
    crafted.pos_embed[0, 0, of_class] = 1
    crafted.pos_embed[0, 1:, mark:of_class] = torch.eye(patches)
    first = crafted.blocks[0].attn
    first.qkv.weight[2 * width, :pixels] = 1 / pixels
    first.proj.weight[measured, 0] = 1

    heights = block_outputs(crafted, alike)[0, :, 0, measured].double()
    bounds = heights.quantile(torch.arange(bins, dtype=torch.float64).add(0.5) / bins).float()
    steep = STEEP * bins / (heights.max() - heights.min()).item()
    down = torch.zeros(blocks, rank, width)
    down[:, :, measured] = steep
    down[:, :, mark:measured] = -steep * _BEYOND * (heights.abs().max() + 1)
    for position in range(patches):
        block, start = position // each, position % each * bins
        down[block, start : start + bins, mark + position] = -steep * bounds
    up = torch.zeros(blocks, width, rank)
    up[:, spare] = 1 / (STEEP * bins**2)
    token_down, token_up = torch.zeros(blocks, rank, patches + 1), torch.zeros(blocks, patches + 1, rank)
    token_down[:, 0, 1:] = 1 / patches
    token_up[:, 0, 0] = 1
    parameters = AdapterParameters(
        channel_down=down,
        channel_up=up,
        token_down=token_down,
        token_up=token_up,
        scale=torch.ones(blocks),
        head_weight=_LOGITS * torch.randn(classes, width, generator=torch.Generator().manual_seed(0)),
        head_bias=torch.zeros(classes),
    )
    return AdaptedTransformer(crafted, parameters, activation)


def read_adapters(gradients: Mapping[str, torch.Tensor], embedding: PatchEmbedding, *, least: float) -> torch.Tensor:
    """What is in the bins, float64 [m, C, S, S], from a sum of the gradients of crafted adapters by name.

    Of a bin with several images it is a weighted mean. Bins in which the derivative of a mark is below `least` of the
    largest are empty. ValueError for a gradient that is missing, zero, not finite, or of another backbone than
    `embedding`'s.
    """
    down = taken(gradients, "adapters.channel_down")
    width, pixels = embedding.weight.shape
    blocks, rank, channels = down.shape
    if channels != width:
        raise ValueError(f"adapters.channel_down has {channels} channels, and the backbone {width}")
    each = -(-embedding.patches // blocks)
    bins = rank // each
    # [positions, bins, D]; nothing is beyond the last bin.
    rows = down[:, : each * bins].reshape(blocks * each, bins, width)[: embedding.patches]
    inside = rows - torch.cat([rows[:, 1:], torch.zeros_like(rows[:, :1])], dim=1)
    counts = torch.stack([one[:, pixels + position] for position, one in enumerate(inside)])
    filled = (counts.abs() > least * counts.abs().max()).all(dim=0)
    patches = inside[:, filled, :pixels] / counts[:, filled, None]
    images = [embedding.image(one) for one in patches.transpose(0, 1)]
    return torch.cat(images) if images else torch.zeros(0, *embedding.image(rows[:, 0, :pixels]).shape[1:]).double()
