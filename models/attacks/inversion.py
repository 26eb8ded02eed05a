"""Images from the gradients of any model by search for images whose gradients match those sent.

`deep_leakage` is that of Zhu et al. 2019, "Deep Leakage from Gradients": L-BFGS on the squared distance, for smooth
models. Two changes to the authors' code improve its success: a line search that meets the strong Wolfe conditions, and
float64. `inverting_gradients` is that of Geiping et al. 2020, "Inverting Gradients - How easy is it to break privacy in
federated learning?", for networks with ReLUs: Adam on one minus the cosine plus the total variation.

Both read several rounds at once. Layers that were not sent can be left out of the cost or count as zeros. Batch
normalisation uses its running statistics. The best restart is that with the lowest matching cost.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

import torch
from torch import nn
from torch.nn.functional import cross_entropy

Gradients = Mapping[str, torch.Tensor]
"""Keyed by parameter name."""
Progress = Callable[[float], None]
"""Receives the cost after every iteration."""

STEPS_OF_A_SEARCH: Final = 20
"""L-BFGS steps in one iteration of `deep_leakage`, as in its authors' code."""
ENOUGH: Final = 1e-9
"""Cost, the squared distance relative to the squared length of the gradients, at which that search ends."""
DECAYS: Final = (3 / 8, 5 / 8, 7 / 8)
"""Fractions of all iterations after which Adam's steps shrink by DECAY."""
DECAY: Final = 0.1
STEP: Final = 0.1
TOTAL_VARIATION: Final = 1e-4
"""Its weight beside the cosine."""


@dataclass(frozen=True, kw_only=True)
class RoundGradients:
    """Observation of one round: the model sent to a client, and the gradients of its loss, or some of them."""

    model: nn.Module
    gradients: Gradients
    absent: Literal["left out", "zeros"] = "left out"
    """Treatment of missing tensors."""


@dataclass(frozen=True, kw_only=True)
class Recovered:
    images: torch.Tensor
    """Normalised [n, C, S, S], float32."""
    labels: torch.Tensor
    """int64 [n]."""
    cost: float
    """Mismatch of the gradients, without the total variation."""


def deep_leakage(
    observed: Sequence[RoundGradients],
    shape: tuple[int, int, int, int],
    *,
    iterations: int,
    generator: torch.Generator,
    labels: torch.Tensor | None = None,
    progress: Progress = lambda cost: None,
) -> Recovered:
    """Return images of this shape [n, C, S, S]; labels int64 [n], None: searched too. The generator is that of the CPU.

    ValueError for gradients that do not fit a model.
    """
    matching = _Matching(observed, torch.float64)
    length = sum(given.square().sum() for given in matching.given)
    x = matching.start(shape, generator)
    if labels is None:
        with torch.no_grad():
            classes = matching.models[0](x).shape[1]
        target = matching.start((shape[0], classes), generator)
    else:
        target = labels.to(x.device)
    search = torch.optim.LBFGS(
        [x] if labels is not None else [x, target],
        max_iter=STEPS_OF_A_SEARCH,
        history_size=100,
        tolerance_grad=0.0,
        tolerance_change=0.0,
        line_search_fn="strong_wolfe",
    )

    def cost() -> torch.Tensor:
        found = matching.found(x, target if labels is not None else target.softmax(dim=1))
        distance = sum((one - other).square().sum() for one, other in zip(found, matching.given, strict=True))
        return torch.as_tensor(distance / length)

    def closure() -> torch.Tensor:
        search.zero_grad()
        value = cost()
        value.backward()  # type: ignore[no-untyped-call]
        return value

    value = math.inf
    for _ in range(iterations):
        search.step(closure)  # type: ignore[no-untyped-call]
        value = cost().item()
        progress(value)
        if not math.isfinite(value) or value <= ENOUGH:
            break
    final = target if labels is not None else target.argmax(dim=1)
    return Recovered(images=x.detach().float(), labels=final.detach(), cost=value)


