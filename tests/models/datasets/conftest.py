from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

Picture = Callable[..., None]


@pytest.fixture
def picture() -> Picture:
    """Writes an image file, and the folders above it, with random pixels."""
    generator = np.random.default_rng(3)

    def write(path: Path, *, height: int = 8, width: int = 8, grey: bool = False) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        shape = (height, width) if grey else (height, width, 3)
        Image.fromarray(generator.integers(0, 256, shape, dtype=np.uint8)).save(path)

    return write
