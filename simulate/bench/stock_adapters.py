"""Stock CrypTen on the adapters and the head: a step of learning by its own autograd, over gloo on loopback.

It is the step of models/adapters/gradients.py on the outputs of all blocks: adapters with the quadratic GELU, the
standardised class token, the head, the cross-entropy with its loss, backwards, and new parameters. Outputs, parameters
and labels are shared beforehand. CrypTen makes its tuples while it computes: its time is with material included.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any, ClassVar, Final

import torch
from torch.nn.functional import one_hot

from tacit.models.adapters.federated import Features
from tacit.models.adapters.gradients import descent
from tacit.models.adapters.parallel import AdapterParameters, FinalNorm
from tacit.protocol.adaptation.schedule import ADAPTER_TENSORS
from tacit.simulate.bench import stock_blocks
from tacit.simulate.federation.relay import Shaping

_PROVIDERS: Final = {"crypten": "TFP", "crypten_ttp": "TTP"}
"""CrypTen's names of who makes the tuples, by ours of the rows."""


@dataclass(frozen=True, repr=False, eq=False)
class StockAdapters:
    """As of stock_blocks.Compared: one part, from the outputs of all blocks to the gradient by all parameters [n]."""

    NAME: ClassVar[str] = "CrypTen's autograd"
    parameters: AdapterParameters
    labels: torch.Tensor
    """int64 [B]."""
    epsilon: float
    """What is added to the variance of a class token."""
    rate: float
    """Learning rate of the step."""

    def library(self) -> Any:
        """CrypTen."""
        return stock_blocks.stock_library()

    def shared(self, share: Callable[[torch.Tensor], Any]) -> list[Callable[[Any], Any]]:
        """As of stock_blocks.Compared."""
        # Each adapter's tensors apart: autograd does not see an index.
        tensors = [share(part.float()) for tensor in self._tensors(self.parameters) for part in tensor]
        library = self.library()
        wanted = share(one_hot(self.labels, len(self.parameters.head_bias)).float())

        def step(outputs: Any) -> Any:
            own = [tensor.detach() for tensor in tensors]
            with library.enable_grad():
                for tensor in own:
                    tensor.requires_grad = True
                self._logits(own, outputs).cross_entropy(wanted).backward()
            for tensor in own:
                tensor.detach().sub(tensor.grad.mul(self.rate))
            return library.cat([tensor.grad.flatten() for tensor in own])

        return [step]

    @staticmethod
    def flat(parameters: AdapterParameters) -> torch.Tensor:
        """All numbers [n], in the order in which `shared` has them."""
        return torch.cat([part.flatten() for tensor in StockAdapters._tensors(parameters) for part in tensor])

    @staticmethod
    def _tensors(parameters: AdapterParameters) -> list[Any]:
        """Of all adapters the first tensor, the second, and so on; then those of the head."""
        return [list(tensor) if name in ADAPTER_TENSORS else [tensor] for name, tensor in parameters.tensors.items()]

    def _logits(self, own: list[Any], outputs: Any) -> Any:
        blocks = len(self.parameters.scale)
        *adapters, head_weight, head_bias = own
        hidden = outputs[-1]
        for block in range(blocks):
            channel_down, channel_up, token_down, token_up, scale = adapters[block::blocks]
            z = outputs[block] + hidden
            c = _activated(z.matmul(channel_down.transpose(0, 1))).matmul(channel_up.transpose(0, 1))
            t = token_up.matmul(_activated(token_down.matmul(z + c)))
            hidden = hidden + (c + t) * scale
        token = hidden.narrow(1, 0, 1).squeeze(1)
        centred = token - token.mean(1, keepdim=True)
        deviation = (centred.square().mean(1, keepdim=True) + self.epsilon).sqrt()
        return (centred * deviation.reciprocal()).matmul(head_weight.transpose(0, 1)) + head_bias


def _activated(x: Any) -> Any:
    return x.square() * 0.125 + x * 0.25 + 0.5


def measure(
    parameters: AdapterParameters,
    norm: FinalNorm,
    batch: Features,
    *,
    rate: float,
    repeats: int,
    cores: Collection[int],
    progress: Callable[[str], object],
) -> dict[str, Any]:
    """Rows as of stock_blocks.measure, by who makes the tuples; errors are those of the gradient, relative to the norm
    of that in the clear. parameters, and outputs of the batch: float64. ProcessError if a process fails."""
    compared = StockAdapters(parameters, batch.labels, norm.epsilon, rate)
    gradient = descent(parameters, norm, batch.outputs, batch.labels).gradient
    expected = compared.flat(gradient)
    rows = {}
    for key, provider in _PROVIDERS.items():
        row = stock_blocks.measure(
            compared,
            batch.outputs,
            provider=provider,
            repeats=repeats,
            shaping=Shaping(),
            cores=cores,
            progress=progress,
        )
        error = (row.pop("output") - expected).norm() / expected.norm()
        rows[key] = row | {"relative_error": error.item()}
    return rows
