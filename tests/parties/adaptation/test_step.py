"""A step of learning on shares is the step in the clear, in float64, but for rounding; and what is out of range is told
apart, wherever it is.

Tolerance: the coarsest that a derivative passes are the arguments of the activations (2^-12, of values around 1) and
the exponentials (2^-12 of themselves); a derivative itself has 20 fractional bits, and in these examples a deviation of
2^-6 or more. All are rounded at random, by less than a last bit, and a derivative passes some ten of them for each of
two adapters: 20 * 2^-13 is below 2^-8, even where nothing averages out.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import pytest
import torch

from tacit.models.adapters.gradients import descent, stepped
from tacit.models.adapters.parallel import AdapterParameters, each
from tacit.parties.adaptation.bounds import StepBounds, StepScales
from tacit.parties.adaptation.fixed_point import PARAMETER, USED
from tacit.parties.adaptation.step import ParameterShares, StepProgram, StepSizes, step_requests, whole_rate
from tacit.parties.inference.material import Products
from tacit.parties.inference.operations import DATA, MODEL
from tacit.parties.inference.stages import encoded
from tacit.parties.inference.tables import BoundError
from tacit.protocol.adaptation.schedule import step_rounds
from tacit.protocol.inference.schedule import PLACE
from tests.parties.adaptation.clear import norms
from tests.parties.adaptation.examples import (
    BOUNDS,
    PROBE,
    RATE,
    SIZES,
    Example,
    example,
    fitted,
    kept,
    opened,
    shared,
    with_bound,
)
from tests.parties.inference.in_memory import Pair, shares

TOLERANCE: Final = 2.0**-8


@dataclass(frozen=True, repr=False)
class Outcome:
    parameters: list[ParameterShares]
    outside: int
    refused: int
    loss: float
    correct: int
    pair: Pair


def run(
    given: Example, scales: StepScales, parameters: Sequence[ParameterShares] | None = None, *, flags: int = 0
) -> Outcome:
    """flags: how many values of the images were out of range before the step."""
    pair, sizes = Pair(), given.sizes
    programs = [StepProgram(party, sizes, scales) for party in pair.parties]
    assert tuple(pair.requests) == step_requests(sizes, scales)
    outputs = shares(encoded(kept(sizes, given.outputs), BOUNDS.stream))
    counted = shares(torch.tensor(flags))
    both = shared(given.parameters) if parameters is None else parameters
    results: list[Any] = pair.run(
        *(
            program.run(
                both[rank],
                outputs[rank],
                given.labels if rank == DATA else None,
                rate=RATE,
                outside=counted[rank],
            )
            for rank, program in zip((MODEL, DATA), programs, strict=True)
        )
    )
    outside, correct = (
        sum(int(getattr(result, name)) for result in results) % (1 << PLACE) for name in ("outside", "correct")
    )
    refused = sum(result.refused for result in results)
    loss = sum(result.loss for result in results).item() / (2.0 ** (2 * PARAMETER) * sizes.classes)
    return Outcome([result.parameters for result in results], outside, int(refused), loss, correct, pair)


@pytest.mark.parametrize("sizes", [SIZES, PROBE])
def test_a_step_is_that_in_the_clear_and_costs_what_is_declared(sizes: StepSizes) -> None:
    given, scales = example(sizes), fitted(sizes)
    found = run(given, scales)
    assert (found.outside, found.refused) == (0, 0)
    clear = given.descent()
    assert abs(found.loss / sizes.images - clear.loss) <= TOLERANCE * clear.loss
    assert found.correct == clear.correct
    after, expected = opened(found.parameters, given.parameters), clear.gradient
    total = torch.cat([tensor.flatten() for tensor in expected.tensors.values()]).norm()
    for name, wanted in expected.tensors.items():
        step = (given.parameters.tensors[name] - after.tensors[name]) / RATE
        # Terms of the derivative by a scale cancel out: its error is that of the terms.
        norm = total if name == "scale" else wanted.norm()
        assert (step - wanted).norm() <= TOLERANCE * norm, name
    declared = step_rounds(
        images=sizes.images,
        tokens=sizes.tokens,
        width=sizes.width,
        classes=sizes.classes,
        adapters=sizes.adapters,
        rank=sizes.rank,
        cut=scales.cut,
        gradient=scales.gradient,
    )
    assert tuple(found.pair.log) == declared
    assert len(declared) == 21 + 17 * sizes.adapters


def test_outputs_of_blocks_that_reach_differently_far_are_halved_by_block() -> None:
    given, halvings = example(), (1, 4)
    scales = fitted(SIZES, replace(BOUNDS, halvings=halvings))
    factors = torch.tensor([2.0**times for times in halvings])[:, None, None, None]
    found = run(replace(given, outputs=given.outputs * factors), scales)
    assert (found.outside, found.refused) == (0, 0)
    after, expected = opened(found.parameters, given.parameters), given.descent().gradient
    for name in ("channel_up", "token_up", "head_weight"):
        step, wanted = (given.parameters.tensors[name] - after.tensors[name]) / RATE, expected.tensors[name]
        assert (step - wanted).norm() <= TOLERANCE * wanted.norm(), name


def check_refused(given: Example, found: Outcome) -> None:
    """A batch out of range leaves the parameters to the last bit, and counts for nothing but itself."""
    assert found.outside > 0
    assert (found.refused, found.loss, found.correct) == (1, 0.0, 0)
    after = opened(found.parameters, given.parameters)
    before = opened(shared(given.parameters), given.parameters)
    assert all(after.tensors[name].equal(before.tensors[name]) for name in before.tensors)


@pytest.mark.parametrize("sizes", [SIZES, PROBE])
def test_an_image_that_was_out_of_range_refuses_every_batch_that_takes_it(sizes: StepSizes) -> None:
    given = example(sizes)
    for flags in (1, 2**20):
        check_refused(given, run(given, fitted(sizes), flags=flags))


@pytest.mark.parametrize("sizes", [SIZES, PROBE])
def test_parameters_that_a_step_leads_out_of_range_are_not_taken(sizes: StepSizes) -> None:
    """The bound of the head's weight lies between its norm before the step and behind it."""
    tensors = example(sizes).parameters.tensors
    small = AdapterParameters(**{**tensors, "head_weight": tensors["head_weight"] * 0.01})
    given = replace(example(sizes), parameters=small)
    after = stepped(small, given.descent().gradient, RATE)
    norm = [each.head_weight.norm().item() for each in (small, after)]
    assert norm[1] > 2 * norm[0]
    scales = fitted(sizes, with_bound(BOUNDS, "weight", sum(norm) / 2))
    found = run(given, scales)
    check_refused(given, found)
    assert found.outside == 1


