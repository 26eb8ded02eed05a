"""Requests of `tacit infer`, as far as they can be checked before torch is loaded."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tacit.parties.hosting.protocols import PROTOCOLS, ProtocolName
from tacit.parties.runs.served import Checkpoint, ServedModel, checkpoint_of_run, read_served, served_experiment

_NO_TESTS: Final = "a checkpoint comes without test images: name a file or a folder of images with --images"


@dataclass(frozen=True, kw_only=True)
class WantedImages:
    images: str | None = None
    """Number of test images, an image file or a folder of them; None: all test images."""

    def __post_init__(self) -> None:
        path = self.path
        if path is not None and (not self.images or not (path.is_file() or path.is_dir())):
            raise ValueError(f"--images {self.images}: no such file or folder, and no number of test images")

    @property
    def path(self) -> Path | None:
        """File or folder of the images; None for test images."""
        return None if self.images is None or self.images.isdecimal() else Path(self.images)

    def tests(self, there: int) -> tuple[str, ...]:
        """Return names of the requested test images. ValueError if there are fewer."""
        count = there if self.images is None else int(self.images)
        if not 1 <= count <= there:
            raise ValueError(f"--images {count}: there are {there} test images, ask for 1 or more of them")
        return tuple(f"test {index}" for index in range(count))


@dataclass(frozen=True, kw_only=True)
class InferenceRequest(WantedImages):
    """Images and the model for them. ValueError also for a directory without a suitable model."""

    model: Path | Checkpoint
    """Results of `tacit distill`, or a run of `tacit simulate`; or a checkpoint."""
    source: str | None = None
    """Source of test images, if not that of the model: "digits", or an .npz file."""
    protocol: ProtocolName = "tacit"

    def __post_init__(self) -> None:
        self.check("--model", "" if isinstance(self.model, Path) else self.model.architecture)
        if isinstance(self.model, Path):
            served_experiment(self.model)
        super().__post_init__()
        if self.path is None and isinstance(self.model, Checkpoint):
            raise ValueError(_NO_TESTS)
        if self.path is not None and self.source is not None:
            raise ValueError(f"--data {self.source} is for test images: leave it out, or --images {self.images}")

    def check(self, option: str, value: object) -> None:
        """Raise ValueError, naming the option, for values that the protocol does not support."""
        if reason := PROTOCOLS[self.protocol].refusal(option.removeprefix("--"), value):
            raise ValueError(f"{option} {value}: {reason}")

    def read(self) -> ServedModel:
        return read_served(self.model) if isinstance(self.model, Path) else self.model.read()


def wanted_model(
    directory: Path | None,
    *,
    architecture: str,
    checkpoint: Path | None,
    calibration: Path | None,
    images: str | None,
    image_size: int,
) -> Path | Checkpoint:
    """Return the directory, or the checkpoint with its typical images, which are the default input; a directory with
    typical images counts as its checkpoint. ValueError for both or neither, for options of the other, and as
    Checkpoint."""
    if directory is not None:
        if architecture or checkpoint or image_size:
            raise ValueError("--model, --checkpoint and --image-size go without a directory: leave it out")
        return directory if calibration is None else checkpoint_of_run(directory, calibration)
    if checkpoint is None:
        raise ValueError(
            "name a directory; or weights with --checkpoint, and with --model their architecture of timm, unless a run "
            "has left them"
        )
    typical = calibration or WantedImages(images=images).path
    if typical is None:
        raise ValueError(_NO_TESTS)
    return Checkpoint(architecture=architecture, path=checkpoint, calibration=typical, image_size=image_size)
