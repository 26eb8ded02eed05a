"""Table 5 of Tastan and Nandakumar 2025 (arXiv:2502.01289v1): the degree of the softmax.

For every degree one student learns from one teacher for one epoch of stage 1 of the distillation, all from the same
weights and with the same batches, in the clear. Memory is what a forward pass of 8 images keeps for the backward pass.

    python docs/demonstrations/tastan_table5.py [SEEDS]              # digits, two blocks of width 128
    python docs/demonstrations/tastan_table5.py [SEEDS] DIRECTORY    # the paper's size: files of Fed-ISIC2019
"""

from __future__ import annotations

import statistics
import sys
import time
from typing import Any
from weakref import WeakSet

import numpy as np
import torch
from torch import nn

from tacit.models.configuration import DataConfiguration, ModelConfiguration, TrainingConfiguration
from tacit.models.data import load
from tacit.models.friendly.configuration import DistillationConfiguration
from tacit.models.friendly.distillation import distill
from tacit.models.friendly.transformer import Approximation, convert
from tacit.models.networks import build
from tacit.models.training import train

FEW = 8
"""Images whose latency and memory are measured, as in the paper."""
Table = dict[int | None, tuple[float, float, float, float, float]]
PAPER: Table = {
    # Accuracy after one epoch (%), attention loss, representation loss, latency (s), GB.
    2: (75.17, 44.37, 915.46, 0.41, 16.82),
    4: (83.85, 38.31, 748.62, 0.48, 19.68),
    6: (84.36, 33.92, 655.26, 0.52, 22.54),
    8: (84.47, 30.91, 603.53, 0.58, 25.39),
    10: (84.16, 28.17, 573.54, 0.62, 28.99),
    16: (85.08, 20.31, 527.95, 0.81, 36.83),
    None: (86.91, 13.59, 508.64, 0.35, 15.36),
}


class Kept:
    """Holds a tensor for the backward pass."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor


def memory(student: nn.Module, images: torch.Tensor) -> float:
    """Megabytes of tensors that a forward pass keeps for the backward pass, parameters apart."""
    parameters = {parameter.untyped_storage().data_ptr() for parameter in student.parameters()}
    kept: WeakSet[Kept] = WeakSet()

    def keep(tensor: torch.Tensor) -> Kept:
        box = Kept(tensor)
        kept.add(box)
        return box

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda box: box.tensor):
        output = student(images)
    # What is not needed any more is gone by now; the output holds the rest.
    storages = [box.tensor.untyped_storage() for box in kept]
    sizes = {storage.data_ptr(): storage.nbytes() for storage in storages}
    del output
    return sum(size for place, size in sizes.items() if place not in parameters) / 1e6


def latency(student: nn.Module, images: torch.Tensor) -> float:
    """Median milliseconds of a forward pass."""
    seconds = []
    with torch.no_grad():
        for _ in range(15):
            began = time.perf_counter()
            student(images)
            if images.is_cuda:
                torch.cuda.synchronize()
            seconds.append(time.perf_counter() - began)
    return 1000 * statistics.median(seconds)


def main(varies: str, paper: Table, unit: str, seeds: int, directory: str | None) -> None:
    """varies: the field of Approximation; unit: of the paper's latency."""
    place = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if directory is None:
        model, data = ModelConfiguration(), DataConfiguration()
        teaching, learning = TrainingConfiguration(epochs=10), DistillationConfiguration(layer_epochs=1)
    else:
        model = ModelConfiguration(name="vit_base_patch16_384", image_size=384, pretrained=True)
        data = DataConfiguration(source="fed-isic2019", directory=directory, partition="centre")
        teaching = TrainingConfiguration(epochs=50, batch_size=16, learning_rate=1e-4, optimizer="adamw")
        learning = DistillationConfiguration(layer_epochs=1, layer_learning_rate=1e-4)
    loaded = load(data, image_size=model.image_size)
    x, y, test = loaded.x_train, loaded.y_train, (loaded.x_test, loaded.y_test)
    if loaded.centres is not None:
        # The paper takes the images of centre 0.
        x, y = loaded.share(np.flatnonzero(loaded.centres == 0))
    few = x[:FEW].to(place)
    found: dict[int | None, list[tuple[float, ...]]] = {degree: [] for degree in paper}
    for seed in range(seeds):
        teacher = build(model, classes=loaded.classes, channels=loaded.channels, seed=seed)
        train(teacher, x, y, teaching, seed=seed, device=place)
        for degree, rows in found.items():
            varied: dict[str, Any] = {varies: degree}
            student = convert(teacher, Approximation(**varied))
            (epoch,) = distill(teacher, student, x, y, test, learning, seed=seed, device=place, stages=("layers",))
            losses = epoch.losses["attention"], epoch.losses["hidden"]
            rows.append((100 * epoch.accuracy, *losses, latency(student, few), memory(student, few)))
            print(f"seed {seed}, degree {degree or 'exact'}: {epoch.accuracy:.3f}", file=sys.stderr, flush=True)
    losses_named = "attention loss | representation loss"
    print(f"| degree | accuracy (%) | {losses_named} | ms for {FEW} images | MB ", end="")
    print(f"| the paper: accuracy | {losses_named} | latency ({unit}) | GB |\n|{'---|' * 11}")
    for degree, rows in found.items():
        accuracies, attention, hidden, milliseconds, megabytes = zip(*rows, strict=True)
        spread = f" ± {statistics.stdev(accuracies):.2f}" if seeds > 1 else ""
        own = [f"{statistics.mean(accuracies):.2f}{spread}"]
        own += [f"{statistics.mean(values):.3f}" for values in (attention, hidden)]
        own += [f"{statistics.mean(milliseconds):.1f}", f"{statistics.mean(megabytes):.2f}"]
        print(f"| {degree or 'exact'} | {' | '.join([*own, *map(str, paper[degree])])} |")
    print(f"\nMeans over the seeds 0 to {seeds - 1} (accuracy: ± sample standard deviation).")


def arguments() -> tuple[int, str | None]:
    """SEEDS and DIRECTORY of the command line."""
    numbers = [int(given) for given in sys.argv[1:] if given.isdecimal()]
    directories = [given for given in sys.argv[1:] if not given.isdecimal()]
    return (*numbers, 3)[0], (*directories, None)[0]


if __name__ == "__main__":
    main("softmax_degree", PAPER, "s", *arguments())
