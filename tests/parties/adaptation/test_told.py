"""Passes that tell outputs of blocks: what is told is what the model computes, in an order that nobody tells, at the
cost that is declared; and a step of what was told is that of the batch."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from scipy import stats

from tacit.models.adapters.gradients import descent, stepped
from tacit.models.adapters.parallel import AdapterParameters, FinalNorm
from tacit.models.configuration import ModelConfiguration
from tacit.parties.adaptation.enrolment import EnrolmentStage, enrolled_batches, most_enrolled
from tacit.parties.adaptation.shuffled import ShuffledRows, secret_order
from tacit.parties.adaptation.told_stages import Revealed, ToldBatch, ToldBlock, told_batch, told_stages
from tacit.parties.adaptation.told_step import told_step
from tacit.parties.inference.material import decoded_requests, encoded_requests
from tacit.parties.inference.operations import DATA, MODEL, Program
from tacit.parties.inference.stages import PassStage, input_share
from tacit.parties.inference.weights import integer_model
from tacit.protocol.adaptation.schedule import ROW, enrolment_rounds, told_rounds
from tacit.protocol.core.errors import RemoteProtocolError
from tacit.protocol.inference.schedule import PLACE, STREAM, Sizes

with pytest.MonkeyPatch.context() as patch:
    patch.syspath_prepend(Path(__file__).parent.parent / "inference")
    from conftest import NOISE, Transformer, transformer
    from in_memory import Pair, shares

BLOCKS = 4
BLOCK_ERROR = 1e-3
"""What is promised for a block, of the norm of its output."""
ALL = (True,) * BLOCKS
SAMPLES = [(False, True, False, True), (True, False, False, True), (False, False, False, True)]


@cache
def model() -> Transformer:
    sizes = ModelConfiguration(image_size=8, patch_size=4, width=16, depth=BLOCKS, heads=2)
    return transformer(sizes, classes=3, images=NOISE, std=0.4)


class Both:
    """Both owners, with the weights of the model."""

    def __init__(self) -> None:
        found = model()
        self.pair = Pair()
        weights = integer_model(found.friendly, found.public, found.fitted.balances)
        both = {name: self.pair.fixed(weight) for name, weight in weights.items()}
        self._layers = [{name: pair[rank] for name, pair in both.items()} for rank in (MODEL, DATA)]
        self._numbers = {name: number for number, name in enumerate(both)}

    def begun(self, pixels: torch.Tensor) -> list[Any]:
        """What they carry at the beginning, with the numbers of images in the place of labels."""
        labels, public = torch.arange(len(pixels)), model().public
        return [
            Revealed(input_share(public, len(pixels), None), labels=torch.zeros_like(labels)),
            Revealed(input_share(public, len(pixels), pixels), labels=labels),
        ]

    def play(self, stages: Sequence[PassStage], carried: list[Any]) -> list[Any]:
        """What they carry at the end; each asks for what it says, beforehand, that it will."""
        for stage in stages:
            before, images = len(self.pair.requests), len(carried[DATA].labels)
            runs = [
                stage.prepared(party, images, own) for party, own in zip(self.pair.parties, self._layers, strict=True)
            ]
            assert tuple(self.pair.requests[before:]) == stage.requests(images, self._numbers)
            carried = self.pair.run(*(run(part) for run, part in zip(runs, carried, strict=True)))
        return carried


class TellingPass:
    """Of both owners, played to its end."""

    def __init__(self, images: int, told: tuple[bool, ...]) -> None:
        both, public, self.pixels = Both(), model().public, model().images[:images]
        self.carried = both.play(told_stages(public, told), both.begun(self.pixels))
        self.pair, self.batch = both.pair, told_batch(self.carried[DATA], public, told)

    @property
    def outside(self) -> int:
        return int(sum(each.outside for each in self.carried)) % (1 << PLACE)


def centred(x: torch.Tensor) -> torch.Tensor:
    """As the residual stream on shares is."""
    return x - x.mean(-1, keepdim=True)


@pytest.mark.parametrize(("images", "told"), [(1, ALL), (2, ALL), (5, ALL), *((5, told) for told in SAMPLES)])
def test_what_is_told_is_what_the_model_computes_and_costs_what_is_declared(
    images: int, told: tuple[bool, ...]
) -> None:
    run, exact = TellingPass(images, told), model().exact()
    assert run.outside == 0
    assert tuple(run.pair.log) == told_rounds(model().public.sizes, images, told)
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


def test_batches_out_of_all_that_is_enrolled_are_in_an_order_that_the_model_owner_drew() -> None:
    both, public, told, exact = Both(), model().public, (False, False, False, True), model().exact()
    pixels = model().images[:5]
    carried = both.begun(pixels)
    for _ in range(2):  # The second time of shares that both have.
        del both.pair.log[:]
        carried = both.play([EnrolmentStage(public)], carried)
        assert tuple(both.pair.log) == enrolment_rounds(public.sizes, 5)
        rows, labels = (sum(getattr(each, name) for each in carried) for name in ("share", "labels"))
        order = labels % (1 << STREAM)
        assert order.sort().values.equal(torch.arange(5))
        difference = rows - input_share(public, 5, pixels[order])
        assert not (difference % (1 << STREAM)).any()
    batches = [enrolled_batches(each, 2) for each in carried]
    assert [len(batch.labels) for batch in batches[DATA]] == [2, 2, 1]
    seen = []
    for batch in zip(*batches, strict=True):
        *_, found = both.play(told_stages(public, told), list(batch))
        batch_told = told_batch(found, public, told)
        seen += batch_told.labels.tolist()
        x = exact.embed(exact.patches(pixels[batch_told.labels].double()))
        expected = centred(exact.blocks(x))
        # Each block may be off by BLOCK_ERROR, and the embedding by less than that.
        assert (batch_told.outputs[-1] - expected).norm() / expected.norm() < (BLOCKS + 1) * BLOCK_ERROR
    assert sorted(seen) == list(range(5))


def test_more_than_fits_into_one_order_is_refused() -> None:
    stage = EnrolmentStage(model().public)
    most = most_enrolled(model().public.sizes)
    assert most == (1 << 27) // 65
    for images in (1, most):
        assert decoded_requests(encoded_requests(stage.requests(images, {})))
    for images in (0, most + 1):
        with pytest.raises(ValueError, match=f"{images} images cannot be enrolled together, 1 to {most}"):
            stage.requests(images, {})
    for side, patch_size, expected in ((32, 8, 43_676), (224, 16, 891), (384, 16, 303)):
        sizes = Sizes(side=side, channels=3, patch=patch_size, width=768, heads=12, hidden=3072, blocks=12, classes=2)
        assert most_enrolled(sizes) == expected


def test_orders_are_those_by_which_one_output_follows_from_the_one_told_before() -> None:
    """Of blocks 0, 1 and 3 of four images."""
    outputs, orders = torch.randn(4, 4, 2, 3, dtype=torch.float64), [torch.randperm(4) for _ in range(3)]
    absolute = [orders[0], orders[0][orders[1]], orders[0][orders[1]][orders[2]]]
    given = torch.zeros_like(outputs)
    for block, order in zip((0, 1, 3), absolute, strict=True):
        given[block] = outputs[block, order]
    batch = ToldBatch(outputs=given, orders={1: orders[1], 3: orders[2]}, labels=absolute[-1])
    expected = outputs[:, absolute[-1]]
    expected[2] = 0
    assert batch.aligned.equal(expected)


def test_a_batch_in_groups_is_put_into_order_as_a_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tacit.parties.inference.stages.GROUP_WORDS", 1)
    run = TellingPass(3, ALL)
    assert run.outside == 0
    assert tuple(run.pair.log) == told_rounds(model().public.sizes, 3, ALL)
    assert run.batch.labels.sort().values.equal(torch.arange(3))


@pytest.mark.parametrize("told", [ALL, *SAMPLES])
def test_passes_have_as_many_stages_whatever_is_told_and_orders_can_be_sent(told: tuple[bool, ...]) -> None:
    public = model().public
    stages = told_stages(public, told)
    assert len(stages) == BLOCKS + 2
    numbers = {f"{index}.{name}": 0 for index in range(BLOCKS) for name in ("qkv", "proj", "fc1", "fc2")}
    for stage in stages:
        assert encoded_requests(stage.requests(2, numbers | {"embedding": 0}))


def test_what_was_told_is_in_no_text() -> None:
    run = TellingPass(1, ALL)
    for secret in (*run.carried, run.batch):
        assert "tensor" not in repr(secret)


def test_a_relative_order_that_is_none_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    tell = ToldBlock._told

    def lying(*given: Any) -> Program[Revealed]:
        *others, order = given
        return tell(*others, None if order is None else torch.zeros_like(order))

    monkeypatch.setattr(ToldBlock, "_told", lying)
    with pytest.raises(RemoteProtocolError, match="an order of 2 rows that does not have each of them once"):
        TellingPass(2, ALL)


def random_parameters(generator: torch.Generator) -> AdapterParameters:
    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64) / 4

    rank, tokens, width, classes = 2, 5, 16, 3
    return AdapterParameters(
        channel_down=normal(BLOCKS, rank, width),
        channel_up=normal(BLOCKS, width, rank),
        token_down=normal(BLOCKS, rank, tokens),
        token_up=normal(BLOCKS, tokens, rank),
        scale=1 + normal(BLOCKS),
        head_weight=normal(classes, width),
        head_bias=normal(classes),
    )


@pytest.mark.parametrize("told", [ALL, *SAMPLES])
def test_a_step_of_what_was_told_is_that_of_the_batch_in_its_own_order(told: tuple[bool, ...]) -> None:
    """In float64. A sum of up to 480 terms in another order is off by 480 2^-53 of the sum of their magnitudes at most,
    and that is below 2^4 here: means over the images of products of values around 1."""
    generator = torch.Generator().manual_seed(3)
    parameters = random_parameters(generator)
    norm = FinalNorm(weight=torch.ones(16).double(), bias=torch.zeros(16).double(), epsilon=1e-6)
    outputs = torch.randn(BLOCKS, 6, 5, 16, generator=generator, dtype=torch.float64)
    labels = torch.randint(3, (6,), generator=generator)
    given, order, orders = torch.zeros_like(outputs), torch.arange(6), {}
    for block in (index for index, tells in enumerate(told) if tells):
        step = secret_order(6)
        order = order[step]
        given[block] = outputs[block, order]
        orders[block] = step
    del orders[min(orders)]
    batch = ToldBatch(outputs=given, orders=orders, labels=labels[order])
    found, learned = told_step(parameters, norm, batch, rate=0.1)
    masked = outputs * torch.tensor(told)[:, None, None, None]
    expected = descent(parameters, norm, masked, labels)
    after = stepped(parameters, expected.gradient, 0.1)
    assert learned.correct == expected.correct
    assert abs(learned.loss - expected.loss) <= 2.0**-40
    for name, wanted in after.tensors.items():
        assert (found.tensors[name] - wanted).abs().max() <= 2.0**-40, name
    assert not (found.head_weight - parameters.head_weight).abs().max() <= 2.0**-20


def test_what_the_model_owner_is_told_is_uniform() -> None:
    """Of n fair bits, the mean is off by 7 of its standard deviations with a probability below 3e-12."""
    run = TellingPass(20, ALL)
    told = [other.sent for _, other in run.pair.exchanges if other.operation == "shuffle"]
    assert len(told) == BLOCKS
    for ((words, bits),) in told:
        ones = torch.stack([((words >> bit) & 1).double().mean() for bit in range(bits)])
        assert ((ones - 0.5).abs() * 2 * words.numel() ** 0.5).max() < 7
    assert not [one.sent for one, other in run.pair.exchanges if one.operation == "result" and other.sent]


def shuffled(order: Sequence[int], pair: Pair, rows: torch.Tensor) -> torch.Tensor:
    programs = [
        ShuffledRows(party, tuple(rows.shape), STREAM, torch.tensor(order) if party.rank == MODEL else None)
        for party in pair.parties
    ]
    found = pair.run(*(program.run(share) for program, share in zip(programs, shares(rows), strict=True)))
    return sum(found) % (1 << STREAM)  # type: ignore[no-any-return]


def test_every_order_is_taken_exactly() -> None:
    rows = torch.arange(12).reshape(4, 3) + (1 << (STREAM - 1))
    for order in itertools.permutations(range(4)):
        assert shuffled(order, Pair(), rows).equal(rows[list(order)])


def test_what_is_told_of_an_order_is_uniform_whatever_it_is() -> None:
    """Keys are fixed: this passes or fails for ever."""
    for order in ((0, 1, 2), (2, 0, 1)):
        counts = dict.fromkeys(itertools.permutations(range(3)), 0)
        for number in range(600):
            pair = Pair(keys=(number.to_bytes(32, "big"), bytes(32)))
            shuffled(order, pair, torch.zeros(3, 2, dtype=torch.int64))
            ((told, bits),) = pair.exchanges[0][0].sent
            assert bits == ROW
            counts[tuple(told.tolist())] += 1
        assert stats.chisquare(list(counts.values())).pvalue > 1e-4


def test_secret_orders_are_orders_and_differ() -> None:
    orders = [secret_order(20) for _ in range(3)]
    assert all(order.sort().values.equal(torch.arange(20)) for order in orders)
    # 20! orders: two are the same with a probability below 2^-60.
    assert not any(one.equal(other) for one, other in itertools.combinations(orders, 2))
