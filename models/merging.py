"""Merge the low-rank products in a model file into the weights beside which they were trained. Loads no torch."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
from safetensors.numpy import load_file

from tacit.models.checkpoint import serialised
from tacit.models.description import header_of, read_description
from tacit.models.file_system import replace_file

_DOWN, _UP = ".lora_a", ".lora_b"


def merge_file(path: Path, out: Path) -> int:
    """Merge the adapters of the model in `path` into its weights, write it to `out`, and return their number.

    FileNotFoundError for a missing file; ValueError for one without low-rank products, for parallel adapters, which no
    weight can represent, and for an encrypted model; OSError if `out` cannot be written."""
    metadata, shapes = header_of(path)
    description = read_description(metadata, path)
    if description is not None and description.encrypted:
        raise ValueError(f"{path} is encrypted under a key of the clients: merge the plain model that a client keeps")
    if description is not None and description.trained == "parallel":
        raise ValueError(
            f"{path} has parallel adapters: they compute beside the blocks, and no weight of these can stand for them"
        )
    products = [name.removesuffix(_DOWN) for name in shapes if name.endswith(_DOWN)]
    if not products:
        raise ValueError(f"{path} has no low-rank products to merge: it is a whole model already")
    tensors = load_file(path)
    for name in products:
        down, up = (tensors.pop(f"{name}{part}").astype(np.float64) for part in (_DOWN, _UP))
        weight = tensors[f"{name}.weight"]
        tensors[f"{name}.weight"] = (weight + up @ down).astype(weight.dtype)
    told = {} if description is None else msgspec.structs.replace(description, merged=True).metadata()
    replace_file(out, serialised(tensors, told))
    return len(products)
