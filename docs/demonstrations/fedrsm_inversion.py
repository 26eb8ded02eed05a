"""What Deep Leakage reads of a client that keeps one layer to itself, as FedRSM's clients do: Chen's figures 4 and 5 in
the small.

A LeNet of 16 x 16 pixels with fresh weights, as the papers take it, and the gradient of one digit. Its layers are
kept back one at a time. An attacker who takes them for zeros, as Chen does, looks for an image without their gradients;
one who leaves them out of its cost does not. Beside them stand the attack on the whole gradient, and somebody who
attacks nothing and gives the mean image.

    python docs/demonstrations/fedrsm_inversion.py [IMAGES] [PICTURE.png]
"""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass, field
from typing import Literal

import matplotlib.pyplot as plt
import numpy as np
import torch

from tacit.models.attacks.closed_form import label_of
from tacit.models.attacks.inversion import RoundGradients, deep_leakage
from tacit.models.configuration import DataConfiguration
from tacit.models.data import Dataset, load
from tacit.models.layers import layers
from tacit.models.networks import LeNet
from tacit.simulate.audit.scores import Pixels, image_metrics, score

SIZE = 16
ITERATIONS = 60
CANDIDATES = 99
"""Images that the true one is picked from beside itself."""


@dataclass
class Arm:
    """One way of the attack."""

    name: str
    kept: tuple[str, ...]
    """Tensors of the layer that was not sent."""
    absent: Literal["left out", "zeros"]
    images: list[Pixels] = field(default_factory=list)
    costs: list[list[float]] = field(default_factory=list)
    """Of each image, by iteration."""


def arms(model: LeNet) -> list[Arm]:
    found = [Arm("everything sent", (), "left out")]
    for layer in layers(model, "layer"):
        found.append(Arm(f"without {layer.name}, as zeros", layer.tensors, "zeros"))
        found.append(Arm(f"without {layer.name}, left out", layer.tensors, "left out"))
    return found


def pixels(data: Dataset, x: torch.Tensor) -> Pixels:
    """Of normalised images, from 0 to 1 as the brightest of the test images."""
    low, high = data.x_test.min(), data.x_test.max()
    shown: Pixels = ((x.double() - low) / (high - low)).clamp(0, 1).numpy()
    return shown


def attack(model: LeNet, arm: Arm, x: torch.Tensor, y: torch.Tensor, seed: int) -> torch.Tensor:
    """The image that an arm finds; its costs are kept."""
    loss = torch.nn.functional.cross_entropy(model(x), y)
    whole = dict(zip(dict(model.named_parameters()), torch.autograd.grad(loss, list(model.parameters())), strict=True))
    sent = {name: gradient for name, gradient in whole.items() if name not in arm.kept}
    costs: list[float] = []
    arm.costs.append(costs)
    # Where the classifier was kept the label is sought too.
    labels = torch.tensor([label_of(model, sent)]) if "fc.weight" in sent else None
    found = deep_leakage(
        [RoundGradients(model=model, gradients=sent, absent=arm.absent)],
        (1, *x.shape[1:]),
        iterations=ITERATIONS,
        generator=torch.Generator().manual_seed(seed),
        labels=labels,
        progress=costs.append,
    )
    return found.images


def main(count: int, picture: str) -> None:
    torch.set_num_threads(1)
    data = load(DataConfiguration(), image_size=SIZE)
    torch.manual_seed(0)
    model = LeNet(channels=data.channels, image_size=SIZE, classes=data.classes).eval()
    tried = arms(model)
    true = [pixels(data, data.x_test[index : index + 1])[0] for index in range(count)]
    others = list(pixels(data, data.x_test[count : count + CANDIDATES]))
    mean = pixels(data, data.x_train.mean(0, keepdim=True))[0]
    baseline = [score("", 0, mean, image, others) for image in true]
    rows = [("the mean image", image_metrics(baseline, baseline), 0.0, float("nan"))]
    for arm in tried:
        began = time.perf_counter()
        for index in range(count):
            found = attack(model, arm, data.x_test[index : index + 1], data.y_test[index : index + 1], seed=index)
            arm.images.append(pixels(data, found)[0])
        scores = [score("", 0, *pair, others) for pair in zip(arm.images, true, strict=True)]
        judged = image_metrics(scores, baseline)
        seconds = (time.perf_counter() - began) / count
        rows.append((arm.name, judged, seconds, float(np.median([costs[-1] for costs in arm.costs]))))
    print("| the attack | PSNR (dB) | SSIM | picked among 100 | cost at the end | seconds |\n|---|---|---|---|---|---|")
    for name, judged, seconds, cost in rows:
        end = "" if np.isnan(cost) else f"{cost:.1e}"
        took = "" if np.isnan(cost) else f"{seconds:.1f}"
        picked = f"{round(judged.re_identification_rate * count)} of {count}"
        print(f"| {name} | {judged.psnr:.1f} | {judged.ssim:.2f} | {picked} | {end} | {took} |")
    draw(tried, true, picture)


def draw(tried: list[Arm], true: list[Pixels], picture: str) -> None:
    """What each arm made of the first images, and how its cost fell for the first of them."""
    shown = min(3, len(true))
    figure, places = plt.subplots(
        shown + 1, len(tried) + 1, figsize=(1.25 * (len(tried) + 1), 1.35 * (shown + 1)), layout="constrained"
    )
    for column, (name, images) in enumerate([("the image", true), *((arm.name, arm.images) for arm in tried)]):
        places[0, column].set_title(name.replace(", ", "\n").replace(" sent", "\nsent"), fontsize=7)
        for row in range(shown + 1):
            places[row, column].set_axis_off()
            if row < shown:
                places[row, column].imshow(images[row][0], cmap="gray", vmin=0, vmax=1)
    curves = figure.add_subplot(places[0, 0].get_gridspec()[shown, 1:])
    for arm in tried:
        style = "--" if arm.absent == "zeros" else "-"
        curves.semilogy(arm.costs[0], style, linewidth=1, label=arm.name)
    curves.set_xlabel("iteration of L-BFGS (20 steps), first image", fontsize=7)
    curves.set_ylabel("cost", fontsize=7)
    curves.tick_params(labelsize=6)
    curves.legend(fontsize=5, ncols=3)
    figure.savefig(picture, dpi=120)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 10, sys.argv[2] if len(sys.argv) > 2 else "fedrsm-inversion.png")
