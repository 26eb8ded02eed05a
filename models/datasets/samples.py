"""Labelled images as the readers of data sets return them: found and checked, but not yet tensors."""

import csv
import hashlib
import struct
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import repeat
from pathlib import Path
from typing import ClassVar, Final, Literal, Protocol, Self

import numpy as np
import numpy.typing as npt
from PIL import Image

from tacit.models.datasets import dicom

_MOST_NAMES_SHOWN: Final = 8


def require_folder(path: Path, *, purpose: str) -> Path:
    """Return `path`, which is a folder. FileNotFoundError states its purpose and what is there instead."""
    if not path.is_dir():
        raise FileNotFoundError(f"{path} is no folder; expected {purpose}; {around(path)}")
    return path


def require_file(path: Path, *, purpose: str) -> Path:
    """Return `path`, which is a file. FileNotFoundError states its purpose and what is there instead."""
    if not path.is_file():
        raise FileNotFoundError(f"{path} is no file; expected {purpose}; {around(path)}")
    return path


def require_checksum(path: Path, *, md5: str, purpose: str) -> None:
    """Raise FileNotFoundError for a missing file, ValueError unless its checksum is `md5` (hexadecimal)."""
    with require_file(path, purpose=purpose).open("rb") as file:
        found = hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()
    if found != md5:
        raise ValueError(
            f"{path} has MD5 checksum {found}, the published file has {md5}; it is not opened: copy the file again"
        )


def around(path: Path) -> str:
    """Describe the content of the nearest folder above `path`, cut short."""
    folder = next(parent for parent in path.absolute().parents if parent.is_dir())
    names = sorted(entry.name + "/" * entry.is_dir() for entry in folder.iterdir())
    shown = ", ".join(names[:_MOST_NAMES_SHOWN]) + ", ..." * (len(names) > _MOST_NAMES_SHOWN)
    return f"{folder} holds {shown or 'nothing'}"


def lines(path: Path, *, purpose: str) -> list[str]:
    """Return the lines of a text file that are not blank. FileNotFoundError, or ValueError if it is not UTF-8."""
    try:
        text = require_file(path, purpose=purpose).read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not UTF-8 text at byte {error.start}; expected {purpose}") from error
    return [line.strip() for line in text.splitlines() if line.strip()]


def table(
    path: Path, *, purpose: str, columns: Sequence[str], delimiter: str, header: bool = True
) -> Iterator[tuple[str, dict[str, str]]]:
    """Yield the rows of a text table, each with its place for messages ("FILE line 7").

    With a `header`, `columns` must be in it; without, they name the first columns. Raises FileNotFoundError, or
    ValueError for a missing column, a row that is too short, or invalid CSV.
    """
    named = None if header else list(columns)
    try:
        with require_file(path, purpose=purpose).open(encoding="utf-8-sig", newline="") as file:
            reader = csv.DictReader(file, fieldnames=named, delimiter=delimiter, skipinitialspace=True)
            if absent := [column for column in columns if column not in (reader.fieldnames or ())]:
                raise ValueError(
                    f"{path} has no column {', '.join(absent)}; it has {', '.join(reader.fieldnames or ())}"
                )
            for row in reader:
                place = f"{path} line {reader.line_num}"
                if short := [column for column in columns if not row[column]]:
                    raise ValueError(f"{place} has nothing in column {', '.join(short)}")
                yield place, row
    except (UnicodeDecodeError, csv.Error) as error:
        raise ValueError(f"{path} is not a readable table: {error}; expected {purpose}") from error


def whole_number(text: str, *, below: int, place: str, column: str) -> int:
    """Parse the number in a cell, from 0 to `below` - 1. ValueError names the place."""
    if not (text.isascii() and text.isdigit() and int(text) < below):
        raise ValueError(f"{place}: {column} is {text!r}, expected 0 to {below - 1}")
    return int(text)


Indices = npt.NDArray[np.int64]  # [N]
Pixels = npt.NDArray[np.uint8]  # [N, H, W, C]

WHITE: Final = 255
MOST_DECODED_FOR_STATISTICS: Final = 4096
"""Files whose pixels represent a larger set. The standard error of a mean is then below 1/64 of a deviation."""


