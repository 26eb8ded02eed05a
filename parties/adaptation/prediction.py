"""Logits of trained adapters and a head for a batch, on secret shares, and the number of values out of range.

Both owners hold shares of the outputs of all blocks, and of the parameters, which a predicting data owner knows. It is
a training step (step.py) up to the logits, and requests no further correlated randomness. Results are revealed as in
private inference (parties/inference/ranking.py). Logits need no check: a standardised token and parameters in range
keep them within their ring (bounds.py).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

import torch

from tacit.parties.adaptation.adapter import AdapterForwards, forward_requests
from tacit.parties.adaptation.bounds import LOGIT_SCALE, StepScales
from tacit.parties.adaptation.fixed_point import PARAMETER
from tacit.parties.adaptation.head import HeadForwards, logit_requests
from tacit.parties.adaptation.step import HiddenProgram, ParameterShares, StepSizes, hidden_requests
from tacit.parties.inference.material import AnyBlockRequest
from tacit.parties.inference.operations import Party, Program
from tacit.parties.inference.ring import WORD_BITS, shifted

_CUT: Final = 2 * PARAMETER - round(math.log2(LOGIT_SCALE))


@dataclass(frozen=True, repr=False, kw_only=True)
class Predicted:
    logits: torch.Tensor
    """Share modulo 2^STREAM of the logits [B, C], times LOGIT_SCALE."""
    outside: torch.Tensor
    """Share modulo 2^PLACE of the number of values out of range."""


def prediction_requests(sizes: StepSizes, scales: StepScales) -> tuple[AnyBlockRequest, ...]:
    return (*hidden_requests(sizes, scales, forward_requests), *logit_requests(sizes.head, scales.head))


class PredictionProgram:
    def __init__(self, party: Party, sizes: StepSizes, scales: StepScales) -> None:
        self._hidden = HiddenProgram(party, sizes, scales, AdapterForwards)
        self._head = HeadForwards(party, sizes.head, scales.head)

    def run(self, parameters: ParameterShares, outputs: torch.Tensor) -> Program[Predicted]:
        head, hidden = yield from self._hidden.run(parameters, outputs)
        logits = yield from self._head.forwards(head, hidden[:, 0])
        outside = self._hidden.outside + self._head.outside
        return Predicted(logits=shifted(logits, WORD_BITS, _CUT), outside=outside)
