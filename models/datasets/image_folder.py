"""Folders of images, one for each class: ROOT/train/CLASS/* and ROOT/test/CLASS/* (or ROOT/val/CLASS/*), or one."""

from collections.abc import Sequence
from pathlib import Path

from tacit.models.datasets.image_files import EXTENSIONS, Skipped, class_name, identity, is_class, walk
from tacit.models.datasets.samples import FileImages, Samples, Source, labelled, require_folder


def read(directory: Path) -> Source:
    """Read classes from the folders in train that are not hidden, in alphabetical order; the test images come from
    test, or else from val. If only one of the two exists, it defines the classes. The notes count skipped files.

    Raises FileNotFoundError if both are missing, ValueError for a class without images or not in train, and for an
    image in two classes.
    """
    train, test = directory / "train", directory / "test"
    if not test.is_dir() and (directory / "val").is_dir():
        test = directory / "val"
    if not train.is_dir() and not test.is_dir():
        require_folder(train, purpose='a folder for each class in it, or test images in a folder "test" or "val"')
    names, test_names = (_classes(folder) if folder.is_dir() else [] for folder in (train, test))
    if train.is_dir() and (unknown := sorted(set(test_names) - set(names))):
        raise ValueError(f"{test} holds classes that are not in {train}: {', '.join(unknown)}")
    known, skipped = names or test_names, Skipped()
    train_samples, test_samples = (
        samples_by_class(root, {name: known.index(name) for name in of}, skipped=skipped)
        for root, of in ((train, names), (test, test_names))
    )
    notes = (*skipped.notes, *_common(train_samples, test_samples))
    return Source(train_samples, test_samples, class_names=tuple(known), notes=notes)


def samples_by_class(
    root: Path, labels: dict[str, int], *, extensions: Sequence[str] = EXTENSIONS, skipped: Skipped | None = None
) -> Samples:
    """Return the images in and below ROOT/CLASS for every class, each class sorted by path. ValueError for an empty
    class, and for a file that links bring into two classes.

    skipped: counts files that are no images."""
    if not labels:
        return labelled([])
    skipped = Skipped() if skipped is None else skipped
    found: list[tuple[Path, int]] = []
    seen: dict[object, tuple[Path, int]] = {}
    for folder in sorted(root.iterdir()):
        if not is_class(folder):
            skipped.add("loose file", folder)
            continue
        label = labels.get(class_name(folder))
        if label is None:
            continue
        for path in walk(folder, skipped, extensions=extensions):
            first, other = seen.setdefault(identity(path), (path, label))
            if other != label:
                raise ValueError(f"{path} and {first} are one file in two classes; remove one of the two")
            if first == path:
                found.append((path, label))
    present = {label for _, label in found}
    if empty := [name for name, label in labels.items() if label not in present]:
        raise ValueError(
            f"{root}: no image of class {', '.join(empty[:8])} ({', '.join(extensions)}); add some, or remove it"
        )
    return labelled(sorted(found, key=lambda row: row[1]))


def _classes(folder: Path) -> list[str]:
    names = sorted({class_name(entry) for entry in folder.iterdir() if is_class(entry)})
    if not names:
        raise ValueError(f"{folder} holds no folders; expected one for each class")
    return names


def _common(train: Samples, test: Samples) -> tuple[str, ...]:
    assert isinstance(train.images, FileImages)
    assert isinstance(test.images, FileImages)
    known = {identity(path) for path in train.images.paths}
    twice = [path for path in test.images.paths if identity(path) in known]
    return (f"{len(twice):,} test images are training images too, the first is {twice[0]}",) if twice else ()