@dataclass(frozen=True, eq=False)
class ArrayImages:
    array: Pixels = field(repr=False)

    @property
    def channels(self) -> int:
        return int(self.array.shape[3])

    def __len__(self) -> int:
        return len(self.array)

    def sizes(self) -> Iterator[tuple[int, int]]:
        """Yield height and width of every stored image, without decoding it. ValueError names an unreadable file."""
        return repeat((self.array.shape[1], self.array.shape[2]), len(self))

    def pixels(self, indices: Indices, *, size: int) -> Pixels:
        """Return the images at `indices`: uint8 [len(indices), H, W, channels]. Files, which differ in size, are scaled
        to H = W = `size`; arrays keep their own. ValueError names an unreadable file."""
        return self.array[indices]

    def representative(self) -> Indices:
        """Return the images for the mean and deviation of the pixels."""
        return np.arange(len(self))

    def part(self, indices: Indices) -> "ArrayImages":
        return ArrayImages(self.array[indices])


Interpolation = Literal["bilinear", "bicubic"]
LEAST_CROP: Final = 0.5
"""Least fraction of an edge that a crop keeps. A smaller one would let its author make others scale to any size."""


@dataclass(frozen=True, kw_only=True)
class Scaling:
    """Conversion of an image of any size to a square one of S pixels, as timm scales images for evaluation.

    Pillow's filters widen with the factor of a reduction: they are antialiased."""

    interpolation: Interpolation = "bilinear"
    squash: bool = True
    """Whether both edges are scaled to S / crop pixels; otherwise the shorter one is, and the other in proportion."""
    crop: float = 1.0
    """From LEAST_CROP to 1; the square of S pixels in the middle is cut out."""

    def square(self, image: Image.Image, size: int) -> Image.Image:
        edge = int(size / self.crop)
        shorter = min(image.size)
        width, height = (edge, edge) if self.squash else (int(edge * side / shorter) for side in image.size)
        scaled = image.resize((width, height), Image.Resampling[self.interpolation.upper()])
        left, top = round((width - size) / 2), round((height - size) / 2)
        return scaled.crop((left, top, left + size, top + size))


SQUASHED: Final = Scaling()
"""The whole image, whatever the ratio of its edges."""


@dataclass(frozen=True, eq=False)
class FileImages:
    """Images in files that Pillow or pydicom reads; always three channels, grey ones become equal red, green, blue."""

    paths: tuple[Path, ...] = field(repr=False)
    scaling: Scaling = field(default=SQUASHED, kw_only=True, repr=False)
    white: int = field(default=WHITE, kw_only=True, repr=False)
    """Value of a white pixel: as in a model's training images."""

    channels: ClassVar[int] = 3

    def __len__(self) -> int:
        return len(self.paths)

    def sizes(self) -> Iterator[tuple[int, int]]:
        for path in self.paths:
            with _opened(path) as image:
                height, width = image.height, image.width
                # Pillow has already swapped the sizes of rotated TIFF files.
                turned = image.format != "TIFF" and _orientation(image) in _SIDEWAYS
            yield (width, height) if turned else (height, width)

    def pixels(self, indices: Indices, *, size: int) -> Pixels:
        decoded = np.empty((len(indices), size, size, self.channels), dtype=np.uint8)
        for row, index in enumerate(indices):
            with _opened(self.paths[index]) as image:
                decoded[row] = np.asarray(self.scaling.square(displayed(image), size))
        return decoded if self.white == WHITE else np.rint(decoded * (self.white / WHITE)).astype(np.uint8)

    def representative(self) -> Indices:
        # Evenly spaced, so that files sorted by class are represented in proportion.
        count = min(len(self), MOST_DECODED_FOR_STATISTICS)
        return np.arange(count) * len(self) // count

    def part(self, indices: Indices) -> Self:
        return replace(self, paths=tuple(self.paths[index] for index in indices))


class Images(Protocol):
    """Images of one split, all with the same number of channels; ArrayImages documents the methods."""

    @property
    def channels(self) -> int: ...
    def __len__(self) -> int: ...
    def sizes(self) -> Iterator[tuple[int, int]]: ...
    def pixels(self, indices: Indices, *, size: int) -> Pixels: ...
    def representative(self) -> Indices: ...
    def part(self, indices: Indices) -> "Images": ...


@dataclass(frozen=True, eq=False)
class Samples:
    images: Images
    labels: Indices = field(repr=False)
    """int64 [N], 0 ... classes - 1."""
    centres: Indices | None = field(repr=False, default=None)
    """int64 [N], the centre of each image; None if the data set does not say."""

    def part(self, indices: Indices) -> "Samples":
        """Return the images at these indices, with their labels and centres."""
        return Samples(
            self.images.part(indices), self.labels[indices], None if self.centres is None else self.centres[indices]
        )


def labelled(found: Iterable[tuple[str | Path, int]]) -> Samples:
    rows = list(found)
    paths = tuple(Path(path) for path, _ in rows)
    return Samples(FileImages(paths), np.array([label for _, label in rows], dtype=np.int64))


