"""A model for private inference at its owner: its experiment, its images, and its weights.

`tacit distill` leaves a student, whose functions are polynomials; the global model of a run and a timm checkpoint keep
theirs. Bounds are measured on typical images, which come with a checkpoint, and may come with a run: a server of hosts
has none of the images that its model was trained on.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec
import numpy as np

from tacit.models.configuration import ImagesConfiguration, images_at, place
from tacit.models.datasets.image_files import Skipped, image_files, readable_files
from tacit.models.datasets.samples import SQUASHED, FileImages, Samples, Scaling, Source
from tacit.parties.runs import experiment as experiments
from tacit.parties.runs.directory import RunDirectory, RunDirectoryError, check_release
from tacit.parties.runs.distillation import RESULT, STUDENT, DistillationExperiment, distilled
from tacit.parties.runs.experiment import Experiment
from tacit.protocol.inference.schedule import LARGEST_TOKENS

if TYPE_CHECKING:
    import torch

    from tacit.models.data import Dataset
    from tacit.models.friendly.pretrained import Pretrained
    from tacit.models.friendly.transformer import FriendlyTransformer
    from tacit.parties.inference.model import Interface
    from tacit.parties.inference.private_model import PrivateModel

_TYPICAL_IMAGES: Final = 2048
_TYPICAL_TOKENS: Final = 1 << 17
"""Most tokens of calibration images: an image with more tokens shows more, and takes longer."""
_REHEARSED: Final = 1024
_MARGIN: Final = 1.5
"""Margin of bounds over typical images, if no distillation set one."""
_UNLIKE: Final = 4.0
"""Largest deviation of typical images' pixels from the training images', in the latter's standard deviations."""


