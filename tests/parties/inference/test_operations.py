"""Every operation between two parties in one process, against integers and floats in the clear."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import pytest
import torch

from tacit.parties.correlated.material import RequestError
from tacit.parties.inference.material import NORM_WAVE_BITS, NORM_WORDS, decoded_requests
from tacit.parties.inference.model import IntegerWeight
from tacit.parties.inference.operations import (
    MatrixValue,
    NarrowValue,
    Party,
    Program,
    ScoresValue,
    WaveValue,
    cosine_bits,
)
from tacit.parties.inference.ring import product, shifted, signed
from tacit.parties.inference.waves import Wave
from tacit.protocol.inference.schedule import COARSE
from tests.parties.inference.in_memory import Pair, shares


def both(act: Callable[[Party, int], Program[Any]]) -> tuple[torch.Tensor, Pair]:
    pair = Pair()
    one, other = pair.run(*(act(party, party.rank) for party in pair.parties))
    return one + other, pair


def integers(*shape: int, below: int) -> torch.Tensor:
    drawn = torch.randint(-below + 1, below, shape)
    drawn.view(-1)[:3] = torch.tensor([-below + 1, below - 1, 0])
    return drawn


def evaluated(coefficients: Sequence[int], x: torch.Tensor) -> list[int]:
    values = [sum(c * value**i for i, c in enumerate(coefficients)) for value in x.flatten().tolist()]
    return [(value + (1 << 63)) % (1 << 64) - (1 << 63) for value in values]


@pytest.mark.parametrize("ring", [40, 64])
@pytest.mark.parametrize("bits", [2, 8, 16, 24])
@pytest.mark.parametrize(
    "coefficients", [(7, 3), (0, 0, 1), (720 << 48, 720 << 40, 360 << 32, 120 << 24, 30 << 16, 6 << 8, 1)]
)
def test_a_polynomial_of_a_narrow_value_is_exact(bits: int, coefficients: tuple[int, ...], ring: int) -> None:
    x = integers(500, below=max(1 << (bits - 2), 2)) if bits > 2 else torch.zeros(500, dtype=torch.int64)
    parts = shares(x)

    def act(party: Party, rank: int) -> Program[torch.Tensor]:
        value = NarrowValue(party, (500,), bits, degree=len(coefficients) - 1, ring=ring)
        value.settle(*(yield from party.open("narrow", value.masked(parts[rank]))))
        return torch.stack([value.polynomial(coefficients), value.value()])

    (polynomial, value), pair = both(act)
    expected = torch.tensor(evaluated(coefficients, x))
    assert signed(polynomial, ring).equal(signed(expected, ring))
    assert signed(value, ring).equal(x)
    assert pair.log == [("narrow", 500 * -(-bits // 8), 500 * -(-bits // 8))]


def test_a_narrow_value_times_a_factor_of_its_row_is_exact() -> None:
    x, f = integers(9, 40, below=1 << 22), integers(9, 1, below=1 << 40)
    x_parts, f_parts = shares(x), shares(f)

    def act(party: Party, rank: int) -> Program[torch.Tensor]:
        value = NarrowValue(party, (9, 40), 24, factor=(9, 1))
        masked = (value.masked(x_parts[rank]), value.masked_factor(f_parts[rank]))
        opened, factor = yield from party.open("scaled", *masked)
        value.settle(opened)
        return value.times(factor)

    found, pair = both(act)
    assert found.equal(x * f)
    assert pair.log == [("scaled", 9 * 40 * 3 + 9 * 8, 9 * 40 * 3 + 9 * 8)]


@pytest.mark.parametrize("bits", [46, 64])
def test_a_product_of_shared_matrices_is_exact(bits: int) -> None:
    left, right = integers(2, 7, 30, below=1 << 20), integers(2, 30, 4, below=1 << 20)
    left_parts, right_parts = shares(left), shares(right)

    def act(party: Party, rank: int) -> Program[torch.Tensor]:
        value = MatrixValue(party, (2, 7, 30), (2, 30, 4), bits)
        masked = (value.masked_left(left_parts[rank]), value.masked_right(right_parts[rank]))
        return value.settle(*(yield from party.open("matrices", *masked)))

    found, pair = both(act)
    assert signed(found, bits).equal(left @ right)
    octets = (2 * 7 * 30 + 2 * 30 * 4) * -(-bits // 8)
    assert pair.log == [("matrices", octets, octets)]


def test_a_fixed_weight_costs_one_message_and_serves_many_inputs() -> None:
    weight = IntegerWeight(integers(30, 8, below=1 << 19), integers(8, below=1 << 40), 20)
    pair = Pair()
    layers = pair.fixed(weight)
    for _ in range(2):
        x = integers(3, 5, 30, below=1 << 12)
        parts = shares(x)
        pair.log.clear()

        def act(party: Party, parts: tuple[torch.Tensor, torch.Tensor] = parts) -> Program[torch.Tensor]:
            return (yield from layers[party.rank].prepared(party, (3, 5), 48).apply("layer", parts[party.rank]))

        one, other = pair.run(*(act(party) for party in pair.parties))
        assert signed(one + other, 48).equal(x @ weight.words + weight.bias)
        assert pair.log == [("layer", 0, x.numel() * 6)]


WAVE = Wave(constant=5, cosines=(1 << 20, -(1 << 19), 77), sines=(-3, 1 << 18, 0), precision=20, words=18)


@pytest.mark.parametrize("wave", [WAVE, Wave(constant=-1, cosines=(1 << 16,), sines=(1 << 16,), precision=16, words=9)])
def test_waves_of_a_value_are_those_of_real_numbers_up_to_rounding(wave: Wave) -> None:
    x = integers(400, below=1 << (COARSE - 1))
    parts = shares(x)

    def act(party: Party, rank: int) -> Program[torch.Tensor]:
        value = WaveValue(party, (400,), wave, 48)
        return value.settle(*(yield from party.open("waves", value.masked(parts[rank]))))

    found, pair = both(act)
    angles = 2 * torch.pi * x.double() / 2.0**COARSE * torch.arange(1, len(wave.cosines) + 1)[:, None]
    cosines, sines = (torch.tensor(each, dtype=torch.float64) for each in (wave.cosines, wave.sines))
    expected = (wave.constant + cosines @ angles.cos() + sines @ angles.sin()) / 2.0**wave.precision
    norms = torch.hypot(cosines, sines).sum().item() / 2.0**wave.precision
    # Factors are off by half of their last bit, and multiplied by words up to 1; words the other way round. Twice each.
    error = len(cosines) * 2.0**-wave.precision + 2**0.5 * norms * 2.0**-wave.words + 2.0**-20
    assert (signed(found, 48).double() / 2.0**wave.bits - expected).abs().max() <= error
    assert pair.log == [("waves", 800, 800)]


def test_scores_are_exact_and_tell_the_norms_of_queries_and_keys() -> None:
    shape, turns = (3, 5, 8), (20, 17)
    queries, keys = integers(*shape, below=1 << 15), integers(*shape, below=1 << 12)
    query_parts, key_parts = shares(queries), shares(keys)

    def act(party: Party, rank: int) -> Program[tuple[torch.Tensor, list[torch.Tensor]]]:
        value = ScoresValue(party, shape, 32, turns)
        opened = yield from party.open("scores", *value.masked(query_parts[rank], key_parts[rank]))
        return value.settle(*opened), value.spread(*opened)

    pair = Pair()
    (one, one_spread), (other, other_spread) = pair.run(*(act(party, party.rank) for party in pair.parties))
    assert signed(one + other, 32).equal(signed(queries @ keys.mT, 32))
    assert pair.log == [("scores", 2 * queries.numel() * 4, 2 * queries.numel() * 4)]
    unit = 2.0 ** (NORM_WAVE_BITS + cosine_bits(8))
    for vectors, turn, mine, yours in zip((queries, keys), turns, one_spread, other_spread, strict=True):
        found = signed(mine + yours, NORM_WORDS).double()
        expected = (1 - (2 * torch.pi * vectors.double() / 2**turn).cos()).sum(-1)
        assert (found > 0).all()
        # Of 8 entries with two products each, and the table's places are 2^-16 of a turn apart for public sum and mask.
        rounding = 8 * 2 * (2.0**-NORM_WAVE_BITS + 2.0 ** -cosine_bits(8)) + 8 * 4 * torch.pi / 2.0**COARSE
        assert ((found / unit - expected).abs() <= rounding).all()


def test_cutting_both_factors_leaves_their_product_correct_to_the_last_bits() -> None:
    x, w = integers(4, 12, below=1 << 30), integers(12, 3, below=1 << 8)
    cut = sum(signed(shifted(part, 64, 16), 48) for part in shares(x))
    found = signed(product(cut, w, 48, right_bits=9), 48)
    # Every element is off by less than one last bit.
    assert ((found - (x @ w) / 2**16).abs() <= w.abs().sum(0) + 1).all()


NARROW = {"type": "Narrow", "shape": (2, 3), "bits": 16, "degree": 1, "factor": (2, 1), "words": 64}
MATRIX = {"type": "Matrix", "operation": "matmul", "left": (4, 4), "right": (4, 4), "arguments": (), "words": 64}
PRODUCT = {"type": "Product", "operation": "mul", "left": (3, 1), "right": (3, 4), "arguments": ()}
SQUARE = {"type": "Square", "shape": (3, 4)}
TRUNCATION = {"type": "Truncation", "shape": (3, 4), "divisor": 1 << 16}
CONTRACTION = {"left": 0, "right": 1, "letters": "ab,cb->ac"}
PRODUCTS = {"type": "Products", "operands": ((4, 5), (3, 5)), "products": (CONTRACTION,), "words": 64}
SCORES = {"type": "Scores", "shape": (2, 3, 4), "words": 32, "queries": 17, "keys": 18}
WAVES = {"type": "Waves", "shape": (2,), "harmonics": 3, "precision": 12, "words": 40, "bits": 20}
LOOKUP = {"type": "Lookup", "shape": (2,), "domain": 20, "index": 6, "slope": 4, "levels": 16, "words": 64}
WEIGHT = {"type": "Weight", "owner": 0, "shape": (3, 2)}
NOT_DEALT: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "a factor of more dimensions than its value": (NARROW, {"factor": (5, 2, 3)}, "shape"),
    "a factor that is larger than its value": (NARROW, {"factor": (2, 4)}, "shape"),
    "a ring that is no wider than the value": (NARROW, {"words": 16}, "16 bits is narrow only in a wider ring"),
    "a ring that is narrower than the value": (NARROW, {"bits": 64, "words": 63}, "ring than that of 63 bits"),
    "a product of elements": (MATRIX, {"operation": "mul"}, "only matrices"),
    "a convolution": (PRODUCT, {"operation": "conv2d", "left": (1, 4, 8, 8), "right": (4, 4, 1, 1)}, "enum value"),
    "a product with arguments": (PRODUCT, {"arguments": (1,)}, "length <= 0"),
    "elements that do not fit": (PRODUCT, {"left": (3, 2)}, "broadcast"),
    "a truncation by one": (TRUNCATION, {"divisor": 1}, "divisor"),
    "a row": (MATRIX, {"left": (4,)}, "only matrices"),
    "a column": (MATRIX, {"right": (4,)}, "only matrices"),
    "matrices that do not fit": (MATRIX, {"right": (3, 4)}, "no such product"),
    "letters that do not fit": (PRODUCTS, {"products": (CONTRACTION | {"letters": "ab,bc->ac"},)}, "b is 5 and 3"),
    "a product of an operand that is not there": (PRODUCTS, {"operands": ((4, 5),)}, "more than 1 operands"),
    "more operands than there may be": (PRODUCTS, {"operands": ((4, 5),) * 33, "products": ()}, "length <= 32"),
    "more products than there may be": (PRODUCTS, {"products": (CONTRACTION,) * 33}, "length <= 32"),
    "a result that is too large": (
        PRODUCTS,
        {"operands": ((1 << 14, 1), (1 << 14, 1)), "products": (CONTRACTION,)},
        "take a smaller batch",
    ),
    "waves without number": (WAVES, {"harmonics": 65}, "harmonics"),
    "a wave of nothing": (WAVES, {"harmonics": 0}, "harmonics"),
    "waves finer than their table": (WAVES, {"precision": 29}, "precision"),
    "a value of more bits than there are": (WAVES, {"bits": 25}, "bits"),
    "a value that is less than a period": (WAVES, {"bits": 15}, "bits"),
    "a comparison in a narrow ring": (LOOKUP, {"words": 31}, "words"),
    "norms of a number": (SCORES, {"shape": (4,)}, "shape"),
    "a turn of nothing": (SCORES, {"keys": 0}, "keys"),
    "more intervals than a table has": (LOOKUP, {"index": 15}, "index"),
    "intervals finer than their domain": (LOOKUP, {"domain": 9}, "6 \\+ 4 bits are more than 9"),
    "a comparison of more bits than there are": (LOOKUP, {"levels": 33}, "levels"),
    "a weight of somebody else": (WEIGHT, {"owner": 2}, "no rank 2 among 2 parties"),
    "an integer as a real": (LOOKUP, {"levels": 16.0}, "float"),
    "fields in another order": (dict(reversed(NARROW.items())), {}, "not in their canonical encoding"),
}


@pytest.mark.parametrize("case", NOT_DEALT)
def test_a_dealer_takes_only_what_the_specification_has(case: str) -> None:
    request, change, reason = NOT_DEALT[case]
    with pytest.raises(RequestError, match=reason):
        decoded_requests(msgspec.msgpack.encode([request | change]))


@pytest.mark.parametrize("request_", [NARROW, MATRIX, SCORES, WAVES, LOOKUP, WEIGHT, PRODUCT, SQUARE, TRUNCATION])
def test_a_dealer_takes_what_the_specification_has(request_: dict[str, Any]) -> None:
    assert len(decoded_requests(msgspec.msgpack.encode([request_]))) == 1


def test_an_order_that_is_nested_without_end_is_none() -> None:
    with pytest.raises(RequestError):
        decoded_requests(b"\x91\x82\xa1a" + b"\x91" * 100_000)
