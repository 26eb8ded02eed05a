"""The far side of tacit.simulate.audit.breaching: run by the interpreter of an environment that has breaching.

    python breaching_attacker.py names               # a line for every configuration of an attack
    python breaching_attacker.py attack NAME FOLDER  # reads observed.npz and model.pt there, writes found.npz

It takes breaching 0.1.2, torch and numpy, and nothing of ours. Attacker, objective, regularisation, optimiser and its
settings are breaching's, by its configuration; what stands here hands over what a server has there. Two things are
fitted: its total variation and patterns are written for three channels, so a grey image is sought as the mean of three;
and tensors of which no gradient was seen become constants of the model, since it compares all parameters.

It ends when its standard input does, and with that when whoever started it ends.
"""

from __future__ import annotations

import os
import sys
import threading
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

OBSERVED, MODEL, FOUND = "observed.npz", "model.pt", "found.npz"
GRADIENT = "gradient/"
"""Before the names of parameters in OBSERVED."""
JOINT = "joint-optimization"
"""Attackers of this type seek the label with the image, and refuse to be told."""
COLOURS = 3
STEPS_OF_A_SEARCH = 20
"""Gradients that L-BFGS takes for one of its iterations."""


def names() -> list[str]:
    """The configurations of attacks, found without importing the package, which takes long. ImportError without it."""
    found = find_spec("breaching")
    if found is None or found.origin is None:
        raise ImportError("there is no package breaching")
    folder = Path(found.origin).parent / "config" / "attack"
    return sorted(path.stem for path in folder.glob("*.yaml") if not path.stem.startswith("_"))


def attack(name: str, folder: Path) -> None:
    """Seek the image behind the gradients in the folder."""
    breaching: Any = import_module("breaching")
    omegaconf: Any = import_module("omegaconf")
    import numpy as np
    import torch
    from torch import nn

    class Coloured(nn.Module):
        """The model, for images of three channels."""

        def __init__(self, model: nn.Module, channels: int) -> None:
            super().__init__()
            self.model = model
            self.grey = channels == 1

        def forward(self, x: torch.Tensor) -> Any:
            return self.model(x.mean(1, keepdim=True) if self.grey else x)

    # Derivatives of derivatives are there for the plain attention only.
    torch.backends.cuda.enable_flash_sdp(False)
    torch.backends.cuda.enable_mem_efficient_sdp(False)
    observed = np.load(folder / OBSERVED)
    count, channels, height, width = (int(size) for size in observed["shape"])
    torch.manual_seed(int(observed["seed"]))
    # Written by the audit, of modules of torch alone.
    network = torch.load(folder / MODEL, weights_only=False).eval().requires_grad_(True)
    seen = {key[len(GRADIENT) :] for key in observed.files if key.startswith(GRADIENT)}
    for key in [key for key, _ in network.named_parameters() if key not in seen]:
        place, _, last = key.rpartition(".")
        module = network.get_submodule(place)
        constant = getattr(module, last).detach()
        delattr(module, last)
        module.register_buffer(last, constant)
    gradients = [torch.from_numpy(observed[GRADIENT + key]) for key, _ in network.named_parameters()]
    model = Coloured(network, channels)
    settings = breaching.get_attack_config(name)
    if (longest := int(observed["longest"])) and "optim" in settings:
        steps = STEPS_OF_A_SEARCH if settings.optim.optimizer.lower() == "l-bfgs" else 1
        settings.optim.max_iterations = min(settings.optim.max_iterations, longest // steps)
    task = omegaconf.OmegaConf.create(
        {
            "shape": [COLOURS, height, width],
            "mean": np.broadcast_to(observed["mean"], COLOURS).tolist(),
            "std": np.broadcast_to(observed["std"], COLOURS).tolist(),
            "classes": int(observed["classes"]),
            "modality": "vision",
            "task": "classification",
        }
    )
    told = settings.attack_type != JOINT
    payload = {
        "parameters": [parameter.detach() for parameter in model.parameters()],
        "buffers": list(model.buffers()),
        "metadata": task,
    }
    shared = {
        "gradients": gradients,
        "buffers": None,
        "metadata": {
            "num_data_points": count,
            "labels": torch.from_numpy(observed["labels"]) if told else None,
            "local_hyperparams": None,
        },
    }
    setup = {"dtype": torch.float, "device": torch.device("cpu")}
    attacker = breaching.attacks.prepare_attack(model, nn.CrossEntropyLoss(), settings, setup)
    found, _ = attacker.reconstruct([payload], [shared], {})
    images = found["data"].detach()
    np.savez(folder / FOUND, images=(images.mean(1, keepdim=True) if channels == 1 else images).numpy())


def main(arguments: list[str]) -> None:
    """One of the two, as above."""
    if arguments == ["names"]:
        for name in names():
            print(name)
    else:
        threading.Thread(target=lambda: (sys.stdin.read(), os._exit(1)), daemon=True).start()
        attack(arguments[1], Path(arguments[2]))


if __name__ == "__main__":
    main(sys.argv[1:])
