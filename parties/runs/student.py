"""A student of `tacit distill` as its owner finds it: the experiment that it came from, its images, and its weights.

The file of the experiment is that of `tacit simulate` with one section more, [distillation]; what else is in the
directory stands in tacit.simulate.private_inference.distillation.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import msgspec
import numpy as np
from msgspec import Meta

from tacit.models.friendly.configuration import DistillationConfiguration
from tacit.parties.runs.experiment import Experiment
from tacit.parties.runs.explain import read_section

if TYPE_CHECKING:
    from tacit.models.data import Dataset
    from tacit.models.friendly.transformer import FriendlyTransformer
    from tacit.parties.inference.private_model import PrivateModel

_FIGURES: Final = "distillation.json"
_STUDENT: Final = "student.safetensors"
_TYPICAL_IMAGES: Final = 64
_MARGIN: Final = 2.0
"""How much wider than on typical images the bounds are that no gauge of the student states."""
_WHITE: Final = 255
_WHITE_OF_DIGITS: Final = 16
"""Of the source "digits"; all others have whole bytes."""


class DistillationExperiment(Experiment, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """An experiment with the section [distillation]. Raises as Experiment does."""

    distillation: Annotated[
        DistillationConfiguration, Meta(description="How the trained model becomes a friendly one.")
    ] = DistillationConfiguration()

    def __post_init__(self) -> None:
        super().__post_init__()
        if key := next(iter(self.factories), ""):
            raise ValueError(f'{key} = "{self.factories[key]}": only a federation takes it; leave it out')


@dataclass(frozen=True)
class Student:
    """What `tacit distill` has left."""

    experiment: DistillationExperiment
    data: Dataset
    transformer: FriendlyTransformer = field(repr=False)

    @property
    def white(self) -> int:
        """The number of a white pixel in its images."""
        return _WHITE_OF_DIGITS if self.experiment.data.source == "digits" else _WHITE

    def prepared(self, *, salt: bytes | None = None) -> PrivateModel:
        """The model for private inference, its bounds those of typical images; salt: as of prepared_model().

        ValueError for classes whose names cannot be told.
        """
        from tacit.parties.inference.model import Interface
        from tacit.parties.inference.private_model import prepared_model

        # Evenly spaced, since some sources are sorted by class.
        count = min(_TYPICAL_IMAGES, len(self.data.y_train))
        typical, _ = self.data.share(np.arange(count) * len(self.data.y_train) // count)
        mean, std = self.data.normalisation
        told = {"mean": mean, "std": std, "white": self.white, "classes": self.data.source.class_names}
        try:
            interface = msgspec.convert(told, Interface)
        except msgspec.ValidationError as error:
            raise ValueError(f"what data owners are told of the student's images: {error}") from None
        return prepared_model(self.transformer, typical, margin=_MARGIN, interface=interface, salt=salt)


def distilled(directory: Path) -> DistillationExperiment:
    """The experiment of a finished distillation. ValueError for a directory that does not hold a student of one."""
    path = directory / _FIGURES
    try:
        written = msgspec.json.decode(path.read_bytes())["experiment"]
        experiment = msgspec.convert(written, DistillationExperiment, dec_hook=read_section)
    except (msgspec.MsgspecError, KeyError, TypeError) as error:
        raise ValueError(f"{path} is not what `tacit distill` writes: {error}") from error
    except OSError as error:
        raise ValueError(
            f"{path} cannot be read: {error.strerror}; name a directory that `tacit distill --out` has written"
        ) from error
    if not (directory / _STUDENT).is_file():
        raise ValueError(f"there is no {directory / _STUDENT}; name a directory that `tacit distill --out` has written")
    return experiment


def read_student(directory: Path) -> Student:
    """The student of a finished distillation.

    Raises ValueError or OSError for a directory that does not hold one, or images that are not there any more.
    """
    from tacit.models.data import load as load_images
    from tacit.models.friendly import checkpoint

    experiment = distilled(directory)
    try:
        data = load_images(experiment.data, image_size=experiment.model.image_size)
    except FileNotFoundError as error:
        raise ValueError(
            f"the images that {directory / _FIGURES} tells of are needed, and not there: {error}; paths count from the "
            "directory where `tacit distill` ran"
        ) from error
    student = checkpoint.load(directory / _STUDENT, experiment.model, classes=data.classes, channels=data.channels)
    return Student(experiment, data, student)
