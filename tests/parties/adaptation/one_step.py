"""A step of learning on shares, both owners in one process, from outputs of blocks that were computed in the clear."""

from pathlib import Path
from typing import Any, Final

import pytest
import torch

from tacit.models.adapters.federated import Features
from tacit.models.adapters.parallel import AdapterParameters
from tacit.parties.adaptation.bounds import StepScales
from tacit.parties.adaptation.rounds import nothing, shares_of_known
from tacit.parties.adaptation.step import StepProgram, StepSizes, flat
from tacit.parties.inference.operations import DATA, MODEL
from tacit.parties.inference.stages import encoded
from tacit.protocol.inference.schedule import PLACE

with pytest.MonkeyPatch.context() as patch:
    patch.syspath_prepend(Path(__file__).parent.parent / "inference")
    from in_memory import Pair, shares

STREAM: Final = 2.0**30


def step(
    sizes: StepSizes, scales: StepScales, common: AdapterParameters, batch: Features, rate: float
) -> tuple[list[torch.Tensor], bool]:
    """What both owners add to their sums after one step from common parameters, which the data owner knows; and whether
    the batch was in range: otherwise that is what they began with."""
    pair = Pair()
    outputs = [shares(encoded(output, STREAM)) for output in batch.outputs]
    given = {MODEL: (nothing(sizes), None), DATA: (shares_of_known(common), batch.labels)}
    results: list[Any] = pair.run(
        *(
            StepProgram(party, sizes, scales).run(
                given[party.rank][0], [output[party.rank] for output in outputs], given[party.rank][1], rate=rate
            )
            for party in pair.parties
        )
    )
    in_range = sum(int(result.outside) for result in results) % (1 << PLACE) == 0
    after = [result.parameters for result in results] if in_range else [given[rank][0] for rank in (MODEL, DATA)]
    return [flat(parameters) for parameters in after], in_range
