"""Change of a layer's representation by training (Chen et al. 2023, "FedRSM", Formulas 2 to 4).

docs/fedrsm.md lists the choices that the paper leaves open.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from tacit.models.layers import Call, Granularity, layers, observed, outputs
from tacit.models.stimuli import Stimuli

PAIRS: Final = 50
_SEED: Final = 0
_LEAST_CONSISTENCY: Final = 1e-12

Floats = npt.NDArray[np.float64]


def pairs(images: int, count: int = PAIRS) -> npt.NDArray[np.int64]:
    """Draw `count` pairs i < j [E, 2] of the images for distances, or all if there are fewer.

    A smaller count gives the first pairs of a larger one.
    """
    every = np.stack(np.triu_indices(images, k=1), axis=1)
    drawn = np.random.default_rng(_SEED).permutation(len(every))[:count]
    return every[drawn]


class Representation:
    """Layer representations of the stimuli, for models of one architecture.

    count: pairs of stimuli, as for `pairs`. Raises ValueError for stimuli of another shape than [n, C, S, S] of the
    model, and as `layers` does.
    """

    def __init__(
        self,
        model: nn.Module,
        stimuli: Stimuli,
        *,
        granularity: Granularity,
        shape: Sequence[int],
        device: torch.device,
        count: int = PAIRS,
    ) -> None:
        if list(stimuli.shape[1:]) != list(shape):
            raise ValueError(
                f"the stimuli have shape {list(stimuli.shape[1:])}, and the images of this model {list(shape)}: the "
                "server must prepare them with the model's own channels and image_size"
            )
        self.layers = layers(model, granularity)
        images = stimuli.tensor()
        # Skip images in no pair.
        used, places = np.unique(pairs(len(images), count), return_inverse=True)
        self._x = images[used].to(device)
        self._first, self._second = torch.from_numpy(places.reshape(-1, 2).T).to(device)
        self._calls = outputs(model.to(device), self.layers, self._x[:1])

    def distances(self, model: nn.Module) -> Floats:
        """Return the RDV of every layer: float64 [layers, E]."""
        found: dict[Call, Floats] = {}

        def measure(call: Call, given: tuple[Any, ...], output: torch.Tensor) -> None:
            if call in self._calls:
                flat = output.flatten(1)
                apart = flat[self._first] - flat[self._second]
                found[call] = torch.linalg.vector_norm(apart, dim=1, dtype=torch.float64).cpu().numpy()

        with observed(model, {name: measure for name, _ in self._calls}):
            model(self._x)
        return np.stack([found[call] for call in self._calls])


def consistency(one: Floats, other: Floats) -> Floats:
    """Return RC of every layer [layers], from two representations [layers, E]."""
    result = np.empty(len(one))
    for layer, (a, b) in enumerate(zip(one, other, strict=True)):
        constant = [np.ptp(distances) <= 1e-12 * np.abs(distances).max() for distances in (a, b)]
        result[layer] = float(all(constant)) if any(constant) else np.corrcoef(a, b)[0, 1] ** 2
    return result


def alteration(now: Floats, before: Floats) -> Floats:
    """Return RCA of every layer [layers], from its consistency in this round and in the previous one."""
    return np.abs(now - before) / np.maximum(before, _LEAST_CONSISTENCY)