def test_nothing_is_multiplied_that_nobody_reads() -> None:
    """Of the first adapter the derivative by its input, of the last one what is not the class token."""
    asked = step_requests(SIZES, fitted(SIZES))
    first, last = (request for request in asked if isinstance(request, Products))
    assert len(first.products) == len(last.products) - 2
    every, token = (SIZES.images, SIZES.tokens, SIZES.width), (SIZES.images, 1, SIZES.width)
    # z, u and e.
    assert [[shape for shape in each.operands if shape in (every, token)] for each in (first, last)] == [
        [every, every, every],
        [every, every, token],
    ]


def test_of_equal_logits_the_first_is_the_largest_as_in_the_clear() -> None:
    """A head of zeros, with which learning begins, says that every image is of class 0."""
    given = example()
    zeros = {name: torch.zeros_like(given.parameters.tensors[name]) for name in ("head_weight", "head_bias")}
    labels = torch.tensor([0, 3, 1, 0])
    level = replace(given, parameters=AdapterParameters(**{**given.parameters.tensors, **zeros}), labels=labels)
    assert run(level, fitted(SIZES)).correct == level.descent().correct == 2


def test_steps_follow_each_other_on_shares() -> None:
    given, scales, steps = example(), fitted(SIZES), 3
    parameters, clear = shared(given.parameters), given.parameters
    for _ in range(steps):
        outcome = run(given, scales, parameters)
        assert outcome.outside == 0
        parameters = outcome.parameters
        clear = stepped(clear, descent(clear, given.norm, given.outputs, given.labels).gradient, RATE)
    found = opened(parameters, clear)
    for name, wanted in clear.tensors.items():
        moved = wanted - given.parameters.tensors[name]
        # A step is off by TOLERANCE, and where it begins by what the steps before it were off.
        assert (found.tensors[name] - wanted).norm() <= 2 * TOLERANCE * moved.norm(), name


def test_each_bound_is_checked() -> None:
    sizes = replace(SIZES, adapters=1)
    given = example(sizes)
    largest = norms(given.parameters, given.norm, given.outputs, given.labels)
    names = (*BOUNDS.parameters, "inputs", "channels", "tokens", "derivatives", "logits", "variances")
    # Bounds are compared with a resolution that is a small part of what is possible.
    within = BOUNDS
    for name in names:
        within = with_bound(within, name, largest[name] * 1.05)
    assert run(given, fitted(sizes, within)).outside == 0
    for name in names:
        check_refused(given, run(given, fitted(sizes, with_bound(BOUNDS, name, largest[name] * 0.9))))


