from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import safetensors.torch
import timm
import torch
from torch import nn

from tacit.models import checkpoint
from tacit.models.configuration import ModelConfiguration
from tacit.models.layout import Layout
from tacit.models.networks import build
from tacit.models.weights_file import WeightsWarning

TINY = "test_vit"  # timm's own model for tests: 370,000 parameters, 160 x 160 pixels in patches of 16


def flat(model: nn.Module) -> bytes:
    return Layout.of(model).flatten(model).tobytes()


@pytest.mark.parametrize("name", ["vit", TINY])
def test_weights_depend_on_the_seed_alone(name: str) -> None:
    configuration = ModelConfiguration(name=name, image_size=32)
    torch.manual_seed(3)
    first = flat(build(configuration, classes=3, channels=1, seed=1))
    drawn = torch.rand(1)
    torch.manual_seed(3)
    assert torch.equal(torch.rand(1), drawn)
    assert flat(build(configuration, classes=3, channels=1, seed=1)) == first
    assert flat(build(configuration, classes=3, channels=1, seed=2)) != first


@pytest.mark.parametrize("name", [TINY, "test_resnet"])
def test_timm_models_take_the_image_size(name: str) -> None:
    model = build(ModelConfiguration(name=name, image_size=64), classes=4, channels=1, seed=0).eval()
    assert model(torch.zeros(2, 1, 64, 64)).shape == (2, 4)


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("vit_tiny_patch16_225", "did you mean .*vit_tiny_patch16_224"),
        ("vjt", "did you mean vit"),
        ("qqqqqq", r"see timm\.list_models"),
    ],
)
def test_an_unknown_name_is_refused_with_close_ones(name: str, hint: str) -> None:
    with pytest.raises(ValueError, match=f"'{name}' is unknown to timm; {hint}"):
        build(ModelConfiguration(name=name), classes=2, channels=1, seed=0)