@dataclass(frozen=True)
class ServedModel:
    """The result of `tacit distill` or of a run, or a checkpoint."""

    experiment: Experiment | None
    """None for a checkpoint."""
    data: Dataset
    """Without an experiment its training images are the typical ones, without labels."""
    transformer: FriendlyTransformer = field(repr=False)
    scaling: Scaling = SQUASHED
    """Resizing of image files."""
    labelled: bool = True
    """Whether its images have labels."""

    @property
    def white(self) -> int:
        return self.data.source.white

    @property
    def margin(self) -> float:
        """Margin of bounds over typical images."""
        experiment = self.experiment
        return experiment.distillation.margin if isinstance(experiment, DistillationExperiment) else _MARGIN

    @property
    def interface(self) -> Interface:
        """Description of its images for data owners. ValueError for class names that cannot be sent."""
        from tacit.parties.inference.model import Interface

        mean, std = self.data.normalisation
        stated = {
            "mean": mean,
            "std": std,
            "white": self.white,
            "classes": self.data.source.class_names,
            **vars(self.scaling),
        }
        try:
            return msgspec.convert(stated, Interface)
        except msgspec.ValidationError as error:
            raise ValueError(f"what data owners are told of the model's images: {error}") from None

    def prepared(self, *, salt: bytes | None = None) -> PrivateModel:
        """The model for private inference, with bounds from typical images; salt: see prepared_model(). ValueError as
        in `interface`."""
        from tacit.parties.inference.private_model import prepared_model

        typical = self.typical()
        return prepared_model(self.transformer, typical, margin=self.margin, interface=self.interface, salt=salt)

    def typical(self) -> torch.Tensor:
        """Training images [N, C, S, S] that show the ranges of values. ValueError if placeholders with another range of
        pixels stand in for them: the model would return meaningless results."""
        images, _ = self._spaced(min(_TYPICAL_IMAGES, _TYPICAL_TOKENS // self.transformer.size[0]))
        mean, deviation = images.mean().item(), images.std(correction=0).item()
        if self.experiment is None and max(abs(mean), deviation) > _UNLIKE:
            raise ValueError(
                f"the images for calibration are unlike those that the model has learned from: normalised, their "
                f"pixels have mean {mean:.1f} and deviation {deviation:.1f}, and those 0 and 1. Those may have another "
                "range (as 0 to 16): name images whose pixels have it"
            )
        return images

    def rehearsed(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Training images [N, C, S, S] and their labels [N], for a training rehearsal. ValueError for images without
        labels."""
        if not self.labelled:
            raise ValueError(
                "a rehearsal of a learning needs labelled images: name a folder with a folder of images for each class"
            )
        return self._spaced(_REHEARSED)

    def _spaced(self, most: int) -> tuple[torch.Tensor, torch.Tensor]:
        count = min(most, len(self.data.y_train))
        return self.data.share(np.arange(count) * len(self.data.y_train) // count)


def served_experiment(directory: Path) -> Experiment:
    """The experiment of a directory whose model can be served, as far as is known without torch. ValueError."""
    return distilled(directory) if _is_student(directory) else _trained(RunDirectory(directory))


def read_served(directory: Path) -> ServedModel:
    """The student of a finished distillation, or the global model of a run.

    Raises ValueError or OSError for a directory without either, an unsupported model, or missing images."""
    return read_student(directory) if _is_student(directory) else _read_trained(RunDirectory(directory))


class Checkpoint(msgspec.Struct, frozen=True, kw_only=True):
    """A checkpoint of timm, or of a run, to be served. ValueError for a missing file or images."""

    architecture: str
    """timm architecture; "": the file describes itself."""
    path: Path
    calibration: Path
    """Typical images, whose values are in range: a file, a folder of them, or an .npz."""
    image_size: int = 0
    """See read_pretrained()."""
    labelled: bool = False
    """Whether the typical images have labels: then they are a folder with a folder of images for each class, or an
    .npz."""

    def __post_init__(self) -> None:
        if not self.path.is_file():
            raise ValueError(f"checkpoint {str(self.path)!r} is no file")
        if self.image_size and not self.architecture:
            raise ValueError("an image size is for weights of timm: name their architecture, or leave it out")
        if self._is_data_set:
            place(ImagesConfiguration(**images_at(self.calibration)))
        else:
            self.images()

    @property
    def _is_data_set(self) -> bool:
        return self.labelled or self.calibration.suffix == ".npz"

    def absolute(self) -> Checkpoint:
        return msgspec.structs.replace(self, path=self.path.absolute(), calibration=self.calibration.absolute())

    def images(self) -> tuple[Path, ...]:
        try:
            return image_files(self.calibration)
        except ValueError as error:
            raise ValueError(f"calibration images {self.calibration}: {error}") from None

    def read(self) -> ServedModel:
        """Read the model. Raises as read_pretrained() and read_described() do, and as data.read() for labelled
        images."""
        from tacit.models import data
        from tacit.models.friendly.pretrained import read_described, read_pretrained

        if self.architecture:
            size = self.image_size
            found = read_pretrained(self.architecture, self.path, most_tokens=LARGEST_TOKENS, image_size=size)
        else:
            found = read_described(self.path)
        if self._is_data_set:
            typical = data.read(ImagesConfiguration(**images_at(self.calibration)))
            return served_pretrained(found, typical.read_as(found.scaling, found.white).train, labelled=self.labelled)
        # Unreadable images are not used for calibration; their owner is informed when they are sent to inference.
        files = FileImages(readable_files(self.calibration, Skipped()), scaling=found.scaling, white=found.white)
        return served_pretrained(found, Samples(files, np.zeros(len(files), np.int64)))


def checkpoint_of_run(directory: Path, calibration: Path) -> Checkpoint:
    """The global model of a run, with typical images instead of those that it was trained on. ValueError as for
    served_experiment() and Checkpoint."""
    run = RunDirectory(directory)
    if _is_student(directory):
        raise ValueError(f"{directory} is a student, whose bounds are those of what it was distilled on")
    _trained(run)
    return Checkpoint(architecture="", path=run.model, calibration=calibration)


def served_pretrained(found: Pretrained, typical: Samples, *, labelled: bool = False) -> ServedModel:
    from tacit.models.data import normalise
    from tacit.models.friendly.transformer import STOCK, convert

    source = Source(typical, typical.part(np.arange(0)), class_names=found.class_names, white=found.white)
    data = normalise(source, image_size=found.image_size, mean=found.mean, std=found.std)
    return ServedModel(None, data, convert(found.model, STOCK), found.scaling, labelled)


def read_student(directory: Path) -> ServedModel:
    from tacit.models.friendly import distillation

    experiment = distilled(directory)
    data = _images(experiment, told_by=directory / RESULT)
    student = distillation.load(directory / STUDENT, experiment.model, classes=data.classes, channels=data.channels)
    return ServedModel(experiment, data, student)


def _is_student(directory: Path) -> bool:
    if (directory / RESULT).exists():
        return True
    if (experiment := RunDirectory(directory).experiment).exists():
        check_release(directory)
        if experiments.is_adaptation(experiment):
            raise ValueError(
                f"{directory} is of `tacit adapt`: its data owners have what was learned, and ask with it: `tacit "
                f"predict {directory}`"
            )
        return False
    raise ValueError(
        f"{directory} holds neither {RESULT} nor {RunDirectory(directory).experiment.name}; name a directory that "
        "`tacit distill --out` or `tacit simulate --out` has written"
    )


def _trained(run: RunDirectory) -> Experiment:
    """The experiment of a run with one trained global model in the clear."""
    experiment = experiments.load(run.experiment)
    if experiment.model.factory:
        raise _not_served(run, f"model.factory = {experiment.model.factory!r}: it is a model of one's own")
    if experiment.model.tune in ("lora", "parallel"):
        remedy = "`tacit models merge`, and ask the merged file as a checkpoint" * (experiment.model.tune == "lora")
        raise _not_served(
            run, f'model.tune = "{experiment.model.tune}": {remedy or "it has adapters beside its blocks"}'
        )
    if experiment.encryption is not None:
        raise _not_served(run, "[encryption]: its global model is encrypted under a key of the clients")
    if experiment.training.buffers == "local":
        raise _not_served(run, 'training.buffers = "local": every client has buffers of its own')
    if experiment.protection.personal:
        raise _not_served(
            run, f'protection.scheme = "{experiment.protection.scheme}": every client has a model of its own'
        )
    if not run.model.is_file():
        raise ValueError(f"there is no {run.model}: wait until the run has finished a round")
    try:
        if run.progress().round == 0:
            raise ValueError(f"{run.model} is as the run began with it: wait until a round is finished")
    except RunDirectoryError as error:
        raise ValueError(str(error)) from None
    # The trained part is of no importance any more.
    return msgspec.structs.replace(experiment, model=msgspec.structs.replace(experiment.model, tune="all"))


def _read_trained(run: RunDirectory) -> ServedModel:
    from tacit.models.friendly import distillation
    from tacit.models.friendly.transformer import ConversionError

    experiment = _trained(run)
    try:
        if (pixels := run.kept_statistics()) is not None:
            given = experiment.data.given(pixels.mean, pixels.std)
            experiment = msgspec.structs.replace(experiment, data=given)
    except RunDirectoryError as error:
        raise ValueError(str(error)) from None
    data = _images(experiment, told_by=run.experiment)
    try:
        model = distillation.load_stock(run.model, experiment.model, classes=data.classes, channels=data.channels)
    except ConversionError as error:
        raise _not_served(run, f"model.name = {experiment.model.name!r}: {error}") from None
    return ServedModel(experiment, data, model)


def _not_served(run: RunDirectory, reason: str) -> ValueError:
    return ValueError(f"{run.path} has no vision transformer of timm's that could be asked: {reason}")


def _images(experiment: Experiment, *, told_by: Path) -> Dataset:
    from tacit.models.data import load as load_images

    try:
        return load_images(experiment.data, image_size=experiment.model.image_size)
    except FileNotFoundError as error:
        raise ValueError(
            f"the images that {told_by} tells of are needed, and not there: {error}; paths count from the directory "
            "where the command ran that wrote it. Or name typical images, as a server of hosts does, by calibration"
        ) from error
    except ValueError as error:
        raise ValueError(f"images of {told_by}: {error}. Or name typical images by calibration") from error
