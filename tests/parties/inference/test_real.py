"""A pretrained DINOv2 ViT-S/14 on shares, by hand: make real CHECKPOINT=FILE PICTURES=DIR LABELLED=NPZ
[CROPS=200].

The checkpoint is one of timm's vit_small_patch14_dinov2. Of the pictures, 20 at least, a third calibrate; crops of the
others are asked about. Half of all images are of LABELLED, CIFAR-10 or the like: its training images train a linear
probe in the clear, whose answers are compared. Both owners run in this process, with the correlated randomness of a
dealer in between.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from sklearn.linear_model import LogisticRegression

from tacit.models.friendly.pretrained import Pretrained, read_pretrained
from tacit.models.friendly.transformer import STOCK, FriendlyTransformer, convert, with_parameters
from tacit.parties.inference.model import fitted_model
from tacit.parties.inference.operations import DATA
from tacit.parties.inference.ranking import logits
from tacit.protocol.inference.schedule import LARGEST_TOKENS, LOGITS
from tests.parties.inference.in_memory import Pass

MARGIN, CALIBRATION, SIDE = 1.5, 64, 224
PROBED = 500
"""Labelled images that train the probe."""
WITHIN, LARGEST = 1e-2, 2e-2
"""Relative errors of features: what is wanted, and what is no silent error yet."""
pytestmark = pytest.mark.real


def scaled(images: torch.Tensor, pretrained: Pretrained) -> torch.Tensor:
    """[N, 3, h, w] from 0 to 1, as for the pretraining."""
    found = torch.nn.functional.interpolate(images, size=(SIDE, SIDE), mode="bicubic", antialias=True)
    mean, std = (torch.tensor(values)[:, None, None] for values in (pretrained.mean, pretrained.std))
    return (found.clamp(0, 1) - mean) / std


def crops(pictures: Sequence[torch.Tensor], count: int, seed: int, pretrained: Pretrained) -> torch.Tensor:
    generator, found = torch.Generator().manual_seed(seed), []
    for _ in range(count):
        picture = pictures[int(torch.randint(len(pictures), (), generator=generator))]
        height, width = picture.shape[1:]
        edge = int(min(height, width) * (0.4 + 0.6 * torch.rand((), generator=generator).item()))
        top, left = (int(torch.randint(room - edge + 1, (), generator=generator)) for room in (height, width))
        found.append(scaled(picture[None, :, top : top + edge, left : left + edge], pretrained))
    return torch.cat(found)


class Labelled:
    """Small images with labels, and a linear probe of features of some of them."""

    def __init__(self, path: Path, friendly: FriendlyTransformer, pretrained: Pretrained) -> None:
        with np.load(path) as arrays:
            train, labels, self._images = (torch.from_numpy(arrays[name]) for name in ("x_train", "y_train", "x_test"))
        self._pretrained = pretrained
        order = torch.randperm(len(train), generator=torch.Generator().manual_seed(3))[:PROBED]
        self.calibration = self._scaled(train[order[: CALIBRATION // 2]])
        with torch.no_grad():
            features = torch.cat([friendly(self._scaled(part)) for part in train[order].split(16)])
        self._probe = LogisticRegression(max_iter=2000).fit(features.numpy(), labels[order].numpy())

    def _scaled(self, images: torch.Tensor) -> torch.Tensor:
        return scaled(images.permute(0, 3, 1, 2).float() / 255, self._pretrained)

    def images(self, count: int, seed: int) -> torch.Tensor:
        order = torch.randperm(len(self._images), generator=torch.Generator().manual_seed(seed))[:count]
        return self._scaled(self._images[order])

    def label(self, features: torch.Tensor) -> int:
        return int(self._probe.predict(features.numpy())[0])


def test_features_of_real_pictures(request: pytest.FixtureRequest) -> None:
    checkpoint, folder = (request.config.getoption(name) for name in ("--checkpoint", "--pictures"))
    labelled_file = request.config.getoption("--labelled")
    for given in (checkpoint, folder, labelled_file):
        assert given, "make real CHECKPOINT=FILE PICTURES=DIR LABELLED=NPZ"
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
    labelled = Labelled(Path(labelled_file), friendly, pretrained)
    images = torch.cat([crops(pictures[:third], CALIBRATION // 2, 1, pretrained), labelled.calibration])
    begun = time.monotonic()
    fitted = fitted_model(friendly, images, margin=MARGIN)
    print(
        f"\nmeasured and fitted in {time.monotonic() - begun:.1f} s: {[f.squarings for f in fitted.public.sizes.forms]}"
    )
    exact = with_parameters(friendly, lambda name, tensor: tensor.double())
    asked, seed = (request.config.getoption(name) for name in ("--crops", "--crop-seed"))
    half = asked // 2
    images = torch.cat([labelled.images(half, seed), crops(pictures[third:], asked - half, seed, pretrained)])
    refused, changed, errors = 0, 0, []
    for number, image in enumerate(images):
        run = Pass(friendly, fitted, image[None])
        if not run.finish():
            refused += 1
            print(f"{number}: out of range", flush=True)
            continue
        with torch.no_grad():
            expected = exact(image[None].double())
        found = logits(run.shares[DATA], LOGITS)
        changed += labelled.label(found) != labelled.label(expected)
        errors.append(((found - expected).norm() / expected.norm()).item())
        print(f"{number}: {errors[-1]:.2e}", flush=True)
    within = sum(error < WITHIN for error in errors)
    print(
        f"{refused} of {asked} out of range, {within} of {len(errors)} within {WITHIN}, the largest error "
        f"{max(errors):.2e}, {changed} labels of the probe changed"
    )
    assert refused <= asked / 100
    assert changed <= max(asked / 200, 1)
    assert max(errors) < LARGEST
