"""Right or refused: every bound of a fitted model, crossed by itself and by whole passes; and what the bit tells."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch

from tacit.models.friendly.calibration import folded
from tacit.models.friendly.polynomials import Gauge
from tacit.models.friendly.transformer import Block, with_parameters
from tacit.parties.inference.material import Lookup
from tacit.parties.inference.model import FittedModel, fitted_model
from tacit.parties.inference.operations import DATA, Party, Program
from tacit.parties.inference.ranking import logits
from tacit.parties.inference.stages import COUNTED, in_range
from tacit.parties.inference.tables import CheckedSum, LookedUp, SteppedInverse, Table
from tacit.protocol.inference.schedule import LOGITS, PLACE, RANGE, WORD_BITS

with pytest.MonkeyPatch.context() as patch:
    patch.syspath_prepend(Path(__file__).parent)
    from conftest import Transformer
    from in_memory import Pair, Pass, shares

MODELS = ["one_block", "squared_block"]
"""With polynomials; with the functions themselves and a softmax that squares, which have every place."""
TOLERANCE = 3e-3
"""Of logits, relative: a block, and both ends."""


@pytest.fixture(params=MODELS)
def model(request: pytest.FixtureRequest) -> Transformer:
    found: Transformer = request.getfixturevalue(request.param)
    return found


def places(fitted: FittedModel) -> Iterator[tuple[str, CheckedSum]]:
    (scales,), head = fitted.public.blocks, fitted.public.head
    yield "first variance", scales.first_norm.variance
    yield "second variance", scales.second_norm.variance
    yield "final variance", head.norm.variance
    yield "queries", scales.queries
    yield "keys", scales.keys
    yield "sums of exponentials", scales.totals
    yield "hidden values", scales.hidden_spread
    for number, division in enumerate(scales.divisions):
        yield f"sums before division {number}", division.sums


def counted(values: list[int], place: CheckedSum) -> int:
    """How many of values modulo 2^PLACE are found out of range."""
    shape, pair = (len(values),), Pair()
    looked_up = isinstance(place, Table | SteppedInverse)
    request = place.request(shape) if looked_up else Lookup(shape, levels=place.levels)

    def act(party: Party, share: torch.Tensor) -> Program[torch.Tensor]:
        lookup = LookedUp(party, request)
        (opened,) = yield from party.open("place", lookup.masked(share))
        if not isinstance(place, SteppedInverse):
            return lookup.settle(opened, place.limits)
        lookup.place(opened)
        return lookup.stepped(place)[1]

    parts = shares(torch.tensor(values, dtype=torch.int64))
    one, other = pair.run(*(act(party, part) for party, part in zip(pair.parties, parts, strict=True)))
    return int(one + other) % (1 << PLACE)


def test_a_value_beyond_a_bound_by_any_power_of_two_is_found_out_of_range(model: Transformer) -> None:
    for name, place in places(model.fitted):
        unit = 1 << (PLACE - place.levels)
        low, high = place.low * unit, place.high * unit
        steps = {step for power in range(PLACE) for step in ((1 << power) - 1, 1 << power, (1 << power) + 1)}
        above = [high + step for step in sorted(steps) if high + step < 1 << PLACE]
        below = [low - 1 - step for step in sorted(steps) if low - 1 - step >= 0]
        # A value may seem to be one unit more than it is.
        within = [low + unit + step for step in sorted(steps) if low + unit + step < high - unit]
        within += [high - unit - 1 - step for step in sorted(steps) if high - unit - 1 - step >= low + unit]
        if not place.low:
            within.append(0)
        assert within, name
        # None can make up for another: each counts as one or as nothing.
        assert counted(above + below, place) == len(above + below), name
        assert counted(within, place) == 0, name
        # A bound that is not above what is possible leaves room for a value beyond it.
        assert above or place.high == 1 << place.levels, name


def crossing(model: Transformer, place: str, high: bool) -> FittedModel:
    """The same public model, its range at this place so narrow that typical images are beyond exactly this bound."""
    public = model.public
    (scales,), head = public.blocks, public.head

    def narrowed(found: Any) -> Any:
        limits = {"high": found.low + 1} if high else {"low": found.high - 1}
        return msgspec.structs.replace(found, **limits)

    if place == "final variance":
        norm = msgspec.structs.replace(head.norm, variance=narrowed(head.norm.variance))
        public = msgspec.structs.replace(public, head=msgspec.structs.replace(head, norm=norm))
    else:
        name, _, part = {
            "first variance": "first_norm.variance",
            "second variance": "second_norm.variance",
            "sums of exponentials": "totals",
            "hidden values": "hidden_spread",
        }.get(place, place).partition(".")
        if place.startswith("sums before division"):
            name, divisions = "divisions", list(scales.divisions)
            number = int(place.split()[-1])
            divisions[number] = msgspec.structs.replace(divisions[number], sums=narrowed(divisions[number].sums))
            made: Any = tuple(divisions)
        else:
            found = getattr(scales, name)
            made = msgspec.structs.replace(found, **{part: narrowed(getattr(found, part))}) if part else narrowed(found)
        public = msgspec.structs.replace(public, blocks=(msgspec.structs.replace(scales, **{name: made}),))
    return FittedModel(public, model.fitted.balances)


PLACES = [
    "first variance",
    "second variance",
    "final variance",
    "queries",
    "keys",
    "sums of exponentials",
    "hidden values",
]


def test_each_place_by_itself_has_a_pass_refused(model: Transformer) -> None:
    found = dict(places(model.fitted))
    divisions = len(model.public.blocks[0].divisions)
    assert list(found) == [*PLACES, *(f"sums before division {number}" for number in range(divisions))]
    for place, checked in found.items():
        for high in (True, False) if checked.low else (True,):
            run = Pass(model.friendly, crossing(model, place, high), model.images[:1])
            assert not run.finish()
            assert run.opened() == 1 << (WORD_BITS - PLACE), (place, high)


def scaled_inputs(model: Transformer) -> Iterator[torch.Tensor]:
    """Images within the permitted pixels, from none to the largest possible."""
    largest = model.public.embedding.largest * 0.999
    image = model.images[0] / model.images[0].abs().max() * largest
    for power in (0, 1, 3, 6):
        yield image * 2.0**-power
    side = torch.arange(model.public.sizes.side)
    yield ((-1.0) ** (side[:, None] + side) * largest)[None]
    yield -torch.full_like(image, largest)
    yield image.sign() * largest


def test_whatever_the_image_the_answer_is_right_or_none(model: Transformer) -> None:
    refused, images = 0, list(scaled_inputs(model))
    for image in images:
        run = Pass(model.friendly, model.fitted, image[None])
        if not run.finish():
            refused += 1
            continue
        expected = true_logits(model, image)
        found = logits(run.shares[DATA], LOGITS)
        assert (found - expected).norm() / expected.norm() < TOLERANCE
    assert 0 < refused < len(images)


def true_logits(model: Transformer, image: torch.Tensor) -> torch.Tensor:
    """Whatever the gauges say: on shares other bounds refuse an image."""
    exact = model.exact()
    for part in exact.modules():
        if isinstance(part, Gauge):
            part._measured = lambda values: None  # type: ignore[method-assign, assignment, return-value]
    with torch.no_grad():
        found: torch.Tensor = exact(image[None].double())
    return found


@pytest.mark.parametrize("part", ["class token of norm 1,000", "class token of norm 10,000", "stream of 50,000"])
def test_large_tokens_are_served(stock_block: Transformer, part: str) -> None:
    stock, friendly = stock_block, copy.deepcopy(stock_block.friendly)
    with torch.no_grad():
        if part.startswith("class token"):
            friendly.cls_token.mul_(float(part.split()[-1].replace(",", "")) / friendly.cls_token.norm())
        else:
            (block,) = friendly.blocks
            assert isinstance(block, Block)
            last = block.mlp.fc2
            exact = with_parameters(friendly, lambda name, tensor: tensor.double())
            stream = exact.blocks[0](exact.embed(exact.patches(stock.images.double())))
            for tensor in last.parameters():
                tensor.mul_(50_000 / stream.norm(dim=-1).max().item())
    model = Transformer(friendly, fitted_model(friendly, stock.images, margin=1.5), stock.images)
    for image in stock.images[:2]:
        run, expected = Pass(friendly, model.fitted, image[None]), true_logits(model, image)
        assert run.finish()
        found = logits(run.shares[DATA], LOGITS)
        assert (found - expected).norm() / expected.norm() < TOLERANCE


def test_a_checkerboard_gets_the_right_labels_or_none_in_every_session(model: Transformer) -> None:
    side = torch.arange(model.public.sizes.side)
    board = ((-1.0) ** (side[:, None] + side) * model.public.embedding.largest * 0.999)[None]
    verdicts = set()
    for _ in range(4):
        run = Pass(model.friendly, model.fitted, board[None])
        verdicts.add(run.finish())
        if run.in_range():
            expected = true_logits(model, board)
            assert logits(run.shares[DATA], LOGITS).argmax().equal(expected.argmax())
    # Far from every bound, so that chance has no say.
    assert len(verdicts) == 1


@pytest.mark.parametrize("count", [0, 1, 2, 3, 255, 256, 1 << 16, (1 << 31) - 1, 1 << 31, (1 << 32) - 1])
def test_of_a_count_one_bit_is_opened(count: int) -> None:
    pair = Pair()
    parts = shares(torch.tensor(count))

    def act(party: Party, share: torch.Tensor) -> Program[None]:
        yield from in_range(party, share, LookedUp(party, COUNTED))

    pair.run(*(act(party, part) for party, part in zip(pair.parties, parts, strict=True)))
    ((one, other),) = (words for words in pair.exchanges if words[0].operation == RANGE)
    opened = int(one.sent[0][0] + other.sent[0][0]) % (1 << WORD_BITS)
    assert opened == ((1 << (WORD_BITS - PLACE)) if count else 0)


def test_two_images_out_of_range_open_the_same_as_one(one_block: Transformer) -> None:
    beyond = torch.full_like(one_block.images[:1], one_block.public.embedding.largest * 0.999)
    for parts in ([beyond], [beyond, beyond], [one_block.images[:2], beyond], [beyond, beyond, beyond]):
        run = Pass(one_block.friendly, one_block.fitted, torch.cat(parts))
        assert not run.finish()
        assert run.opened() == 1 << (WORD_BITS - PLACE)


def aligned_images(model: Transformer) -> Iterator[torch.Tensor]:
    """Whose tokens lie along rows of the weights behind a LayerNorm, where Cauchy-Schwarz is attained, or nearly."""
    exact, size = model.exact(), model.public.sizes
    block: Any = exact.blocks[0]
    projection: Any = exact.patch_embed.proj
    inverse = torch.linalg.pinv(projection.weight.flatten(1))
    value = folded(block.norm1, block.attn.qkv)[0][47]
    hidden = folded(block.norm2, block.mlp.fc1)[0][0]
    for row in (value, hidden):
        for sign in (1, -1):
            patch = inverse @ (sign * row / row.norm())
            patch = patch / patch.abs().max() * model.public.embedding.largest * 0.999
            tiles = patch.reshape(size.channels, size.patch, size.patch)
            yield tiles.repeat(1, size.side // size.patch, size.side // size.patch).float() * 0.4


def test_tokens_along_rows_of_weights_get_the_right_answer_or_none(model: Transformer) -> None:
    """What is not checked has a bound that they come close to: hidden values, values, the stream."""
    for image in aligned_images(model):
        run = Pass(model.friendly, model.fitted, image[None])
        if run.finish():
            expected = true_logits(model, image)
            assert (logits(run.shares[DATA], LOGITS) - expected).norm() / expected.norm() < TOLERANCE
