"""What `tacit infer` is asked for, as far as it can be judged before torch is loaded."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tacit.parties.runs.served import served_experiment


@dataclass(frozen=True, kw_only=True)
class InferenceRequest:
    """Images to ask a model about.

    Raises ValueError for a directory without a model that can be asked, and for images that are not there.
    """

    directory: Path
    """Results of `tacit distill`, or a run of `tacit simulate`."""
    images: str | None = None
    """A number of test images, an image file or a folder of them; None: all test images."""
    source: str | None = None
    """Where test images come from, if not where the model's did: "digits", or an .npz file."""

    def __post_init__(self) -> None:
        served_experiment(self.directory)
        if (path := self.path) is None:
            return
        if not self.images or not (path.is_file() or path.is_dir()):
            raise ValueError(f"--images {self.images}: no such file or folder, and no number of test images")
        if self.source is not None:
            raise ValueError(f"--data {self.source} is for test images: leave it out, or --images {self.images}")

    @property
    def path(self) -> Path | None:
        """File or folder of the images; None if they are test images."""
        return None if self.images is None or self.images.isdecimal() else Path(self.images)

    @property
    def count(self) -> int | None:
        """So many of the test images; None: all."""
        return None if self.images is None else int(self.images)
