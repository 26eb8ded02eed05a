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
Progress = Callable[[int, int, float], None]
"""Receives the restart and the iteration, both from 0, and the cost."""

STEPS_OF_A_SEARCH: Final = 20
"""L-BFGS steps in one iteration of `deep_leakage`, as in its authors' code."""
DECAYS: Final = (3 / 8, 5 / 8, 7 / 8)
"""Fractions of all iterations after which Adam's steps shrink by DECAY."""
DECAY: Final = 0.1


@dataclass(frozen=True, kw_only=True)
class RoundGradients:
    """Observation of one round: the model sent to a client, and the gradients of its loss, or some of them."""

    model: nn.Module
    gradients: Gradients
    absent: Literal["left out", "zeros"] = "left out"
    """Treatment of missing tensors."""


@dataclass(frozen=True, kw_only=True)
class DeepLeakageSettings:
    iterations: int = 300
    restarts: int = 1
    enough: float = 1e-9
    """Cost, the squared distance relative to the squared length of the gradients, at which the search ends."""


@dataclass(frozen=True, kw_only=True)
class InvertingGradientsSettings:
    """`mean` and `std` of the channels, which normalised pixels between 0 and 1, define the box."""

    mean: tuple[float, ...]
    std: tuple[float, ...]
    iterations: int = 24_000
    restarts: int = 3
    step: float = 0.1
    tv: float = 1e-4


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
    settings: DeepLeakageSettings,
    *,
    generator: torch.Generator,
    labels: torch.Tensor | None = None,
    progress: Progress | None = None,
) -> Recovered:
    """Return images of this shape [n, C, S, S]; labels int64 [n], None: searched too. The generator is that of the CPU.

    ValueError for gradients that do not fit a model.
    """
    matching = _Matching(observed, torch.float64)
    length = sum(given.square().sum() for given in matching.given)
    best: Recovered | None = None
    for restart in range(settings.restarts):
        x = matching.start(shape, generator)
        with torch.no_grad():
            classes = matching.models[0](x).shape[1]
        if labels is None:
            target = matching.start((shape[0], classes), generator)
            sought = [x, target]
        else:
            target = labels.to(x.device)
            sought = [x]
        search = torch.optim.LBFGS(
            sought,
            max_iter=STEPS_OF_A_SEARCH,
            history_size=100,
            tolerance_grad=0.0,
            tolerance_change=0.0,
            line_search_fn="strong_wolfe",
        )

        def cost(x: torch.Tensor = x, target: torch.Tensor = target) -> torch.Tensor:
            found = matching.found(x, target if labels is not None else target.softmax(dim=1))
            distance = sum((one - other).square().sum() for one, other in zip(found, matching.given, strict=True))
            return torch.as_tensor(distance / length)

        def closure(search: torch.optim.LBFGS = search, cost: Callable[[], torch.Tensor] = cost) -> torch.Tensor:
            search.zero_grad()
            value = cost()
            value.backward()  # type: ignore[no-untyped-call]
            return value

        for iteration in range(settings.iterations):
            search.step(closure)  # type: ignore[no-untyped-call]
            value = cost().item()
            if progress is not None:
                progress(restart, iteration, value)
            if not math.isfinite(value) or value <= settings.enough:
                break
        if best is None or value < best.cost:
            final = target if labels is not None else target.argmax(dim=1)
            best = Recovered(images=x.detach().float(), labels=final.detach(), cost=value)
        if value <= settings.enough:
            break
    assert best is not None
    return best


def inverting_gradients(
    observed: Sequence[RoundGradients],
    shape: tuple[int, int, int, int],
    settings: InvertingGradientsSettings,
    *,
    labels: torch.Tensor,
    generator: torch.Generator,
    progress: Progress | None = None,
) -> Recovered:
    """Return images of this shape [n, C, S, S], with labels int64 [n]. The generator is that of the CPU.

    ValueError for gradients that do not fit a model.
    """
    matching = _Matching(observed, torch.float32)
    labels = labels.to(matching.given[0].device)
    mean, std = (torch.tensor(values, device=labels.device)[:, None, None] for values in (settings.mean, settings.std))
    least, most = -mean / std, (1 - mean) / std
    best: Recovered | None = None
    for restart in range(settings.restarts):
        x = matching.start(shape, generator)
        adam = torch.optim.Adam([x], lr=settings.step)
        decays = [int(part * settings.iterations) for part in DECAYS]
        schedule = torch.optim.lr_scheduler.MultiStepLR(adam, decays, gamma=DECAY)
        for iteration in range(settings.iterations):
            cost = matching.angle(x, labels)
            (derivative,) = torch.autograd.grad(cost + settings.tv * total_variation(x), [x])
            x.grad = derivative.sign()
            adam.step()
            schedule.step()
            with torch.no_grad():
                x.copy_(torch.clamp(x, least, most))
            if progress is not None:
                progress(restart, iteration, cost.item())
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
