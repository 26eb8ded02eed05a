"""A prediction on shares is that in the clear, in float64, but for rounding; what is out of range is told apart; and it
takes the material of a step only up to the logits."""

from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch

from tacit.models.adapters.parallel import logits
from tacit.parties.adaptation.bounds import LOGIT_SCALE, StepScales, fitted_step
from tacit.parties.adaptation.stages import PredictionProgram, prediction_requests
from tacit.parties.adaptation.step import StepSizes
from tacit.parties.inference.material import Matrix, Narrow, Products
from tacit.parties.inference.ring import signed
from tacit.parties.inference.stages import encoded
from tacit.parties.inference.tables import BoundError
from tacit.protocol.adaptation.schedule import prediction_rounds
from tacit.protocol.inference.schedule import PLACE, STREAM, Round
from tests.parties.adaptation.examples import BOUNDS, PROBE, SIZES, Example, example, fitted, kept, logit_error, shared
from tests.parties.inference.in_memory import Pair, shares


@dataclass(frozen=True, repr=False)
class Outcome:
    logits: torch.Tensor
    outside: int
    rounds: tuple[Round, ...]


def run(given: Example, scales: StepScales) -> Outcome:
    pair, sizes = Pair(), given.sizes
    programs = [PredictionProgram(party, sizes, scales) for party in pair.parties]
    assert tuple(pair.requests) == prediction_requests(sizes, scales)
    outputs = shares(encoded(kept(sizes, given.outputs), BOUNDS.stream))
    results: list[Any] = pair.run(
        *(
            program.run(parameters, outputs[rank])
            for rank, (program, parameters) in enumerate(zip(programs, shared(given.parameters), strict=True))
        )
    )
    found = signed(sum(result.logits for result in results), STREAM).double() / LOGIT_SCALE
    return Outcome(found, sum(int(result.outside) for result in results) % (1 << PLACE), tuple(pair.log))


@pytest.mark.parametrize("sizes", [SIZES, PROBE])
def test_logits_are_those_in_the_clear_and_cost_what_is_declared(sizes: StepSizes) -> None:
    given, scales = example(sizes), fitted(sizes)
    found = run(given, scales)
    assert found.outside == 0
    clear = logits(given.parameters, given.norm, given.outputs)
    assert ((found.logits - clear).abs() <= logit_error(given.parameters)).all()
    assert found.rounds == prediction_rounds(
        images=sizes.images,
        tokens=sizes.tokens,
        width=sizes.width,
        classes=sizes.classes,
        adapters=sizes.adapters,
        rank=sizes.rank,
        cut=scales.cut,
    )


@pytest.mark.parametrize("sizes", [SIZES, PROBE])
def test_material_is_asked_for_what_goes_forwards_alone(sizes: StepSizes) -> None:
    asked = prediction_requests(sizes, fitted(sizes))
    # Of every adapter p, c, q and t, and what alpha multiplies; of the head the logits, and what 1 / d multiplies.
    assert [len(request.products) for request in asked if isinstance(request, Products)] == [4] * sizes.adapters
    assert sum(isinstance(request, Matrix) for request in asked) == 1
    assert sum(isinstance(request, Narrow) and request.factor is not None for request in asked) == sizes.adapters + 1


def test_what_a_step_alone_looks_at_does_not_refuse_a_prediction() -> None:
    assert run(example(), fitted(SIZES, replace(BOUNDS, derivatives=0.01, logits=0.1))).outside == 0


def test_logits_that_do_not_fit_what_is_told_are_refused() -> None:
    sizes = replace(PROBE, width=1 << 15)
    bounds = replace(BOUNDS, parameters={**BOUNDS.parameters, "weight": 6.0})
    with pytest.raises(BoundError, match="a logit can reach 1089 in a step of learning, where 1024 fits"):
        fitted_step(sizes.adapter, sizes.head, bounds, adapters=0)
