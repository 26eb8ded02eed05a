"""Files in the format of MNIST (LeCun et al. 1998), such as those of Fashion-MNIST (Xiao et al. 2017)."""

from __future__ import annotations

import gzip
import zlib
from math import prod
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

from tacit.models.datasets.samples import ArrayImages, Samples, Source, require_file

MNIST: Final = tuple("0123456789")
FASHION: Final = ("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Boot")
_PARTS: Final = {"train": "train", "test": "t10k"}
_BYTES: Final = 0x08


def read(directory: Path, *, names: tuple[str, ...]) -> Source:
    """Read the four files, compressed or not, in the folder or torchvision's place (MNIST/raw).

    FileNotFoundError for a missing file, ValueError for another format.
    """
    found = sorted(directory.glob("*/raw"))
    folder = next((path for path in (directory, directory / "raw", *found) if _there(path)), directory)
    parts = {}
    for part, prefix in _PARTS.items():
        images, labels = (_array(folder, f"{prefix}-{kind}") for kind in ("images-idx3-ubyte", "labels-idx1-ubyte"))
        if images.ndim != 3 or labels.shape != images.shape[:1] or not len(labels) or labels.max() >= len(names):
            raise ValueError(
                f"{folder}: {prefix} has images {list(images.shape)} and labels {list(labels.shape)} up to "
                f"{labels.max(initial=0)}; expected as many labels as images, below {len(names)}"
            )
        parts[part] = Samples(ArrayImages(images[..., np.newaxis]), labels.astype(np.int64))
    return Source(parts["train"], parts["test"], class_names=names)


def _there(folder: Path) -> bool:
    return any(folder.glob("train-images?idx3-ubyte*"))


def _array(folder: Path, name: str) -> npt.NDArray[np.uint8]:
    variants = [folder / f"{each}{end}" for each in (name, name.replace("-idx", ".idx")) for end in ("", ".gz")]
    path = next((variant for variant in variants if variant.is_file()), variants[0])
    content = require_file(path, purpose="an idx file, as of MNIST, or one with .gz").read_bytes()
    try:
        content = gzip.decompress(content) if path.suffix == ".gz" else content
    except (OSError, EOFError, zlib.error) as error:
        raise ValueError(f"{path} cannot be decompressed: {error}; copy the file again") from None
    # Two zeros, the type of the values, the number of axes, and the length of each, big-endian.
    zeros, kind, axes = content[:2], *(content[2:4].ljust(2, b"\0"))
    shape = np.frombuffer(content[4 : 4 + 4 * axes], ">u4").tolist() if len(content) >= 4 + 4 * axes else []
    if zeros != b"\0\0" or kind != _BYTES or len(content) != 4 + 4 * axes + prod(shape):
        raise ValueError(f"{path} has {len(content)} bytes and is no idx file of bytes; copy the file again")
    return np.frombuffer(content, np.uint8, offset=4 + 4 * axes).reshape(shape)
