"""What a round of adaptation begins and ends with: parameters that every data owner knows, and their sum on shares.

At the beginning of a round each data owner knows the common parameters: its share is all of them, and the model owner's
is nothing. At the end a data owner k and the model owner hold shares of the owner's own W_k. Opened is the sum over the
owners alone: that of the data owners' shares, by a secure sum, and that of the model owner's, modulo 2^64. Each owner's
share is times the weight of the data owner, which is 1 where all count alike: the next common parameters are the sum
over all weights. Both sums are over the same survivors, and the model owner's is told once in a round, when they are
final.
"""

from __future__ import annotations

import torch

from tacit.models.adapters.parallel import AdapterParameters
from tacit.parties.adaptation.adapter import AdapterShares
from tacit.parties.adaptation.fixed_point import KEPT
from tacit.parties.adaptation.head import HeadShares
from tacit.parties.adaptation.step import ParameterShares, StepSizes, shaped
from tacit.parties.inference.operations import MODEL
from tacit.parties.inference.stages import encoded
from tacit.protocol.adaptation.schedule import ADAPTER_TENSORS
from tacit.protocol.adaptation.sums import LARGEST_SUM


def shares_of_known(parameters: AdapterParameters) -> ParameterShares:
    """The share of an owner who knows the parameters; that of the other one is `nothing`."""
    words = {name: encoded(tensor, 2.0**KEPT) for name, tensor in parameters.tensors.items()}
    adapters = tuple(
        AdapterShares(**{name: words[name][index] for name in ADAPTER_TENSORS})
        for index in range(len(parameters.scale))
    )
    return ParameterShares(adapters=adapters, head=HeadShares(weight=words["head_weight"], bias=words["head_bias"]))


def nothing(sizes: StepSizes) -> ParameterShares:
    """The share of an owner of parameters that the other one knows."""
    return shaped(torch.zeros(sizes.parameters, dtype=torch.int64), sizes)


def refreshed(words: torch.Tensor, zero: torch.Tensor, rank: int) -> torch.Tensor:
    """This owner's words [n] with a fresh sharing of zero: before every attempt at a sum, lest two attempts with other
    survivors tell the words of one owner. zero: random words that both owners drew from a stream of theirs."""
    return words + zero if rank == MODEL else words - zero


def mean_of(total: torch.Tensor, weight: int, sizes: StepSizes) -> AdapterParameters:
    """The common parameters, float64, from the sum [n] modulo 2^64 of the words (`flat`) of data owners with this
    weight together, and of the model owner.

    ValueError for a weight that no sum can have."""
    if not 1 <= weight <= LARGEST_SUM:
        raise ValueError(f"a sum over data owners whose weight is {weight}; 1 to {LARGEST_SUM} can be added")
    parts = shaped(total, sizes)

    def value(words: torch.Tensor) -> torch.Tensor:
        return words.double() / (2.0**KEPT * weight)

    empty = {
        "channel_down": (sizes.rank, sizes.width),
        "channel_up": (sizes.width, sizes.rank),
        "token_down": (sizes.rank, sizes.tokens),
        "token_up": (sizes.tokens, sizes.rank),
        "scale": (),
    }
    adapters = {
        name: torch.stack([value(getattr(each, name)) for each in parts.adapters])
        if parts.adapters
        else torch.zeros(0, *empty[name], dtype=torch.float64)
        for name in ADAPTER_TENSORS
    }
    return AdapterParameters(**adapters, head_weight=value(parts.head.weight), head_bias=value(parts.head.bias))
