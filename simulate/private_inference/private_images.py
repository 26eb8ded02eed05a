"""`tacit infer`: which images a data owner asks about, and what it is told of them, as figures."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from tacit.models.data import Dataset
from tacit.models.data import read as read_images
from tacit.models.datasets.image_files import ScaledFiles, image_files
from tacit.models.datasets.samples import Samples
from tacit.models.device import resolve_device
from tacit.models.friendly.gauge import ActivationError
from tacit.models.friendly.transformer import FriendlyTransformer
from tacit.parties.inference.data_owner import Inferred
from tacit.parties.runs.student import DistillationExperiment, Student, read_student
from tacit.protocol.inference.messages import Input
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


def chosen(request: InferenceRequest, student: Student) -> Chosen:
    """The images of the request, normalised as those are that the student has learned from.

    ValueError for more test images than there are, and for images that cannot be decoded or are none for this student.
    """
    data = student.data
    if request.path is None:
        test = _test_images(student.experiment, data, request.source)
        count = len(test.labels) if request.count is None else request.count
        if not 1 <= count <= len(test.labels):
            raise ValueError(f"--images {count}: there are {len(test.labels)} test images, ask for 1 or more of them")
        pixels = data.normalised(test.images, np.arange(count))
        return Chosen(tuple(f"test {index}" for index in range(count)), pixels, torch.from_numpy(test.labels[:count]))
    try:
        files = image_files(request.path)
    except ValueError as error:
        raise ValueError(f"--images {request.images}: {error}") from None
    pixels = data.normalised(ScaledFiles(files, white=student.white))
    return Chosen(tuple(str(file) for file in files), pixels, None)


def infer(
    request: InferenceRequest,
    *,
    input: Input,
    batch: int,
    data_owners: int,
    device: str,
    progress: Callable[[str], None],
) -> dict[str, Any]:
    """What the student says of the images, by private inference; with its costs.

    Raises ValueError or OSError for what cannot be used, and ProcessError.
    """
    resolve_device(device)
    progress("reading the student")
    student = read_student(request.directory)
    images = chosen(request, student)
    if data_owners > len(images.names):
        raise ValueError(f"--data-owners {data_owners}: there are {len(images.names)} images for them")
    progress("asking the student in the clear")
    clear = _in_the_clear(student.transformer, images, batch)
    model = student.prepared()
    parts = torch.tensor_split(images.pixels, data_owners)
    done = dict.fromkeys(data_owner_names(data_owners), 0)

    def show(name: str, count: int) -> None:
        done[name] = count
        progress(f"{sum(done.values())} of {len(images.names)} images")

    progress("starting the parties")
    found = run(model, parts, InferencePlan(input=input, batch=batch, device=device), show)
    return _figures(images, student.data, clear, found) | {"input": input, "batch": batch, "data_owners": data_owners}


def _test_images(experiment: DistillationExperiment, data: Dataset, source: str | None) -> Samples:
    """Those of the student's own source, or of another. ValueError if that has classes that the student has not."""
    if source is None:
        return data.source.test
    other = read_images(with_data(experiment, source).data)
    if len(other.class_names) > data.classes:
        raise ValueError(
            f"--data {source}: there are {len(other.class_names)} classes, and {data.classes} that the student knows"
        )
    return other.test


def _in_the_clear(student: FriendlyTransformer, images: Chosen, batch: int) -> torch.Tensor:
    """Logits [N, classes]. ValueError for an image for which the student is not valid, with its name."""
    with torch.no_grad():
        try:
            return torch.cat([student(pixels) for pixels in torch.split(images.pixels, batch)])
        except ActivationError:
            for name, pixels in zip(images.names, torch.split(images.pixels, 1), strict=True):
                try:
                    student(pixels)
                except ActivationError as error:
                    raise ValueError(f"{name} is unlike what the student was calibrated on: {error}") from error
            raise


def _figures(images: Chosen, data: Dataset, clear: torch.Tensor, found: Sequence[Inferred]) -> dict[str, Any]:
    logits = torch.cat([each.logits for each in found])
    confidences, labels = logits.softmax(dim=1).max(dim=1)
    figures: dict[str, Any] = {
        "images": [
            {"image": name, "label": data.source.class_names[label], "confidence": confidence}
            for name, label, confidence in zip(images.names, labels.tolist(), confidences.tolist(), strict=True)
        ],
        "agreement": (labels == clear.argmax(dim=1)).double().mean().item(),
        "largest_difference": (logits - clear).abs().max().item(),
        "accuracy": None if images.labels is None else (labels == images.labels).double().mean().item(),
        "relative_error": ((logits - clear).norm() / clear.norm()).item(),
        "weights_bytes": sum(each.weights_bytes for each in found),
    }
    return figures | costs(found)


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