def inverting_gradients(
    observed: Sequence[RoundGradients],
    shape: tuple[int, int, int, int],
    *,
    mean: Sequence[float],
    std: Sequence[float],
    iterations: int,
    restarts: int,
    labels: torch.Tensor,
    generator: torch.Generator,
    progress: Progress = lambda cost: None,
) -> Recovered:
    """Return images of this shape [n, C, S, S], with labels int64 [n]. The generator is that of the CPU.

    mean, std: of the channels, which normalised pixels from 0 to 1, and so limit the search. ValueError for gradients
    that do not fit a model.
    """
    matching = _Matching(observed, torch.float32)
    labels = labels.to(matching.given[0].device)
    offset, factor = (torch.tensor(values, device=labels.device)[:, None, None] for values in (mean, std))
    least, most = -offset / factor, (1 - offset) / factor
    best: Recovered | None = None
    for _ in range(restarts):
        x = matching.start(shape, generator)
        adam = torch.optim.Adam([x], lr=STEP)
        decays = [int(part * iterations) for part in DECAYS]
        schedule = torch.optim.lr_scheduler.MultiStepLR(adam, decays, gamma=DECAY)
        for _iteration in range(iterations):
            cost = matching.angle(x, labels)
            (derivative,) = torch.autograd.grad(cost + TOTAL_VARIATION * total_variation(x), [x])
            x.grad = derivative.sign()
            adam.step()
            schedule.step()
            with torch.no_grad():
                x.copy_(torch.clamp(x, least, most))
            progress(cost.item())
        value = matching.angle(x, labels).item()
        if best is None or value < best.cost:
            best = Recovered(images=x.detach().clone(), labels=labels, cost=value)
    assert best is not None
    return best


def total_variation(x: torch.Tensor) -> torch.Tensor:
    """Return the mean distance of neighbours in height and in width, in images [n, C, S, S]."""
    return x.diff(dim=2).abs().mean() + x.diff(dim=3).abs().mean()


class _Matching:
    """Gradients of all rounds as functions of images, beside the observed ones; the models are copies."""

    def __init__(self, observed: Sequence[RoundGradients], dtype: torch.dtype) -> None:
        self.models: list[nn.Module] = []
        self.given: list[torch.Tensor] = []
        self._parameters: list[list[nn.Parameter]] = []
        self._dtype = dtype
        for one in observed:
            model = copy.deepcopy(one.model).to(dtype).eval().requires_grad_(True)
            named = dict(model.named_parameters())
            for name, gradient in one.gradients.items():
                if name not in named or named[name].shape != gradient.shape:
                    raise ValueError(f"the gradient of {name!r}, {list(gradient.shape)}, does not fit the model")
            chosen = [name for name in named if name in one.gradients or one.absent == "zeros"]
            self.models.append(model)
            self._parameters.append([named[name] for name in chosen])
            self.given += [
                one.gradients[name].to(named[name]) if name in one.gradients else torch.zeros_like(named[name])
                for name in chosen
            ]
        if not any(given.any() for given in self.given):
            raise ValueError("nothing to match: all gradients that were seen are absent or zero")

    def start(self, shape: tuple[int, ...], generator: torch.Generator) -> torch.Tensor:
        drawn = torch.randn(shape, generator=generator, dtype=self._dtype)
        return drawn.to(self.given[0].device).requires_grad_(True)

    def found(self, x: torch.Tensor, target: torch.Tensor) -> list[torch.Tensor]:
        """Return the gradients for images and targets: int64 [n], or probabilities [n, classes]."""
        gradients: list[torch.Tensor] = []
        for model, parameters in zip(self.models, self._parameters, strict=True):
            loss = cross_entropy(model(x), target)
            gradients += torch.autograd.grad(loss, parameters, create_graph=True, materialize_grads=True)
        return gradients

    def angle(self, x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        found = self.found(x, target)
        product = torch.stack([(one * other).sum() for one, other in zip(found, self.given, strict=True)]).sum()
        lengths = [torch.stack([one.square().sum() for one in parts]).sum() for parts in (found, self.given)]
        return 1 - product / (lengths[0] * lengths[1]).sqrt()
