"""Images that were found once, for all processes of a simulation: in one file, which they map into their memory.

The server writes it before anybody else is started, into a folder that goes with the supervisor; so nobody's content is
read from it that did not come from this program. Arrays lie in it as they are in memory, and are not copied.
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
    """Write what the others are to read, unless it is there. OSError, with the remedy, if it cannot be written."""
    path = folder / _FILE
    if path.exists():
        return
    arrays: list[pickle.PickleBuffer] = []
    # The server says what was noted.
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
    """What was written there. Whoever writes to an array has a copy of what it writes to."""
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
