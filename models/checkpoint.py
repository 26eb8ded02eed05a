"""Models on disk: a safetensors file with one float32 tensor per entry of the layout, and metadata of short strings.

A file appears whole or not at all: it is written under a temporary name in the same folder, flushed to the disk, and
renamed. Nothing in it is ever unpickled.
"""

import os
import tempfile
from pathlib import Path

from safetensors import SafetensorError, safe_open
from safetensors.numpy import save as serialise

from tacit.models.layout import Flat, Layout, LayoutEntry


def save(path: Path, *, layout: Layout, flat: Flat, metadata: dict[str, str]) -> None:
    """Write float32 [layout.size] and `metadata` to `path`, replacing a file that is there.

    Raises ValueError for a vector of another dtype or length or with a value that is not finite, OSError if the folder
    cannot be written; an earlier file then stays as it was.
    """
    layout.check_finite(flat)
    content = serialise(layout.split(flat), metadata=metadata)
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".tmp")
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise


def load(path: Path, layout: Layout) -> tuple[Flat, dict[str, str]]:
    """The model and the metadata in `path`: float32 [layout.size] in the order of `layout`.

    Raises FileNotFoundError for a missing file and ValueError for a file that is not safetensors, belongs to another
    architecture (naming the first tensor that is missing, superfluous, or of another shape or dtype), or holds a value
    that is not finite.
    """
    try:
        with safe_open(path, framework="numpy") as file:
            slices = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118 (not a mapping)
            found = {name: LayoutEntry(name, tuple(part.get_shape())) for name, part in slices.items()}
            # A file has no order of its own: compare in ours.
            ordered = [found.pop(entry.name) for entry in layout.entries if entry.name in found]
            difference = layout.difference(Layout((*ordered, *found.values())))
            if difference is not None:
                raise ValueError(f"checkpoint {str(path)!r} holds another architecture: {difference}")
            for name, part in slices.items():
                if part.get_dtype() != "F32":
                    raise ValueError(f"checkpoint {str(path)!r}: tensor {name!r} is {part.get_dtype()}, expected F32")
            flat = layout.concatenate({name: file.get_tensor(name) for name in slices})
            metadata = dict(file.metadata() or {})
    except SafetensorError as error:
        raise ValueError(f"checkpoint {str(path)!r} is not a safetensors file: {error}") from error
    try:
        layout.check_finite(flat)
    except ValueError as error:
        raise ValueError(f"checkpoint {str(path)!r}: {error}") from error
    return flat, metadata
