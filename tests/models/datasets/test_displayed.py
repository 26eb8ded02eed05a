"""Image files are read as viewers show them, whatever mode, container and orientation they have."""

import os
import struct
import unicodedata
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, ImageOps

from tacit.models.datasets import image_folder
from tacit.models.datasets.image_files import EXTENSIONS, Skipped, image_files
from tacit.models.datasets.samples import FileImages

SIZE = 12


def corners() -> np.ndarray:
    """An image with four different quarters, which show every way of turning it."""
    pixels = np.zeros((SIZE, SIZE, 3), np.uint8)
    half = SIZE // 2
    pixels[:half, :half], pixels[:half, half:], pixels[half:, :half] = (200, 30, 30), (30, 200, 30), (30, 30, 200)
    return pixels


def read(path: Path) -> np.ndarray:
    return FileImages((path,)).pixels(np.array([0]), size=SIZE)[0]


CONTAINERS = {"png": ("RGB", "L", "P", "RGBA", "LA"), "jpg": ("RGB", "L"), "tiff": ("RGB", "L"), "webp": ("RGB",)}
CASES = [(suffix, mode) for suffix, modes in CONTAINERS.items() for mode in modes]


@settings(max_examples=40, deadline=None)
@given(orientation=st.integers(1, 8), case=st.sampled_from(CASES))
def test_every_orientation_of_every_container(
    tmp_path_factory: pytest.TempPathFactory, orientation: int, case: tuple[str, str]
) -> None:
    suffix, mode = case
    path = tmp_path_factory.mktemp("turned") / f"image.{suffix}"
    exif = Image.Exif()
    exif[0x0112] = orientation
    options = {
        "webp": {"lossless": True},
        "jpg": {"quality": 100, "subsampling": 0},
        "tiff": {"compression": "tiff_lzw"},
        "png": {},
    }[suffix]
    Image.fromarray(corners()).convert(mode).resize((SIZE, 2 * SIZE)).save(path, exif=exif, **options)
    with Image.open(path) as stored:
        shown = ImageOps.exif_transpose(stored).convert("RGBA").convert("RGB")
    expected = np.asarray(shown.resize((SIZE, SIZE), Image.Resampling.BILINEAR))
    assert np.abs(read(path).astype(int) - expected).max() <= 1
    assert list(FileImages((path,)).sizes()) == [(shown.height, shown.width)]


@pytest.mark.parametrize("mode", ["RGBA", "LA", "P", "RGB", "L", "1"])
def test_what_is_transparent_is_white(tmp_path: Path, mode: str) -> None:
    path, image = tmp_path / "image.png", Image.new(mode, (SIZE, SIZE))
    if mode in ("RGBA", "LA"):
        image.putalpha(0)
        image.save(path)
    else:
        image.save(path, transparency=(0, 0, 0) if mode == "RGB" else 0)
    assert (read(path) == 255).all()


def test_a_half_transparent_pixel_is_mixed_with_white(tmp_path: Path) -> None:
    Image.new("RGBA", (SIZE, SIZE), (0, 0, 0, 51)).save(tmp_path / "image.png")
    assert (read(tmp_path / "image.png") == 204).all()


def deep_png(path: Path, values: np.ndarray, *, colour: bool) -> None:
    """A PNG of 16 bits a channel, which Pillow does not write in colour."""
    rows = b"".join(b"\0" + row.astype(">u2").tobytes() for row in (np.stack([values] * 3, 2) if colour else values))

    def chunk(name: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))

    head = struct.pack(">IIBBBBB", values.shape[1], values.shape[0], 16, 2 if colour else 0, 0, 0, 0)
    path.write_bytes(
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")
    )


def test_16_bits_are_scaled_alike_in_grey_and_colour(tmp_path: Path) -> None:
    values = np.random.default_rng(0).integers(0, 2**16, (SIZE, SIZE)).astype(np.uint16)
    for name, colour in (("grey", False), ("colour", True)):
        deep_png(tmp_path / f"{name}.png", values, colour=colour)
    Image.fromarray(values).save(tmp_path / "grey.tiff")
    (tmp_path / "grey.pgm").write_bytes(b"P5 %d %d 65535\n" % (SIZE, SIZE) + values.astype(">u2").tobytes())
    for name in ("grey.png", "colour.png", "grey.tiff", "grey.pgm"):
        assert (read(tmp_path / name) == (values >> 8)[:, :, np.newaxis]).all(), name


@pytest.mark.filterwarnings("ignore:Corrupt EXIF")
def test_a_damaged_orientation_leaves_the_image_as_it_is(tmp_path: Path) -> None:
    for name, exif in (("damaged", b"Exif\0\0II*\0\xff\xff\xff\xff"), ("none", b"")):
        Image.fromarray(corners()).save(tmp_path / f"{name}.jpg", exif=exif)
    assert (read(tmp_path / "damaged.jpg") == read(tmp_path / "none.jpg")).all()


