"""`tacit infer` and `tacit predict`: which images a data owner asks about, and the answers, as figures.

`tacit infer` asks a model alone, `tacit predict` a model with the adapters of `tacit adapt`; both by private inference.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import torch

from tacit.models.adapters.parallel import AdapterParameters
from tacit.models.data import Dataset
from tacit.models.data import read as read_images
from tacit.models.datasets.image_files import ScaledFiles, image_files
from tacit.models.datasets.samples import Samples
from tacit.models.friendly.polynomials import ActivationError
from tacit.models.friendly.transformer import FriendlyTransformer
from tacit.models.training import resolve_device
from tacit.parties.adaptation import standing
from tacit.parties.inference.data_owner import Inferred
from tacit.parties.inference.ranking import check_labels
from tacit.parties.runs.adaptation import AdaptationExperiment
from tacit.parties.runs.directory import check_release
from tacit.parties.runs.experiment import Experiment, load_as
from tacit.parties.runs.served import ServedModel, read_served
from tacit.protocol.inference.schedule import LOGITS, Results
from tacit.simulate.adaptation.plan import Folder, owner_names, read_learning
from tacit.simulate.adaptation.setting import AdaptationSetting, Labelled, setting
from tacit.simulate.adaptation.summary import Judge
from tacit.simulate.insecure import Input
from tacit.simulate.private_inference.distillation import with_data
from tacit.simulate.private_inference.inference import InferencePlan, data_owner_names, run
from tacit.simulate.private_inference.inference_request import InferenceRequest


@dataclass(frozen=True)
class Chosen:
    """Images to ask about."""

    names: tuple[str, ...]
    pixels: torch.Tensor
    """float32 [N, C, S, S]."""
    labels: torch.Tensor | None
    """int64 [N], where they are known."""


def chosen(request: InferenceRequest, model: ServedModel) -> Chosen:
    """The images of the request, normalised as those are that the model has learned from.

    ValueError for more test images than there are, and for images that cannot be decoded or are none for this model.
    """
    data = model.data
    if request.path is None:
        test = _test_images(model.experiment, data, request.source)
        count = len(test.labels) if request.count is None else request.count
        if not 1 <= count <= len(test.labels):
            raise ValueError(f"--images {count}: there are {len(test.labels)} test images, ask for 1 or more of them")
        pixels = data.normalised(test.images, np.arange(count))
        return Chosen(tuple(f"test {index}" for index in range(count)), pixels, torch.from_numpy(test.labels[:count]))
    return chosen_files(request.path, model)


def chosen_files(path: Path, model: ServedModel) -> Chosen:
    """An image file, or all in a folder. ValueError as of `chosen`."""
    try:
        files = image_files(path)
    except ValueError as error:
        raise ValueError(f"--images {path}: {error}") from None
    pixels = model.data.normalised(ScaledFiles(files, white=model.white))
    return Chosen(tuple(str(file) for file in files), pixels, None)


def infer(
    request: InferenceRequest,
    *,
    input: Input,
    batch: int,
    data_owners: int,
    device: str,
    labels: int,
    progress: Callable[[str], None],
) -> dict[str, Any]:
    """What the model says of the images, by private inference; with its costs. labels: how many of an image are told,
    the best first; 0: logits.

    Raises ValueError or OSError for what cannot be used, and ProcessError.
    """
    resolve_device(device)
    progress("reading the model")
    served = read_served(request.directory)
    images = chosen(request, served)
    if data_owners > len(images.names):
        raise ValueError(f"--data-owners {data_owners}: there are {len(images.names)} images for them")
    results = Results(labels=labels, bits=0) if labels else LOGITS
    if labels:
        check_labels(served.data.classes, labels)
    progress("asking the model in the clear")
    clear = in_the_clear(served.transformer, images.pixels, batch)
    progress("finding out what its values reach")
    model = served.prepared()
    parts = torch.tensor_split(images.pixels, data_owners)
    done = dict.fromkeys(data_owner_names(data_owners), 0)

    def show(name: str, count: int) -> None:
        done[name] = count
        progress(f"{sum(done.values())} of {len(images.names)} images")

    progress("starting the parties")
    found = run(model, parts, InferencePlan(input=input, batch=batch, device=device, results=results), show)
    return answer_figures(images, served.data.source.class_names, clear, found) | {
        "input": input,
        "batch": batch,
        "data_owners": data_owners,
        "labels": labels,
    }


def _test_images(experiment: Experiment, data: Dataset, source: str | None) -> Samples:
    """Those of the model's own source, or of another. ValueError if that has classes that the model has not."""
    if source is None:
        return data.source.test
    other = read_images(with_data(experiment, source).data)
    if len(other.class_names) > data.classes:
        raise ValueError(
            f"--data {source}: there are {len(other.class_names)} classes, and {data.classes} that the model knows"
        )
    return other.test


