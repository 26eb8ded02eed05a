"""Modules of peft in a Federation, as they are: only what they train is summed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import timm
import torch

from tacit.simulate import Federation

BLOCKS, WIDTH = 6, 64


@pytest.mark.end_to_end
@pytest.mark.smoke
def test_a_model_of_timm_with_lora_by_peft_is_trained_merged_and_loaded_into_timm(tmp_path: Path) -> None:
    pytest.importorskip("peft", reason="peft is not installed (extra dev)")
    from tests.world.peft_functions import CLASSES, RANK, SIZE, images, step, vit

    federation = Federation(model=vit, data=images, train=step, clients=3, rounds=2, seed=5, directory=tmp_path)
    result = federation.run()
    assert result.completed == 2
    assert result.summary is not None
    assert result.summary.aggregation is not None
    summed = BLOCKS * RANK * (WIDTH + 3 * WIDTH) + (WIDTH + 1) * CLASSES
    assert result.summary.aggregation.parameters == summed
    model: Any = result.model
    trained = {name for name, one in model.named_parameters() if one.requires_grad}
    assert sum(dict(model.named_parameters())[name].numel() for name in trained) == summed
    x, y = images(0, 3)
    with torch.inference_mode():
        expected = model(x)
    assert (expected.argmax(1) == y).double().mean() > 0.6
    # LoRA begins with zeros.
    assert all(one.any() for name, one in model.named_parameters() if "lora_B" in name)
    plain = timm.create_model("test_vit", num_classes=CLASSES, img_size=SIZE)
    plain.load_state_dict(model.merge_and_unload().state_dict())
    with torch.inference_mode():
        assert torch.allclose(plain.eval()(x), expected, atol=1e-4)
