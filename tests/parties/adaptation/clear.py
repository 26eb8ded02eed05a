"""What values a step of learning has in the clear, as its bounds are of them."""

from collections.abc import Sequence
from typing import Any

import pytest
import torch

from tacit.models.adapters import gradients
from tacit.models.adapters.activation import QUADRATIC_GELU
from tacit.models.adapters.parallel import AdapterParameters, FinalNorm, logits, mix
from tacit.parties.adaptation.bounds import StepBounds
from tacit.protocol.adaptation.schedule import ADAPTER_TENSORS, HEAD_TENSORS


def norms(
    parameters: AdapterParameters, norm: FinalNorm, outputs: torch.Tensor, labels: torch.Tensor
) -> dict[str, float]:
    """The largest of a batch, and `least variance`."""
    hidden, adapters = outputs[-1], len(parameters.scale)
    found: dict[str, list[float]] = {name: [0.0] for name in ("inputs", "channels", "tokens", "derivatives")}
    for block, scale in enumerate(parameters.scale):
        z = outputs[block] + hidden
        mixed = mix(parameters, block, z, QUADRATIC_GELU)
        hidden = hidden + scale * mixed.added
        for name, values in (("inputs", z), ("channels", mixed.channels), ("tokens", mixed.tokens)):
            found[name].append(values.norm(dim=-1).max().item())

    def noted(*arguments: Any) -> torch.Tensor:
        # Of the sum over the images, not of their mean.
        found["derivatives"].append(arguments[5].norm(dim=-1).max().item() * len(labels))
        return plain(*arguments)

    plain = gradients._backwards
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gradients, "_backwards", noted)
        gradients.descent(parameters, norm, outputs, labels)
    told = logits(parameters, norm, outputs)
    variances = hidden[:, 0].var(-1, unbiased=False)
    return {name: max(values) for name, values in found.items()} | {
        "outputs": outputs.norm(dim=-1).max().item(),
        "logits": (told - told.mean(-1, keepdim=True)).abs().max().item(),
        "variances": variances.max().item(),
        "least variance": variances.min().item(),
        **{
            name: max([getattr(parameters, name)[block].norm().item() for block in range(adapters)], default=0.0)
            for name in ADAPTER_TENSORS
        },
        "weight": parameters.head_weight.norm().item(),
        "bias": parameters.head_bias.norm().item(),
    }


def bounds(seen: Sequence[dict[str, float]], *, stream: float, epsilon: float) -> StepBounds:
    """Of what was seen on typical batches, widened: as whoever has typical images finds them in the clear."""

    def widest(name: str, least: float = 0.0) -> float:
        return 1.4 * max(max(each[name] for each in seen), least)

    parameters = {name: widest(name, 0.2) for name in (*ADAPTER_TENSORS, *HEAD_TENSORS)}
    return StepBounds(
        rate=0.1,
        stream=stream,
        outputs=widest("outputs"),
        parameters=parameters,
        inputs=widest("inputs", 1.0),
        channels=widest("channels", 1.0),
        tokens=widest("tokens", 1.0),
        derivatives=widest("derivatives", 1.0),
        variances=(min(each["least variance"] for each in seen) / 2, 2 * widest("variances")),
        epsilon=epsilon,
        logits=8.0,
    )
