"""Description of a model in its file's metadata, for use of the tensors without the run that they come from.

The metadata entry `model` holds it as JSON. `timm.create_model(architecture, **arguments)` makes the network where the
architecture is timm's; docs/model-files.md has the lines. Loads no torch.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta
from safetensors import SafetensorError, safe_open

from tacit.models.configuration import Tuning

MODEL: Final = "model"
"""Name of the metadata entry."""
OWN_VIT: Final = "vit_tiny_patch16_224"
"""timm's architecture that equals our "vit" once its sizes are given."""
_Text = Annotated[str, Meta(max_length=1024)]


class ModelDescription(msgspec.Struct, frozen=True, kw_only=True):
    """A model: its network, and its input images."""

    architecture: _Text
    """Name in timm; "lenet" or "convnet"; or the function that makes it, "package.module:function"."""
    arguments: dict[str, int | float]
    """Keyword arguments of timm.create_model, beside the name."""
    image_size: int
    """Height and width of images, in pixels."""
    channels: int
    classes: tuple[_Text, ...]
    """Names, in the order of the logits; empty if unknown."""
    mean: tuple[float, ...]
    """Subtracted from the pixels of each channel, as a fraction of 255."""
    std: tuple[float, ...]
    """Divides each channel after the subtraction."""
    white: int = 255
    """Value of a white pixel in its training images."""
    trained: Tuning | Literal["patterns"]
    """The trained part: as model.tune; "patterns": the tensors that model.train names."""
    trained_values: int
    """Number of trained parameters."""
    patterns: tuple[_Text, ...] = ()
    rank: int = 0
    """Rank of low-rank products or adapters; 0: neither."""
    merged: bool = False
    """Whether low-rank products are merged into the weights beside which they were trained."""
    encrypted: bool = False
    """Whether embeddings are encrypted under a key of the clients."""

    def metadata(self) -> dict[str, str]:
        return {MODEL: msgspec.json.encode(self).decode()}


def header_of(path: Path) -> tuple[dict[str, str], dict[str, tuple[int, ...]]]:
    """Read metadata and the shapes of all tensors in a safetensors file. FileNotFoundError; ValueError."""
    if not path.is_file():
        raise FileNotFoundError(f"{path} is no file")
    try:
        with safe_open(path, framework="np") as file:
            shapes = {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118
            return dict(file.metadata() or {}), shapes
    except (SafetensorError, OSError) as error:
        raise ValueError(f"{path} is not a safetensors file: {error}") from None


def read_description(metadata: dict[str, str], where: Any) -> ModelDescription | None:
    """Return the description in the metadata of a file; None without one. Raises ValueError for an invalid one."""
    if MODEL not in metadata:
        return None
    try:
        return msgspec.json.decode(metadata[MODEL], type=ModelDescription)
    except msgspec.MsgspecError as error:
        raise ValueError(f"{where}: its description of the model is not valid: {error}") from None