def test_a_tiff_on_its_side_is_upright_or_refused(tmp_path: Path) -> None:
    """Pillow mixes up the rows of grey ones that are not compressed."""
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.fromarray(corners()).convert("L").resize((SIZE, 2 * SIZE)).save(tmp_path / "a.tiff", exif=exif)
    with pytest.raises(ValueError, match=r"a\.tiff is not a readable image: it lies on its side .* save it upright"):
        read(tmp_path / "a.tiff")


Picture = Callable[..., None]
STRAY = [
    "._0.png", ".hidden.png", ".DS_Store", "Thumbs.db", "x.heic", "y.HEIC", "notes.txt", "README",
    "@eaDir/0.png/thumb.jpg", "__MACOSX/a/0.png", ".cache/0.png",
]  # fmt: skip


@settings(max_examples=25, deadline=None)
@given(
    stray=st.sets(st.sampled_from(STRAY)),
    links=st.sets(st.sampled_from(["file", "hard", "folder", "loop", "broken"])),
    suffix=st.sampled_from(EXTENSIONS),
    upper=st.booleans(),
)
def test_every_reader_takes_each_real_image_once(
    tmp_path_factory: pytest.TempPathFactory, stray: set[str], links: set[str], suffix: str, upper: bool
) -> None:
    root = tmp_path_factory.mktemp("folder")
    kept = set()
    for name in ("a", "b"):
        folder = root / "train" / name
        folder.mkdir(parents=True)
        for number in range(2):
            path = folder / f"{number}{suffix.upper() if upper else suffix}"
            path.write_bytes(b"never decoded")
            kept.add(path)
        for each in stray:
            (folder / each).parent.mkdir(parents=True, exist_ok=True)
            (folder / each).write_bytes(b"")
        (folder / "folder.jpg").mkdir()
        (folder / "deep").mkdir()
        real = folder / f"0{suffix.upper() if upper else suffix}"
        if "file" in links:
            (folder / "z.png").symlink_to(real)
        if "hard" in links:
            (folder / "zz.png").hardlink_to(real)
        if "folder" in links:
            (folder / "zzz").symlink_to(folder, target_is_directory=True)
        if "loop" in links:
            (folder / "deep" / "up").symlink_to(folder, target_is_directory=True)
        if "broken" in links:
            (folder / "gone.png").symlink_to(folder / "nowhere.png")
    source = image_folder.read(root)
    assert isinstance(source.train.images, FileImages)
    assert set(source.train.images.paths) == kept
    assert len(source.train.images) == 4
    skipped = Skipped()
    assert set(image_files(root / "train" / "a", skipped)) == {path for path in kept if path.parent.name == "a"}
    entries = [entry for entry in (root / "train" / "a").iterdir() if entry not in kept and entry.name != "deep"]
    assert sum(count for count, _ in skipped.kinds.values()) == len(entries) + ("loop" in links)
    if "x.heic" in stray and "y.HEIC" in stray:
        assert sum("4 .heic files skipped" in note for note in source.notes) == 1


def test_links_between_classes_and_parts_are_not_silent(tmp_path: Path, picture: Picture) -> None:
    for name in ("train/a/0.png", "train/b/0.png", "test/a/1.png"):
        picture(tmp_path / name)
    (tmp_path / "test" / "a" / "2.png").symlink_to(tmp_path / "train" / "a" / "0.png")
    (note,) = image_folder.read(tmp_path).notes
    assert note.startswith("1 test images are training images too, the first is ")
    (tmp_path / "train" / "b" / "link.png").symlink_to(tmp_path / "train" / "a" / "0.png")
    with pytest.raises(ValueError, match="are one file in two classes; remove one"):
        image_folder.read(tmp_path)


def test_classes_are_compared_in_one_form_of_unicode(tmp_path: Path, picture: Picture) -> None:
    composed, split = "caf\u00e9", unicodedata.normalize("NFD", "caf\u00e9")
    for name in (f"train/{split}/0.png", "train/tea/0.png", f"test/{composed}/1.png", f"train/{composed}/9.png"):
        picture(tmp_path / name)
    source = image_folder.read(tmp_path)
    assert source.class_names == (composed, "tea")
    assert (source.train.labels.tolist(), source.test.labels.tolist()) == ([0, 0, 1], [0])


@pytest.mark.parametrize("place", [b"train/a/caf\xe9.png", b"train/caf\xe9/0.png"])
def test_a_name_that_is_not_utf_8_is_refused_with_its_path(tmp_path: Path, picture: Picture, place: bytes) -> None:
    picture(tmp_path / "train" / "a" / "0.png")
    path = Path(os.fsdecode(os.fsencode(tmp_path) + b"/" + place))
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(b"")
    with pytest.raises(ValueError, match=r"caf\\xe9.* is not UTF-8; rename it") as refusal:
        image_folder.read(tmp_path)
    str(refusal.value).encode()
