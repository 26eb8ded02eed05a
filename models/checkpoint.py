"""Models on disk: a safetensors file with one float32 tensor per entry of the layout, and metadata of short strings.

A file appears whole or not at all (tacit.models.file_system). Nothing in it is ever unpickled.
"""

import json
from pathlib import Path

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError, deserialize
from safetensors.numpy import save as serialise

from tacit.models.file_system import FILES, FileSystem, replace_file
from tacit.models.layout import Flat, Layout, LayoutEntry

_HEADER_LENGTH = 8
"""Bytes of the header's length prefix, little-endian."""


def save(path: Path, *, layout: Layout, flat: Flat, metadata: dict[str, str], files: FileSystem = FILES) -> None:
    """Write float32 [layout.size] and `metadata` to `path`, replacing an existing file; return when it is on disk.

    Raises ValueError for a vector of another dtype or length or with a value that is not finite, OSError if the folder
    cannot be written; an earlier file then stays unchanged.
    """
    layout.check_finite(flat)
    replace_file(path, serialised(layout.split(flat), metadata), files)


def serialised(tensors: dict[str, npt.NDArray[np.float32]], metadata: dict[str, str]) -> bytes:
    """Encode a safetensors file. Equal arguments give equal bytes, although the library orders metadata at random."""
    content: bytes = serialise(tensors, metadata=metadata)
    length, rest = int.from_bytes(content[:_HEADER_LENGTH], "little"), memoryview(content)[_HEADER_LENGTH:]
    header = json.loads(bytes(rest[:length]))
    header["__metadata__"] = dict(sorted(metadata.items()))
    encoded = json.dumps({"__metadata__": header.pop("__metadata__"), **header}, separators=(",", ":")).encode()
    encoded += b" " * (-len(encoded) % _HEADER_LENGTH)
    return b"".join([len(encoded).to_bytes(_HEADER_LENGTH, "little"), encoded, rest[length:]])


def load(path: Path, layout: Layout, files: FileSystem = FILES) -> tuple[Flat, dict[str, str]]:
    """Read the model and the metadata in `path`: float32 [layout.size] in the order of `layout`.

    Raises FileNotFoundError for a missing file and ValueError for a file that is not safetensors, belongs to another
    architecture (naming the first missing, surplus or different tensor), or holds a value that is not finite.
    """
    content = files.read(path)
    try:
        tensors = dict(deserialize(content))  # type: ignore[no-untyped-call]
    except SafetensorError as error:
        raise ValueError(f"checkpoint {str(path)!r} is not a safetensors file: {error}") from error
    found = {name: LayoutEntry(name, tuple(part["shape"])) for name, part in tensors.items()}
    # A file has no order of its own: compare in the layout's.
    ordered = [found.pop(entry.name) for entry in layout.entries if entry.name in found]
    difference = layout.difference(Layout((*ordered, *found.values())))
    if difference is not None:
        raise ValueError(f"checkpoint {str(path)!r} holds another architecture: {difference}")
    for name, part in tensors.items():
        if part["dtype"] != "F32":
            raise ValueError(f"checkpoint {str(path)!r}: tensor {name!r} is {part['dtype']}, expected F32")
    flat = layout.concatenate(
        {name: np.frombuffer(part["data"], "<f4").reshape(part["shape"]) for name, part in tensors.items()}
    )
    try:
        layout.check_finite(flat)
    except ValueError as error:
        raise ValueError(f"checkpoint {str(path)!r}: {error}") from error
    return flat, metadata_of(content)


def metadata_of(content: bytes) -> dict[str, str]:
    header = content[_HEADER_LENGTH : _HEADER_LENGTH + int.from_bytes(content[:_HEADER_LENGTH], "little")]
    found: dict[str, str] = json.loads(header).get("__metadata__", {})
    return found
