"""The experiment of `tacit distill`, that of `tacit simulate` with the section [distillation], and its result."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta

from tacit.models.friendly.configuration import DistillationConfiguration
from tacit.models.friendly.metrics import DistillationEpoch, StudentMetrics
from tacit.parties.runs.directory import check_release
from tacit.parties.runs.experiment import Experiment, read_section
from tacit.parties.runs.results import Result

RESULT: Final = "distillation.json"
STUDENT: Final = "student.safetensors"


class DistillationExperiment(Experiment, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """An experiment with the section [distillation]. Raises as Experiment does."""

    distillation: Annotated[
        DistillationConfiguration, Meta(description="Distillation of the trained model into an MPC-friendly one.")
    ] = DistillationConfiguration()

    def __post_init__(self) -> None:
        super().__post_init__()
        if key := next(iter(self.factories), ""):
            raise ValueError(f'{key} = "{self.factories[key]}": only a federation takes it; leave it out')
        if self.distillation.new_head and not self.model.checkpoint:
            raise ValueError("distillation.new_head: there is no model.checkpoint that could get one; leave it out")


class TeacherMetrics(msgspec.Struct, frozen=True, kw_only=True):
    """Metrics of a teacher on test images."""

    accuracy: float
    loss: float
    epochs: int
    """Epochs of its training; 0 if it was loaded."""


class ConvertedMetrics(msgspec.Struct, frozen=True, kw_only=True):
    """A student's metrics before distillation: the teacher with polynomials in place of its functions."""

    accuracy: float


class PolynomialMetrics(msgspec.Struct, frozen=True, kw_only=True):
    """A polynomial in place of a function, on the interval from low to high."""

    place: str
    low: float
    high: float
    error: float
    """Largest error on the interval."""


class DistillationResult(Result, frozen=True, kw_only=True, tag="tacit.distillation.1"):
    """A teacher, its student, and every epoch of the distillation."""

    name: str
    seed: int
    device: str
    parameters: int
    test_images: int
    teacher: TeacherMetrics
    converted: ConvertedMetrics
    student: StudentMetrics
    epochs: list[DistillationEpoch]
    polynomials: list[PolynomialMetrics]
    seconds: float
    experiment: dict[str, Any]

    def view(self) -> Iterator[str]:
        """The student beside its teacher."""
        student = self.student
        refused = f", {student.refused} images beyond the calibrated intervals" if student.refused else ""
        yield (
            f"student: test accuracy {student.accuracy:.3f}, teacher {self.teacher.accuracy:.3f}; "
            f"same label for {student.agreement:.1%} of {self.test_images} images{refused}"
        )


def distilled(directory: Path) -> DistillationExperiment:
    """The experiment of a finished distillation. ValueError for a directory without a student."""
    path = directory / RESULT
    if path.exists():
        check_release(directory)
    try:
        written = msgspec.json.decode(path.read_bytes(), type=DistillationResult).experiment
        experiment = msgspec.convert(written, DistillationExperiment, dec_hook=read_section)
    except msgspec.MsgspecError as error:
        raise ValueError(f"{path} is not what `tacit distill` writes: {error}") from error
    except OSError as error:
        raise ValueError(
            f"{path} cannot be read: {error.strerror}; name a directory that `tacit distill --out` has written"
        ) from error
    if not (directory / STUDENT).is_file():
        raise ValueError(f"there is no {directory / STUDENT}; name a directory that `tacit distill --out` has written")
    return experiment
