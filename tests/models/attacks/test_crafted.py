"""A crafted model makes the sum over a cohort tell about single images, which the sum of an honest one does not."""

from typing import Any

import pytest
import torch
from torch import nn

from tacit.models.attacks import closed_form
from tacit.models.configuration import ModelConfiguration
from tacit.models.networks import build
from tests.adversary.crafted import fishing, imprint, read_imprint

READ = 30.0
"""dB from which on an image counts as read."""
SHAPE = (1, 16, 16)


def summed(sent: Any, model: nn.Module, x: torch.Tensor, y: torch.Tensor, clients: int) -> dict[str, torch.Tensor]:
    """What a secure sum gives the server of the gradients of clients with as many images each."""
    parts = [sent(model, *part) for part in zip(x.chunk(clients), y.chunk(clients), strict=True)]
    return {name: torch.stack([part[name] for part in parts]).sum(dim=0) for name in parts[0]}


def read(found: torch.Tensor, x: torch.Tensor, psnr: Any) -> int:
    return sum(max(psnr(candidate[None], image[None]) for candidate in found) > READ for image in x)


@pytest.mark.parametrize("name", ["vit", "lenet"])
@pytest.mark.parametrize(("clients", "images"), [(1, 16), (8, 16), (8, 64)])
def test_most_images_of_a_cohort_are_read(
    digits: Any, sent: Any, psnr: Any, name: str, clients: int, images: int
) -> None:
    data = digits(16)
    sizes = {"patch_size": 4, "width": 32, "depth": 2, "heads": 4} if name == "vit" else {}
    model = build(ModelConfiguration(name=name, image_size=16, **sizes), classes=10, channels=1, seed=1)
    crafted = imprint(model, data.x_train[images:], bins=256)
    x, y = data.x_train[:images], data.y_train[:images]
    found = read_imprint(summed(sent, crafted, x, y, clients), SHAPE, least=1e-3)
    assert len(found) <= images
    assert read(found, x, psnr) >= 0.6 * images  # 14 of 16, and 40 or 39 of 64


def test_an_imprinted_model_computes_nearly_the_same(small_vit: Any, digits: Any) -> None:
    model, x = small_vit(), digits(16).x_train[:32]
    with torch.no_grad():
        changed = imprint(model, x, bins=256)(x) - model(x)
        assert changed.norm() < 0.05 * model(x).norm()


def test_an_imprint_survives_the_resolution_of_a_sum(
    small_vit: Any, digits: Any, sent: Any, decoded: Any, psnr: Any
) -> None:
    data = digits(16)
    crafted = imprint(small_vit(), data.x_train[16:], bins=64)
    x, y = data.x_train[:16], data.y_train[:16]
    fine = decoded(summed(sent, crafted, x, y, 4), 0.25, 32)
    assert read(read_imprint(fine, SHAPE, least=1e-3), x, psnr) >= 12  # 14, as in float32


def test_one_image_of_a_class_is_fished_out_of_a_cohort(small_vit: Any, digits: Any, sent: Any, psnr: Any) -> None:
    data, model = digits(16), small_vit()
    others = (data.y_train != 3).nonzero().squeeze(1)[:31]
    chosen = torch.cat([(data.y_train == 3).nonzero().squeeze(1)[:1], others])
    x, y = data.x_train[chosen], data.y_train[chosen]
    crafted = fishing(model, 3)
    assert psnr(closed_form.image_of(crafted, summed(sent, crafted, x, y, 8)).image, x[:1]) > 100  # 119
    honest = closed_form.image_of(model, summed(sent, model, x, y, 8)).image
    assert max(psnr(honest, image[None]) for image in x) < 0  # -1.8
