"""Build the network of an experiment: timm's `VisionTransformer`, any other timm model by name, or one of ours.

Random weights depend on the seed alone, and PyTorch's global generator stays unchanged. "lenet" is that of Zhu et al.
2019, "Deep Leakage from Gradients", whose weights start uniform in [-1/2, 1/2] as in the authors' code: with PyTorch's
initialisation, ten times smaller, the sigmoids saturate the signal. "convnet" is that of Geiping et al. 2020,
"Inverting Gradients", at width 32.
"""

from __future__ import annotations

import difflib
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, cast

import timm
import torch
from timm.models import get_arch_pretrained_cfgs
from timm.models.vision_transformer import VisionTransformer
from torch import nn

from tacit.models.configuration import OWN_MODELS, SIZES, Architecture, ModelConfiguration
from tacit.models.layout import Layout
from tacit.models.training import seeded
from tacit.models.weights_file import misfit, read_weights, refusal

_TIMM_SIZES: Final = {"width": "embed_dim", "heads": "num_heads"}
"""timm's names for our sizes, where they differ."""
LENET_CHANNELS: Final = 12
LENET_START: Final = 0.5
"""Bound of the random initial weights."""
CONVNET_CHANNELS: Final = (32, 64, 64, 128, 128, 128, 128, 128, 128)
POOLED: Final = (5, 8)
"""Convolutions, counted from 0, after which the image shrinks by POOL."""
POOL: Final = 3


