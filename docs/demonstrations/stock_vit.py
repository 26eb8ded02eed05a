"""What a server reads of a plain gradient of a stock vision transformer: the picture of docs/audits.md.

timm's vit_small_patch16_224 with fresh weights, images prepared as it is published (mean and deviation 0.5), one image
a gradient. The closed form is given the gradient in float32, as it comes out of a secure sum of one client with 24 and
with 16 bits, and the mean of two clients' gradients. Digits are bundled; a file of images adds as many of its own.

    python docs/demonstrations/stock_vit.py [FILE.npz] [PICTURE.png]
"""

from __future__ import annotations

import math
import sys
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import timm
import torch
from torch import nn

from tacit.models.attacks.closed_form import image_of
from tacit.models.configuration import DataConfiguration
from tacit.models.data import load
from tacit.models.layout import Layout
from tacit.simulate.audit.limits import opened_alone

MODEL, SIZE, IMAGES = "vit_small_patch16_224", 224, 3
CLIP = 0.25

Gradients = dict[str, torch.Tensor]


def images(source: str) -> tuple[torch.Tensor, torch.Tensor]:
    """The first test images with different labels: pixels from 0 to 1, [n, 3, 224, 224]; and labels."""
    data = load(DataConfiguration(source=source), image_size=SIZE)
    low, high = data.x_test.min(), data.x_test.max()
    chosen = [int((data.y_test == label).nonzero()[0]) for label in range(IMAGES + 1)]
    pixels = (data.x_test[chosen] - low) / (high - low)
    return pixels.expand(-1, 3, -1, -1), data.y_test[chosen]


def gradients(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> Gradients:
    """Of the mean loss over these images."""
    loss = nn.functional.cross_entropy(model(x), y)
    parameters = dict(model.named_parameters())
    return dict(zip(parameters, torch.autograd.grad(loss, list(parameters.values())), strict=True))


def through_a_sum(layout: Layout, given: Gradients, bits: int) -> Gradients:
    """As a server opens it of one client."""
    flat = layout.concatenate({name: tensor.numpy() for name, tensor in given.items()})
    opened = opened_alone(flat, layout.tensor_sizes, clip=CLIP, bits=bits)
    return {name: torch.from_numpy(values.copy()) for name, values in layout.split(opened.astype(np.float32)).items()}


def main(sources: list[str], picture: str) -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = timm.create_model(MODEL, num_classes=10).eval()
    layout = Layout.of(model)
    columns: list[tuple[str, list[np.ndarray]]] = [
        (name, []) for name in ("the image", "float32", "24 bits", "16 bits", "mean of two")
    ]
    decibels: dict[str, list[float]] = {}
    for source in sources:
        pixels, labels = images(source)
        x = (pixels - 0.5) / 0.5
        for index in range(IMAGES):
            one = slice(index, index + 1)
            sent = gradients(model, x[one], labels[one])
            arms = {
                "float32": sent,
                "24 bits": through_a_sum(layout, sent, 24),
                "16 bits": through_a_sum(layout, sent, 16),
                "mean of two": gradients(model, x[index : index + 2], labels[index : index + 2]),
            }
            columns[0][1].append(pixels[index].permute(1, 2, 0).numpy())
            for (name, shown), given in zip(columns[1:], arms.values(), strict=True):
                found = (image_of(model, given).image[0] * 0.5 + 0.5).clamp(0, 1)
                error = float((found - pixels[index]).square().mean())
                decibels.setdefault(f"{Path(source).stem}, {name}", []).append(-10 * math.log10(error))
                shown.append(found.permute(1, 2, 0).numpy())
    for name, values in decibels.items():
        print(f"{name}: {', '.join(f'{value:.1f}' for value in values)} dB")
    rows = len(columns[0][1])
    figure, places = plt.subplots(rows, len(columns), figsize=(1.5 * len(columns), 1.55 * rows), layout="constrained")
    for column, (name, shown) in enumerate(columns):
        places[0, column].set_title(name, fontsize=9)
        for row, image in enumerate(shown):
            places[row, column].imshow(image, vmin=0, vmax=1)
            places[row, column].set_axis_off()
    figure.savefig(picture, dpi=80)


if __name__ == "__main__":
    files = [given for given in sys.argv[1:] if given.endswith(".npz")]
    pictures = [given for given in sys.argv[1:] if given.endswith(".png")]
    main(["digits", *files], pictures[0] if pictures else "stock-vit.png")
