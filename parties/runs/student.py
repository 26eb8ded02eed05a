"""The experiment of a student of `tacit distill`: that of `tacit simulate` with one section more, [distillation].

What else is in the directory stands in tacit.simulate.private_inference.distillation; served.py reads the student.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from tacit.models.friendly.configuration import DistillationConfiguration
from tacit.parties.runs.experiment import Experiment
from tacit.parties.runs.explain import read_section

FIGURES: Final = "distillation.json"
STUDENT: Final = "student.safetensors"


class DistillationExperiment(Experiment, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """An experiment with the section [distillation]. Raises as Experiment does."""

    distillation: Annotated[
        DistillationConfiguration, Meta(description="How the trained model becomes a friendly one.")
    ] = DistillationConfiguration()

    def __post_init__(self) -> None:
        super().__post_init__()
        if key := next(iter(self.factories), ""):
            raise ValueError(f'{key} = "{self.factories[key]}": only a federation takes it; leave it out')


def distilled(directory: Path) -> DistillationExperiment:
    """The experiment of a finished distillation. ValueError for a directory that does not hold a student of one."""
    path = directory / FIGURES
    try:
        written = msgspec.json.decode(path.read_bytes())["experiment"]
        experiment = msgspec.convert(written, DistillationExperiment, dec_hook=read_section)
    except (msgspec.MsgspecError, KeyError, TypeError) as error:
        raise ValueError(f"{path} is not what `tacit distill` writes: {error}") from error
    except OSError as error:
        raise ValueError(
            f"{path} cannot be read: {error.strerror}; name a directory that `tacit distill --out` has written"
        ) from error
    if not (directory / STUDENT).is_file():
        raise ValueError(f"there is no {directory / STUDENT}; name a directory that `tacit distill --out` has written")
    return experiment
