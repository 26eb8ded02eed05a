"""`tacit infer` and `tacit predict`: a data owner's images, and the answers.

`tacit infer` uses a model alone, `tacit predict` a model with the adapters of `tacit adapt`; both by private inference.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from operator import itemgetter
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch

from tacit.models.adapters.parallel import AdapterParameters
from tacit.models.data import Dataset
from tacit.models.data import read as read_images
from tacit.models.datasets.image_files import Skipped, readable_files
from tacit.models.datasets.samples import FileImages, Samples
from tacit.models.friendly.polynomials import ActivationError
from tacit.models.friendly.transformer import FriendlyTransformer
from tacit.models.training import resolve_device
from tacit.parties.adaptation import standing
from tacit.parties.hosting.model_owner import kept_salt
from tacit.parties.hosting.protocols import PROTOCOLS
from tacit.parties.inference.data_owner import Inferred, PassCosts
from tacit.parties.inference.private_model import NO_CLASSES
from tacit.parties.inference.ranking import check_labels
from tacit.parties.runs.adaptation import AdaptationExperiment
from tacit.parties.runs.answers import AnsweredImage
from tacit.parties.runs.directory import RunDirectoryError, check_release
from tacit.parties.runs.experiment import Experiment, load_as
from tacit.parties.runs.served import ServedModel
from tacit.protocol.inference.schedule import LOGITS, Results
from tacit.simulate.adaptation.clear import Judge
from tacit.simulate.adaptation.plan import Folder, owner_names, read_learning, teaching
from tacit.simulate.adaptation.setting import AdaptationSetting, Labelled, setting
from tacit.simulate.adaptation.summary import read_summary
from tacit.simulate.federation.party_files import MODEL_OWNER
from tacit.simulate.insecure import Input
from tacit.simulate.insecure.known_input import check_disclosable
from tacit.simulate.private_inference.distillation import with_data
from tacit.simulate.private_inference.inference import InferencePlan, LearnedFolders, data_owner_names, run
from tacit.simulate.private_inference.inference_request import InferenceRequest, WantedImages
from tacit.simulate.private_inference.results import (
    ComparedAnswers,
    InferenceResult,
    OperationMetrics,
    PredictionResult,
)


@dataclass(frozen=True)
class Chosen:
    names: tuple[str, ...]
    pixels: torch.Tensor
    """float32 [N, C, S, S]."""
    labels: torch.Tensor | None
    """int64 [N], if known."""
    notes: tuple[str, ...] = ()
    unreadable: Mapping[Path, str] = field(default_factory=dict)
    """Skipped files, each with the reason."""


def chosen(request: InferenceRequest, model: ServedModel) -> Chosen:
    """Return the images of the request, normalised like the model's training images.

    ValueError for more test images than there are, and for images that cannot be decoded or do not fit this model.
    """
    if request.path is not None:
        return chosen_files(request.path, model)
    # A request to a checkpoint names files.
    assert model.experiment is not None
    data = model.data
    test = _test_images(model.experiment, data, request.source)
    names = request.tests(len(test.labels))
    pixels = data.normalised(test.images, np.arange(len(names)))
    return Chosen(names, pixels, torch.from_numpy(test.labels[: len(names)]))


def chosen_files(path: Path, model: ServedModel) -> Chosen:
    """Read an image file, or all in a folder. ValueError as `chosen`."""
    skipped = Skipped()
    try:
        files = readable_files(path, skipped)
    except ValueError as error:
        raise ValueError(f"--images {path}: {error}") from None
    pixels = model.data.normalised(FileImages(files, white=model.white, scaling=model.scaling))
    return Chosen(tuple(str(file) for file in files), pixels, None, skipped.notes, skipped.unreadable)


def infer(
    request: InferenceRequest,
    *,
    input: Input,
    batch: int,
    data_owners: int,
    device: str,
    labels: int,
    progress: Callable[[str], None],
) -> InferenceResult:
    """Classify the images by private inference. labels: number revealed per image, best first; 0: logits.

    Raises ValueError or OSError for unusable input, and ProcessError.
    """
    for option, value in (("--input", input), ("--labels", labels), ("--device", device)):
        request.check(option, value)
    protocol = PROTOCOLS[request.protocol]
    resolve_device(device)
    progress("reading the model")
    served = request.read()
    protocol.check_served(served)
    images = chosen(request, served)
    if data_owners > len(images.names):
        raise ValueError(f"--data-owners {data_owners}: there are {len(images.names)} images for them")
    results = Results(labels=labels, bits=0) if labels else LOGITS
    if input == "known":
        check_disclosable(served.transformer)
    if labels and not served.data.classes:
        raise ValueError(f"--labels {labels}: {NO_CLASSES}")
    if labels:
        check_labels(served.data.classes, labels)
    progress("asking the model in the clear")
    clear = in_the_clear(served.transformer, images.pixels, batch)
    parts = torch.tensor_split(images.pixels, data_owners)
    done = dict.fromkeys(data_owner_names(data_owners), 0)

    def show(name: str, count: int) -> None:
        done[name] = count
        progress(f"{sum(done.values())} of {len(images.names)} images")

    progress("starting the parties")
    found = run(
        request.model.absolute(),
        parts,
        InferencePlan(input=input, batch=batch, device=device, results=results, protocol=protocol.name),
        show,
    )
    return compared_answers(
        InferenceResult,
        images,
        served.data.source.class_names,
        clear,
        found,
        protocol=protocol.name,
        beyond=int((~clear.isfinite().all(dim=1)).sum()),
        input=input,
        batch=batch,
        data_owners=data_owners,
        labels=labels,
    )


def _test_images(experiment: Experiment, data: Dataset, source: str | None) -> Samples:
    """Return test images of the model's own source, or another. ValueError if that has classes unknown to the model."""
    if source is None:
        return data.source.test
    other = read_images(with_data(experiment, source).data)
    if len(other.class_names) > data.classes:
        raise ValueError(
            f"--data {source}: there are {len(other.class_names)} classes, and {data.classes} that the model knows"
        )
    return other.test


