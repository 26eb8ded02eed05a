"""What values a step of learning has in the clear, as its bounds are of them."""

from typing import Any

import pytest
import torch

from tacit.models.adapters import gradients
from tacit.models.adapters.activation import QUADRATIC_GELU
from tacit.models.adapters.parallel import AdapterParameters, FinalNorm, logits, mix
from tacit.protocol.adaptation.schedule import ADAPTER_TENSORS


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
