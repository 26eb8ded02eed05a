"""Range checks: hidden values, sums of squared softmaxes, and whatever else must stay in its proven range."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator
from typing import Any, Final

import msgspec
import pytest
import torch

from tacit.models.friendly.calibration import folded
from tacit.models.friendly.polynomials import Gauge, Interval
from tacit.models.friendly.transformer import Block, with_parameters
from tacit.parties.inference.hidden import fitted_hidden, spread_ring, spread_slack, spread_wave
from tacit.parties.inference.material import Lookup
from tacit.parties.inference.model import FittedModel, fitted_model
from tacit.parties.inference.operations import DATA, MODEL, Party, Program, WaveValue
from tacit.parties.inference.ranking import logits
from tacit.parties.inference.ring import SPARE, shifted, signed
from tacit.parties.inference.scores import (
    LAST_BITS,
    SHARE_BITS,
    SQUARE_BITS,
    Bounds,
    Functions,
    SquaredSoftmax,
    VarianceBounds,
    fitted_divisions,
)
from tacit.parties.inference.stages import COUNTED, in_range
from tacit.parties.inference.tables import CheckedSum, LookedUp, SteppedInverse, Table, fitted_steps, step_ratios
from tacit.parties.inference.waves import Wave, factors, rounded_waves
from tacit.protocol.inference.schedule import (
    COARSE,
    LARGEST_TOKENS,
    LOGITS,
    MOST_SQUARINGS,
    PLACE,
    RANGE,
    SHARES,
    STREAM,
    WORD_BITS,
)
from tests.parties.inference.conftest import Transformer
from tests.parties.inference.in_memory import Pair, Pass, shares

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


FUNCTIONS: Final = Functions(scale=1.0, degree=None, inverse_steps=None, quadratic=False, epsilons=(1e-6, 1e-6))
VARIANCE: Final = VarianceBounds(Interval(0.1, 1.0), 1)
DEVIATIONS: Final = 6
"""Of a sum that slack is for: fewer than one in 10^9 normal values are further below their mean."""


@pytest.mark.parametrize("ceiling", [0.05, 1.0, 16.0])
def test_rounding_does_not_make_a_sum_of_small_hidden_values_negative(ceiling: float) -> None:
    """However little GELU itself needs of the words that both share. At every place that a mask can have."""
    bounds = Bounds(first_variance=VARIANCE, second_variance=VARIANCE, vectors=1.0, total=10.0, hidden=0.01 * ceiling)
    found = fitted_hidden(FUNCTIONS, bounds, ceiling, width=64, activated=13)
    assert found.gelu is not None
    wave = spread_wave(found.gelu, found.opened, 64)
    # Of a hidden value of zero what is opened is the mask; SPREAD itself is zero there.
    words = rounded_waves(len(wave.cosines), wave.words, torch.device("cpu"))
    values = torch.full((1 << 16,), wave.constant << wave.words)
    for factor, word in zip(factors(wave, torch.device("cpu")), words, strict=True):
        values += factor * word
    values = values / 2.0**wave.bits
    for width in (16, 64, 3072):
        most_negative = width * values.mean().item() - DEVIATIONS * math.sqrt(width) * values.std().item()
        assert spread_slack(width, found.opened) + most_negative >= 0


@pytest.mark.parametrize(("norm", "ceiling"), [(4.0, 20.0), (4.0, 200.0)])
def test_a_value_beyond_its_range_is_found_at_any_multiple_of_either_period(norm: float, ceiling: float) -> None:
    """One value of a token, up to all that is possible, also near whole periods, where the approximation is right."""
    width, shape = 32, (1, 32)
    bounds = Bounds(first_variance=VARIANCE, second_variance=VARIANCE, vectors=1.0, total=10.0, hidden=norm)
    found = fitted_hidden(FUNCTIONS, bounds, ceiling, width=width, activated=13)
    assert found.gelu is not None
    assert found.opened > COARSE
    ring, wave = spread_ring(found.opened), spread_wave(found.gelu, found.opened, width)
    period = 2.0**COARSE / found.scale

    def outside(value: float) -> int:
        values = torch.zeros(shape, dtype=torch.int64)
        values[0, 0] = round(value * found.scale)
        pair = Pair()

        def act(party: Party, share: torch.Tensor) -> Program[torch.Tensor]:
            assert found.gelu is not None
            opening = WaveValue(party, shape, found.gelu, STREAM, bits=found.opened, check=wave)
            lookup = LookedUp(party, Lookup((1,), levels=found.spread.levels))
            opening.settle(*(yield from party.open("gelu", opening.masked(share))))
            spread = opening.checked().sum(-1)
            if party.rank == MODEL:
                spread += round(spread_slack(width, found.opened) * 2.0**wave.bits)
            place = shifted(spread * found.spread.factor, ring, ring - PLACE)
            return lookup.settle(*(yield from party.open("fc2", lookup.masked(place))), found.spread.limits)

        parts = zip(pair.parties, shares(values), strict=True)
        one, other = pair.run(*(act(party, part) for party, part in parts))
        return int(one + other) % (1 << PLACE)

    for value in (0.0, norm * 0.99, -norm * 0.99):
        assert outside(value) == 0, value
    largest = ceiling / SPARE
    places = [
        sign * (times * period / 2 + shift)
        for times in range(1, math.ceil(2 * largest / period) + 1)
        for shift in (-period / 7, -0.01, 0.0, 0.01, period / 7)
        for sign in (-1, 1)
    ]
    tried = [value for value in places if norm * 1.4 < abs(value) <= largest]
    assert tried
    for value in tried:
        assert outside(value) == 1, value


RING = 64
WAVE = Wave(constant=0, cosines=(1,), sines=(0,), precision=12, words=16)
"""Of its precision alone: 28 fractional bits."""
UNIT = 2 * 2.0**-SHARE_BITS
"""What both owners' roundings change in a share of one."""
REACH = 8.0
"""Of scores / 2^L."""