def in_the_clear(model: FriendlyTransformer, pixels: torch.Tensor, batch: int) -> torch.Tensor:
    """Logits [N, classes] of images [N, C, S, S]; nan for an image for which a student's polynomials are not valid."""
    with torch.no_grad():
        return torch.cat([_logits(model, part) for part in torch.split(pixels, batch)])


def _logits(model: FriendlyTransformer, pixels: torch.Tensor) -> torch.Tensor:
    try:
        logits: torch.Tensor = model(pixels)
    except ActivationError:
        if len(pixels) > 1:
            return torch.cat([_logits(model, image) for image in torch.split(pixels, 1)])
        return torch.full((1, len(model.head.weight)), torch.nan)
    return logits


def answer_figures(
    images: Chosen, classes: Sequence[str], clear: torch.Tensor, found: Sequence[Inferred]
) -> dict[str, Any]:
    """Answers of data owners, beside those in the clear, logits [N, classes], and what they cost."""
    logits, labels, refused = (
        torch.cat([getattr(each, name) for each in found]) for name in ("logits", "labels", "refused")
    )
    confidences = logits.softmax(dim=1).amax(dim=1)
    rows = zip(images.names, labels.tolist(), confidences.tolist(), refused.tolist(), strict=True)
    figures: dict[str, Any] = {
        "images": [
            {"image": name, **_told(classes, best, confidence, refused=out)} for name, best, confidence, out in rows
        ],
        **_compared(images, clear, logits, labels[:, 0], ~refused),
        "weights_bytes": sum(each.weights_bytes for each in found),
    }
    return figures | costs(found)


def _told(classes: Sequence[str], labels: list[int], confidence: float, *, refused: bool) -> dict[str, Any]:
    """Of one image."""
    if refused:
        return {"label": None, "labels": None, "confidence": None, "refused": True}
    names = [classes[label] for label in labels]
    # Where logits were told, they have said which labels come next.
    known = not math.isnan(confidence)
    return {
        "label": names[0],
        "labels": None if known else names,
        "confidence": confidence if known else None,
        "refused": False,
    }


def _compared(
    images: Chosen, clear: torch.Tensor, logits: torch.Tensor, labels: torch.Tensor, answered: torch.Tensor
) -> dict[str, Any]:
    """How answers are beside those in the clear; None where there is none. answered: bool [N]."""
    found: dict[str, Any] = dict.fromkeys(("agreement", "largest_difference", "accuracy", "relative_error"))
    if images.labels is not None and answered.any():
        found["accuracy"] = (labels == images.labels)[answered].double().mean().item()
    # A student in the clear refuses what is beyond its polynomials.
    both = answered & clear.isfinite().all(dim=1)
    if both.any():
        found["agreement"] = (labels == clear.argmax(dim=1))[both].double().mean().item()
    both &= logits.isfinite().all(dim=1)
    if both.any():
        difference = (logits - clear)[both]
        found["largest_difference"] = difference.abs().max().item()
        found["relative_error"] = (difference.norm() / clear[both].norm()).item()
    return found


