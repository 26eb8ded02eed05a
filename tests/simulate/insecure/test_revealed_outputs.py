"""Passes that reveal outputs of blocks: what the model computes, in a secret order, at the cost that is declared."""

from __future__ import annotations

import itertools
from functools import cache
from pathlib import Path

import pytest
import torch

from tacit.models.configuration import ModelConfiguration
from tacit.parties.inference.operations import DATA, MODEL
from tacit.protocol.inference.schedule import PLACE, STREAM
from tacit.simulate.insecure.revealed_outputs import (
    Revealed,
    RevealedBatch,
    SecretOrder,
    revealed_batch,
    revealed_blocks,
    revealed_rounds,
    revealed_stages,
)

with pytest.MonkeyPatch.context() as patch:
    patch.syspath_prepend(Path(__file__).parents[2] / "parties" / "adaptation")
    patch.syspath_prepend(Path(__file__).parents[2] / "parties" / "inference")
    from conftest import NOISE, Transformer, transformer
    from in_memory import Pair, shares
    from whole import WholePass

BLOCKS = 4
BLOCK_ERROR = 1e-3
"""What is promised for a block, of the norm of its output."""
ALL = (True,) * BLOCKS
SAMPLES = [(False, True, False, True), (False, False, False, True)]


@cache
def model() -> Transformer:
    sizes = ModelConfiguration(image_size=8, patch_size=4, width=16, depth=BLOCKS, heads=2)
    return transformer(sizes, classes=3, images=NOISE, std=0.4)


class TellingPass:
    def __init__(self, images: int, told: tuple[bool, ...]) -> None:
        public, self.pixels = model().public, model().images[:images]
        whole, labels = WholePass(model(), self.pixels), torch.arange(images)
        begun = [Revealed(share, labels=given) for share, given in zip(whole.begun, (0 * labels, labels), strict=True)]
        *_, self.carried = whole.run(revealed_stages(public, told), begun)
        self.pair, self.batch = whole.pair, revealed_batch(self.carried[DATA], public, told)

    @property
    def outside(self) -> int:
        return int(sum(each.outside for each in self.carried)) % (1 << PLACE)


def centred(x: torch.Tensor) -> torch.Tensor:
    return x - x.mean(-1, keepdim=True)


@pytest.mark.parametrize(("images", "told"), [(1, ALL), *((3, told) for told in SAMPLES)])
def test_what_is_told_is_what_the_model_computes_and_costs_what_is_declared(
    images: int, told: tuple[bool, ...]
) -> None:
    run, exact = TellingPass(images, told), model().exact()
    assert run.outside == 0
    assert tuple(run.pair.log) == revealed_rounds(model().public.sizes, images, told)
    assert not run.carried[MODEL].share.any()
    assert not run.carried[MODEL].outputs
    assert run.batch.labels.sort().values.equal(torch.arange(images))
    # Blocks behind an output that was told compute on what was told. Each may be off by BLOCK_ERROR, and passes on what
    # those before it are off; the embedding is off by less than a block is.
    x, allowed = centred(exact.embed(exact.patches(run.pixels.double())))[run.batch.labels], BLOCK_ERROR
    for index, tells in enumerate(told):
        x, allowed = centred(exact.blocks[index](x)), allowed + BLOCK_ERROR
        found = run.batch.aligned[index]
        if tells:
            assert (found - x).norm() / x.norm() < allowed
            x, allowed = found, 0.0
        else:
            assert not found.any()


def test_every_order_is_taken_exactly() -> None:
    rows = torch.arange(12).reshape(4, 3) + (1 << (STREAM - 1))
    for order in itertools.permutations(range(4)):
        pair, programs = Pair(), []
        for party, share in zip(pair.parties, shares(rows), strict=True):
            own = torch.tensor(order) if party.rank == MODEL else None
            programs.append(SecretOrder(party, own, 4, 3).run(share))
        assert (sum(pair.run(*programs)) % (1 << STREAM)).equal(rows[list(order)])


def test_orders_are_those_by_which_one_output_follows_from_the_one_told_before() -> None:
    outputs, orders = torch.randn(4, 4, 2, 3, dtype=torch.float64), [torch.randperm(4) for _ in range(3)]
    absolute = [orders[0], orders[0][orders[1]], orders[0][orders[1]][orders[2]]]
    given = torch.zeros_like(outputs)
    for block, order in zip((0, 1, 3), absolute, strict=True):
        given[block] = outputs[block, order]
    batch = RevealedBatch(
        blocks=(True, True, False, True), outputs=given, orders={1: orders[1], 3: orders[2]}, labels=absolute[-1]
    )
    expected = outputs[:, absolute[-1]]
    expected[2] = 0
    assert batch.aligned.equal(expected)


def test_a_batch_in_groups_is_put_into_order_as_a_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tacit.parties.inference.stages.GROUP_WORDS", 1)
    run = TellingPass(3, ALL)
    assert run.outside == 0
    assert tuple(run.pair.log) == revealed_rounds(model().public.sizes, 3, ALL)
    assert run.batch.labels.sort().values.equal(torch.arange(3))


def test_what_was_told_is_in_no_text() -> None:
    run = TellingPass(1, ALL)
    for secret in (*run.carried, run.batch):
        assert "tensor" not in repr(secret)


def test_a_sample_is_drawn_for_every_pass_and_has_the_last_block_and_no_neighbours() -> None:
    session = bytes(range(32))
    samples = [revealed_blocks("sampled", 12, session=session, number=number) for number in range(1, 101)]
    assert all(told[-1] and not any(one and other for one, other in itertools.pairwise(told)) for told in samples)
    # 89 samples have neither neighbours nor a gap in front: two passes of twelve blocks seldom have the same.
    assert len(set(samples)) > 30
    assert revealed_blocks("sampled", 12, session=bytes(32), number=1) != samples[0]