def rows(tokens: int) -> torch.Tensor:
    """Centred scores / 2^L, float64 [n, tokens]: equal ones, one far above all or below, two kinds, and random ones."""
    random = torch.randn(4, tokens, generator=torch.Generator().manual_seed(tokens), dtype=torch.float64)
    found = torch.cat(
        [torch.zeros(4, tokens, dtype=torch.float64), random * torch.tensor([[0.01], [0.3], [1.0], [3.0]])]
    )
    found[1, 0], found[2, 0], found[3, ::2] = REACH, -REACH, REACH
    found -= found.mean(-1, keepdim=True)
    return found * (REACH / found.abs().amax(-1, keepdim=True).clamp(min=REACH))


@pytest.mark.parametrize("tokens", [2, 3, 17, 65, 197, 257, LARGEST_TOKENS])
def test_every_row_is_a_softmax_and_in_range(tokens: int) -> None:
    for squarings in range(1, MOST_SQUARINGS + 1):
        divisions, sums = fitted_divisions(WAVE, math.exp(REACH), squarings, tokens)
        scores = rows(tokens)
        exponentials = (scores.exp() * 2.0**WAVE.bits).round().long()

        def act(party: Party, share: torch.Tensor) -> Program[tuple[torch.Tensor, torch.Tensor]]:
            softmax = SquaredSoftmax(party, tuple(share.shape), divisions, RING)  # noqa: B023
            return (yield from softmax.run(share))

        pair = Pair()
        parts = zip(pair.parties, shares(exponentials), strict=True)
        (one, outside), (other, more) = pair.run(*(act(party, part) for party, part in parts))
        assert int(outside + more) % (1 << PLACE) == 0, squarings
        found = signed(one + other, RING).double() / 2.0**LAST_BITS
        totals = found.sum(-1)
        assert sums.low <= totals.min(), squarings
        assert totals.max() <= sums.high, squarings
        exact, error = (
            scores.softmax(-1),
            torch.full_like(scores, UNIT + 2.0 ** (1 + divisions[0].cut - WAVE.bits) / tokens),
        )
        for _ in range(squarings):
            squares = exact.square().sum(-1, keepdim=True)
            # 2^(1 - SQUARE_BITS): roundings of a square by both owners.
            error = (2 * exact * error + error.square() + 2.0 ** (1 - SQUARE_BITS)) / squares
            exact = exact.square() / squares
            # Of a row its sum is divided out.
            error += UNIT + exact * error.sum(-1, keepdim=True)
        # Sums are within a quarter of one, so that units are worth a quarter more.
        assert ((found / totals[:, None] - exact).abs() <= 1.25 * error).all(), squarings
        assert len(pair.log) == 2 + 3 * squarings


def test_a_sum_beyond_the_first_range_has_its_row_refused() -> None:
    """Whatever its multiple of the ring's part, up to all that the ring holds."""
    divisions, _ = fitted_divisions(WAVE, math.exp(REACH), 2, 17)
    ring, place = SHARES + divisions[0].cut, divisions[0].sums
    unit = 2 ** (ring - place.levels) / place.factor
    high, low = place.high * unit, (place.low - 1) * unit
    largest = 2**ring / place.factor
    for total in (high + unit, (high + largest) / 2, 0.99 * largest, low / 2, 0.0):
        exponentials = torch.zeros(1, 17, dtype=torch.int64)
        exponentials[0, 0] = int(total)

        def act(party: Party, share: torch.Tensor) -> Program[tuple[torch.Tensor, torch.Tensor]]:
            return (yield from SquaredSoftmax(party, (1, 17), divisions, RING).run(share))

        pair = Pair()
        parts = zip(pair.parties, shares(exponentials), strict=True)
        (_, outside), (_, more) = pair.run(*(act(party, part) for party, part in parts))
        assert int(outside + more) % (1 << PLACE) >= 1, total


@pytest.mark.parametrize("ratio", [1.5, 20.0, 300.0, 1e5])
def test_an_inverse_in_steps_is_within_its_ratios(ratio: float) -> None:
    unit, low = 2.0**20, 3.0
    stepped = fitted_steps("it", bits=60, unit=unit, most=low * ratio, low=low, high=low * ratio, scale=2.0**24)
    ratios = step_ratios(stepped)
    assert 2.0**-0.5 < ratios.low < 1 < ratios.high < 2.0**0.5
    ends, values = stepped.steps
    sums = torch.logspace(math.log2(low), math.log2(low * ratio), 5000, base=2, dtype=torch.float64)
    units = sums * unit * stepped.factor / 2.0 ** (60 - stepped.levels)
    for carry in (0, 1):  # What is compared is the number of a unit, or one more.
        place = torch.searchsorted(ends, (units.floor() + carry).long(), right=True) - 1
        inside = (place >= 0) & (place < len(values))
        assert inside[1:-1].float().mean() > 0.99
        product = sums[inside] * values[place[inside]].double() / 2.0**24
        assert ratios.low <= product.min()
        assert product.max() <= ratios.high