def costs(found: Sequence[Inferred]) -> dict[str, Any]:
    """Seconds, bytes and rounds, in all and by operation; seconds are those of the data owners."""
    passes = [each for inferred in found for each in inferred.passes]
    operations: defaultdict[str, dict[str, float]] = defaultdict(
        lambda: {"seconds": 0.0, "data_owner_bytes": 0, "model_owner_bytes": 0, "rounds": 0}
    )
    for each in passes:
        for cost in each.rounds:
            row = operations[cost.operation]
            row["seconds"] += cost.seconds
            row["data_owner_bytes"] += cost.sent
            row["model_owner_bytes"] += cost.received
            row["rounds"] += 1
    return {
        "passes": len(passes),
        "online_seconds": sum(each.online_seconds for each in passes),
        "waited_for_material_seconds": sum(each.offline_seconds for each in passes),
        "per_operation": dict(operations),
    }


@dataclass(frozen=True)
class PredictionRequest:
    """ValueError or OSError for a folder without anything learned, and images that are not there."""

    folder: Folder
    images: str | None
    """A number of test images, a file, or a folder; None: all test images."""

    def __post_init__(self) -> None:
        for file in (self.folder.run.experiment, self.folder.learning, self.folder.run.summary):
            if not file.is_file():
                raise ValueError(
                    f"{self.folder.path} holds no {file.name}: name a directory that `tacit adapt` has written, and "
                    "finished"
                )
        check_release(self.folder.path)
        if (path := self.path) is not None and not (path.is_file() or path.is_dir()):
            raise ValueError(f"--images {self.images}: no such file or folder, and no number of test images")

    @property
    def path(self) -> Path | None:
        """File or folder of the images; None if they are test images."""
        return None if self.images is None or self.images.isdecimal() else Path(self.images)


def predict(
    request: PredictionRequest, *, batch: int, device: str, labels: int, progress: Callable[[str], None]
) -> dict[str, Any]:
    """What was learned says of the images; with its costs. labels: how many of an image are told, the best first; 0:
    logits.

    Raises ValueError or OSError for what cannot be used, and ProcessError.
    """
    resolve_device(device)
    torch.set_num_threads(1)
    folder = request.folder
    progress("reading the model, and what was learned")
    experiment = load_as(AdaptationExperiment, folder.run.experiment)
    learning = read_learning(folder)
    if batch > learning.batch:
        raise ValueError(f"--batch {batch}: its bounds are for batches of {learning.batch} images at most")
    seed = msgspec.json.decode(folder.run.summary.read_bytes())["seed"]["value"]
    found = setting(experiment, folder.path, seed=seed)
    parameters, number = _learned(folder, experiment, learning.initial())
    if labels:
        check_labels(learning.classes, labels)
    images = _chosen(request, found)
    test = Labelled(images.pixels, torch.zeros(len(images.pixels), dtype=torch.int64))
    clear = Judge(learning, found.served.transformer, test).logits(parameters)
    progress("finding out what its values reach")
    model = found.served.prepared()
    plan = InferencePlan(
        batch=batch, device=device, results=Results(labels=labels, bits=0) if labels else LOGITS, learned=learning
    )
    progress("starting the parties")
    told = run(
        model,
        [images.pixels],
        plan,
        lambda name, done: progress(f"{done} of {len(images.names)} images"),
        parameters=parameters,
    )
    return answer_figures(images, found.classes, clear, told) | {"batch": batch, "labels": labels, "round": number}


def _learned(
    folder: Folder, experiment: AdaptationExperiment, like: AdapterParameters
) -> tuple[AdapterParameters, int]:
    """What the data owner has that has heard last. ValueError if none has."""
    found = []
    for name in owner_names(experiment.clients):
        try:
            found.append(standing.load(folder.of_owner(name), like))
        except FileNotFoundError:
            continue
    if not found:
        raise ValueError(f"{folder.path}: no round was completed, so that nothing was learned")
    return max(found, key=lambda learned: learned[1])


def _chosen(request: PredictionRequest, found: AdaptationSetting) -> Chosen:
    """ValueError for more test images than there are, and for images that cannot be decoded."""
    if request.path is not None:
        return chosen_files(request.path, found.served)
    there = len(found.test.labels)
    count = there if request.images is None else int(request.images)
    if not 1 <= count <= there:
        raise ValueError(f"--images {count}: there are {there} test images, ask for 1 or more of them")
    names = tuple(f"test {index}" for index in range(count))
    return Chosen(names, found.test.images[:count], found.test.labels[:count])
