"""Folders of images, one for each class: ROOT/train/CLASS/* and ROOT/test/CLASS/* (or ROOT/val/CLASS/*), or one."""

from collections.abc import Sequence
from pathlib import Path

from tacit.models.datasets.samples import Samples, Source, labelled, require_folder


def read(directory: Path) -> Source:
    """Classes are the folders in train that are not hidden, in alphabetical order; the test images come from test, or
    else from val. Where there is one of the two, its classes are all.

    Raises FileNotFoundError where both are missing, ValueError for a class without images or not in train.
    """
    train, test = directory / "train", directory / "test"
    if not test.is_dir() and (directory / "val").is_dir():
        test = directory / "val"
    if not train.is_dir() and not test.is_dir():
        require_folder(train, purpose='a folder for each class in it, or test images in a folder "test" or "val"')
    names, test_names = (_classes(folder) if folder.is_dir() else [] for folder in (train, test))
    if train.is_dir() and (unknown := sorted(set(test_names) - set(names))):
        raise ValueError(f"{test} holds classes that are not in {train}: {', '.join(unknown)}")
    known = names or test_names
    return Source(
        train=samples_by_class(train, {name: label for label, name in enumerate(names)}),
        test=samples_by_class(test, {name: known.index(name) for name in test_names}),
        class_names=tuple(known),
    )


def samples_by_class(root: Path, labels: dict[str, int], *, extensions: Sequence[str] | None = None) -> Samples:
    """The images in and below ROOT/CLASS for every class, each class sorted by path, but for what is hidden. ValueError
    for an empty class."""
    if not labels:
        return labelled([])
    # Imported here because torchvision takes a second to import and only sources of this kind need it.
    from torchvision.datasets.folder import IMG_EXTENSIONS, make_dataset

    wanted = tuple(extensions or IMG_EXTENSIONS)
    found = [
        (path, label)
        for path, label in make_dataset(str(root), labels, extensions=wanted, allow_empty=True)
        if not any(part.startswith(".") for part in Path(path).relative_to(root).parts)
    ]
    present = {label for _, label in found}
    if empty := [name for name, label in labels.items() if label not in present]:
        raise ValueError(f"{root}: no image of class {', '.join(empty[:8])} ({', '.join(wanted)})")
    return labelled(found)


def _classes(folder: Path) -> list[str]:
    names = sorted(entry.name for entry in folder.iterdir() if entry.is_dir() and not entry.name.startswith("."))
    if not names:
        raise ValueError(f"{folder} holds no folders; expected one for each class")
    return names
