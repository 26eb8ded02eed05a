"""What values a step of learning has in the clear, as its bounds are of them."""

from collections.abc import Sequence

import torch

from tacit.models.adapters.federated import Reached
from tacit.models.adapters.gradients import descent
from tacit.models.adapters.parallel import AdapterParameters, FinalNorm
from tacit.parties.adaptation.bounds import StepBounds
from tacit.protocol.adaptation.schedule import ADAPTER_TENSORS, HEAD_TENSORS


def norms(
    parameters: AdapterParameters, norm: FinalNorm, outputs: torch.Tensor, labels: torch.Tensor
) -> dict[str, float]:
    """The largest of a batch, and `least variance`."""
    reached = Reached()
    descent(parameters, norm, outputs, labels, note=reached)
    names = ("outputs", "inputs", "channels", "tokens", "derivatives", "logits", *ADAPTER_TENSORS)
    return {name: reached.largest(name) for name in names} | {
        "weight": reached.largest("head_weight"),
        "bias": reached.largest("head_bias"),
        "variances": reached.largest("deviations") ** 2,
        "least variance": reached.least("deviations") ** 2,
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
