"""Distribution of data before a model is adapted: the model owner's model and images, and those of the data owners.

Beside a model that is trained here, or of an earlier run, the data owners have the images of all classes unknown to it;
beside a checkpoint of timm's, all but a few images of all classes.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np
import torch

from tacit.models import checkpoint
from tacit.models.data import Dataset, load, normalise, read
from tacit.models.datasets.samples import Samples, Source
from tacit.models.friendly.pretrained import read_pretrained
from tacit.models.layout import Layout
from tacit.models.networks import build
from tacit.models.partition import divide
from tacit.models.training import CPU, train
from tacit.parties.runs.adaptation import AdaptationExperiment
from tacit.parties.runs.directory import Progress, RunDirectory, claim, mark_release, writing
from tacit.parties.runs.experiment import Experiment
from tacit.parties.runs.reference import experiment_toml
from tacit.parties.runs.served import ServedModel, read_served, served_pretrained
from tacit.protocol.inference.schedule import LARGEST_TOKENS

BACKBONE: Final = "backbone"
"""Folder, in that of the run, of a model trained for it: a run of its own."""


@dataclass(frozen=True)
class Labelled:
    """Labelled images. The representation shows none of them."""

    images: torch.Tensor = field(repr=False)
    """float32 [N, C, S, S], as the model takes them."""
    labels: torch.Tensor = field(repr=False)
    """int64 [N], from 0."""


@dataclass(frozen=True)
class AdaptationSetting:
    served: ServedModel
    own: Labelled
    """Subset for the rehearsal."""
    classes: tuple[str, ...]
    owners: tuple[Source, ...]
    """Images of each data owner; it trains on the training images."""
    test: Labelled
    """Test set of these classes."""
    images: Dataset = field(repr=False)

    def of_owner(self, number: int) -> Labelled:
        return _labelled(self.images, self.owners[number].train)


def setting(experiment: AdaptationExperiment, directory: Path, *, seed: int) -> AdaptationSetting:
    """Train the model owner's model in the folder of a run, or take it from there or another run; divide images.

    seed: of initial weights, training and division. ValueError or OSError for unusable data or an unusable model, and
    FloatingPointError when a training diverges.
    """
    own = experiment.adaptation
    if experiment.pretrained:
        return _pretrained(experiment, seed=seed)
    if own.backbone:
        served = read_served(backbone(experiment, directory))
        mean, std = served.data.normalisation
        source = read(experiment.data).read_as(served.scaling, served.white)
        images = normalise(source, image_size=served.data.image_size, mean=mean, std=std)
        wanted = np.arange(images.classes)
    else:
        images = load(experiment.data, image_size=experiment.model.image_size)
        _check_known(own.known_classes, images.classes)
        wanted = np.setdiff1d(np.arange(images.classes), own.known_classes)
        known = replace(images, source=_of_classes(images.source, np.array(own.known_classes)))
        place = backbone(experiment, directory)
        if not place.exists():
            _train(experiment, known, place, seed=seed)
        served = replace(read_served(place), data=known)
    rehearsed = Labelled(*served.rehearsed())
    return AdaptationSetting(served, rehearsed, *_divided(experiment, images, wanted, seed=seed))


def _pretrained(experiment: AdaptationExperiment, *, seed: int) -> AdaptationSetting:
    model = experiment.model
    found = read_pretrained(model.name, Path(model.checkpoint), most_tokens=LARGEST_TOKENS, image_size=model.image_size)
    source = read(experiment.data).read_as(found.scaling, found.white)
    count = len(source.train.labels)
    if (wanted := experiment.adaptation.own_images) >= count:
        raise ValueError(f"adaptation.own_images = {wanted}: [data] has {count} training images in all; take fewer")
    taken = np.arange(wanted) * count // wanted
    rest = replace(source, train=source.train.part(np.setdiff1d(np.arange(count), taken)))
    served = served_pretrained(found, source.train.part(taken), labelled=True)
    images = normalise(rest, image_size=found.image_size, mean=found.mean, std=found.std)
    classes = np.arange(images.classes)
    return AdaptationSetting(served, Labelled(*served.rehearsed()), *_divided(experiment, images, classes, seed=seed))


def backbone(experiment: AdaptationExperiment, directory: Path) -> Path:
    """Return the place of the model owner's model for a run in this directory, whether or not it exists yet."""
    if experiment.pretrained:
        return Path(experiment.model.checkpoint)
    return Path(experiment.adaptation.backbone) if experiment.adaptation.backbone else directory / BACKBONE


def _check_known(known: tuple[int, ...], classes: int) -> None:
    if max(known) >= classes:
        raise ValueError(
            f"adaptation.known_classes has {max(known)}, and the images have the classes 0 to {classes - 1}"
        )
    if classes - len(known) < 2:
        raise ValueError(
            f"adaptation.known_classes has {len(known)} of {classes} classes: two at least are to be left for the data "
            "owners"
        )


def _train(experiment: AdaptationExperiment, known: Dataset, place: Path, *, seed: int) -> None:
    """Train a model on these images, and store it as a run of `tacit simulate` would."""
    model = build(experiment.model, classes=known.classes, channels=known.channels, seed=seed)
    training = msgspec.structs.replace(experiment.training, epochs=experiment.adaptation.backbone_epochs)
    train(model, known.x_train, known.y_train, training, seed=seed, device=CPU)
    claim(place)
    mark_release(place)
    run, layout = RunDirectory(place), Layout.of(model)
    plain = Experiment(**{name: getattr(experiment, name) for name in Experiment.__struct_fields__})
    run.keep_experiment(experiment_toml(plain))
    with writing(run.model):
        metadata = Progress(round=1, split_seed=seed).metadata()
        checkpoint.save(run.model, layout=layout, flat=layout.flatten(model), metadata=metadata)


def _divided(
    experiment: AdaptationExperiment, images: Dataset, wanted: Any, *, seed: int
) -> tuple[tuple[str, ...], tuple[Source, ...], Labelled, Dataset]:
    source = _of_classes(images.source, wanted)
    if not len(source.test.labels):
        raise ValueError(
            f"data.source {experiment.data.source!r} holds no test images of what is learned, and these measure it: "
            "add some, in a folder test with a folder for each class, or as x_test and y_test"
        )
    names = tuple(images.source.class_names[index] for index in wanted)

    def numbered(samples: Samples) -> Samples:
        return replace(samples, labels=np.searchsorted(wanted, samples.labels))

    parts = divide(
        source.train.labels,
        experiment.data,
        clients=experiment.clients,
        seed=seed,
        centres=source.train.centres,
    )
    test = numbered(source.test)
    owners = tuple(
        Source(train=numbered(source.train.part(part)), test=test.part(np.arange(0)), class_names=names)
        for part in parts
    )
    return names, owners, _labelled(images, test), images


def _labelled(images: Dataset, samples: Samples) -> Labelled:
    return Labelled(images.normalised(samples.images), torch.from_numpy(samples.labels))


def _of_classes(source: Source, wanted: Any) -> Source:
    train, test = (
        samples.part(np.flatnonzero(np.isin(samples.labels, wanted))) for samples in (source.train, source.test)
    )
    return replace(source, train=train, test=test, notes=())
