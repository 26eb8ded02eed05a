"""The tables of the decision records on ranges, waves and lying owners, counted from requests and rounds.

All are of a ViT-S block and one image: 197 tokens of width 384, 6 heads, 1,536 hidden values. Where a figure depends on
how many waves a function has, these are those that `tacit bench inference` took for a block with random weights.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from tacit.parties.inference.block import block_requests
from tacit.parties.inference.material import AnyBlockRequest, Fixed, Lookup, Narrow, Scores, Waves, correction_bytes
from tacit.parties.inference.ring import byte_width
from tacit.parties.inference.scales import Scales, Shape
from tacit.parties.inference.scores import SHARE_RING, Far
from tacit.parties.inference.tables import SQUARES
from tacit.parties.inference.waves import FitError, Floats, Wave, fitted_wave
from tacit.protocol.inference.schedule import (
    CENTRED,
    COARSE,
    HALVES,
    PLACE,
    STREAM,
    VECTORS,
    WEIGHTED,
    WORD_BITS,
    Sizes,
    block_layer_shapes,
    block_rounds,
)

with pytest.MonkeyPatch.context() as patch:
    patch.syspath_prepend(Path(__file__).parent)
    from conftest import Transformer

RECORDS = Path(__file__).parents[3] / "docs" / "decisions"
TOKENS, WIDTH, HEADS, HIDDEN = 197, 384, 6, 1536
ROWS, SUMS, STREAM_VALUES = TOKENS, HEADS * TOKENS, TOKENS * WIDTH
SCORES, HIDDEN_VALUES = SUMS * TOKENS, TOKENS * HIDDEN
NORM_RING = 48
FAR_CUT = 15
TABLE_LEVELS = 20


def says(record: str, row: str) -> None:
    (path,) = RECORDS.glob(f"{record}-*.md")
    assert row in path.read_text(encoding="utf-8").splitlines(), f"{path.name} does not have: {row}"


def megabytes(octets: float) -> str:
    return f"{octets / 1e6:.2f}"


def received(requests: Sequence[AnyBlockRequest]) -> int:
    """What the dealer sends for them, to both."""
    return sum(len(request.receivers) * correction_bytes(request) for request in requests)


def block(one_block: Transformer, *, far: bool) -> Scales:
    """Of a ViT-S, as far as its requests go."""
    one = one_block.public.blocks[0]

    def wave(harmonics: int, words: int) -> Wave:
        return msgspec.structs.replace(one.exponential, cosines=(1,) * harmonics, sines=(1,) * harmonics, words=words)

    table = msgspec.structs.replace(one.totals, domain=32, slope=4, levels=TABLE_LEVELS)
    sums, variances = (msgspec.structs.replace(table, index=index) for index in (11, 10))
    norm = msgspec.structs.replace(one.first_norm, variance=variances)
    return msgspec.structs.replace(
        one,
        exponential=wave(7, 18) if far else wave(6, 17),
        exponential_cut=16 if far else 15,
        far=Far(cut=FAR_CUT, totals=msgspec.structs.replace(sums, index=7)) if far else None,
        totals=sums,
        gelu=wave(6, 16),
        gelu_cut=15,
        first_norm=norm,
        second_norm=msgspec.structs.replace(norm, cut=one.second_norm.cut),
    )


def requests(one_block: Transformer, *, far: bool) -> tuple[AnyBlockRequest, ...]:
    shape = Shape(images=1, tokens=TOKENS, width=WIDTH, heads=HEADS, hidden=HIDDEN)
    numbers = dict.fromkeys(block_layer_shapes(WIDTH, HIDDEN), 0)
    return block_requests(shape, block(one_block, far=far), numbers)


def rounds(*, far: bool) -> tuple[Any, ...]:
    sizes = Sizes(
        side=224, channels=3, patch=16, width=WIDTH, heads=HEADS, hidden=HIDDEN, blocks=1, classes=1000, far=far
    )
    return block_rounds(sizes, 1)


def keys(count: int, levels: int = 16) -> int:
    return received([Lookup((count,), levels=levels)])


def test_what_checking_ranges_costs(one_block: Transformer) -> None:
    found = requests(one_block, far=True)
    assert keys(1) == 2 * 340
    # The checks of a block are those keys, and no others; tables have theirs in the same request.
    compared = [request for request in found if isinstance(request, Lookup)]
    thresholds = sum(2 * correction_bytes(Lookup(request.shape, levels=request.levels)) for request in compared)
    (vectors,) = (request for request in found if isinstance(request, Scores))
    waves = sum(math.prod(draw.shape) * byte_width(draw.bits) for draw in vectors.dependent()[1:])
    place = byte_width(PLACE)
    table = {
        "a key for each score, hidden value and stream value": (611_094, keys(611_094), 0),
        "a key for each score": (SCORES, keys(SCORES), 0),
        "one byte more for scores and hidden values": (0, 0, 2 * (SCORES + HIDDEN_VALUES)),
        "norms of queries and keys": (2 * SUMS, keys(2 * SUMS, TABLE_LEVELS) + waves, 2 * place * 2 * SUMS),
        "variances": (2 * ROWS, keys(2 * ROWS, TABLE_LEVELS), 0),
        "sums of exponentials": (SUMS, keys(SUMS, TABLE_LEVELS), 0),
        "sums of exponentials of half the scores, where they reach far": (SUMS, keys(SUMS, TABLE_LEVELS), 0),
        "sums over hidden values": (ROWS, keys(ROWS, 26), 2 * place * ROWS),
    }
    assert SCORES + HIDDEN_VALUES + STREAM_VALUES == 611_094
    built = list(table.values())[3:]
    assert sum(material for _, material, _ in built) == thresholds + waves
    table["all that is built"] = tuple(map(sum, zip(*built, strict=True)))  # type: ignore[assignment]
    for name, (comparisons, material, online) in table.items():
        says("013", f"| {name} | {comparisons:,} | {megabytes(material)} | {megabytes(online)} |")
    (places,) = (request for request in found if isinstance(request, Lookup) and request.levels == 26)
    assert places.shape == (1, ROWS)
    softmax = [each for each in rounds(far=False) if each.operation == "softmax"]
    assert [each.data_owner_bytes for each in softmax] == [2 * SCORES + 2 * place * SUMS]


def exponential(values: Floats) -> Floats:
    return np.exp(values)


def even_gelu(values: Floats) -> Floats:
    return np.array([value / 2 * math.erf(value / math.sqrt(2)) for value in values.tolist()])


@pytest.mark.parametrize(
    ("name", "function", "low", "high", "window", "powers"),
    [
        ("exp on [-16, 0]", exponential, -16.0, 0.0, 0.5, {16: 13, 20: 17, 24: 18}),
        ("exp on [-8.4, 0]", exponential, -8.4, 0.0, 0.5, {16: 17, 20: 19}),
        ("GELU(x) - x/2 on [-8, 8]", even_gelu, -8.0, 8.0, 0.75, {20: 10, 24: 13, 30: 18}),
    ],
)
def test_how_many_words_a_function_takes(
    name: str, function: Any, low: float, high: float, window: float, powers: dict[int, int]
) -> None:
    def words(power: int) -> float:
        try:
            wave = fitted_wave(
                name,
                function,
                lambda values: np.full_like(values, 2.0**-power),
                noise=2.0 ** -(power + 1),
                period=(high - low) / window,
                low=low,
                high=high,
                most_bits=STREAM,
            )
        except FitError:
            return math.inf
        return 2 * len(wave.cosines)

    for most, power in powers.items():
        assert words(power) <= most < words(power + 1)
        says("014", f"| {name} | {window:g} | {most} | 2^-{power} |")


def test_what_functions_cost_a_value(one_block: Transformer) -> None:
    plain, far = requests(one_block, far=False), requests(one_block, far=True)
    score, hidden = (request for request in plain if isinstance(request, Waves))
    powers, squares = Narrow((1,), COARSE, 6), Narrow((1,), COARSE, 2)
    for name, octets in (
        ("powers up to the sixth, exact: the exponential's Taylor series", correction_bytes(powers)),
        ("6 waves: the exponential", correction_bytes(score) // SCORES),
        ("powers up to the second, exact: GELU as a square", correction_bytes(squares)),
        ("6 waves: GELU", correction_bytes(hidden) // HIDDEN_VALUES),
    ):
        says("014", f"| {name} | {octets} |")
    online = [sum(each.model_owner_bytes + each.data_owner_bytes for each in rounds(far=far)) for far in (True, False)]
    material = [received(each) for each in (far, plain)]
    steps = [len(rounds(far=far)) for far in (True, False)]
    says("014", f"| in two steps | {steps[0]} | {megabytes(online[0])} | {megabytes(material[0])} |")
    says(
        "014",
        f"| in one, if a ring could | {steps[1]} | {megabytes(online[1])} | {megabytes(material[1])} |",
    )


Opened = tuple[int, int, int, bool]
"""How many words, their bits, their bits before the cut that precedes the opening, and whether both owners send."""


def opened() -> list[Opened]:
    norm = [
        (STREAM_VALUES, CENTRED, STREAM, True),
        (ROWS, PLACE, SQUARES, True),
        (ROWS, WORD_BITS, WORD_BITS, True),
    ]
    half = HALVES + FAR_CUT
    return [
        *norm,
        (STREAM_VALUES, WORD_BITS, WORD_BITS, False),  # qkv
        (2 * STREAM_VALUES, VECTORS, WORD_BITS, True),
        (STREAM_VALUES, STREAM, WORD_BITS, True),
        (SCORES, COARSE, VECTORS, True),
        (2 * SUMS, PLACE, NORM_RING, True),
        (SCORES, HALVES, half, True),
        (SUMS, PLACE, half, True),
        (SUMS, WORD_BITS, WORD_BITS, True),
        (SCORES, WEIGHTED, SHARE_RING, True),
        (SCORES, STREAM, STREAM + 16, True),
        (SUMS, PLACE, STREAM, True),
        (STREAM_VALUES, WEIGHTED, STREAM, True),
        (SUMS, WORD_BITS, WORD_BITS, True),
        (STREAM_VALUES, STREAM, WORD_BITS, False),  # projection
        *norm,
        (STREAM_VALUES, STREAM, SQUARES, False),  # fc1
        (HIDDEN_VALUES, COARSE, STREAM, True),
        (HIDDEN_VALUES, STREAM, STREAM + 15, False),  # fc2
        (ROWS, PLACE, STREAM + 15, True),
    ]


def authenticated(request: AnyBlockRequest, security: int, tags: float = 1) -> float:
    """Bytes of the dealer for a request of which every word, wider by `security` bits, has a tag of the same width; in
    a part `tags` of all passes.

    What is drawn has a tag, what is corrected has one too. Of trees the seeds and the control bits stay what they are.
    A mask is counted as wide as it is now, though it has to be as wide as the value before its cut: so this is less
    than it would be.
    """
    dependent = request.dependent()
    if isinstance(request, Lookup):
        tagged, plain = [*dependent[2:3], *dependent[5:6]], [*dependent[:2], *dependent[3:5]]
        free = request.free(1)[:1]
    else:
        tagged, plain, free = dependent, [], request.free(1)
    wider = [(draw, 1 + tags) for draw in tagged] + [(draw, tags) for draw in free]
    octets: float = sum(times * math.prod(draw.shape) * byte_width(draw.bits + security) for draw, times in wider)
    octets += sum(math.prod(draw.shape) * byte_width(draw.bits) for draw in plain)
    return octets * len(request.receivers)


def total(name: str, now: Sequence[int], plain: int, online: Sequence[int], material: float) -> float:
    factor = (sum(online) + material) / (sum(now) + plain)
    says("015", f"| {name} | {' / '.join(map(megabytes, online))} | {megabytes(material)} | {factor:.1f} |")
    return factor


@pytest.mark.parametrize("security", [0, 16, 40])
def test_what_authentication_costs(one_block: Transformer, security: int) -> None:
    found = requests(one_block, far=True)
    assert any(isinstance(request, Fixed) for request in found)
    now = [sum(count * byte_width(bits) for count, bits, _, both in opened() if both or not model) for model in (1, 0)]
    declared = rounds(far=True)
    assert now == [
        sum(each.model_owner_bytes for each in declared),
        sum(each.data_owner_bytes for each in declared),
    ]
    model, data = (
        sum(count * byte_width(before + security) for count, _, before, both in opened() if both or not model)
        for model in (1, 0)
    )
    material = sum(authenticated(request, security) for request in found)
    plain = received(found)
    assert total("as built", now, plain, now, plain) == 1
    assert total(f"SPDZ2k, s = {security}", now, plain, (model, data), material) > 2
    assert total(f"data owner alone, s = {security}", now, plain, (now[0], data), material) > (2 if security else 1.9)
    if security:
        audited = sum(authenticated(request, security, 0.1) for request in found)
        total(f"data owner alone, one pass in ten, s = {security}", now, plain, (now[0], data), audited)


def test_every_cut_is_followed_by_an_opening_of_what_it_leaves() -> None:
    cuts = sum(count for count, bits, before, _ in opened() if before > bits)
    assert cuts == 8 * STREAM_VALUES + 4 * SCORES + 2 * HIDDEN_VALUES + 4 * SUMS + 3 * ROWS
    (path,) = RECORDS.glob("015-*.md")
    assert f"{cuts:,} words" in path.read_text(encoding="utf-8")
