"""Adapters and head on a disk: a safetensors file of float64 tensors, and the round whose common parameters they are.

A file appears whole or not at all. Nothing in it is ever unpickled.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import numpy as np
import torch
from safetensors import SafetensorError, deserialize
from safetensors.numpy import save as serialise

from tacit.models.adapters.parallel import AdapterParameters
from tacit.models.checkpoint import metadata_of
from tacit.models.file_system import FILES, replace_file

_ROUND: Final = "round"


def save(path: Path, parameters: AdapterParameters, *, round: int) -> None:
    """Write them; return when they are on the disk. OSError."""
    tensors = {name: tensor.detach().double().numpy() for name, tensor in parameters.tensors.items()}
    replace_file(path, serialise(tensors, metadata={_ROUND: str(round)}))


def load(path: Path, like: AdapterParameters) -> tuple[AdapterParameters, int]:
    """Float64 parameters of the same shapes, and their round. FileNotFoundError; ValueError for a file that is none, or
    has other shapes."""
    content = FILES.read(path)
    try:
        found = dict(deserialize(content))  # type: ignore[no-untyped-call]
        number = int(metadata_of(content)[_ROUND])
    except (SafetensorError, KeyError, ValueError) as error:
        raise ValueError(f"{path} holds no adapters: {error}") from error
    tensors = {}
    for name, tensor in like.tensors.items():
        part = found.get(name)
        if part is None or part["dtype"] != "F64" or tuple(part["shape"]) != tuple(tensor.shape):
            raise ValueError(f"{path} holds adapters of another model: {name} is not a float64 {tuple(tensor.shape)}")
        values = np.frombuffer(part["data"], "<f8").reshape(part["shape"]).astype(np.float64)
        if not np.isfinite(values).all():
            raise ValueError(f"{path}: {name} has a value that is not finite")
        tensors[name] = torch.from_numpy(values)
    return AdapterParameters(**tensors), number