class LeNet(nn.Sequential):
    """Map float32 [batch, channels, size, size] to logits [batch, classes]."""

    def __init__(self, *, channels: int, image_size: int, classes: int) -> None:
        super().__init__()
        for number, (before, stride) in enumerate(((channels, 2), (LENET_CHANNELS, 2), (LENET_CHANNELS, 1)), start=1):
            self.add_module(f"conv{number}", nn.Conv2d(before, LENET_CHANNELS, kernel_size=5, padding=2, stride=stride))
            self.add_module(f"act{number}", nn.Sigmoid())
        side = -(-image_size // 4)  # Two strides of 2, rounded up.
        self.add_module("flatten", nn.Flatten())
        self.add_module("fc", nn.Linear(LENET_CHANNELS * side * side, classes))
        for parameter in self.parameters():
            nn.init.uniform_(parameter, -LENET_START, LENET_START)


class ConvNet(nn.Sequential):
    """Map float32 [batch, channels, size, size] to logits [batch, classes]. ValueError for images below 9 pixels."""

    def __init__(self, *, channels: int, image_size: int, classes: int) -> None:
        if image_size < POOL * POOL:
            raise ValueError(f"model.image_size {image_size}: the convnet pools twice by {POOL}; take at least 9")
        super().__init__()
        for number, (before, after) in enumerate(zip((channels, *CONVNET_CHANNELS), CONVNET_CHANNELS, strict=False)):
            self.add_module(f"conv{number}", nn.Conv2d(before, after, kernel_size=3, padding=1))
            self.add_module(f"bn{number}", nn.BatchNorm2d(after))
            self.add_module(f"act{number}", nn.ReLU())
            if number in POOLED:
                self.add_module(f"pool{POOLED.index(number)}", nn.MaxPool2d(POOL))
        side = image_size // POOL // POOL
        self.add_module("flatten", nn.Flatten())
        self.add_module("fc", nn.Linear(CONVNET_CHANNELS[-1] * side * side, classes))


def build(
    configuration: Architecture, *, classes: int, channels: int, seed: int, new_head: bool | None = None
) -> nn.Module:
    """Build a model on the CPU that maps float32 [batch, channels, image_size, image_size] to logits [batch, classes].

    Its weights are random, unless a ModelConfiguration names their source. A local checkpoint of one of our models must
    fit exactly. A timm checkpoint is adapted as timm adapts its own weights (position embeddings resampled, input
    channels merged), and its classifier is replaced by a random one where the classes differ. new_head: whether to
    replace it, for our models and for timm's. Raises ValueError for a factory or a part to be trained, an unknown name,
    invalid sizes, weights that cannot be downloaded and a checkpoint that does not fit; FileNotFoundError for a missing
    checkpoint.
    """
    if configuration.factory:
        raise ValueError("model.factory: only a federation makes a model of one's own; leave it out")
    if configuration.tune != "all":
        raise ValueError(
            f'model.tune = "{configuration.tune}": only a federation trains a part of a model; leave it out'
        )
    with seeded(seed):
        if configuration.name not in OWN_MODELS:
            return _timm(configuration, classes, channels, new_head is not False)
        model = _own(configuration, classes, channels)
    if isinstance(configuration, ModelConfiguration) and configuration.checkpoint:
        path, expected = Path(configuration.checkpoint), model.state_dict()
        state = read_weights(path, expected.keys())
        _keep_integers(state, expected)
        if new_head is not None:
            _fit_head(path, state, model, configuration.name, new_head)
        if reason := misfit(state, expected):
            raise ValueError(refusal(path, f"holds another architecture: {reason}"))
        model.load_state_dict(state)
        _check_finite(path, model)
    return model


def arguments(configuration: Architecture, *, classes: int, channels: int) -> dict[str, Any]:
    """Return the arguments of timm.create_model beside the name; those of "vit" go with timm's own name for it
    (description.py). Empty for other models."""
    if configuration.factory or configuration.name in ("lenet", "convnet"):
        return {}
    if configuration.name == "vit":
        return _sizes(configuration, classes=classes, channels=channels)
    with torch.device("meta"):
        return _created(configuration.name, _options(configuration, classes, channels))[1]


def classifiers(model: nn.Module, name: str) -> list[str]:
    """Return the module names of the classifiers of a model of this name; a distilled one has two."""
    if name in OWN_MODELS:
        return ["head" if name == "vit" else "fc"]
    found = cast(dict[str, Any], model.pretrained_cfg)["classifier"]
    return [found] if isinstance(found, str) else list(found)


def _own(configuration: Architecture, classes: int, channels: int) -> nn.Module:
    if configuration.name == "lenet":
        return LeNet(channels=channels, image_size=configuration.image_size, classes=classes)
    if configuration.name == "convnet":
        return ConvNet(channels=channels, image_size=configuration.image_size, classes=classes)
    sizes: dict[str, Any] = _sizes(configuration, classes=classes, channels=channels)
    return VisionTransformer(**sizes)


def _sizes(configuration: Architecture, *, classes: int, channels: int) -> dict[str, Any]:
    return {
        "img_size": configuration.image_size,
        "patch_size": configuration.patch_size,
        "in_chans": channels,
        "num_classes": classes,
        "embed_dim": configuration.width,
        "depth": configuration.depth,
        "num_heads": configuration.heads,
        "mlp_ratio": configuration.mlp_ratio,
    }


def _options(configuration: Architecture, classes: int, channels: int) -> dict[str, Any]:
    given = {_TIMM_SIZES.get(key, key): value for key in SIZES if (value := getattr(configuration, key))}
    return {"num_classes": classes, "in_chans": channels, "img_size": configuration.image_size, **given}


def _created(name: str, options: dict[str, Any]) -> tuple[nn.Module, dict[str, Any]]:
    """Create a timm model; return it with the options that it takes: a convolutional network takes images of any size.
    Raises ValueError for another configured size that the model does not take."""
    try:
        return timm.create_model(name, **options), options
    except (TypeError, AssertionError, AttributeError) as error:
        if "'img_size'" in str(error) and "img_size" in options:
            return _created(name, {key: value for key, value in options.items() if key != "img_size"})
        given = {key: options[said] for key in SIZES if (said := _TIMM_SIZES.get(key, key)) in options}
        if not given:
            raise
        key = next((key for key in given if f"'{_TIMM_SIZES.get(key, key)}'" in str(error)), next(iter(given)))
        raise ValueError(f"model.{key} = {given[key]}: {name} has its own and takes no other; leave it out") from None


def check_known(name: str, *, key: str, own: Sequence[str] = ()) -> None:
    """Raise ValueError unless timm has an architecture of this name, with its tag if any. key: the setting that named
    it; own: further known names."""
    if not timm.is_model(name):
        close = difflib.get_close_matches(name, [*own, *timm.list_models()])
        hint = (
            f"did you mean {', '.join(close)}?" if close else "see timm.list_models()" + ', or take "vit"' * bool(own)
        )
        raise ValueError(f"{key} {name!r} is unknown to timm; {hint}")
    if "." in name and name not in (tagged := get_arch_pretrained_cfgs(name.partition(".")[0])):
        raise ValueError(f"{key} {name!r} is unknown to timm; it has {', '.join(tagged)}")


def _timm(configuration: Architecture, classes: int, channels: int, new_head: bool) -> nn.Module:
    name, size = configuration.name, configuration.image_size
    check_known(name, key="model.name", own=OWN_MODELS)
    model, options = _created(name, _options(configuration, classes, channels))
    patches = getattr(getattr(model, "patch_embed", None), "patch_size", None)
    if patches is not None and any(size % patch for patch in patches):
        raise ValueError(f"model.image_size {size} must be a multiple of the patch size {patches[0]} of {name}")
    if not isinstance(configuration, ModelConfiguration):
        return model
    if configuration.checkpoint:
        return _from_file(Path(configuration.checkpoint), name, model, options, new_head)
    if not configuration.pretrained:
        return model
    try:
        return timm.create_model(name, pretrained=True, **options)
    except (OSError, RuntimeError) as error:
        raise ValueError(
            f"model.pretrained: no weights for {name!r} could be downloaded ({type(error).__name__}); "
            "download them elsewhere, set model.checkpoint to the .safetensors file and model.pretrained to false"
        ) from error


def _from_file(path: Path, name: str, model: nn.Module, options: dict[str, Any], new_head: bool) -> nn.Module:
    expected = model.state_dict()
    state = read_weights(path, expected.keys())
    _keep_integers(state, expected)
    _fit_head(path, state, model, name, new_head)
    overlay = {"state_dict": dict(state), "num_classes": options["num_classes"]}
    said: list[str] = []

    def hear(record: logging.LogRecord) -> bool:
        said.append(record.getMessage())
        return True

    builder = logging.getLogger("timm.models._builder")
    builder.addFilter(hear)
    try:
        loaded = timm.create_model(name, pretrained=True, pretrained_cfg_overlay=overlay, **options)
        if any("random init" in message for message in said):
            # timm would continue with a random first layer.
            raise ValueError("its first layer is for other channels or sizes")
    except (RuntimeError, KeyError, ValueError, IndexError, AssertionError) as error:
        reason = misfit(state, expected) or " ".join(str(error).split())[:100]
        raise ValueError(refusal(path, f"does not fit {name}: {reason}")) from None
    finally:
        builder.removeFilter(hear)
    _check_finite(path, loaded)
    return loaded


def _fit_head(path: Path, state: dict[str, torch.Tensor], model: nn.Module, name: str, new_head: bool) -> None:
    """Keep the random weights of a classifier for other classes; all else must come from the file. Raises ValueError
    for such a classifier if no new one is allowed."""
    for classifier in classifiers(model, name):
        for key, tensor in model.get_submodule(classifier).state_dict(prefix=f"{classifier}.").items():
            found = list(state[key].shape) if key in state else "missing"
            if found != list(tensor.shape):
                if not new_head:
                    reason = f"has no head for these classes: {key!r} is {found}, expected {list(tensor.shape)}"
                    raise ValueError(refusal(path, f"{reason}; --new-head trains a new one on the images"))
                state[key] = tensor


def _keep_integers(state: dict[str, torch.Tensor], expected: Mapping[str, torch.Tensor]) -> None:
    """Keep counters and indices as the architecture sets them: our checkpoints have floating-point tensors alone."""
    for name, tensor in expected.items():
        if not tensor.is_floating_point():
            state.setdefault(name, tensor)


def _check_finite(path: Path, model: nn.Module) -> None:
    try:
        Layout.of(model).check_finite(Layout.of(model).flatten(model))
    except ValueError as error:
        raise ValueError(refusal(path, str(error))) from None