@dataclass(frozen=True, eq=False)
class Source:
    """A data set, as its reader found it. Every label has a name. A party may have only one of the two parts."""

    train: Samples
    test: Samples
    class_names: tuple[str, ...]
    notes: tuple[str, ...] = ()
    """Lines for the user, on skipped files and on likely mistakes."""
    white: int = WHITE

    def read_as(self, scaling: Scaling, white: int) -> "Source":
        """Return the data set with its image files converted to the input of a model trained with this white. Arrays
        are unchanged."""
        train, test = (
            replace(part, images=replace(part.images, scaling=scaling, white=white))
            if isinstance(part.images, FileImages)
            else part
            for part in (self.train, self.test)
        )
        return replace(self, train=train, test=test, white=white)

    def remarked(self) -> "Source":
        """Return the data set with a note on classes without training images, or test images if it has no others."""
        part, what = (self.train, "training image") if len(self.train.labels) else (self.test, "image")
        present = set(part.labels.tolist())
        empty = [name for label, name in enumerate(self.class_names) if label not in present]
        if not empty:
            return self
        shown = ", ".join(empty[:_MOST_NAMES_SHOWN]) + ", ..." * (len(empty) > _MOST_NAMES_SHOWN)
        note = f"{len(empty):,} of {len(self.class_names):,} classes have no {what}: {shown}"
        return replace(self, notes=(*self.notes, note))


_TURNS: Final = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
"""Transformation to the upright image, by the orientation from a camera (EXIF 2.32, tag 0x0112)."""
_SIDEWAYS: Final = (5, 6, 7, 8)
_ORIENTATION: Final = 0x0112
_TIFF_BITS, _TIFF_PHOTOMETRIC = 258, 262


def _orientation(image: Image.Image) -> int:
    try:
        return int(image.getexif().get(_ORIENTATION, 1))
    # A damaged note does not make an image unreadable.
    except (OSError, SyntaxError, ValueError, TypeError, KeyError, EOFError, struct.error):
        return 1


def displayed(image: Image.Image) -> Image.Image:
    """Return the image as viewers show it: upright, eight-bit RGB, on white where it is transparent."""
    stated = image.size
    image.load()
    if image.size != stated:
        # Pillow 11 to 13 turn the canvas of uncompressed TIFF files before they fill it.
        raise ValueError("it lies on its side and is not compressed, which Pillow misreads; save it upright, or as PNG")
    turn = _TURNS.get(_orientation(image))
    image = _eight_bits(image) if image.mode.startswith("I") else image
    if image.has_transparency_data:
        seen = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", seen.size, "white"), seen)
    found = image.convert("RGB")
    return found if turn is None else found.transpose(turn)


def _eight_bits(image: Image.Image) -> Image.Image:
    """Reduce a grey image of 16 bits to its upper eight, as Pillow does for coloured ones."""
    tags = getattr(image, "tag_v2", {})
    values = np.asarray(image).astype(np.uint32) >> int(tags.get(_TIFF_BITS, (16,))[0]) - 8
    if tags.get(_TIFF_PHOTOMETRIC) == 0:
        values = 255 - values
    if isinstance(seen_through := image.info.get("transparency"), int):
        values[np.asarray(image) == seen_through] = 255
    return Image.fromarray(values.astype(np.uint8))


def unreadable(path: Path) -> str:
    """Explain why an image file cannot be read, with its path; "" if it can."""
    try:
        with _opened(path) as image:
            displayed(image)
    except ValueError as error:
        return str(error)
    return ""


@contextmanager
def _opened(path: Path) -> Iterator[Image.Image]:
    try:
        with dicom.read(path) if path.suffix.lower() in dicom.EXTENSIONS else Image.open(path) as image:
            # Pillow has PNG and PNM files of 16 bits as such, and in older versions as integers up to 65535.
            deep = image.mode.startswith("I;16") or (image.mode == "I" and image.format in ("PNG", "PPM"))
            if not deep and image.mode.startswith(("I", "F")):
                # Pillow would clip values beyond 255.
                raise ValueError(
                    f"its pixels have 32 bits (mode {image.mode}), whose range nothing says; save it with 8 or 16 bits"
                )
            yield image
    # Exceptions of Pillow's decoders on damaged files; most are OSError.
    except (OSError, SyntaxError, ValueError, EOFError, struct.error, Image.DecompressionBombError) as error:
        raise ValueError(f"{path} is not a readable image: {error}") from error
