"""Small batches with parameters before a step, and what they are on shares."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Final

import torch

from tacit.models.adapters.gradients import Descent, descent
from tacit.models.adapters.parallel import AdapterParameters, FinalNorm
from tacit.parties.adaptation.adapter import AdapterShares
from tacit.parties.adaptation.bounds import StepBounds, StepScales, fitted_step
from tacit.parties.adaptation.fixed_point import KEPT
from tacit.parties.adaptation.head import HeadShares
from tacit.parties.adaptation.step import ParameterShares, StepSizes
from tacit.parties.inference.operations import DATA, MODEL
from tacit.parties.inference.stages import encoded
from tacit.protocol.adaptation.schedule import ADAPTER_TENSORS
from tests.parties.inference.in_memory import shares

RATE: Final = 0.05
SIZES: Final = StepSizes(images=4, tokens=5, width=16, classes=4, adapters=2, rank=2)
PROBE: Final = replace(SIZES, adapters=0)
BOUNDS: Final = StepBounds(
    rate=RATE,
    stream=2.0**28,
    outputs=20.0,
    parameters={
        "channel_down": 2.2,
        "channel_up": 2.2,
        "token_down": 2.0,
        "token_up": 1.4,
        "scale": 1.5,
        "weight": 3.0,
        "bias": 3.0,
    },
    inputs=40.0,
    channels=15.0,
    tokens=20.0,
    derivatives=3.0,
    variances=(0.1, 20.0),
    epsilon=1e-6,
    logits=8.0,
)


@dataclass(frozen=True, repr=False)
class Example:
    sizes: StepSizes
    parameters: AdapterParameters
    outputs: torch.Tensor
    labels: torch.Tensor

    @property
    def norm(self) -> FinalNorm:
        return FinalNorm.plain(self.sizes.width, BOUNDS.epsilon)

    def descent(self) -> Descent:
        return descent(self.parameters, self.norm, self.outputs, self.labels)


@cache
def example(sizes: StepSizes = SIZES) -> Example:
    generator = torch.Generator().manual_seed(3)

    def normal(*shape: int, deviation: float = 1.0) -> torch.Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64) * deviation

    count, rank, tokens, width = sizes.adapters, sizes.rank, sizes.tokens, sizes.width
    parameters = AdapterParameters(
        channel_down=normal(count, rank, width, deviation=0.2),
        channel_up=normal(count, width, rank, deviation=0.2),
        token_down=normal(count, rank, tokens, deviation=0.3),
        token_up=normal(count, tokens, rank, deviation=0.2),
        scale=1 + normal(count, deviation=0.1),
        head_weight=normal(sizes.classes, width, deviation=0.2),
        head_bias=normal(sizes.classes, deviation=0.5),
    )
    outputs = normal(max(count, 1), *sizes.adapter.stream)
    labels = torch.randint(sizes.classes, (sizes.images,), generator=generator)
    return Example(sizes, parameters, outputs, labels)


def kept(sizes: StepSizes, outputs: torch.Tensor) -> torch.Tensor:
    """Of outputs of all blocks [L, B, T, D] what a step reads."""
    layers, _, tokens, _ = sizes.outputs
    return outputs[-layers:, :, :tokens]


def shared(parameters: AdapterParameters) -> list[ParameterShares]:
    words = {name: shares(encoded(tensor, 2.0**KEPT)) for name, tensor in parameters.tensors.items()}
    found = []
    for rank in (MODEL, DATA):
        own = {name: pair[rank] for name, pair in words.items()}
        adapters = tuple(
            AdapterShares(**{name: own[name][index] for name in ADAPTER_TENSORS})
            for index in range(len(parameters.scale))
        )
        head = HeadShares(weight=own["head_weight"], bias=own["head_bias"])
        found.append(ParameterShares(adapters=adapters, head=head))
    return found


def opened(parts: Sequence[ParameterShares], like: AdapterParameters) -> AdapterParameters:
    def both(of: Callable[[ParameterShares], torch.Tensor]) -> torch.Tensor:
        return (of(parts[0]) + of(parts[1])).double() / 2.0**KEPT

    def all_of(name: str) -> torch.Tensor:
        tensor: torch.Tensor = getattr(like, name)
        found = [both(lambda part: getattr(part.adapters[index], name)) for index in range(len(tensor))]  # noqa: B023
        return torch.stack(found) if found else tensor

    return AdapterParameters(
        **{name: all_of(name) for name in ADAPTER_TENSORS},
        head_weight=both(lambda part: part.head.weight),
        head_bias=both(lambda part: part.head.bias),
    )


def fitted(sizes: StepSizes, bounds: StepBounds = BOUNDS) -> StepScales:
    if bounds is BOUNDS:
        return _usual(sizes)
    return fitted_step(sizes.adapter, sizes.head, bounds, adapters=sizes.adapters)


@cache
def _usual(sizes: StepSizes) -> StepScales:
    return fitted_step(sizes.adapter, sizes.head, BOUNDS, adapters=sizes.adapters)


def with_bound(bounds: StepBounds, name: str, largest: float) -> StepBounds:
    if name in bounds.parameters:
        return replace(bounds, parameters={**bounds.parameters, name: largest})
    changed: dict[str, Any] = {name: (0.1, largest) if name == "variances" else largest}
    return replace(bounds, **changed)


def logit_error(parameters: AdapterParameters) -> torch.Tensor:
    """What a logit of a prediction on shares may be off by, float64 [C].

    The inverse root of a variance is off by 3/8 * 2^-8 at most (LEAST_INTERVALS of parties/inference/tables.py), and
    what two adapters round by less than what a step rounds, 20 * 2^-13 (test_step.py): 2^-8 of the token together,
    whose norm is the root of its width at most."""
    weight = parameters.head_weight
    return 2.0**-8 * weight.shape[1] ** 0.5 * weight.norm(dim=-1)
