"""The division of a model into layers, and where their outputs are found; against outputs computed by hand."""

import re

import numpy as np
import pytest
import torch
from torch import nn

from tacit.models.configuration import ModelConfiguration
from tacit.models.layers import Granularity, layers, observed, outputs
from tacit.models.layout import Layout
from tacit.models.networks import build


def model_of(name: str) -> nn.Module:
    sizes = {"patch_size": 8, "width": 16, "depth": 2, "heads": 2} if name == "vit" else {}
    configuration = ModelConfiguration(name=name, image_size=16, **sizes)
    return build(configuration, classes=4, channels=3, seed=0)


NAMES = {
    ("lenet", "layer"): ["conv1", "conv2", "conv3", "fc"],
    ("convnet", "layer"): [*(f"conv{number}" for number in range(9)), "fc"],
    ("resnet18", "block"): ["conv1", *(f"layer{stage}.{block}" for stage in (1, 2, 3, 4) for block in (0, 1)), "fc"],
    ("resnet18", "stage"): ["conv1", "layer1", "layer2", "layer3", "layer4", "fc"],
    ("vit", "block"): ["patch_embed.proj", "blocks.0", "blocks.1", "head"],
    ("vit", "layer"): [
        "patch_embed.proj",
        *(f"blocks.{block}.{name}" for block in (0, 1) for name in ("attn.qkv", "attn.proj", "mlp.fc1", "mlp.fc2")),
        "head",
    ],
}


@pytest.mark.parametrize(("name", "granularity"), NAMES)
def test_layers_divide_the_model_without_rest(name: str, granularity: Granularity) -> None:
    model = model_of(name)
    found = layers(model, granularity)
    assert [layer.name for layer in found] == NAMES[name, granularity]
    entries = [entry.name for entry in Layout.of(model).entries]
    assert [tensor for layer in found for tensor in layer.tensors] == entries


def test_a_layer_has_its_bias_and_the_normalisation_that_follows_with_its_buffers() -> None:
    first = layers(model_of("convnet"), "layer")[0]
    names = ("weight", "bias", "running_mean", "running_var")
    assert first.tensors == ("conv0.weight", "conv0.bias", *(f"bn0.{name}" for name in names))
    shortcut = {layer.name: layer for layer in layers(model_of("resnet18"), "layer")}["layer2.0.downsample.0"]
    assert shortcut.tensors[0] == "layer2.0.downsample.0.weight"
    assert set(shortcut.tensors[1:]) == {f"layer2.0.downsample.1.{name}" for name in (*names[:2], *names[2:])}
    embedding = layers(model_of("vit"), "layer")[0]
    assert {"cls_token", "pos_embed", "patch_embed.proj.bias"} <= set(embedding.tensors)


@pytest.mark.parametrize(
    ("name", "granularity", "ends"),
    [
        ("lenet", "layer", {"conv2": "act2", "fc": "fc"}),
        ("convnet", "layer", {"conv3": "act3", "conv8": "act8", "fc": "fc"}),
        ("resnet18", "layer", {"conv1": "act1", "layer1.0.conv2": "layer1.0.act2", "layer2.0.conv2": "layer2.0.act2"}),
        ("resnet18", "layer", {"layer2.0.downsample.0": "layer2.0.downsample.1"}),
        ("resnet18", "block", {"layer1.0": "layer1.0"}),
        ("resnet18", "stage", {"layer1": "layer1", "layer4": "layer4", "fc": "fc"}),
        ("vit", "block", {"blocks.0": "blocks.0", "patch_embed.proj": "patch_embed.proj"}),
    ],
)
def test_outputs_are_those_after_normalisation_and_activation(
    name: str, granularity: Granularity, ends: dict[str, str]
) -> None:
    model = model_of(name)
    found = layers(model, granularity)
    calls = dict(zip((layer.name for layer in found), outputs(model, found, torch.randn(2, 3, 16, 16)), strict=True))
    assert {layer: calls[layer] for layer in ends} == {layer: (end, 0) for layer, end in ends.items()}
    assert model.training, "looking must not leave the model in another mode"
    assert not any(module._forward_hooks for module in model.modules())


def test_the_hidden_output_of_a_vision_transformer_is_taken_after_its_activation() -> None:
    model = model_of("vit").eval()
    found = layers(model, "layer")
    x = torch.randn(2, 3, 16, 16)
    place = [layer.name for layer in found].index("blocks.0.mlp.fc1")
    call = outputs(model, found, x)[place]
    seen: list[torch.Tensor] = []
    watchers = {call[0]: lambda call, given, output: seen.append(output.clone())}
    inputs: list[torch.Tensor] = []
    watchers["blocks.0.norm2"] = lambda call, given, output: inputs.append(output.clone())
    with observed(model, watchers):
        model(x)
    fc1 = model.get_submodule("blocks.0.mlp.fc1")
    expected = nn.functional.gelu(fc1(inputs[0]))
    assert torch.allclose(seen[0], expected, atol=1e-6)


class Shared(nn.Module):
    """One activation for two maps, as torchvision writes its networks; and one map that is never used."""

    def __init__(self, *, idle: bool = False) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)
        self.relu = nn.ReLU()
        if idle:
            self.idle = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.relu(self.second(self.relu(self.first(x.flatten(1)))))
        return result


def test_a_module_that_serves_two_layers_is_told_apart_by_its_calls() -> None:
    model = Shared()
    found = layers(model, "layer")
    assert outputs(model, found, torch.randn(1, 1, 2, 2)) == (("relu", 0), ("relu", 1))


@pytest.mark.parametrize(
    ("model", "granularity", "complaint"),
    [
        (nn.Sequential(nn.ReLU()), "layer", "no convolution and no linear map"),
        (
            nn.Sequential(nn.Linear(4, 4)),
            "block",
            'protection.granularity = "block": this model has no residual blocks',
        ),
        (nn.Sequential(nn.Sequential(nn.Linear(4, 4))), "stage", "this model has no stages of residual blocks; take"),
        (model_of("vit"), "stage", 'a model that has them, such as "resnet18"'),
    ],
)
def test_models_without_layers_are_refused(model: nn.Module, granularity: Granularity, complaint: str) -> None:
    with pytest.raises(ValueError, match=re.escape(complaint)):
        layers(model, granularity)


def test_nothing_is_learnt_or_counted_while_looking() -> None:
    model = model_of("convnet")
    before = Layout.of(model).flatten(model)
    outputs(model, layers(model, "layer"), torch.randn(2, 3, 16, 16))
    assert np.array_equal(Layout.of(model).flatten(model), before), "batch statistics must not move"
