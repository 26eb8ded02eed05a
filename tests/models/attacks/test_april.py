"""APRIL reads images of architecture (A), in float64 and with as much width as pixels; never of a stock transformer."""

import copy
from typing import Any

import pytest
import torch
from torch import nn

from tacit.models.attacks.april import image_of, matched_images

FAILED = 15.0
"""dB that the closed form is to stay below where it does not apply."""


class AttentionFirst(nn.Module):
    """A block without its first norm and both residuals; what is left has the same names."""

    def __init__(self, block: nn.Module) -> None:
        super().__init__()
        self.attn = block.get_submodule("attn")
        self.norm2 = block.get_submodule("norm2")
        self.mlp = block.get_submodule("mlp")

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        attended: torch.Tensor = self.mlp(self.norm2(self.attn(tokens)))
        return attended


def without_first_residual(model: nn.Module) -> nn.Module:
    """A copy of a vision transformer of timm as architecture (A): block 0 is mlp(norm2(attn(z)))."""
    changed = copy.deepcopy(model)
    changed.blocks[0] = AttentionFirst(changed.blocks[0])
    return changed


def large(small_vit: Any, width: int, heads: int) -> Any:
    """Two narrow blocks with patches of ViT-S and ViT-B, in float64."""
    sizes = {"img_size": 224, "patch_size": 16, "in_chans": 3, "depth": 2, "mlp_ratio": 1.0}
    return small_vit(**sizes, embed_dim=width, num_heads=heads).double()


@pytest.mark.exhaustive
def test_the_image_of_architecture_a_is_read_with_the_width_of_vit_b(
    small_vit: Any, upsampled: Any, exact: Any, psnr: Any
) -> None:
    stock = large(small_vit, 768, 12)
    changed = without_first_residual(stock)
    x, y = upsampled[0][:1], upsampled[1][:1]
    assert psnr(image_of(changed, exact(changed, x, y)).image, x) > 140  # 161.3
    assert psnr(image_of(stock, exact(stock, x, y)).image, x) < FAILED  # -74.3


@pytest.mark.parametrize(("alpha", "found"), [(10.0, True), pytest.param(0.0, False, marks=pytest.mark.exhaustive)])
def test_an_image_is_found_by_matching_gradients(
    small_vit: Any, digits: Any, exact: Any, psnr: Any, alpha: float, found: bool
) -> None:
    """Of a stock transformer whose weights are larger than at timm's start; not of every image: the next gives 10.3."""
    model, x, y = small_vit(depth=1).double(), digits(16).x_train[1:2], digits(16).y_train[1:2]
    with torch.random.fork_rng():
        torch.manual_seed(1)
        for parameter in model.parameters():
            nn.init.normal_(parameter, std=0.25)
    gradients = exact(model, x, y)
    likeness = psnr(matched_images(model, gradients, y, alpha=alpha, iterations=150, seed=1), x)
    assert likeness > 20 if found else likeness < 15  # 27.9 and 10.8
