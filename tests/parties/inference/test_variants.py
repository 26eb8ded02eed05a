"""Every kind of vision transformer that is supported, on shares, against timm's own model in float64."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from timm import layers as timm_layers
from timm.models.deit import VisionTransformerDistilled
from timm.models.vision_transformer import VisionTransformer

from tacit.models.friendly.transformer import STOCK, convert
from tacit.parties.inference.model import fitted_model
from tacit.parties.inference.operations import DATA, MODEL
from tacit.parties.inference.ranking import logits
from tacit.protocol.inference.schedule import LOGITS, pass_rounds
from tests.parties.inference.in_memory import Pass

layers: Any = timm_layers  # It does not declare what it exports.
IMAGES, MARGIN = 3, 1.5
ERROR = 1e-3
"""What is promised for a block, of the norm of its output."""
SIZES: dict[str, Any] = {
    "img_size": 16, "patch_size": 4, "in_chans": 2, "num_classes": 3, "embed_dim": 32, "depth": 1, "num_heads": 2,
    "mlp_ratio": 2.0,
}  # fmt: skip
VARIANTS: dict[str, dict[str, Any]] = {
    "DINOv2 with registers": {
        "init_values": 0.1, "reg_tokens": 4, "no_embed_class": True, "num_classes": 0, "depth": 2,
    },
    "DeiT-3": {"init_values": 0.1, "no_embed_class": True},
    "CLIP with registers": {"pre_norm": True, "reg_tokens": 2, "act_layer": "quick_gelu"},
    "the mean before the norm": {"global_pool": "avg"},
    "the mean behind the norm": {"global_pool": "avg", "fc_norm": False},
    "SigLIP with a mean": {
        "class_token": False, "global_pool": "avg", "fc_norm": False, "num_classes": 0, "act_layer": layers.GELUTanh,
    },
    "registers and no class token": {
        "class_token": False, "reg_tokens": 4, "no_embed_class": True, "global_pool": "avg", "init_values": 0.1,
    },
    "SigLIP": {
        "class_token": False, "global_pool": "map", "num_classes": 0, "act_layer": layers.GELUTanh, "depth": 2,
    },
    "an attention pool of registers and patches": {
        "class_token": False, "reg_tokens": 2, "global_pool": "map", "pool_include_prefix": True, "init_values": 0.1,
        "depth": 2,
    },
    "distilled DeiT": {"kind": VisionTransformerDistilled},
}  # fmt: skip


def built(kind: type[VisionTransformer] = VisionTransformer, **options: Any) -> VisionTransformer:
    """With random weights, large enough that everything in it matters, in float64."""
    with torch.random.fork_rng(), torch.no_grad():
        torch.manual_seed(1)
        model = kind(**SIZES | options)
        for name, tensor in model.named_parameters():
            if "norm" in name or "gamma" in name:
                tensor.mul_(1 + 0.3 * torch.randn(tensor.shape)).add_(0.1 * torch.randn(tensor.shape))
            else:
                torch.nn.init.normal_(tensor, std=0.2)
    return model.eval().double().requires_grad_(False)


def shrinkage(teacher: VisionTransformer, images: torch.Tensor) -> float:
    """Norm of tokens over that of their mean, where they are averaged behind the norm; else 1."""
    if teacher.global_pool != "avg" or not isinstance(teacher.fc_norm, torch.nn.Identity):
        return 1.0
    tokens = teacher.forward_features(images)[:, teacher.num_prefix_tokens :]
    return (tokens.norm(dim=-1).mean() / tokens.mean(1).norm(dim=-1).mean()).item()


@pytest.mark.parametrize("case", VARIANTS)
def test_results_are_those_of_timms_model(case: str) -> None:
    images = torch.randn(20, 2, 16, 16, generator=torch.Generator().manual_seed(2))
    teacher = built(**VARIANTS[case])
    friendly = convert(teacher.float(), STOCK)
    fitted = fitted_model(friendly, images, margin=MARGIN)
    run = Pass(friendly, fitted, images[:IMAGES])
    numbers = {name: number for number, name in enumerate(run.layers[DATA])}
    for stage in run:
        assert tuple(run.pair.requests[len(numbers) :]) == stage.requests(IMAGES, numbers)
        del run.pair.requests[len(numbers) :]
        run.pair.taken = [len(numbers)] * 2
    assert tuple(run.pair.log) == pass_rounds(fitted.public.sizes, IMAGES)
    assert run.in_range()
    expected, found = teacher.double()(images[:IMAGES].double()), logits(run.shares[DATA], LOGITS)
    # As in test_stages.py: each block, both ends together, and a LayerNorm before the blocks are one each.
    allowed = ERROR * (fitted.public.sizes.blocks + 1 + fitted.public.sizes.norm_pre)
    allowed *= shrinkage(teacher, images[:IMAGES].double())
    assert (found - expected).norm() / expected.norm() < allowed
    assert not run.shares[MODEL].any()


def test_a_mean_is_one_of_any_number_of_tokens_near_the_end_of_the_ring() -> None:
    """Tokens whose sum leaves the ring of the stream, though each of them is in it."""
    teacher = built(global_pool="avg", class_token=False)
    teacher.blocks[0].mlp.fc2.bias.add_(60 * torch.randn(32, generator=torch.Generator().manual_seed(4)))
    images = torch.randn(20, 2, 16, 16, generator=torch.Generator().manual_seed(2))
    friendly = convert(teacher.float(), STOCK)
    fitted = fitted_model(friendly, images, margin=MARGIN)
    tokens = friendly.through_blocks(images[:IMAGES]).double()
    tokens = tokens - tokens.mean(-1, keepdim=True)
    assert (tokens.sum(1).abs().max() * fitted.public.stream).item() > 2.0**39
    run = Pass(friendly, fitted, images[:IMAGES])
    assert run.finish()
    expected, found = teacher.double()(images[:IMAGES].double()), logits(run.shares[DATA], LOGITS)
    assert (found - expected).norm() / expected.norm() < 2 * ERROR


def test_scores_and_hidden_values_as_pretrained_models_have_them_are_answered() -> None:
    """Scores up to 76, of which some rows have one that is far above all others, and hidden values far below what is
    possible: what a pretrained DINOv2 ViT-S/14 has in its first block."""
    teacher = built(init_values=0.1)
    for block in teacher.blocks:
        block.attn.qkv.weight[: 2 * SIZES["embed_dim"]] *= 3.3
        block.mlp.fc1.weight[0] *= 4  # One row of it has a large norm, in no direction of the images.
    images = torch.randn(20, 2, 16, 16, generator=torch.Generator().manual_seed(2))
    friendly = convert(teacher.float(), STOCK)
    fitted = fitted_model(friendly, images, margin=MARGIN)
    assert max(form.squarings for form in fitted.public.sizes.forms) >= 4
    run = Pass(friendly, fitted, images[:IMAGES])
    assert run.finish()
    assert tuple(run.pair.log) == pass_rounds(fitted.public.sizes, IMAGES)
    expected, found = teacher.double()(images[:IMAGES].double()), logits(run.shares[DATA], LOGITS)
    # The scores' own roundings, relative to one, grow with them.
    assert (found - expected).norm() / expected.norm() < 1e-2
