"""`tacit predict`: what the adapters of `tacit adapt` say of images, by private inference, as figures."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import torch

from tacit.models.adapters.parallel import AdapterParameters
from tacit.models.training import resolve_device
from tacit.parties.adaptation import standing
from tacit.parties.inference.ranking import check_labels
from tacit.parties.runs.adaptation import AdaptationExperiment
from tacit.parties.runs.experiment import load_as
from tacit.protocol.inference.schedule import LOGITS, Results
from tacit.simulate.adaptation.judging import Judge
from tacit.simulate.adaptation.plan import Folder, owner_names, read_learning
from tacit.simulate.adaptation.setting import AdaptationSetting, Labelled, setting
from tacit.simulate.private_inference.inference import InferencePlan, run
from tacit.simulate.private_inference.private_images import Chosen, answer_figures, chosen_files


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
    for name in owner_names(experiment.federation.clients):
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