def test_pretrained_asks_timm_for_its_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[dict[str, object]] = []
    create = timm.create_model

    def recorded(name: str, *, pretrained: bool = False, **options: object) -> nn.Module:
        asked.append({"pretrained": pretrained, **options})
        return create(name, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(timm, "create_model", recorded)
    build(ModelConfiguration(name=TINY, pretrained=True), classes=2, channels=3, seed=0)
    assert asked[-1] == {"pretrained": True, "num_classes": 2, "in_chans": 3, "img_size": 32}


def test_a_checkpoint_of_vit_is_loaded(small_configuration: ModelConfiguration, tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    saved = build(small_configuration, classes=3, channels=1, seed=1)
    layout = Layout.of(saved)
    checkpoint.save(path, layout=layout, flat=layout.flatten(saved), metadata={})
    configuration = msgspec.structs.replace(small_configuration, checkpoint=str(path))
    assert flat(build(configuration, classes=3, channels=1, seed=2)) == flat(saved)
    with pytest.raises(ValueError, match=r"another architecture: 2 of other sizes, first 'head\.weight' is \[3, 8\]"):
        build(configuration, classes=4, channels=1, seed=2)


def test_a_checkpoint_of_a_timm_model_is_adapted(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    saved = timm.create_model(TINY)
    safetensors.torch.save_file(saved.state_dict(), path)
    configuration = ModelConfiguration(name=TINY, image_size=32, checkpoint=str(path))

    same = build(ModelConfiguration(name=TINY, image_size=160, checkpoint=str(path)), classes=1000, channels=3, seed=0)
    assert flat(same) == flat(saved)

    model = build(configuration, classes=5, channels=1, seed=0)
    ours, theirs = model.state_dict(), saved.state_dict()
    changed = {name for name in theirs if not torch.equal(ours[name], theirs[name])}
    # Resampled, merged to one channel, and replaced.
    assert changed == {"pos_embed", "patch_embed.proj.weight", "head.weight", "head.bias"}
    assert torch.equal(ours["patch_embed.proj.weight"], theirs["patch_embed.proj.weight"].sum(dim=1, keepdim=True))
    assert model(torch.zeros(2, 1, 32, 32)).shape == (2, 5)


def test_a_checkpoint_for_as_many_classes_keeps_its_classifier(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    configuration = ModelConfiguration(name=TINY, image_size=32)
    saved = build(configuration, classes=5, channels=1, seed=1)
    layout = Layout.of(saved)
    checkpoint.save(path, layout=layout, flat=layout.flatten(saved), metadata={})
    loaded = build(ModelConfiguration(name=TINY, image_size=32, checkpoint=str(path)), classes=5, channels=1, seed=2)
    assert flat(loaded) == flat(saved)


@pytest.mark.parametrize("case", ["text", "other", "nan"])
def test_checkpoints_that_do_not_fit_a_timm_model_are_refused(tmp_path: Path, case: str) -> None:
    path = tmp_path / "model.safetensors"
    if case == "text":
        path.write_bytes(b"weights")
    elif case == "other":
        safetensors.torch.save_file({"weight": torch.zeros(2)}, path)
    else:
        state = timm.create_model(TINY).state_dict()
        state["norm.weight"] = torch.full_like(state["norm.weight"], float(np.nan))
        safetensors.torch.save_file(state, path)
    messages = {
        "text": r"model\.safetensors' is not a safetensors file",
        "other": r"model\.safetensors' does not fit test_vit: \d+ tensors missing, first 'cls_token'; 1 tensors",
        "nan": r"model\.safetensors' tensor 'norm\.weight' holds a value that is not finite",
    }
    with pytest.raises(ValueError, match=messages[case]):
        build(ModelConfiguration(name=TINY, image_size=160, checkpoint=str(path)), classes=5, channels=3, seed=0)


LONG = "a-folder-with-a-long-name/" * 8


@pytest.mark.parametrize("name", ["vit", TINY])
@pytest.mark.parametrize("prefix", ["module.", "model.", "backbone.", "module.model.", "model.backbone."])
def test_usual_prefixes_are_left_out_with_a_word(tmp_path: Path, name: str, prefix: str) -> None:
    saved = build(ModelConfiguration(name=name), classes=3, channels=1, seed=1)
    path = tmp_path / "model.safetensors"
    state = {prefix + key: tensor.half() for key, tensor in saved.state_dict().items()}
    safetensors.torch.save_file(state, path)
    configuration = ModelConfiguration(name=name, checkpoint=str(path))
    with pytest.warns(WeightsWarning, match=rf'"{prefix}" before {len(state)} names is left out'):
        loaded = build(configuration, classes=3, channels=1, seed=2)
    assert all(torch.equal(tensor.half(), state[prefix + key]) for key, tensor in loaded.state_dict().items())


@pytest.mark.parametrize("name", ["vit", TINY, "resnet10t"])
def test_what_is_no_file_of_these_weights_is_refused_in_one_short_line(tmp_path: Path, name: str) -> None:
    folder = tmp_path / LONG
    folder.mkdir(parents=True)
    good = build(ModelConfiguration(name=name), classes=3, channels=1, seed=1).state_dict()
    first = next(iter(good))
    wrong = {
        "missing": ({key: good[key] for key in [*good][1:]}, rf"1 tensors missing, first '{first}'"),
        "surplus": ({**good, "ema_steps": torch.zeros(1)}, "1 tensors surplus, first 'ema_steps'"),
        "renamed": ({f"vit.{key}": value for key, value in good.items()}, rf"missing, first '{first}'; .* 'vit\."),
        "sizes": ({**good, first: torch.zeros(7, 7)}, rf"1 of other sizes, first '{first}' is \[7, 7\]"),
    }
    paths = {}
    for case, (state, message) in wrong.items():
        safetensors.torch.save_file({key: value.contiguous() for key, value in state.items()}, folder / f"{case}.st")
        paths[folder / f"{case}.st"] = message
    torch.save(good, folder / "w.pth")
    torch.save(good, folder / "renamed.safetensors")
    (folder / "html.safetensors").write_text("<html>")
    paths |= {
        folder / "w.pth": "a pickle, which could run code; convert it: safetensors.torch.save_file",
        folder / "renamed.safetensors": "a pickle, which could run code; convert it",
        folder / "html.safetensors": "is not a safetensors file: .*; copy it again",
        folder: "is a folder; name the file in it: html.safetensors, renamed.safetensors",
        folder / "absent.safetensors": "is no file",
    }
    for path, message in paths.items():
        with pytest.raises((ValueError, FileNotFoundError), match=message) as refused:
            build(ModelConfiguration(name=name, checkpoint=str(path)), classes=3, channels=1, seed=2)
        assert len(str(refused.value)) <= 300
        assert "\n" not in str(refused.value)


def test_sizes_beside_a_name_of_timm_are_passed_on_or_refused() -> None:
    usual: Any = build(ModelConfiguration(name="vit_tiny_patch16_224", depth=1), classes=2, channels=3, seed=0)
    assert len(usual.blocks) == 1
    other: Any = build(
        ModelConfiguration(name="vit_tiny_patch16_224", depth=1, patch_size=4, width=96, heads=6, mlp_ratio=2.0),
        classes=2,
        channels=3,
        seed=0,
    )
    assert other.state_dict()["patch_embed.proj.weight"].shape == (96, 3, 4, 4)
    assert other.state_dict()["blocks.0.mlp.fc1.weight"].shape == (192, 96)
    assert other.blocks[0].attn.num_heads == 6
    for name in ("resnet10t", "swin_tiny_patch4_window7_224"):
        alone = build(ModelConfiguration(name=name, image_size=32), classes=2, channels=3, seed=0)
        shapes = [tensor.shape for tensor in alone.state_dict().values()]
        for key, value in {"patch_size": 2, "width": 48, "depth": 3, "heads": 3, "mlp_ratio": 3.0}.items():
            given = ModelConfiguration(**{"name": name, "image_size": 32, key: value})
            with suppress(ValueError):
                made = build(given, classes=2, channels=3, seed=0)
                assert [tensor.shape for tensor in made.state_dict().values()] != shapes, key