def in_the_clear(model: FriendlyTransformer, pixels: torch.Tensor, batch: int) -> torch.Tensor:
    """Return logits [N, classes] of images [N, C, S, S]; nan for images beyond the range of a student's polynomials."""
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


Kind = TypeVar("Kind", bound=ComparedAnswers)


def compared_answers(
    kind: type[Kind],
    images: Chosen,
    classes: Sequence[str],
    clear: torch.Tensor,
    found: Sequence[Inferred],
    **settings: Any,
) -> Kind:
    """Compare data owners' answers with those in the clear, logits [N, classes]; settings: all other fields."""
    logits, labels, refused = (
        torch.cat([getattr(each, name) for each in found]) for name in ("logits", "labels", "refused")
    )
    answered, best = ~refused & bool(classes), labels[:, 0]
    # A student in the clear refuses images out of the range of its polynomials.
    both = ~refused & clear.isfinite().all(dim=1)
    with_logits = both & logits.isfinite().all(dim=1)
    difference = (logits - clear)[with_logits]
    measured = bool(with_logits.any())
    passes = [each for inferred in found for each in inferred.passes]
    answers = _answered_images(images.names, classes, logits, labels, refused)
    answers += [AnsweredImage.not_read(str(file), reason) for file, reason in images.unreadable.items()]
    return kind(
        images=answers,
        accuracy=None if images.labels is None else _share(best == images.labels, answered),
        passes=len(passes),
        online_seconds=sum(each.online_seconds for each in passes),
        preprocessing_wait_seconds=sum(each.offline_seconds for each in passes),
        agreement=_share(best == clear.argmax(dim=1), both & answered),
        largest_difference=difference.abs().max().item() if measured else None,
        relative_error=(difference.norm() / clear[with_logits].norm()).item() if measured else None,
        weights_bytes=sum(each.weights_bytes for each in found),
        per_operation=_per_operation(passes),
        notes=images.notes,
        **settings,
    )


def _answered_images(
    names: Sequence[str], classes: Sequence[str], logits: torch.Tensor, labels: torch.Tensor, refused: torch.Tensor
) -> list[AnsweredImage]:
    answers: list[AnsweredImage] = []
    for name, row, best, out in zip(names, logits.tolist(), labels.tolist(), refused.tolist(), strict=True):
        if out:
            answers.append(AnsweredImage.of(name, classes, None, None))
        elif classes and math.isnan(row[0]):
            answers.append(AnsweredImage.of(name, classes, None, best))
        else:
            answers.append(AnsweredImage.of(name, classes, row, None))
    return answers


