"""Images read once for all processes of a simulation: one file, which they map into their memory.

The server writes it before any other process starts, into a folder that is removed with the supervisor, so its content
always comes from this program. Arrays are stored in their memory layout, and not copied.
"""

from __future__ import annotations

import mmap
import pickle
from dataclasses import replace
from pathlib import Path
from typing import Final

import numpy as np

from tacit.models.datasets.samples import ArrayImages, Samples, Source

_ALIGNMENT: Final = 64
_FILE: Final = "images"


def keep(source: Source, folder: Path) -> None:
    """Write the images for the other processes, unless they exist. OSError, with the remedy, if that fails."""
    path = folder / _FILE
    if path.exists():
        return
    arrays: list[pickle.PickleBuffer] = []
    # The server reports the notes.
    flat = replace(source, train=_contiguous(source.train), test=_contiguous(source.test), notes=())
    head = pickle.dumps(flat, protocol=5, buffer_callback=arrays.append)
    try:
        with path.open("wb") as file:
            places = []
            for array in arrays:
                file.write(bytes(-file.tell() % _ALIGNMENT))
                content = array.raw()
                places.append((file.tell(), content.nbytes))
                file.write(content)
            end = file.tell()
            pickle.dump((places, head), file)
            file.write(end.to_bytes(8, "little"))
    except OSError as error:
        raise OSError(
            f"{path} cannot be written: {error.strerror or error}; make room there, or set TMPDIR to another folder"
        ) from error


def kept(folder: Path) -> Source:
    """Read them. A process that writes to an array gets its own copy of the pages."""
    with (folder / _FILE).open("rb") as file:
        content = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY))
    end = int.from_bytes(content[-8:], "little")
    places, head = pickle.loads(content[end:-8])
    source: Source = pickle.loads(head, buffers=[content[start : start + size] for start, size in places])
    return source


def _contiguous(samples: Samples) -> Samples:
    images = samples.images
    if isinstance(images, ArrayImages):
        images = ArrayImages(np.ascontiguousarray(images.array))
    centres = None if samples.centres is None else np.ascontiguousarray(samples.centres)
    return Samples(images, np.ascontiguousarray(samples.labels), centres)
