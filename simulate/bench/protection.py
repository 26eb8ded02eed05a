"""`tacit bench protection`: what the protections of an update cost a client in a round.

Large: a ViT-S of 22 million parameters, whose patches have 768 values. Default: the model, data and training of an
experiment file that says nothing, beside whose local round every scheme is put. Times are medians. A scheme costs what
it adds to a round: drawing the weights with what multiplies the update by them, or decrypting the model and encrypting
the update; keys are drawn once and told apart.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from functools import partial
from statistics import median
from typing import Any, Final

import numpy as np
import torch
from msgspec import structs

from tacit.models.binary_weights import binary_weights
from tacit.models.configuration import ModelConfiguration
from tacit.models.coordinated_weights import coordinated_weights, coordination_words
from tacit.models.data import load
from tacit.models.layout import Flat, Layout
from tacit.models.model_encryption import Matrix, ModelKey, random_bytes
from tacit.models.training import train
from tacit.models.vision_transformer import build
from tacit.parties.learning.task import Task, configure
from tacit.parties.protections.binary_weights import BinaryWeights, CoordinatedBinaryWeights
from tacit.parties.protections.fixed_position import FixedPosition
from tacit.parties.protections.protection import Protection
from tacit.parties.protections.sides import Basis, ClientSide, Group, Trained
from tacit.parties.runs.experiment import Experiment
from tacit.protocol.group_key.agreement import GroupKey
from tacit.secagg.keystream import Usage, keystream

LARGE: Final = ModelConfiguration(name="vit_small_patch16_224", image_size=224)
LARGE_CLASSES: Final = 1000
ZERO_PROBABILITY: Final = 0.5
MEMBERS: Final = 5
FEWEST: Final = 3
"""Contributors to a coordinate in a cohort of MEMBERS: two, and one tolerated dropout."""
MATRICES: Final[tuple[Matrix, ...]] = ("orthogonal", "gaussian")


def measure(progress: Callable[[str], None], *, repeats: int) -> dict[str, Any]:
    """The figures, of which docs/costs.md explains the keys. repeats: how often everything is timed."""
    progress("large model")
    layout = Layout.of(build(LARGE, classes=LARGE_CLASSES, channels=3, seed=0))
    figures: dict[str, Any] = {
        "cores": os.cpu_count(),
        "repeats": repeats,
        "large": {"parameters": layout.size} | _masks(layout, repeats) | _encryption(layout, repeats),
    }
    progress("default model")
    figures["default"] = _default(repeats)
    return figures


def _masks(layout: Layout, repeats: int) -> dict[str, float]:
    """From a seed to the weights, keystream and all."""
    probabilities = (ZERO_PROBABILITY,) * len(layout.entries)

    def independent() -> None:
        binary_weights(layout, probabilities, _words(layout.size))

    def coordinated() -> None:
        words = _words(coordination_words(layout, MEMBERS))
        coordinated_weights(layout, probabilities, members=MEMBERS, place=1, fewest=FEWEST, random=words)

    return {
        "binary_masks_ms": _milliseconds(independent, repeats),
        "coordinated_masks_ms": _milliseconds(coordinated, repeats),
    }


def _encryption(layout: Layout, repeats: int) -> dict[str, Any]:
    # Always the same numbers, so that the Gaussian matrix has the same condition and is not refused.
    random = np.random.default_rng(0).bytes(random_bytes(layout))
    flat = np.ones(layout.size, np.float32)
    figures: dict[str, Any] = {}
    for matrix in MATRICES:
        key = ModelKey.draw(layout, random, matrix=matrix)
        figures[matrix] = {
            "draw_ms": _milliseconds(partial(ModelKey.draw, layout, random, matrix=matrix), repeats),
            "encrypt_ms": _milliseconds(partial(key.encrypt, flat), repeats),
            "decrypt_ms": _milliseconds(partial(key.decrypt, flat), repeats),
            "condition": key.condition,
            "error_amplification": key.error_amplification,
        }
    return figures


def _weigh(side: ClientSide, trained: Trained) -> Flat:
    """What a client does to its update."""
    return trained.values * side.protect(trained).multipliers


def _default(repeats: int) -> dict[str, Any]:
    """A local round of one client of the default experiment, with an equal share of the images, and the schemes."""
    experiment = Experiment()
    data = load(experiment.data, image_size=experiment.model.image_size)
    x, y = data.share(np.arange(0, len(data.y_train), experiment.federation.clients))
    model = build(experiment.model, classes=data.classes, channels=data.channels, seed=0)
    layout = Layout.of(model)
    flat = layout.flatten(model)
    device = torch.device("cpu")
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # As a client of `tacit simulate` has it.
    local_round = _milliseconds(lambda: train(model, x, y, experiment.training, seed=0, device=device), repeats)
    torch.set_num_threads(threads)

    names = tuple(f"client-{number + 1}" for number in range(MEMBERS))
    group = Group(GroupKey(epoch=1, key=os.urandom(32), members=names, transcript=os.urandom(32)), names[1])
    task = Task(model=experiment.model, training=experiment.training, classes=data.classes, channels=data.channels)
    terms = structs.replace(experiment.terms(), dropout=1 / MEMBERS)
    basis = Basis(configure(terms, task, model), task, model, None, device)
    trained = Trained(1, flat, flat, len(x), np.random.SeedSequence(), group)
    protections: dict[str, Protection] = {
        "fixed-position": FixedPosition(),
        "binary-weights": BinaryWeights(),
        "coordinated": CoordinatedBinaryWeights(min_contributors=2),
    }
    costs: dict[str, float] = {}
    for name, protection in protections.items():
        costs[name] = _milliseconds(partial(_weigh, protection.client(basis), trained), repeats)
    key = ModelKey.draw(layout, os.urandom(random_bytes(layout)), matrix="orthogonal")
    costs["model-encryption"] = _milliseconds(lambda: key.encrypt(key.decrypt(flat)), repeats)
    return {
        "parameters": layout.size,
        "samples": len(x),
        "epochs": experiment.training.epochs,
        "local_round_ms": local_round,
        "cost_ms": costs,
        "cost_percent": {name: 100 * cost / local_round for name, cost in costs.items()},
    }


def _words(count: int) -> np.ndarray[Any, np.dtype[np.uint16]]:
    random = keystream(os.urandom(32), Usage.BINARY_WEIGHTS, 2 * count)
    return np.frombuffer(random, "<u2").astype(np.uint16, copy=False)


def _milliseconds(act: Callable[[], object], repeats: int) -> float:
    """Median of `repeats` after one to warm up, where there are several."""
    seconds = []
    for _ in range(repeats + (repeats > 1)):
        began = time.perf_counter()
        act()
        seconds.append(time.perf_counter() - began)
    return 1e3 * median(seconds[-repeats:])
