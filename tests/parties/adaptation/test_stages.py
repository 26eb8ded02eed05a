"""Whole passes that bring images, steps on what is kept of them, and predictions: each part is that in the clear for
what went into it, so that errors cannot make up for each other, and a pass costs what the machines know of it."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import msgspec
import pytest
import torch

from tacit.models.adapters.gradients import descent
from tacit.models.adapters.parallel import each, logits
from tacit.parties.adaptation.bounds import LOGIT_SCALE, StepBounds, StepScales, fitted_step
from tacit.parties.adaptation.fixed_point import PARAMETER
from tacit.parties.adaptation.rounds import nothing, shares_of_known
from tacit.parties.adaptation.stages import (
    CollectedCarried,
    LearningCarried,
    PredictingCarried,
    learning_stages,
    prediction_stages,
)
from tacit.parties.adaptation.step import StepSizes
from tacit.parties.inference.operations import DATA, MODEL
from tacit.parties.inference.ranking import logits as told_logits
from tacit.parties.inference.ring import signed
from tacit.parties.inference.stages import Carried
from tacit.protocol.adaptation.messages import AdaptationTerms, LearningSizes, Purpose
from tacit.protocol.adaptation.schedule import adaptation_rounds
from tacit.protocol.inference.schedule import LOGITS, PLACE, RANGE, RANKED, STREAM, Results, backbone_rounds
from tests.parties.adaptation.clear import bounds, norms
from tests.parties.adaptation.examples import Example, example, kept, logit_error, opened, shared
from tests.parties.adaptation.whole import WholePass, block_outputs
from tests.parties.inference.conftest import STOCK, STUDENT, Transformer, digits, transformer

IMAGES: Final = 4
RATE: Final = 0.05
BLOCK_ERROR: Final = 1e-3
"""What inference promises for a block, of the norm of its output (tests/parties/inference/test_stages.py)."""
STEP_ERROR: Final = 2.0**-7
"""Of a step, relative to the norm of all derivatives. Where logits are small the sum of exponentials is the least in
range: its inverse, and so a probability, is off by 2^-8 at most, and the inverse root of a variance by 3/8 of that
(LEAST_INTERVALS of parties/inference/tables.py). Everything else is rounding: 20 * 2^-13 for two adapters, by
test_step.py."""
SIZES: Final = StepSizes(images=IMAGES, tokens=17, width=32, classes=4, adapters=2, rank=2)
PROBE: Final = replace(SIZES, adapters=0)


@pytest.fixture(scope="module")
def model() -> Transformer:
    return transformer(STUDENT, classes=10, images=digits(), std=0.15, offsets=4.0)


@pytest.fixture(scope="module")
def stock() -> Transformer:
    return transformer(STUDENT, classes=10, images=digits(), std=0.15, offsets=4.0, approximation=STOCK)


@pytest.fixture(params=["model", "stock"])
def either(request: pytest.FixtureRequest) -> Transformer:
    found: Transformer = request.getfixturevalue(request.param)
    return found


def example_of(model: Transformer, sizes: StepSizes) -> Example:
    """A batch as the blocks leave it in the clear, and parameters before a step."""
    drawn, outputs = example(sizes), block_outputs(model, model.images[:IMAGES])
    # Tokens are longer than those of the example, and so is what adapters make of them.
    return replace(drawn, parameters=each(lambda tensor: tensor / 2, drawn.parameters), outputs=outputs)


def fitted(model: Transformer, given: Example, **changed: float) -> StepScales:
    own: StepBounds = bounds(
        [norms(given.parameters, given.norm, given.outputs, given.labels)],
        stream=model.public.stream,
        epsilon=given.norm.epsilon,
    )
    sizes = given.sizes
    return fitted_step(sizes.adapter, sizes.head, replace(own, **changed), adapters=sizes.adapters)  # type: ignore[arg-type]


def terms_of(
    model: Transformer, sizes: StepSizes, scales: StepScales, purpose: Purpose, results: Results = LOGITS
) -> AdaptationTerms:
    return AdaptationTerms(
        weights=bytes(32),
        sizes=model.public.sizes,
        arithmetic=b"",
        results=results,
        most_images=IMAGES,
        most_batch=IMAGES,
        audited=0,
        purpose=purpose,
        learning=LearningSizes(
            adapters=sizes.adapters,
            rank=sizes.rank,
            classes=sizes.classes,
            batch=IMAGES,
            cut=scales.cut,
            gradient=scales.gradient,
        ),
        rounds=1,
        smallest_cohort=3,
    )


def learning(given: Example, *both: CollectedCarried) -> list[Carried]:
    """What both owners begin a step with, from what they keep."""
    return [
        LearningCarried(
            torch.stack(carried.outputs),
            carried.outside.sum(),
            parameters=parameters,
            labels=given.labels if rank == DATA else None,
            rate=RATE,
        )
        for rank, (carried, parameters) in enumerate(zip(both, shared(given.parameters), strict=True))
    ]


def predicting(given: Example, run: WholePass) -> list[Carried]:
    return [
        PredictingCarried(share, parameters=parameters)
        for share, parameters in zip(run.begun, (nothing(given.sizes), shares_of_known(given.parameters)), strict=True)
    ]


def opened_outputs(model: Transformer, *both: CollectedCarried) -> torch.Tensor:
    """What is kept of the blocks on shares [L, B, S, D]."""
    sums = [one + two for one, two in zip(*(carried.outputs for carried in both), strict=True)]
    return signed(torch.stack(sums), STREAM).double() / model.public.stream


@pytest.mark.parametrize("sizes", [SIZES, PROBE])
def test_a_pass_of_learning_is_that_in_the_clear_and_costs_what_is_declared(
    either: Transformer, sizes: StepSizes
) -> None:
    model = either
    given, run = example_of(model, sizes), WholePass(model, model.images[:IMAGES])
    scales = fitted(model, given)
    both = run.collected(model.public, sizes)
    assert run.rounds == backbone_rounds(model.public.sizes, IMAGES)
    assert not (sum(carried.outside for carried in both) % (1 << PLACE)).any()
    outputs = opened_outputs(model, *both)
    kept_layers, expected = sizes.kept[0], kept(sizes, given.outputs)
    first = 1 + model.public.sizes.blocks - kept_layers
    for number, (found, wanted) in enumerate(zip(outputs, expected, strict=True), first):
        # Each block may be off by BLOCK_ERROR, and the next pass that on; the embedding is no worse than one of them.
        assert (found - wanted).norm() <= BLOCK_ERROR * (number + 1) * wanted.norm()
    (ends,) = run.run(learning_stages(sizes, scales), learning(given, *both))
    clear = descent(given.parameters, given.norm, outputs, given.labels)
    after = opened([end.parameters for end in ends], given.parameters)
    total = torch.cat([tensor.flatten() for tensor in clear.gradient.tensors.values()]).norm()
    for name, wanted in clear.gradient.tensors.items():
        step = (given.parameters.tensors[name] - after.tensors[name]) / RATE
        # Small derivatives have few last bits, so it is of all of them.
        assert (step - wanted).norm() <= STEP_ERROR * total, name
    loss = sum(end.loss for end in ends).item() / (2.0 ** (2 * PARAMETER) * sizes.classes * IMAGES)
    assert abs(loss - clear.loss) <= STEP_ERROR * clear.loss
    assert sum(int(end.correct) for end in ends) % (1 << PLACE) == clear.correct
    assert sum(int(end.refused) for end in ends) == 0
    step = run.rounds[len(backbone_rounds(model.public.sizes, IMAGES)) :]
    assert step == adaptation_rounds(terms_of(model, sizes, scales, "learning"), IMAGES)


def test_what_is_out_of_range_is_counted_for_each_image(model: Transformer) -> None:
    """One image is far beyond what the bounds are for: no other image is out of range for it, and a step on a batch
    with it is refused, and on one without it is not."""
    images = model.images[: IMAGES + 1].clone()
    images[1] *= 40
    public = msgspec.structs.replace(
        model.public, embedding=msgspec.structs.replace(model.public.embedding, largest=1000.0)
    )
    run = WholePass(replace(model, fitted=replace(model.fitted, public=public)), images)
    one, other = run.collected(public, SIZES)
    counts = (one.outside + other.outside) % (1 << PLACE)
    assert counts[1] > 0
    assert not torch.cat([counts[:1], counts[2:]]).any()


def test_more_images_than_the_bounds_are_for_are_refused(model: Transformer) -> None:
    scales = fitted(model, example_of(model, SIZES))
    (step,) = learning_stages(SIZES, scales)
    assert len(step.requests(1, {})) == len(step.requests(IMAGES, {}))
    with pytest.raises(ValueError, match="a batch of 5 images: the bounds are for 4 at most"):
        step.requests(IMAGES + 1, {})


@pytest.mark.parametrize(("sizes", "results"), [(SIZES, Results(labels=2, bits=0)), (PROBE, LOGITS)])
def test_a_prediction_is_that_in_the_clear_and_costs_what_is_declared(
    model: Transformer, sizes: StepSizes, results: Results
) -> None:
    given, run = example_of(model, sizes), WholePass(model, model.images[:IMAGES])
    scales = fitted(model, given)
    stages = prediction_stages(model.public, sizes, scales, results)
    *_, (before, other), ends = run.run(stages, predicting(given, run))
    assert run.in_range
    assert not ends[MODEL].share.any()
    clear = logits(given.parameters, given.norm, opened_outputs(model, before, other))
    bound = logit_error(given.parameters)
    if results.labels:
        best, order = clear.sort(dim=-1, descending=True, stable=True)
        # What labels are of is cut to RANKED bits: each of two logits may be off by its error, and a last bit.
        told_apart = 2 * (bound.max() + 2.0 ** (STREAM - RANKED) / LOGIT_SCALE)
        sure = (-best.diff(dim=-1) > told_apart)[:, : results.labels].all(-1)
        assert sure.any()
        assert ends[DATA].share[sure].equal(order[sure][:, : results.labels])
    else:
        found = told_logits(ends[DATA].share, results)
        assert ((found - clear).abs() <= bound + 2.0**-results.bits).all()
    assert run.rounds == adaptation_rounds(terms_of(model, sizes, scales, "prediction", results), IMAGES)


@pytest.mark.parametrize("results", [LOGITS, Results(labels=1, bits=0)])
def test_a_prediction_out_of_range_is_refused_before_anything_is_told(model: Transformer, results: Results) -> None:
    given, run = example_of(model, SIZES), WholePass(model, model.images[:IMAGES])
    scales = fitted(model, given, channels=0.5)
    run.run(prediction_stages(model.public, SIZES, scales, results), predicting(given, run))
    assert not run.in_range
    operations = [each.operation for each in run.rounds]
    # The machines advance no program beyond this round then.
    behind = operations[operations.index(RANGE) + 1 :]
    assert set(behind) == ({"ranking", "result"} if results.labels else {"result"})
    assert not {"ranking", "result"} & set(operations[: operations.index(RANGE)])


def test_more_labels_than_can_be_told_are_refused(model: Transformer) -> None:
    scales = fitted(model, example_of(model, SIZES))
    with pytest.raises(ValueError, match="the 4 best labels of 4 classes cannot be told"):
        prediction_stages(model.public, SIZES, scales, Results(labels=4, bits=0))
