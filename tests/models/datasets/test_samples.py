from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.nn.functional import interpolate

from tacit.models.datasets.samples import MOST_DECODED_FOR_STATISTICS, ArrayImages, FileImages


def test_arrays_give_the_images_asked_for_at_their_own_size() -> None:
    array = np.arange(4 * 2 * 3 * 1, dtype=np.uint8).reshape(4, 2, 3, 1)
    images = ArrayImages(array)
    assert (len(images), images.channels) == (4, 1)
    assert np.array_equal(images.pixels(np.array([2, 0]), size=64), array[[2, 0]])
    assert list(images.sizes()) == [(2, 3)] * 4
    assert images.representative().tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize("suffix", ["png", "ppm", "bmp", "tiff"])
def test_files_of_the_right_size_are_decoded_exactly(tmp_path: Path, suffix: str) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (2, 8, 8, 3), dtype=np.uint8)
    paths = tuple(tmp_path / f"{number}.{suffix}" for number in range(2))
    for path, image in zip(paths, pixels, strict=True):
        Image.fromarray(image).save(path)
    images = FileImages(paths)
    assert (len(images), images.channels) == (2, 3)
    assert np.array_equal(images.pixels(np.array([1, 0, 1]), size=8), pixels[[1, 0, 1]])


def test_grey_files_have_three_equal_channels(tmp_path: Path) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (8, 8), dtype=np.uint8)
    Image.fromarray(pixels).save(tmp_path / "grey.png")
    decoded = FileImages((tmp_path / "grey.png",)).pixels(np.array([0]), size=8)
    assert np.array_equal(decoded[0], np.repeat(pixels[:, :, np.newaxis], 3, axis=2))


@pytest.mark.parametrize("kind", [np.int32, np.float32])
def test_pixels_of_no_known_range_are_refused(tmp_path: Path, kind: Any) -> None:
    path = tmp_path / "deep.tiff"
    Image.fromarray(np.full((8, 8), 300, dtype=kind)).save(path)
    with pytest.raises(ValueError, match=r"deep\.tiff is not a readable image: its pixels have 32 bits"):
        FileImages((path,)).pixels(np.array([0]), size=8)


@pytest.mark.parametrize(("height", "width"), [(40, 31), (5, 6), (40, 6)])
def test_files_are_resized_as_tensors_are(tmp_path: Path, height: int, width: int) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (height, width, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(tmp_path / "image.png")
    images = FileImages((tmp_path / "image.png",))
    assert list(images.sizes()) == [(height, width)]
    tensor = torch.from_numpy(pixels).permute(2, 0, 1)[np.newaxis].double()
    expected = interpolate(tensor, (12, 12), mode="bilinear", align_corners=False, antialias=True)[0]
    # Pillow rounds to whole levels twice, after rows and after columns: off by at most 1/2 each time.
    difference = images.pixels(np.array([0]), size=12)[0].astype(np.float64) - expected.permute(1, 2, 0).numpy()
    assert np.abs(difference).max() < 1.01


def test_many_files_are_represented_by_evenly_spaced_ones() -> None:
    assert FileImages((Path("a"),) * 5).representative().tolist() == [0, 1, 2, 3, 4]
    chosen = FileImages((Path("a"),) * 10_000).representative()
    assert len(chosen) == MOST_DECODED_FOR_STATISTICS
    assert (chosen[0], set(np.diff(chosen).tolist())) == (0, {2, 3})
    assert 9_997 <= chosen[-1] < 10_000


def damaged(path: Path, how: str) -> Path:
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8)).save(path)
    content = path.read_bytes()
    if how == "missing":
        path.unlink()
    else:
        path.write_bytes({"empty": b"", "text": b"not an image", "truncated": content[: len(content) // 2]}[how])
    return path


@pytest.mark.parametrize("suffix", ["png", "ppm", "jpg", "bmp"])
@pytest.mark.parametrize("how", ["missing", "empty", "text", "truncated"])
def test_an_unreadable_file_is_named(tmp_path: Path, how: str, suffix: str) -> None:
    images = FileImages((damaged(tmp_path / f"image.{suffix}", how),))
    with pytest.raises(ValueError, match=rf"image\.{suffix} is not a readable image: "):
        images.pixels(np.array([0]), size=8)


def test_an_image_that_would_fill_the_memory_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "image.png"
    Image.fromarray(np.zeros((64, 64), dtype=np.uint8)).save(path)
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 1000)
    with pytest.raises(ValueError, match=r"image\.png is not a readable image: .*4096 pixels"):
        FileImages((path,)).pixels(np.array([0]), size=8)


@pytest.mark.parametrize("images", [ArrayImages(np.zeros((1, 2, 2, 1), dtype=np.uint8)), FileImages((Path("secret"),))])
def test_the_printed_form_shows_no_image(images: Any) -> None:
    assert repr(images) == f"{type(images).__name__}()"