@pytest.mark.parametrize(
    ("what", "factor"),
    [
        ("outputs", 4),
        ("outputs", 256),
        ("channel_up", 4),
        ("channel_up", 64),
        ("token_up", 16),
        ("token_up", 256),
        ("head_weight", 4),
        ("head_weight", 256),
    ],
)
def test_what_goes_round_in_a_lift_is_out_of_range(what: str, factor: int) -> None:
    """However far beyond: a value that a lift takes for another one is found by a check that cannot be wrapped."""
    given = example()
    if what == "outputs":
        # As far as the blocks of a model can reach, which inference checks.
        allowed = min(float(factor), 0.9 * 2.0**38 / BOUNDS.stream / given.outputs.abs().max().item())
        spoilt = replace(given, outputs=given.outputs * allowed)
    else:
        tensors = {**given.parameters.tensors, what: given.parameters.tensors[what] * factor}
        spoilt = replace(given, parameters=AdapterParameters(**tensors))
    check_refused(spoilt, run(spoilt, fitted(SIZES)))


@pytest.mark.parametrize("name", ["channel_down", "channel_up", "token_down", "token_up", "scale", "head_weight"])
def test_a_parameter_that_goes_round_where_it_is_used_is_out_of_range(name: str) -> None:
    """The lift of a parameter that is used has 21 bits: one that is 2^21 last bits larger looks the same there."""
    given = example()
    moved = given.parameters.tensors[name].clone()
    moved.flatten()[0] += 2.0 ** (USED - PARAMETER)
    spoilt = replace(given, parameters=AdapterParameters(**{**given.parameters.tensors, name: moved}))
    check_refused(spoilt, run(spoilt, fitted(SIZES)))


@pytest.mark.parametrize(
    ("bounds", "reason"),
    [
        (replace(BOUNDS, stream=3.0 * 2**26), "a power of two"),
        (replace(BOUNDS, stream=2.0**20), r"2\^22 at least"),
        (replace(BOUNDS, outputs=5000.0), "an output of a block can reach 5000"),
        (replace(BOUNDS, inputs=5000.0), "z can reach"),
        (replace(BOUNDS, channels=300.0), "can reach"),
        (replace(BOUNDS, tokens=2000.0), "can reach"),
        (replace(BOUNDS, derivatives=2000.0), "can reach"),
        (replace(BOUNDS, parameters={**BOUNDS.parameters, "weight": 9.0}), "an entry of weight can reach 9"),
        (replace(BOUNDS, variances=(1e-9, 20.0)), "can reach|too far apart|differ too much"),
        (replace(BOUNDS, logits=30.0), "waves|differ too much|fractional bits"),
    ],
)
def test_bounds_that_do_not_fit_are_refused_by_name(bounds: StepBounds, reason: str) -> None:
    with pytest.raises((BoundError, ValueError), match=reason):
        fitted(SIZES, bounds)


@pytest.mark.parametrize("rate", [0.0, 1e-9, -0.1, 20.0])
def test_learning_rates_that_cannot_be_told_are_refused(rate: float) -> None:
    with pytest.raises(ValueError, match=f"a learning rate of {rate:g} for batches of 16 images"):
        whole_rate(rate, 16)


def test_a_learning_rate_beyond_the_bounds_is_refused() -> None:
    with pytest.raises(ValueError, match=f"a learning rate of {RATE:g}: the bounds are for 0.01 at most"):
        run(example(), fitted(SIZES, replace(BOUNDS, rate=0.01)))


def test_the_learning_rate_of_the_paper_is_told_to_a_thousandth() -> None:
    assert abs(whole_rate(1e-3, 16) / 2.0**26 * 16 / 1e-3 - 1) < 1e-3


def test_what_is_opened_tells_nothing_of_labels_and_parameters() -> None:
    """All that is opened is under a mask: two runs on the same input open unrelated words, of every byte alike."""
    given, scales = example(), fitted(SIZES)
    words = [
        [
            (share + other) & ((1 << bits) - 1)
            for one, two in run(given, scales).pair.exchanges
            for (share, bits), (other, _) in zip(one.sent, two.sent, strict=True)
        ]
        for _ in range(2)
    ]
    equal = sum(int((one == two).sum()) for one, two in zip(*words, strict=True) if one.numel() > 1)
    total = sum(one.numel() for one in words[0])
    # Words have 16 bits at least, most of them 28 and more.
    assert equal <= total * 2.0**-10


def test_a_step_moves_every_parameter() -> None:
    """The test of gradients would be satisfied by zeros where the expected ones are zero."""
    assert all(bool((tensor != 0).any()) for tensor in example().descent().gradient.tensors.values())
    assert each(torch.zeros_like, example().parameters).count == SIZES.parameters
