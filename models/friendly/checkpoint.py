"""A calibrated student on disk: a checkpoint as of any model, whose metadata hold its polynomials and intervals.

The tensors are those of the teacher's architecture, so that the file can also be the start of timm's model; and the
file of any model of timm's is that of a stock one.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path

import msgspec
from torch import nn

from tacit.models import checkpoint
from tacit.models.configuration import ModelConfiguration
from tacit.models.friendly.blocks import STOCK, Approximation
from tacit.models.friendly.calibration import fix_intervals, intervals
from tacit.models.friendly.convert import convert
from tacit.models.friendly.gauge import Interval
from tacit.models.friendly.transformer import FriendlyTransformer
from tacit.models.layout import Layout
from tacit.models.vision_transformer import build

_KEY = "friendly"


class _Friendly(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    softmax_degree: int | None
    inverse_steps: int | None
    intervals: dict[str, tuple[float, float]]
    quadratic_gelu: bool = True


def save(path: Path, model: FriendlyTransformer, approximation: Approximation) -> None:
    """Write a student and its intervals. Raises as tacit.models.checkpoint.save does."""
    layout = Layout.of(model)
    found = {name: (low, high) for name, (low, high) in intervals(model).items()}
    description = _Friendly(**dataclasses.asdict(approximation), intervals=found)
    metadata = {_KEY: msgspec.json.encode(description).decode()}
    checkpoint.save(path, layout=layout, flat=layout.flatten(model), metadata=metadata)


def load(path: Path, configuration: ModelConfiguration, *, classes: int, channels: int) -> FriendlyTransformer:
    """The student in `path`, in evaluation mode; `configuration` is the architecture of its teacher.

    Raises as tacit.models.checkpoint.load and convert() do, and ValueError for a file that holds no student.
    """
    teacher = _architecture(configuration, classes=classes, channels=channels)
    flat, metadata = checkpoint.load(path, Layout.of(teacher))
    if _KEY not in metadata:
        raise ValueError(f"checkpoint {str(path)!r} holds no distilled model; `tacit distill` makes one")
    try:
        found = msgspec.json.decode(metadata[_KEY], type=_Friendly)
        approximation = Approximation(
            softmax_degree=found.softmax_degree,
            inverse_steps=found.inverse_steps,
            quadratic_gelu=found.quadratic_gelu,
        )
        student = convert(teacher, approximation)
        fix_intervals(student, {name: Interval(*ends) for name, ends in found.intervals.items()})
    except (msgspec.MsgspecError, ValueError) as error:
        raise ValueError(f"checkpoint {str(path)!r}: {error}") from error
    Layout.of(student).load_into(student, flat)
    return student.eval()


def load_stock(path: Path, configuration: ModelConfiguration, *, classes: int, channels: int) -> FriendlyTransformer:
    """The model of timm's in `path`, of the architecture `configuration`, as a stock one in evaluation mode; it is not
    calibrated. Raises as tacit.models.checkpoint.load and convert() do."""
    model = _architecture(configuration, classes=classes, channels=channels)
    stock = convert(model, STOCK)
    layout = Layout.of(stock)
    flat, _ = checkpoint.load(path, layout)
    layout.load_into(stock, flat)
    return stock.eval()


def _architecture(configuration: ModelConfiguration, *, classes: int, channels: int) -> nn.Module:
    """With some weights."""
    bare = msgspec.structs.replace(configuration, checkpoint="", pretrained=False)
    return build(bare, classes=classes, channels=channels, seed=0)
