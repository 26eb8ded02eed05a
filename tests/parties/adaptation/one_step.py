"""A step of learning on shares, both owners in one process, from outputs of blocks that were computed in the clear."""

from typing import Any, Final

import torch

from tacit.models.adapters.federated import Features
from tacit.models.adapters.parallel import AdapterParameters
from tacit.parties.adaptation.bounds import StepScales
from tacit.parties.adaptation.rounds import nothing, shares_of_known
from tacit.parties.adaptation.step import StepProgram, StepSizes, flat
from tacit.parties.inference.operations import DATA, MODEL
from tacit.parties.inference.stages import encoded
from tests.parties.adaptation.examples import kept
from tests.parties.inference.in_memory import Pair, shares

STREAM: Final = 2.0**30


def step(
    sizes: StepSizes, scales: StepScales, common: AdapterParameters, batch: Features, rate: float
) -> tuple[list[torch.Tensor], bool]:
    """What both owners add to their sums after one step from common parameters, which the data owner knows; and whether
    the batch was in range."""
    pair = Pair()
    outputs = shares(encoded(kept(sizes, batch.outputs), STREAM))
    given = {MODEL: (nothing(sizes), None), DATA: (shares_of_known(common), batch.labels)}
    results: list[Any] = pair.run(
        *(
            StepProgram(party, sizes, scales).run(
                given[party.rank][0],
                outputs[party.rank],
                given[party.rank][1],
                rate=rate,
                outside=torch.zeros((), dtype=torch.int64),
            )
            for party in pair.parties
        )
    )
    refused = sum(int(result.refused) for result in results) % 2**64
    return [flat(result.parameters) for result in results], not refused
