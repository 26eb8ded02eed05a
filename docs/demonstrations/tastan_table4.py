"""Table 4 of Tastan and Nandakumar 2025 (arXiv:2502.01289v1): parameters, time and memory of ways to adapt a model.

Trained parameters are counted on ViT-B/16 for 384 x 384 pixels. Time and memory are those of one training step,
forwards and backwards through the frozen backbone of polynomials too. Weights and images are random: neither cost
depends on them. Memory is the most that tensors take at one moment of the step, weights included.

    python docs/demonstrations/tastan_table4.py           # steps of a small transformer: seconds
    python docs/demonstrations/tastan_table4.py --full    # steps of ViT-B: minutes, and about 4 GB of memory
"""

from __future__ import annotations

import statistics
import sys
import time
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from tacit.models.adapters.configuration import LinearProbeConfiguration, ParallelConfiguration
from tacit.models.adapters.gradients import descent
from tacit.models.adapters.methods import (
    Adaptation,
    AdaptedTransformer,
    Adapters,
    FullFineTuning,
    LowRankAdaptation,
    trained,
)
from tacit.models.adapters.parallel import block_outputs, final_norm
from tacit.models.configuration import ModelConfiguration
from tacit.models.friendly.calibration import calibrate
from tacit.models.friendly.transformer import Approximation, convert
from tacit.models.networks import build

UNIT = 2**20
"""The paper's "million" of parameters: its numbers of the heads fit no other."""
VIT = ModelConfiguration(name="vit_base_patch16_384", image_size=384)
SMALL = ModelConfiguration(image_size=16, patch_size=4, width=32, depth=4, heads=4)
METHODS: dict[str, Adaptation] = {
    "full fine-tuning": FullFineTuning(),
    "LoRA": LowRankAdaptation(),
    "linear probing": Adapters(configuration=LinearProbeConfiguration()),
    "ours": Adapters(configuration=ParallelConfiguration()),
}
CLASSES = {"CIFAR-10 / SVHN": 10, "CIFAR-100": 100, "Fed-ISIC2019": 8}
PAPER = {
    # Parameters in units of 2^20, ms for an image, GB; on one NVIDIA A100, with batches of 16, or 8 of Fed-ISIC2019.
    ("CIFAR-10 / SVHN", "linear probing"): (0.0073, 15.1, 9.39),
    ("CIFAR-10 / SVHN", "full fine-tuning"): (82.1096, 47.4, 18.13),
    ("CIFAR-10 / SVHN", "ours"): (0.2536, 15.7, 9.08),
    ("CIFAR-100", "linear probing"): (0.0733, 15.7, 9.40),
    ("CIFAR-100", "full fine-tuning"): (82.1756, 47.4, 18.13),
    ("CIFAR-100", "ours"): (0.3196, 16.3, 9.08),
    ("Fed-ISIC2019", "linear probing"): (0.0059, 20.2, 17.32),
    ("Fed-ISIC2019", "full fine-tuning"): (82.1082, 51.2, 8.71),
    ("Fed-ISIC2019", "ours"): (0.2522, 21.1, 8.39),
}


class TensorMemory(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the bytes of all storages within a `with` block; temporaries inside of one operation are not seen."""

    def __init__(self, weights: list[nn.Parameter]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.now = self.peak = 0
        self.alive: dict[int, Any] = {}
        for tensor in weights:
            self.note(tensor)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        results = func(*args, **(kwargs or {}))
        for leaf in tree_leaves((args, kwargs, results)):
            if isinstance(leaf, torch.Tensor):
                self.note(leaf)
        return results

    def note(self, tensor: torch.Tensor) -> None:
        storage = tensor.untyped_storage()
        key, size = id(storage), storage.nbytes()
        if key in self.alive:
            return

        def gone(_: Any) -> None:
            del self.alive[key]
            self.now -= size

        self.alive[key] = weakref.ref(storage, gone)
        self.now += size
        self.peak = max(self.peak, self.now)


def step_of(model: nn.Module, images: torch.Tensor, labels: torch.Tensor) -> Callable[[], object]:
    """One training step; what it learns is thrown away."""
    if isinstance(model, AdaptedTransformer):
        start, backbone = model.parameters_of_adapters, model.backbone
        return lambda: descent(start, final_norm(backbone), block_outputs(backbone, images), labels)
    parameters = list(trained(model).values())
    return lambda: torch.autograd.grad(cross_entropy(model(images), labels), parameters)


def main(*, full: bool) -> None:
    vit = build(VIT, classes=1, channels=3, seed=0)
    print(f"Trained parameters of ViT-B, in units of {UNIT:,}\n\n| |", " | ".join(CLASSES), "|\n|---|---|---|---|")
    for name, method in METHODS.items():
        cells = []
        for data, classes in CLASSES.items():
            count = sum(one.numel() for one in trained(method.adapt(vit, classes=classes, seed=0)).values())
            paper = f"; the paper: {PAPER[data, name][0]:.4f}" if (data, name) in PAPER else ""
            cells.append(f"{count / UNIT:.4f} ({count:,}){paper}")
        print(f"| {name} | {' | '.join(cells)} |", flush=True)
    configuration, channels, batch, repetitions = (VIT, 3, 1, 3) if full else (SMALL, 1, 16, 15)
    generator = torch.Generator().manual_seed(0)
    size = configuration.image_size
    images, labels = torch.randn(batch, channels, size, size, generator=generator), torch.arange(batch) % 10
    backbone = convert(build(configuration, classes=10, channels=channels, seed=0), Approximation())
    calibrate(backbone, images, margin=2.0)
    print(f"\nOne step of {batch} images of {size} x {size} pixels\n")
    print("| | ms for an image | MB | the paper's ViT-B, 16 images of CIFAR-10: ms for an image | GB |")
    print("|---|---|---|---|---|")
    for name, method in METHODS.items():
        model = method.adapt(backbone, classes=10, seed=0).train()
        step = step_of(model, images, labels)
        step()
        with TensorMemory(list(model.parameters())) as memory:
            step()
        seconds = []
        for _ in range(repetitions):
            began = time.perf_counter()
            step()
            seconds.append(time.perf_counter() - began)
        _, milliseconds, gigabytes = PAPER.get(("CIFAR-10 / SVHN", name), ("", "", ""))
        own = f"{1000 * statistics.median(seconds) / batch:,.2f} | {memory.peak / 1e6:,.2f}"
        print(f"| {name} | {own} | {milliseconds} | {gigabytes} |", flush=True)


if __name__ == "__main__":
    main(full=sys.argv[1:] == ["--full"])
