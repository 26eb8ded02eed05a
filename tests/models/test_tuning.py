"""model.tune and model files: what is trained, what a file says of its model, and models without their adapters."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
import timm
import torch
from safetensors.torch import load_file, save_file

from tacit.models import checkpoint
from tacit.models.configuration import Architecture, ModelConfiguration, TrainingConfiguration, Tuning
from tacit.models.description import header_of, read_description
from tacit.models.layout import Layout
from tacit.models.merging import merge_file
from tacit.models.networks import build
from tacit.parties.learning.task import Task, model_description

WIDTH, BLOCKS, CLASSES, RANK = 64, 6, 5, 4
TRAINING = TrainingConfiguration()
HEAD = (WIDTH + 1) * CLASSES
IMAGES = torch.randn(3, 3, 32, 32, generator=torch.Generator().manual_seed(1))


@pytest.fixture
def given(tmp_path: Path) -> Path:
    """A checkpoint of timm's own model for tests, without a head."""
    path = tmp_path / "given.safetensors"
    save_file(timm.create_model("test_vit", num_classes=0).state_dict(), path)
    return path


def tuned(given: Path, tune: Tuning, seed: int = 1) -> torch.nn.Module:
    configuration = ModelConfiguration(name="test_vit", image_size=32, checkpoint=str(given), tune=tune, rank=RANK)
    return (
        Task(model=configuration.architecture, training=TRAINING, classes=CLASSES, channels=3)
        .build(seed, start=configuration)
        .eval()
    )


def test_only_what_is_tuned_is_summed_and_a_client_builds_the_same_layout(given: Path) -> None:
    tokens = 2 * 2 + 1
    counts: dict[Tuning, int] = {
        "head": HEAD,
        "lora": HEAD + BLOCKS * RANK * (WIDTH + 3 * WIDTH),
        "parallel": HEAD + BLOCKS * (2 * RANK * (WIDTH + tokens) + 1),
    }
    whole = tuned(given, "all")
    for tune, count in counts.items():
        model = tuned(given, tune)
        layout = Layout.summed(model)
        assert layout.size == count, tune
        # The blocks compute what the checkpoint's do, and the head alone differs at first.
        backbone = model.get_submodule("backbone") if tune == "parallel" else model
        assert torch.equal(backbone.forward_features(IMAGES), whole.forward_features(IMAGES)), tune
        # A client has no checkpoint; on the meta device, as preflight has it.
        architecture = Architecture(name="test_vit", image_size=32, tune=tune, rank=RANK)
        with torch.device("meta"):
            theirs = Task(model=architecture, training=TRAINING, classes=CLASSES, channels=3).build(2)
        assert Layout.summed(theirs).digest() == layout.digest(), tune


def test_contradictions_are_refused_by_key() -> None:
    for keys, reason in (
        ({"tune": "lora"}, "would be random; name a model.checkpoint"),
        ({"tune": "head", "train": ("head.*",), "checkpoint": "a"}, "and model.train both say what is trained"),
        ({"tune": "lora", "factory": "own.models:net"}, "and model.factory both say what is trained"),
    ):
        with pytest.raises(ValueError, match=reason):
            ModelConfiguration(**keys)
    for name, tune, reason in (
        ("resnet18", "lora", 'model.tune = "lora", model.name = "resnet18": a ResNet has no attention'),
        ("test_vit4", "parallel", "class token"),
        ("lenet", "parallel", "a LeNet has no adapters"),
    ):
        with pytest.raises(ValueError, match=reason):
            Task(
                model=Architecture(name=name, image_size=32, tune=tune), training=TRAINING, classes=2, channels=3
            ).build()
    with pytest.raises(ValueError, match="only a federation trains a part of a model"):
        build(Architecture(tune="head"), classes=2, channels=3, seed=1)


def described(model: torch.nn.Module, tune: Tuning, path: Path) -> None:
    architecture = Architecture(name="test_vit", image_size=32, tune=tune, rank=RANK)
    task = Task(model=architecture, training=TRAINING, classes=CLASSES, channels=3, mean=(0.5,) * 3, std=(0.2,) * 3)
    about = model_description(task, task.layout(model), "abcde")
    layout = Layout.of(model)
    metadata = {"zebra": "1", **about.metadata(), "ant": "2"}
    checkpoint.save(path, layout=layout, flat=layout.flatten(model), metadata=metadata)


def test_a_merged_file_is_timms_and_computes_the_same(given: Path, tmp_path: Path) -> None:
    model, path, out = tuned(given, "lora"), tmp_path / "lora.safetensors", tmp_path / "merged.safetensors"
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("lora_b"):
                parameter.normal_(std=0.1)
    described(model, "lora", path)
    assert merge_file(path, out) == BLOCKS
    about = read_description(header_of(out)[0], out)
    assert about is not None
    before = read_description(header_of(path)[0], path)
    assert about == msgspec.structs.replace(before, merged=True)
    assert (about.trained, about.rank, about.classes, about.image_size) == ("lora", RANK, tuple("abcde"), 32)
    assert about.trained_values == Layout.summed(model).size
    plain = timm.create_model(about.architecture, **about.arguments)
    plain.load_state_dict(load_file(out))
    with torch.inference_mode():
        expected = model(IMAGES)
        assert (expected - tuned(given, "lora")(IMAGES)).abs().max() > 1e-2
        assert torch.allclose(plain.eval()(IMAGES), expected, atol=1e-5)
    # A checkpoint of another run, with its head.
    again = tuned(out, "all", seed=9)
    assert torch.allclose(again(IMAGES), expected, atol=1e-5)


def test_what_cannot_be_merged_is_refused(given: Path, tmp_path: Path) -> None:
    path, out = tmp_path / "model.safetensors", tmp_path / "out.safetensors"
    for tune, reason in (("parallel", "has parallel adapters"), ("head", "no low-rank products to merge")):
        described(tuned(given, tune), tune, path)
        with pytest.raises(ValueError, match=reason):
            merge_file(path, out)
    with pytest.raises(ValueError, match="no low-rank products"):
        merge_file(given, out)
    with pytest.raises(FileNotFoundError):
        merge_file(tmp_path / "none", out)
    path.write_bytes(b"no model")
    with pytest.raises(ValueError, match="is not a safetensors file"):
        merge_file(path, out)
    assert not out.exists()


def test_equal_models_make_equal_files_whatever_is_said_of_them(given: Path, tmp_path: Path) -> None:
    model = tuned(given, "head")
    contents = set()
    for number in range(4):
        described(model, "head", tmp_path / str(number))
        contents.add((tmp_path / str(number)).read_bytes())
    assert len(contents) == 1


def test_timm_makes_every_described_network(tmp_path: Path) -> None:
    for architecture in (
        Architecture(image_size=16, patch_size=4, width=24, depth=2, heads=2, mlp_ratio=3.0),
        Architecture(name="test_vit", image_size=48),
        Architecture(name="test_resnet", image_size=32),
    ):
        task = Task(model=architecture, training=TRAINING, classes=4, channels=1)
        model = task.build()
        about = model_description(task, task.layout(model), ())
        made = timm.create_model(about.architecture, **about.arguments)
        made.load_state_dict(model.state_dict())
        assert Layout.of(made).digest() == Layout.of(model).digest()
