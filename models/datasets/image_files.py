"""Images that nobody has labelled: a file of a format that Pillow reads, or a folder of them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from tacit.models.datasets.samples import FileImages, Indices, Pixels

EXTENSIONS: Final = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".ppm", ".tif", ".tiff", ".webp")
_WHITE: Final = 255


@dataclass(frozen=True, eq=False)
class ScaledFiles(FileImages):
    """Files, whose pixels go up to 255, for a model that has learned from images where white is another number."""

    white: int

    def pixels(self, indices: Indices, *, size: int) -> Pixels:
        scaled: Pixels = np.rint(super().pixels(indices, size=size) * (self.white / _WHITE)).astype(np.uint8)
        return scaled


def image_files(path: Path) -> tuple[Path, ...]:
    """The file, or the image files of the folder in the order of their names. ValueError if there are none."""
    if path.is_file():
        return (path,)
    if not path.is_dir():
        raise ValueError("no such file or folder")
    files = tuple(sorted(file for file in path.iterdir() if file.suffix.lower() in EXTENSIONS))
    if not files:
        raise ValueError(f"the folder has no image file ({', '.join(EXTENSIONS)})")
    return files
