"""A pretrained DINOv2 ViT-S/14 on shares, by hand: make real CHECKPOINT=FILE PICTURES=DIR [CROPS=200].

The checkpoint is one of timm's vit_small_patch14_dinov2. Of the pictures, 20 at least, a third calibrate; crops of the
others are asked about. Both owners run in this process, with the correlated randomness of a dealer in between.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from tacit.models.friendly.pretrained import Pretrained, read_pretrained
from tacit.models.friendly.transformer import STOCK, convert, with_parameters
from tacit.parties.inference.model import fitted_model
from tacit.parties.inference.operations import DATA
from tacit.parties.inference.ranking import logits
from tacit.protocol.inference.schedule import LARGEST_TOKENS, LOGITS

with pytest.MonkeyPatch.context() as patch:
    patch.syspath_prepend(Path(__file__).parent)
    from in_memory import Pass

MARGIN, CALIBRATION, SIDE = 1.5, 64, 224
pytestmark = pytest.mark.real


def crops(pictures: Sequence[torch.Tensor], count: int, seed: int, pretrained: Pretrained) -> torch.Tensor:
    """Square parts of 0.4 to 1 of a picture's shorter edge, scaled and normalised as for the pretraining."""
    generator, found = torch.Generator().manual_seed(seed), []
    for _ in range(count):
        picture = pictures[int(torch.randint(len(pictures), (), generator=generator))]
        height, width = picture.shape[1:]
        edge = int(min(height, width) * (0.4 + 0.6 * torch.rand((), generator=generator).item()))
        top, left = (int(torch.randint(room - edge + 1, (), generator=generator)) for room in (height, width))
        part = picture[None, :, top : top + edge, left : left + edge]
        found.append(torch.nn.functional.interpolate(part, size=(SIDE, SIDE), mode="bicubic", antialias=True))
    mean, std = (torch.tensor(values)[:, None, None] for values in (pretrained.mean, pretrained.std))
    return (torch.cat(found).clamp(0, 1) - mean) / std


def test_features_of_real_pictures(request: pytest.FixtureRequest) -> None:
    checkpoint, folder = (request.config.getoption(name) for name in ("--checkpoint", "--pictures"))
    assert checkpoint, "make real CHECKPOINT=FILE PICTURES=DIR"
    assert folder, "make real CHECKPOINT=FILE PICTURES=DIR"
    pictures = [
        torch.from_numpy(np.array(Image.open(path).convert("RGB"))).permute(2, 0, 1).float() / 255
        for path in sorted(Path(folder).iterdir())
        if path.suffix in (".png", ".jpg")
    ]
    assert len(pictures) >= 20
    pretrained = read_pretrained(
        "vit_small_patch14_dinov2", Path(checkpoint), most_tokens=LARGEST_TOKENS, image_size=SIDE
    )
    friendly = convert(pretrained.model, STOCK).requires_grad_(False)
    third = len(pictures) // 3
    images = crops(pictures[:third], CALIBRATION, 1, pretrained)
    begun = time.monotonic()
    fitted = fitted_model(friendly, images, margin=MARGIN)
    print(
        f"\nmeasured and fitted in {time.monotonic() - begun:.1f} s: {[f.squarings for f in fitted.public.sizes.forms]}"
    )
    exact = with_parameters(friendly, lambda name, tensor: tensor.double())
    asked, refused, worst = request.config.getoption("--crops"), 0, 0.0
    for number, image in enumerate(crops(pictures[third:], asked, 2, pretrained)):
        run = Pass(friendly, fitted, image[None])
        if not run.finish():
            refused += 1
            print(f"{number}: out of range")
            continue
        with torch.no_grad():
            expected = exact(image[None].double())
        error = ((logits(run.shares[DATA], LOGITS) - expected).norm() / expected.norm()).item()
        worst = max(worst, error)
        print(f"{number}: {error:.2e}", flush=True)
        assert error < 1e-2, number
    print(f"{refused} of {asked} out of range, the largest error {worst:.2e}")
    assert refused <= asked // 100
