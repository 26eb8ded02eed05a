"""Whole transformers between two parties in one process, stage after stage, against the same functions in float64."""

from __future__ import annotations

from functools import partial
from typing import Any

import msgspec
import pytest
import torch

from tacit.parties.inference.material import Narrow
from tacit.parties.inference.model import PublicModel
from tacit.parties.inference.operations import DATA, MODEL
from tacit.parties.inference.ranking import logits
from tacit.parties.inference.ring import signed
from tacit.parties.inference.stages import input_share, stages
from tacit.protocol.inference.schedule import LOGITS, STREAM, block_rounds, embedding_rounds, head_rounds, pass_rounds
from tests.parties.inference.conftest import Transformer
from tests.parties.inference.in_memory import Pair, Pass

IMAGES = 3
DECLARED = {"embedding": embedding_rounds, "head": head_rounds}
"""The rounds of stages by their names; all others are blocks."""
BLOCK_ERROR = 1e-3
"""What is promised for a block, of the norm of its output."""
MODELS = ["one_block", "stock_block", "squared_block", "student", "stock"]
CASES = [
    ("one_block", True), ("one_block", False), ("stock_block", False), ("squared_block", True), ("student", True),
    ("stock", False),
]  # fmt: skip
"""A model, and whether images go in groups."""


@pytest.fixture(params=MODELS)
def model(request: pytest.FixtureRequest) -> Transformer:
    found: Transformer = request.getfixturevalue(request.param)
    return found


