"""Folders of images, one for each class: ROOT/train/CLASS/* and ROOT/test/CLASS/* (or ROOT/val/CLASS/*)."""

from collections.abc import Sequence
from pathlib import Path

from tacit.models.datasets.files import require_folder
from tacit.models.datasets.samples import Samples, Source, labelled


def read(directory: Path) -> Source:
    """Classes are the folders in train, in alphabetical order; the test images come from test, or else from val.

    Raises FileNotFoundError for a missing folder, ValueError for a class without images or not in train.
    """
    train = require_folder(directory / "train", purpose="a folder for each class in it")
    test = directory / "test" if (directory / "test").is_dir() else directory / "val"
    require_folder(test, purpose='the test images: a folder "test" or "val", with a folder for each class in it')
    names, test_names = _classes(train), _classes(test)
    if unknown := sorted(set(test_names) - set(names)):
        raise ValueError(f"{test} holds classes that are not in {train}: {', '.join(unknown)}")
    return Source(
        train=samples_by_class(train, {name: label for label, name in enumerate(names)}),
        test=samples_by_class(test, {name: names.index(name) for name in test_names}),
        class_names=tuple(names),
    )


def samples_by_class(root: Path, labels: dict[str, int], *, extensions: Sequence[str] | None = None) -> Samples:
    """The images in and below ROOT/CLASS for every class, each class sorted by path. ValueError for an empty class."""
    # Imported here because torchvision takes a second to import and only sources of this kind need it.
    from torchvision.datasets.folder import IMG_EXTENSIONS, make_dataset

    wanted = tuple(extensions or IMG_EXTENSIONS)
    found = make_dataset(str(root), labels, extensions=wanted, allow_empty=True)
    present = {label for _, label in found}
    if empty := [name for name, label in labels.items() if label not in present]:
        raise ValueError(f"{root}: no image of class {', '.join(empty[:8])} ({', '.join(wanted)})")
    return labelled(found)


def _classes(folder: Path) -> list[str]:
    names = sorted(entry.name for entry in folder.iterdir() if entry.is_dir())
    if not names:
        raise ValueError(f"{folder} holds no folders; expected one for each class")
    return names
