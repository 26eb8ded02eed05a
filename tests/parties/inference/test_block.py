"""A whole block between two parties in one process, against the friendly block in float64."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from tacit.models.friendly.blocks import Approximation, Block, LayerNorm
from tacit.parties.inference.block import BlockProgram
from tacit.parties.inference.layer_norm import normalised
from tacit.parties.inference.model import block_scales
from tacit.parties.inference.operations import DATA, MODEL
from tacit.parties.inference.ring import signed
from tacit.parties.inference.scales import NORMALISED_SCALE, BoundError, encoded, fitted, measured, stream_scale
from tacit.parties.inference.weights import integer_weights
from tacit.protocol.inference.schedule import FACTOR, block_rounds

with pytest.MonkeyPatch.context() as patch:
    patch.syspath_prepend(Path(__file__).parent)
    from conftest import Example
    from in_memory import Pair, shares

RELATIVE_ERROR = 2e-3
"""What is promised for a block, of the norm of the output."""


def compute(example: Example, *, known: bool) -> tuple[torch.Tensor, Pair]:
    pair = Pair()
    layers = {name: pair.fixed(weight) for name, weight in integer_weights(example.block, example.scales).items()}
    programs = [
        BlockProgram(party, example.shape, example.scales, {name: both[party.rank] for name, both in layers.items()})
        for party in pair.parties
    ]
    if known:
        known_by = example.x, normalised(example.x, example.scales.first_norm.curve)
        given = [
            encoded(x, scale) for x, scale in zip(known_by, (example.scales.stream, NORMALISED_SCALE), strict=True)
        ]
        nothing = [torch.zeros_like(words) for words in given]
        results = pair.run(programs[MODEL].run(*nothing), programs[DATA].run(*given))
    else:
        parts = shares(encoded(example.x, example.scales.stream))
        results = pair.run(*(program.run(part) for program, part in zip(programs, parts, strict=True)))
    return signed(results[MODEL] + results[DATA], FACTOR).double() / example.scales.stream, pair


@pytest.mark.parametrize("known", [True, False])
def test_a_block_is_what_it_is_in_the_clear_and_costs_what_is_declared(example: Example, known: bool) -> None:
    found, pair = compute(example, known=known)
    assert (found - example.expected).norm() / example.expected.norm() < RELATIVE_ERROR
    rounds = block_rounds(example.public.sizes, example.shape.images, known=known)
    # The last one of a known block tells the data owner the output, which is not the program's.
    assert tuple(pair.log) == (rounds[:-1] if known else rounds)
    assert len(pair.log) == (15 if known else 19)


def test_the_first_layer_norm_in_the_clear_is_that_of_the_block(example: Example) -> None:
    norm = example.block.norm1
    expected = (norm(example.x) - norm.bias) / norm.weight
    assert torch.allclose(normalised(example.x, example.scales.first_norm.curve), expected.double(), atol=1e-6)


def test_each_layer_norm_has_its_own_epsilon(example: Example) -> None:
    bounds, stream = example.bounds, example.scales.stream
    scales = fitted(example.shape, bounds, scale=0.3, degree=6, steps=7, epsilons=(1e-6, 1e-3), stream=stream)
    assert (scales.first_norm.curve.offset, scales.second_norm.curve.offset) == (1e-6, 1e-3)
    block = deepcopy(example.block)
    block.norm2.eps = 0.25
    for norm, lookup in ((block.norm1, "first_norm"), (block.norm2, "second_norm")):
        made = getattr(block_scales(block, example.shape, bounds, stream), lookup)
        assert made.curve.offset == norm.eps


def test_values_beyond_the_rings_are_refused_by_name(example: Example) -> None:
    def fit(**changes: float) -> None:
        bounds, stream = replace(example.bounds, **changes), example.scales.stream
        fitted(example.shape, bounds, scale=0.3, degree=6, steps=7, epsilons=(1e-6, 1e-6), stream=stream)

    fit()
    with pytest.raises(BoundError, match="scores up to 30 are too large for an exponential of degree 6"):
        fit(score=30.0)
    with pytest.raises(BoundError, match="scores up to 1000 are too large for an exponential of degree 6"):
        fit(score=1000.0)
    with pytest.raises(BoundError, match="hidden values up to 5000 leave 1 fractional bits; 4 are needed"):
        fit(hidden=5000.0)
    with pytest.raises(BoundError, match=r"values up to 1e\+09 and sums up to .* have products too large"):
        fit(value=1e9)
    with pytest.raises(BoundError, match=r"the residual stream reaches 1e\+11"):
        stream_scale(example.shape, replace(example.bounds, stream=1e11))
    for sizes in ({"heads": 3}, {"images": 0}, {"tokens": 1025}):
        with pytest.raises(ValueError, match=r"sizes are at least 1|at most 1024 tokens"):
            replace(example.shape, **sizes)


def test_weights_that_are_too_large_or_not_finite_are_refused(example: Example) -> None:
    for value, message in ((1e6, "fc1: a weight of .* bits is too large"), (float("nan"), "fc1 holds a value")):
        weight = example.block.mlp.fc1.weight.data
        before = weight[0, 0].item()
        weight[0, 0] = value
        try:
            with pytest.raises(ValueError, match=message):
                integer_weights(example.block, example.scales)
        finally:
            weight[0, 0] = before


def test_bounds_need_a_calibrated_block_of_polynomials(example: Example) -> None:
    with pytest.raises(ValueError, match="bounds need a margin of at least 1"):
        measured(example.block, example.x, margin=0.5)
    block = Block(
        LayerNorm(torch.nn.LayerNorm(16), Approximation()), example.block.attn, example.block.norm2, example.block.mlp
    )
    with pytest.raises(ValueError, match="a calibrated block of polynomials alone"):
        measured(block, example.x, margin=2.0)
    with pytest.raises(ValueError, match="not finite"):
        measured(example.block, torch.full_like(example.x, torch.inf), margin=2.0)