@pytest.fixture(params=CASES, ids=str)
def grouped(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Transformer:
    """In groups are two images together, and the third one alone."""
    name, in_groups = request.param
    model: Transformer = request.getfixturevalue(name)
    sizes = model.public.sizes
    if in_groups:
        one = sizes.tokens * max(sizes.heads * sizes.tokens, sizes.hidden)
        monkeypatch.setattr("tacit.parties.inference.stages.GROUP_WORDS", 3 * one - 1)
    return model


def centred(x: torch.Tensor) -> torch.Tensor:
    return x - x.mean(-1, keepdim=True)


DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"))]


@pytest.mark.parametrize("device", DEVICES)
def test_logits_are_those_of_the_model_in_the_clear(grouped: Transformer, device: str) -> None:
    model = grouped
    run = Pass(model.friendly, model.fitted, model.images[:IMAGES], device=device)
    names = [stage.name for stage in run]
    assert names == ["embedding", *(f"block {index}" for index in range(model.public.sizes.blocks)), "head"]
    expected = model.exact()(run.pixels.double())
    found = logits(run.shares[DATA], LOGITS)
    assert run.in_range()
    # Each block may be off by BLOCK_ERROR, and the next layers pass that on; both ends together are no worse than one
    # more block (their own errors are bounded below).
    assert (found - expected).norm() / expected.norm() < BLOCK_ERROR * (model.public.sizes.blocks + 1)
    assert found.argmax(-1).equal(expected.argmax(-1))
    assert not run.shares[MODEL].any()


def test_material_and_rounds_are_what_is_said_beforehand(grouped: Transformer) -> None:
    model = grouped
    run = Pass(model.friendly, model.fitted, model.images[:IMAGES])
    rounds = []
    numbers = {name: number for number, name in enumerate(run.layers[DATA])}
    assert [name for stage in run.stages for name in stage.layers] == list(numbers)
    for stage in run:
        assert tuple(run.pair.requests[len(numbers) :]) == stage.requests(IMAGES, numbers)
        declared = DECLARED.get(stage.name) or partial(block_rounds, block=int(stage.name.removeprefix("block ")))
        assert tuple(run.pair.log) == declared(model.public.sizes, IMAGES)
        rounds += run.pair.log
        del run.pair.requests[len(numbers) :], run.pair.log[:]
        run.pair.taken = [len(numbers)] * 2
    assert tuple(rounds) == pass_rounds(model.public.sizes, IMAGES)


def test_each_stage_is_that_of_the_model_for_what_went_into_it(model: Transformer) -> None:
    """Not only the end: errors cannot make up for each other, and the embedding has a bound of its own."""
    run, exact = Pass(model.friendly, model.fitted, model.images[:IMAGES]), model.exact()
    scales = model.public
    rows = exact.patches(run.pixels.double())
    x = torch.empty(0)
    for stage in run:
        if stage.name == "embedding":
            weight = exact.patch_embed.proj.weight.flatten(1)
            weight = weight - weight.mean(0, keepdim=True)
            # Pixels, weights, offsets and the stream are each off by half of a last bit.
            error = rows.abs().sum(-1, keepdim=True) * scales.embedding.pixel / scales.stream
            error = (error + weight.abs().sum(-1) / scales.embedding.pixel + 2 / scales.stream) / 2
            x = signed(sum(run.shares), STREAM).double() / scales.stream
            # Products of both errors are smaller by a factor of a last bit.
            difference = x - centred(exact.embed(rows))
            assert (difference.abs() <= error * (1 + 2.0**-6)).all()
            # 30 bits for both factors, shared out evenly: each is off by 2^-15 of itself, or little more.
            assert difference.norm() / x.norm() < 2.0**-12
        elif stage.name == "head":
            found, expected = logits(run.shares[DATA], LOGITS), exact.classify(x)
            assert (found - expected).norm() / expected.norm() < BLOCK_ERROR
            assert not run.shares[MODEL].any()
        else:
            expected = exact.blocks[int(stage.name.removeprefix("block "))](x)
            x = signed(sum(run.shares), STREAM).double() / scales.stream
            assert (x - centred(expected)).norm() / expected.norm() < BLOCK_ERROR


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda pixels: pixels[:2], r"images of shape \(2, 1, 8, 8\) were given; the model takes \(3, 1, 8, 8\)"),
        (lambda pixels: pixels.mT[..., :4], r"the model takes \(3, 1, 8, 8\)"),
        (lambda pixels: pixels.abs() * 100, "an image reaches .*, the model takes pixels up to"),
        (lambda pixels: pixels.abs() * -100, "an image reaches .*, the model takes pixels up to"),
        (lambda pixels: pixels * torch.nan, "an image reaches nan"),
        (lambda pixels: pixels.index_fill(3, torch.tensor([1]), torch.inf), "an image reaches inf"),
    ],
)
def test_images_that_the_model_does_not_take_are_refused(one_block: Transformer, change: Any, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        input_share(one_block.public, IMAGES, change(one_block.images[:IMAGES]))


def test_a_large_model_is_computed_image_by_image_and_a_small_one_in_one_go(one_block: Transformer) -> None:
    plain = msgspec.to_builtins(one_block.public)

    def sized(**sizes: int) -> PublicModel:
        return msgspec.convert(plain | {"sizes": plain["sizes"] | {"side": 224, "patch": 16} | sizes}, PublicModel)

    many_scores, wide = sized(width=384, heads=6, hidden=1), sized(width=384, heads=1, hidden=1536)
    for public, groups in ((many_scores, 5), (wide, 5), (one_block.public, 1)):
        for stage in stages(public):
            numbers = dict.fromkeys(stage.layers, 0)
            counted = stage.name == "head"  # One count for all images.
            assert len(stage.requests(5, numbers)) - counted == groups * (len(stage.requests(1, numbers)) - counted)


def test_a_program_gets_only_what_was_made_ready_for_it() -> None:
    pair = Pair()
    party = pair.parties[MODEL].supplied([Narrow((3,), 16, 1)])
    with pytest.raises(RuntimeError, match=r"the program asks for Narrow\(shape=\(4,\).* is for Narrow\(shape=\(3,\)"):
        party.take(Narrow((4,), 16, 1))
    with pytest.raises(RuntimeError, match="is for None"):
        party.take(Narrow((3,), 16, 1))


def test_what_owners_tell_each_other_is_uniform(student: Transformer) -> None:
    """Whatever the images and the weights are: here images are black, so that shares without a mask would be seen.

    Of n fair bits, n above 1,000, the mean is off by 7 of its standard deviations with a probability below 3e-12; here
    are some ten thousand of such means.
    """
    run = Pass(student.friendly, student.fitted, student.images[:IMAGES])
    run.shares[DATA] = input_share(run.public, IMAGES, torch.zeros_like(run.pixels))
    assert [stage.name for stage in run][-1] == "head"
    compared = 0
    for one, other in run.pair.exchanges:
        if one.operation == "result":
            continue  # What the data owner shall learn.
        opened = [
            (first + second, bits)
            for first, bits in one.sent
            for second, width in other.sent
            if (first.shape, bits) == (second.shape, width)
        ]
        for words, bits in (*one.sent, *other.sent, *opened):
            if words.numel() < 1000:
                continue
            ones = torch.stack([((words >> bit) & 1).double().mean() for bit in range(bits)])
            assert ((ones - 0.5).abs() * 2 * words.numel() ** 0.5).max() < 7, one.operation
            compared += bits
    assert compared > 1500
