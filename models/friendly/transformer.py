"""The whole friendly vision transformer; its state dictionary is that of timm's `VisionTransformer`, in its order."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from tacit.models.friendly.blocks import Block, LayerNorm, LinearLayer
from tacit.models.friendly.gauge import Gauge


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
        block. Raises as `patches` does, and ActivationError (gauge.py)."""
        return self.blocks(self.embed(self.patches(x) if x.dim() == 4 else x))

    def forward(self, x: Any) -> Any:
        """The same, to logits [B, classes]."""
        return self.classify(self.through_blocks(x))
