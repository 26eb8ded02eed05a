"""Checkpoints of timm's vision transformers, with their pretrained configuration of images and classes.

Only safetensors files are read, never a pickle. A `config.json` of the Hugging Face hub beside the file takes
precedence for images and classes; otherwise timm's own configuration of the architecture applies ("NAME.TAG" names one
of several). A file from one of our runs describes itself (description.py).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Final

import msgspec
import timm
import torch
from msgspec import Meta
from timm import data as timm_data
from timm.models import get_arch_pretrained_cfgs
from torch import nn

from tacit.models.datasets.samples import LEAST_CROP, SQUASHED, Interpolation, Scaling
from tacit.models.description import header_of, read_description
from tacit.models.friendly.transformer import SUPPORTED, ConversionError, unsupported
from tacit.models.networks import check_known
from tacit.models.weights_file import misfit, read_weights, refusal

_USUAL_SIZE: Final = 224
"""Edge in pixels, where images of the pretrained size would have too many patches (DINOv2's of 518 pixels)."""
_SHOWN: Final = 200


@dataclass(frozen=True, kw_only=True)
class Pretrained:
    model: nn.Module = field(repr=False)
    """Model in evaluation mode."""
    image_size: int
    mean: tuple[float, ...]
    """Per channel, as a fraction of 255; subtracted from the pixels, which are then divided by `std`."""
    std: tuple[float, ...]
    scaling: Scaling
    class_names: tuple[str, ...]
    """Empty for a model whose results are features: one without a head, or with a projection like CLIP's."""
    white: int = 255


class _Published(msgspec.Struct):
    architecture: str = ""
    label_names: tuple[str, ...] | None = None
    pretrained_cfg: dict[str, Any] = {}


_Share = Annotated[float, Meta(ge=0.0, le=1.0)]
_Part = Annotated[float, Meta(gt=0.0, le=1.0)]


class _Images(msgspec.Struct):
    """Keys of a pretrained configuration that describe the preparation of images."""

    input_size: tuple[int, int, int]
    mean: tuple[_Share, _Share, _Share]
    std: tuple[_Part, _Part, _Part]
    interpolation: str
    crop_pct: Annotated[float, Meta(ge=LEAST_CROP, le=1.0)]
    crop_mode: str

    @property
    def scaling(self) -> Scaling:
        if self.crop_mode not in ("center", "squash"):
            raise ValueError(f"crop_mode = {self.crop_mode!r} is not supported; center and squash are")
        interpolation: Interpolation = "bicubic" if self.interpolation == "bicubic" else "bilinear"
        return Scaling(interpolation=interpolation, squash=self.crop_mode == "squash", crop=self.crop_pct)


# timm does not declare what it exports.
_data: Any = timm_data


def read_pretrained(architecture: str, path: Path, *, most_tokens: int, image_size: int = 0) -> Pretrained:
    """Read the weights of a timm architecture from a file.

    image_size: edge in pixels; 0: the pretrained one, or _USUAL_SIZE where that has more than `most_tokens`.
    FileNotFoundError for a missing file; ConversionError for an unsupported architecture; ValueError for an unknown
    one, a file that does not fit it, and a size that its patches do not share evenly.
    """
    check_known(architecture, key="architecture")
    try:
        with torch.device("meta"):
            shape: Any = timm.create_model(architecture)
    except RuntimeError as error:
        # Supported architectures read no weights when they are built.
        raise ConversionError(f"{architecture} is not supported; {SUPPORTED}") from error
    if problem := unsupported(shape):
        raise ConversionError(f"{architecture}: {problem}; {SUPPORTED}")
    state = read_weights(path, shape.state_dict().keys())
    classes = len(state["head.weight"]) if "head.weight" in state else 0
    published = _published(path, architecture)
    configured: Any = timm.get_pretrained_cfg(architecture)
    try:
        images = msgspec.convert({**configured.to_dict(), **published.pretrained_cfg}, _Images)
    except msgspec.ValidationError as error:
        raise ValueError(f"images of checkpoint {str(path)!r}: {error}") from None
    size, patch = image_size or images.input_size[-1], shape.patch_embed.patch_size[0]
    if not image_size and (size // patch) ** 2 + shape.num_prefix_tokens > most_tokens:
        size = _USUAL_SIZE
    if size % patch:
        raise ValueError(f"images of {size} pixels do not have whole patches of {patch}: take a multiple of it")
    options: dict[str, Any] = {"num_classes": classes, "img_size": size}
    overlay = {"state_dict": dict(state), "num_classes": classes}
    try:
        model = timm.create_model(architecture, pretrained=True, pretrained_cfg_overlay=overlay, **options)
    except (RuntimeError, KeyError, ValueError, IndexError, AssertionError) as error:
        reason = misfit(state, shape.state_dict()) or " ".join(str(error).split())[:_SHOWN]
        raise ValueError(refusal(path, f"does not fit {architecture}: {reason}")) from error
    for name, tensor in model.named_parameters():
        if not bool(tensor.isfinite().all()):
            raise ValueError(f"checkpoint {str(path)!r}: {name} holds a value that is not finite")
    return Pretrained(
        model=model.eval(),
        image_size=size,
        mean=images.mean,
        std=images.std,
        scaling=images.scaling,
        class_names=_class_names(architecture, classes, published),
    )


def read_described(path: Path) -> Pretrained:
    """Read a model from a file that describes itself. FileNotFoundError for a missing file; ConversionError for an
    unsupported model; ValueError for a file without a description, or with one that contradicts its content, for an
    encrypted model, and for one with adapters."""
    metadata, _ = header_of(path)
    about = read_description(metadata, path)
    if about is None:
        raise ValueError(refusal(path, "does not say what model it holds: name its architecture"))
    if about.encrypted:
        raise ValueError(refusal(path, "is encrypted under a key of the clients: take the plain model that one keeps"))
    if about.rank and not about.merged:
        remedy = "; `tacit models merge` makes it one model" * (about.trained == "lora")
        raise ValueError(refusal(path, f"has adapters beside its blocks{remedy}"))
    check_known(about.architecture, key="architecture")
    arguments: dict[str, Any] = dict(about.arguments)
    try:
        model: Any = timm.create_model(about.architecture, **arguments)
    except (TypeError, RuntimeError, ValueError, AssertionError) as error:
        reason = " ".join(str(error).split())[:_SHOWN]
        raise ValueError(refusal(path, f"describes no {about.architecture}: {reason}")) from error
    if problem := unsupported(model):
        raise ConversionError(f"{about.architecture}: {problem}; {SUPPORTED}")
    state = read_weights(path, model.state_dict().keys())
    if reason := misfit(state, model.state_dict()):
        raise ValueError(refusal(path, f"does not hold the {about.architecture} that it describes: {reason}"))
    model.load_state_dict(state)
    return Pretrained(
        model=model.eval(),
        image_size=about.image_size,
        mean=about.mean,
        std=about.std,
        scaling=SQUASHED,
        class_names=about.classes,
        white=about.white,
    )


def _published(path: Path, architecture: str) -> _Published:
    """Return the config.json beside a checkpoint, if it is of this architecture."""
    try:
        found = msgspec.json.decode(path.with_name("config.json").read_bytes(), type=_Published)
    except FileNotFoundError:
        return _Published()
    except msgspec.MsgspecError as error:
        raise ValueError(f"{path.with_name('config.json')} is no configuration of timm's: {error}") from None
    return found if found.architecture == architecture.partition(".")[0] else _Published()


def _class_names(architecture: str, classes: int, published: _Published) -> tuple[str, ...]:
    """Return known names; numbers for custom classes; none for features."""
    if published.label_names is not None and len(published.label_names) == classes:
        return published.label_names
    if subset := _data.infer_imagenet_subset({"num_classes": classes}):
        return tuple(_data.ImageNetInfo(subset).label_descriptions())
    if classes in {each.num_classes for each in get_arch_pretrained_cfgs(architecture.partition(".")[0]).values()}:
        return ()
    return tuple(f"class {number}" for number in range(classes))
