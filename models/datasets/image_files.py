"""Files of images in a folder, and the rules to read or skip them, for training and for private inference alike.

Systems and programs leave files between images: hidden ones, AppleDouble halves ("._1.jpg"), thumbnails. These and
unsupported formats are skipped; each kind is counted, so that no user trains on fewer images than expected. A file with
several names or links is one image.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final
from unicodedata import normalize

from tacit.models.datasets import dicom
from tacit.models.datasets.samples import unreadable

EXTENSIONS: Final = (
    ".png", ".jpg", ".jpeg", ".jpe", ".jfif", ".bmp", ".gif", ".pgm", ".ppm", ".pnm", ".tif", ".tiff", ".webp",
    *dicom.EXTENSIONS,
)  # fmt: skip
_THUMBNAILS: Final = frozenset({"thumbs.db", "ehthumbs.db", "__macosx", "@eadir", "thumbnails"})
"""Files that systems derive from images, in lower case."""


@dataclass(frozen=True)
class Skipped:
    """Skipped entries of folders: the number of each kind, and the first one."""

    kinds: dict[str, tuple[int, Path]] = field(default_factory=dict)
    unreadable: dict[Path, str] = field(default_factory=dict)
    """Image files, each with the reason."""

    def add(self, kind: str, path: Path) -> None:
        count, first = self.kinds.get(kind, (0, path))
        self.kinds[kind] = count + 1, first

    @property
    def notes(self) -> tuple[str, ...]:
        return tuple(
            f"{count:,} {kind}{'s' * (count > 1)} skipped, the first is {first}"
            for kind, (count, first) in sorted(self.kinds.items())
        )


def image_files(path: Path, skipped: Skipped | None = None) -> tuple[Path, ...]:
    """Return the file, or the image files in and below the folder, sorted by path. ValueError if there are none.

    skipped: counts all other entries."""
    if path.is_file():
        return (path,)
    if not path.is_dir():
        raise ValueError("no such file or folder")
    files = tuple(walk(path, Skipped() if skipped is None else skipped))
    if not files:
        raise ValueError(f"the folder has no image file ({', '.join(EXTENSIONS)})")
    return files


def readable_files(path: Path, skipped: Skipped) -> tuple[Path, ...]:
    """Return `image_files` without unreadable ones, which `skipped` then holds. ValueError if none is readable."""
    files = image_files(path, skipped)
    skipped.unreadable.update((file, reason) for file in files if (reason := unreadable(file)))
    if len(skipped.unreadable) == len(files):
        more = f"; and so are {len(files) - 1:,} more" * (len(files) > 1)
        raise ValueError(next(iter(skipped.unreadable.values())) + more)
    return tuple(file for file in files if file not in skipped.unreadable)


def walk(root: Path, skipped: Skipped, *, extensions: Sequence[str] = EXTENSIONS) -> Iterator[Path]:
    """Yield the image files in and below a folder, each real file once, sorted by path; links are followed. ValueError
    for a name that is not UTF-8."""
    seen: set[tuple[int, int] | str] = set()
    folders = [root]
    found: list[Path] = []
    while folders:
        folder = folders.pop()
        if (key := identity(folder)) in seen:
            skipped.add("repeated folder", folder)
            continue
        seen.add(key)
        for path in sorted(folder.iterdir()):
            if path.name.lower() in _THUMBNAILS:
                skipped.add("thumbnail", path)
            elif path.name.startswith("._"):
                skipped.add("AppleDouble file", path)
            elif path.name.startswith("."):
                skipped.add("hidden file", path)
            elif readable_name(path).is_dir():
                if path.suffix.lower() in extensions:
                    skipped.add("image-named folder", path)
                else:
                    folders.append(path)
            elif path.suffix.lower() not in extensions:
                skipped.add(f"{path.suffix.lower() or 'other'} file", path)
            elif not path.is_file():
                skipped.add("broken link" if path.is_symlink() else "special file", path)
            else:
                found.append(path)
    for path in sorted(found, key=lambda path: (str(path.parent), path.name)):
        if (key := identity(path)) in seen:
            skipped.add("repeated image", path)
            continue
        seen.add(key)
        yield path


def identity(path: Path) -> tuple[int, int] | str:
    """Return an identifier that is equal for all names of one file or folder, including links."""
    found = path.stat()
    # Some network file systems have no inode numbers.
    return (found.st_dev, found.st_ino) if found.st_ino else os.path.realpath(path)


def readable_name(path: Path) -> Path:
    """Return the path. ValueError if its name is not UTF-8, as on other systems' disks: no output could show it."""
    try:
        path.name.encode()
    except UnicodeEncodeError:
        shown = os.fsencode(path).decode("utf-8", "backslashreplace")
        raise ValueError(f"{shown}: its name is not UTF-8; rename it, as `convmv` does with a whole folder") from None
    return path


def class_name(folder: Path) -> str:
    """Return a folder's class: its name in Unicode's composed form, since systems write it differently."""
    return normalize("NFC", readable_name(folder).name)


def is_class(path: Path) -> bool:
    """Whether the entry is a folder made by a user."""
    return path.is_dir() and not path.name.startswith(".") and path.name.lower() not in _THUMBNAILS