def _share(right: torch.Tensor, among: torch.Tensor) -> float | None:
    return right[among].double().mean().item() if among.any() else None


def _per_operation(passes: Sequence[PassCosts]) -> dict[str, OperationMetrics]:
    found: defaultdict[str, OperationMetrics] = defaultdict(OperationMetrics)
    for cost in (cost for each in passes for cost in each.rounds):
        found[cost.operation].add(
            OperationMetrics(
                seconds=cost.seconds, data_owner_bytes=cost.sent, model_owner_bytes=cost.received, rounds=1
            )
        )
    return dict(found)


@dataclass(frozen=True, kw_only=True)
class PredictionRequest(WantedImages):
    """Images for a model with trained adapters. ValueError or OSError also for a folder without any."""

    folder: Folder

    def __post_init__(self) -> None:
        for file in (self.folder.run.experiment, self.folder.learning, self.folder.run.summary):
            if not file.is_file():
                raise ValueError(
                    f"{self.folder.path} holds no {file.name}: name a directory that `tacit adapt` has written, and "
                    "finished"
                )
        check_release(self.folder.path)
        super().__post_init__()


def predict(
    request: PredictionRequest, *, batch: int, device: str, labels: int, progress: Callable[[str], None]
) -> PredictionResult:
    """Classify the images by the model with the trained adapters. labels: number revealed per image, best first; 0:
    logits.

    Raises ValueError or OSError for unusable input, and ProcessError.
    """
    resolve_device(device)
    torch.set_num_threads(1)
    folder = request.folder
    progress("reading the model, and what was learned")
    experiment = load_as(AdaptationExperiment, folder.run.experiment)
    learning = read_learning(folder)
    if batch > learning.batch:
        raise ValueError(f"--batch {batch}: its bounds are for batches of {learning.batch} images at most")
    found = setting(experiment, folder.path, seed=_seed(folder))
    name, parameters, number = _learned(folder, experiment, learning.initial())
    if labels:
        check_labels(learning.classes, labels)
    images = _chosen(request, found)
    test = Labelled(images.pixels, torch.zeros(len(images.pixels), dtype=torch.int64))
    clear = Judge(learning, found.served.transformer, test).logits(parameters)
    progress("finding out what its values reach")
    state = folder.files.state(MODEL_OWNER)
    model = found.served.prepared(salt=kept_salt(state.salt))
    section = teaching(experiment, found.classes, purpose="prediction")
    learned = LearnedFolders(state, folder.files.state(name), section)
    plan = InferencePlan(batch=batch, device=device, results=Results(labels=labels, bits=0) if labels else LOGITS)
    progress("starting the parties")
    told = run(
        model,
        [images.pixels],
        plan,
        lambda name, done: progress(f"{done} of {len(images.names)} images"),
        learned=learned,
    )
    return compared_answers(
        PredictionResult, images, found.classes, clear, told, batch=batch, labels=labels, round=number
    )


def _seed(folder: Folder) -> int:
    """Return the seed of a completed run. ValueError if its summary cannot be read."""
    try:
        seed = read_summary(folder).seed
    except RunDirectoryError as error:
        raise ValueError(str(error)) from None
    if seed is None:
        raise ValueError(f"{folder.run.summary} names no seed: restore it")
    return seed.value


def _learned(
    folder: Folder, experiment: AdaptationExperiment, like: AdapterParameters
) -> tuple[str, AdapterParameters, int]:
    """Return the data owner with the latest parameters, the parameters, and their round. ValueError if none has any."""
    found = []
    for name in owner_names(experiment.clients):
        with suppress(FileNotFoundError):
            common = standing.load(folder.of_owner(name), like)
            found.append((name, common.parameters, common.round))
    if not found:
        raise ValueError(f"{folder.path}: no round was completed, so that nothing was learned")
    return max(found, key=itemgetter(2))


def _chosen(request: PredictionRequest, found: AdaptationSetting) -> Chosen:
    if request.path is not None:
        return chosen_files(request.path, found.served)
    names = request.tests(len(found.test.labels))
    return Chosen(names, found.test.images[: len(names)], found.test.labels[: len(names)])
