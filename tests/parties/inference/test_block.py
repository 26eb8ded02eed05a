"""A whole block between two parties in one process, against the friendly block in float64; and blocks that no ring
holds, which are refused by name."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from typing import Any

import pytest
import timm
import torch

from tacit.models.friendly.calibration import calibrate
from tacit.models.friendly.transformer import STOCK, convert
from tacit.parties.inference.block import BlockProgram
from tacit.parties.inference.model import LEAST_WEIGHT_BITS, fitted_model, integer_model, integer_weights
from tacit.parties.inference.ring import signed
from tacit.parties.inference.scales import BoundError, stream_scale
from tacit.parties.inference.stages import encoded
from tacit.parties.inference.waves import FitError
from tacit.protocol.inference.schedule import PLACE, STREAM, block_rounds
from tests.parties.inference.conftest import MARGIN, Example, Transformer
from tests.parties.inference.in_memory import Pair, Pass, shares

RELATIVE_ERROR = 1e-3
"""What is promised for a block, of the norm of the output."""


def compute(example: Example) -> tuple[torch.Tensor, int, Pair]:
    """The output, how many values were out of range, and what was exchanged."""
    pair, scales = Pair(), example.scales
    weights = integer_weights(example.block, scales, example.fitted.balances[0], example.shape.tokens)
    layers = {name: pair.fixed(weight) for name, weight in weights.items()}
    programs = [
        BlockProgram(party, example.shape, scales, {name: both[party.rank] for name, both in layers.items()})
        for party in pair.parties
    ]
    parts = shares(encoded(example.x, scales.stream))
    results = pair.run(*(program.run(part) for program, part in zip(programs, parts, strict=True)))
    (one, counted), (other, more) = results
    return signed(one + other, STREAM).double() / scales.stream, int(counted + more) % (1 << PLACE), pair


def test_a_block_is_what_it_is_in_the_clear_and_costs_what_is_declared(example: Example) -> None:
    found, outside, pair = compute(example)
    assert outside == 0
    # What is shared is the stream less the mean of each token, which LayerNorm does not see.
    assert (found - example.expected).norm() / example.expected.norm() < RELATIVE_ERROR
    assert tuple(pair.log) == block_rounds(example.public.sizes, example.shape.images, 0)
    squarings = example.public.sizes.form(0).squarings
    assert len(pair.log) == 16 + (2 + 3 * squarings if squarings else 0)


@pytest.mark.exhaustive
def test_a_stock_block_of_vit_s_is_what_it_is_in_the_clear() -> None:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        stock = timm.create_model("vit_small_patch16_224", num_classes=10, depth=1).eval()
        images = torch.randn(2, 3, 224, 224)
    friendly = convert(stock, STOCK)
    calibrate(friendly, images, margin=MARGIN)
    fitted = fitted_model(friendly, images, margin=1.2)
    run = Pass(friendly, fitted, images[:1])
    with torch.no_grad():
        x = friendly.double().embed(friendly.patches(images[:1].double()))
        expected = friendly.blocks[0](x)
    for stage in run:
        if stage.name == "block 0":
            found = signed(run.shares[0] + run.shares[1], STREAM).double() / run.public.stream
            difference = found - (expected - expected.mean(-1, keepdim=True))
            assert difference.norm() / expected.norm() < RELATIVE_ERROR
    assert run.in_range()


def test_each_layer_norm_has_its_own_epsilon(one_block: Transformer) -> None:
    changed = deepcopy(one_block.friendly)
    changed.blocks[0].norm2.eps = 0.25
    scales = fitted_model(changed, one_block.images, margin=MARGIN).public.blocks[0]
    found = [norm.variance.inverse.offset for norm in (scales.first_norm, scales.second_norm)]
    assert found == [block.eps for block in (changed.blocks[0].norm1, changed.blocks[0].norm2)]
    assert found[0] != found[1]


def times(**factors: float) -> Callable[[Any], None]:
    def change(model: Any) -> None:
        for name, factor in factors.items():
            model.get_parameter(f"blocks.0.{name.replace('_', '.')}.weight").mul_(factor)

    return change


def large_values(model: Any) -> None:
    """Which a projection without weight keeps from the stream."""
    model.get_parameter("blocks.0.attn.qkv.bias")[32:] += 1e9
    model.get_parameter("blocks.0.attn.proj.weight").zero_()


REFUSED: dict[str, tuple[str, Callable[[Any], None], str]] = {
    "hidden values": ("one_block", times(mlp_fc1=1000, mlp_fc2=1e-6), "hidden values can reach .* 4 are needed"),
    "GELU": ("stock_block", times(mlp_fc1=1e2, mlp_fc2=1e-2), "GELU on .* waves of period"),
    "scores": ("one_block", times(attn_qkv=100), "exponential|sums of exp|queries"),
    "values": ("stock_block", large_values, "too large for 40 bits; train with smaller weights"),
    "stream": ("one_block", times(mlp_fc2=1e6), "a token of the residual stream can reach"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_model_without_a_bound_is_refused_by_the_name_of_the_place(request: pytest.FixtureRequest, case: str) -> None:
    kind, change, message = REFUSED[case]
    model: Transformer = request.getfixturevalue(kind)
    changed = deepcopy(model.friendly)
    with torch.no_grad():
        change(changed)
        calibrate(changed, model.images, margin=MARGIN)
    with pytest.raises((BoundError, FitError), match=message):
        fitted_model(changed, model.images, margin=MARGIN)


def test_a_stream_without_room_is_refused() -> None:
    assert stream_scale(1.0) == 2.0**31
    with pytest.raises(BoundError, match=r"a token of the residual stream can reach 1e\+07"):
        stream_scale(1e7)


def test_weights_that_are_too_large_too_coarse_or_not_finite_are_refused(one_block: Transformer) -> None:
    fitted = one_block.fitted

    def refused(change: Callable[[torch.Tensor], object], message: str) -> None:
        changed = deepcopy(one_block.friendly)
        with torch.no_grad():
            change(changed.get_parameter("blocks.0.mlp.fc1.weight"))
        with pytest.raises(ValueError, match=message):
            integer_model(changed, fitted.public, fitted.balances)

    def set_one(value: float) -> Callable[[torch.Tensor], object]:
        return lambda weight: weight[0].fill_(value).mul_(torch.arange(len(weight[0])))

    refused(set_one(1e6), "fc1: a weight of .* bits is too large; 26 fit")
    refused(set_one(float("nan")), "fc1 holds a value that is not finite")
    finest = integer_model(one_block.friendly, fitted.public, fitted.balances)["0.fc1"].words
    spread = finest.double().square().mean(0).sqrt().max().item()
    coarse = 2.0**LEAST_WEIGHT_BITS / spread
    refused(
        lambda weight: weight.mul_(coarse * 0.99), "fc1: weights of 31.* last bits .* are too coarse, 32 are needed"
    )
    refused(lambda weight: weight.mul_(1e-9), "too coarse")


def test_sizes_that_no_ring_holds_are_refused(one_block: Transformer) -> None:
    for sizes in ({"heads": 3}, {"images": 0}, {"tokens": 1025}, {"width": 4098}):
        with pytest.raises(ValueError, match=r"sizes are at least 1|at most 1024 tokens"):
            replace(one_block.public.shape(3), **sizes)
