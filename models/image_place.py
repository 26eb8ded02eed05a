"""Where the images of a configuration lie, if anything lies there: known before torch is loaded, or a file is read."""

from pathlib import Path

from tacit.models.configuration import DIRECTORY_SOURCES, ImagesConfiguration
from tacit.models.datasets import npz
from tacit.models.datasets.files import require_folder


def place(configuration: ImagesConfiguration) -> Path | None:
    """The folder or file of the source; None for images that come with this package, or from a function.

    FileNotFoundError if it is not there.
    """
    if configuration.source == "digits" or configuration.factory:
        return None
    if configuration.source in DIRECTORY_SOURCES:
        return require_folder(Path(configuration.directory), purpose=f"data.directory with {configuration.source}")
    return npz.require(Path(configuration.source))
