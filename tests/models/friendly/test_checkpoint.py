"""A student comes back from its file with its polynomials and intervals; anything else is refused."""

import json
from pathlib import Path

import msgspec
import pytest
import torch

from tacit.models import checkpoint
from tacit.models.configuration import ModelConfiguration
from tacit.models.friendly.calibration import calibrate, error_bounds, intervals
from tacit.models.friendly.distillation import load, save
from tacit.models.friendly.transformer import STOCK, Approximation, FriendlyTransformer, convert
from tacit.models.layout import Layout
from tacit.models.networks import build
from tests.models.friendly.reaching import reach_of

MODEL = ModelConfiguration(image_size=8, patch_size=4, width=8, depth=1, heads=2)
SIZES = {"classes": 3, "channels": 2}


@pytest.fixture
def student(images: torch.Tensor) -> FriendlyTransformer:
    model = convert(build(MODEL, seed=1, **SIZES), Approximation(softmax_degree=4, inverse_steps=9))
    calibrate(model, images, margin=1.5)
    return model


def test_a_student_comes_back(student: FriendlyTransformer, images: torch.Tensor, tmp_path: Path) -> None:
    path = tmp_path / "student.safetensors"
    save(path, student, Approximation(softmax_degree=4, inverse_steps=9))
    again = load(path, MODEL, **SIZES)
    assert torch.equal(again(images), student(images))
    assert intervals(again) == intervals(student)
    assert not again.training
    # The same file is a checkpoint of timm's architecture.
    start = build(msgspec.structs.replace(MODEL, checkpoint=str(path)), seed=2, **SIZES)
    assert all(torch.equal(value, student.state_dict()[name]) for name, value in start.state_dict().items())


def test_a_student_of_an_earlier_version_comes_back(
    student: FriendlyTransformer, images: torch.Tensor, tmp_path: Path
) -> None:
    """Its file says nothing of GELU, and has the intervals of polynomials alone."""
    path, layout = tmp_path / "student.safetensors", Layout.of(student)
    kept = {bound.name: list(bound.interval) for bound in error_bounds(student)}
    metadata = {"friendly": json.dumps({"softmax_degree": 4, "inverse_steps": 9, "intervals": kept})}
    checkpoint.save(path, layout=layout, flat=layout.flatten(student), metadata=metadata)
    again = load(path, MODEL, **SIZES)
    assert torch.equal(again(images), student(images))
    assert reach_of(again, images) == reach_of(student, images)


def test_a_stock_model_comes_back(images: torch.Tensor, tmp_path: Path) -> None:
    model = convert(build(MODEL, seed=1, **SIZES), STOCK)
    calibrate(model, images, margin=1.25)
    path = tmp_path / "stock.safetensors"
    save(path, model, STOCK)
    again = load(path, MODEL, **SIZES)
    assert torch.equal(again(images), model(images))
    assert intervals(again) == intervals(model)


@pytest.mark.parametrize(
    ("metadata", "reason"),
    [
        ({}, "holds no distilled model; `tacit distill` makes one"),
        ({"friendly": "{"}, "Input data was truncated"),
        ({"friendly": '{"softmax_degree": 6, "inverse_steps": 7}'}, "missing required field `intervals`"),
        ({"friendly": '{"softmax_degree": 0, "inverse_steps": 7, "intervals": {}}'}, "softmax_degree = 0"),
        (
            {"friendly": '{"softmax_degree": 6, "inverse_steps": 7, "intervals": {"norm.variance": [-1, 2]}}'},
            "interval 'norm.variance' from -1.0 to 2.0 is none",
        ),
    ],
)
def test_a_file_without_a_sound_student_is_refused(
    student: FriendlyTransformer, tmp_path: Path, metadata: dict[str, str], reason: str
) -> None:
    path, layout = tmp_path / "other.safetensors", Layout.of(student)
    checkpoint.save(path, layout=layout, flat=layout.flatten(student), metadata=metadata)
    with pytest.raises(ValueError, match=rf"other\.safetensors'.*{reason}"):
        load(path, MODEL, **SIZES)
