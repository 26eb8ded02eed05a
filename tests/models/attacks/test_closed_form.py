"""The image of a gradient comes out of a stock transformer, as far as what is sent is precise; else it is said why not.

The figures in comments were measured with these seeds; the tests ask for 3 dB less, or as much as to call it a failure.
"""

from typing import Any

import pytest
import torch
from timm.models.vision_transformer import VisionTransformer

from tacit.models.attacks.closed_form import image_of
from tacit.models.configuration import TrainingConfiguration
from tacit.models.layout import Layout
from tacit.models.training import train

FAILED = 0.0
"""dB at which the error is as large as the range of the values: any constant grey is better."""


@pytest.fixture(scope="module")
def gradients(stock_vit: VisionTransformer, upsampled: Any, sent: Any) -> Any:
    x, y = upsampled
    return sent(stock_vit, x[:1], y[:1])


@pytest.mark.exhaustive
def test_a_stock_transformer_gives_its_image_away(
    stock_vit: VisionTransformer, upsampled: Any, gradients: Any, psnr: Any
) -> None:
    read = image_of(stock_vit, gradients)
    assert psnr(read.image, upsampled[0][:1]) > 79  # 82.1
    assert read.image.dtype == torch.float64
    assert 1 < read.condition < 1e6
    assert "image" not in repr(read).replace("ReadImage", "")


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("clip", "bits", "least", "most"),
    [
        (0.25, 24, 52, 60),  # 55.8
        (0.25, 20, 29, 36),  # 32.1
        (0.25, 16, 12, 19),  # 15.7
        (16.0, 20, 9, 16),  # 12.0
    ],
)
def test_a_coarser_sum_gives_less_away(
    stock_vit: VisionTransformer,
    upsampled: Any,
    gradients: Any,
    decoded: Any,
    psnr: Any,
    clip: float,
    bits: int,
    least: float,
    most: float,
) -> None:
    read = image_of(stock_vit, decoded(gradients, clip, bits))
    assert least < psnr(read.image, upsampled[0][:1]) < most


@pytest.mark.exhaustive
def test_prepared_as_the_model_is_published_a_photograph_comes_back_from_24_bits(
    stock_vit: VisionTransformer, photograph: Any, sent: Any, decoded: Any, psnr: Any
) -> None:
    # The fixture divides by 0.25, and timm has mean and deviation 0.5 for this model.
    assert stock_vit.pretrained_cfg["mean"] == stock_vit.pretrained_cfg["std"] == (0.5, 0.5, 0.5)
    found = []
    for x in (photograph(224), photograph(224) / 2):
        read = image_of(stock_vit, decoded(sent(stock_vit, x, torch.tensor([0])), 0.25, 24))
        found.append(psnr(read.image, x))
    with_contrast, as_published = found
    assert as_published > 60  # 65.1
    assert with_contrast < as_published - 10  # 50.1


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("optimizer", "least", "most"),
    [("sgd", 24, 31), ("adamw", -100, FAILED)],  # 27.0 and -87.6
)
def test_one_step_of_plain_descent_is_a_gradient(
    stock_vit: VisionTransformer, upsampled: Any, sent: Any, psnr: Any, optimizer: Any, least: float, most: float
) -> None:
    x, y = (part[:1] for part in upsampled)
    layout = Layout.of(stock_vit)
    before = layout.flatten(stock_vit)
    step = TrainingConfiguration(optimizer=optimizer, learning_rate=1e-3, momentum=0.0, weight_decay=0.0, epochs=1)
    try:
        train(stock_vit, x, y, step, seed=1, device=torch.device("cpu"))
        update = layout.flatten(stock_vit) - before
    finally:
        layout.load_into(stock_vit, before)
        stock_vit.eval()
    found = image_of(stock_vit, {name: torch.from_numpy(part) for name, part in layout.split(update).items()}).image
    assert least < psnr(found, x) < most


@pytest.mark.parametrize("options", [{}, {"no_embed_class": True}, {"reg_tokens": 2}, {"pre_norm": True}])
def test_other_tokens_do_not_matter(small_vit: Any, digits: Any, exact: Any, psnr: Any, options: Any) -> None:
    model, data = small_vit(**options).double(), digits(16)
    read = image_of(model, exact(model, data.x_train[:1], data.y_train[:1]))
    assert psnr(read.image, data.x_train[:1]) > 100  # 178 and more
