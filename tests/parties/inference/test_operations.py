"""Every operation between two parties in one process, against integers and floats in the clear."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal

import msgspec
import pytest
import torch

from tacit.models.friendly.polynomials import goldschmidt_inverse, goldschmidt_inverse_root
from tacit.parties.correlated.dealing import RequestError
from tacit.parties.inference.material import Curve, Table, decoded_requests
from tacit.parties.inference.operations import MatrixValue, NarrowValue, Party, Program, TableValue
from tacit.parties.inference.ring import product, shifted, signed
from tacit.parties.inference.weights import IntegerWeight

with pytest.MonkeyPatch.context() as patch:
    patch.syspath_prepend(Path(__file__).parent)
    from in_memory import Pair, shares


def both(act: Callable[[Party, int], Program[Any]]) -> tuple[torch.Tensor, Pair]:
    """The sum of what both parties end with."""
    pair = Pair()
    one, other = pair.run(*(act(party, party.rank) for party in pair.parties))
    return one + other, pair


def integers(*shape: int, below: int) -> torch.Tensor:
    """Random, with both ends of the range among them."""
    drawn = torch.randint(-below + 1, below, shape)
    drawn.view(-1)[:3] = torch.tensor([-below + 1, below - 1, 0])
    return drawn


def evaluated(coefficients: Sequence[int], x: torch.Tensor) -> list[int]:
    values = [sum(c * value**i for i, c in enumerate(coefficients)) for value in x.flatten().tolist()]
    return [(value + (1 << 63)) % (1 << 64) - (1 << 63) for value in values]


@pytest.mark.parametrize("bits", [2, 8, 16, 24])
@pytest.mark.parametrize(
    "coefficients", [(7, 3), (0, 0, 1), (720 << 48, 720 << 40, 360 << 32, 120 << 24, 30 << 16, 6 << 8, 1)]
)
def test_a_polynomial_of_a_narrow_value_is_exact(bits: int, coefficients: tuple[int, ...]) -> None:
    x = integers(500, below=max(1 << (bits - 2), 2)) if bits > 2 else torch.zeros(500, dtype=torch.int64)
    parts = shares(x)

    def act(party: Party, rank: int) -> Program[torch.Tensor]:
        value = NarrowValue(party, parts[rank], bits, degree=len(coefficients) - 1)
        value.settle(*(yield from party.open("narrow", value.masked)))
        return torch.stack([value.polynomial(coefficients), value.value()])

    (polynomial, value), pair = both(act)
    assert polynomial.tolist() == evaluated(coefficients, x)
    assert value.tolist() == x.tolist()
    assert pair.log == [("narrow", 500 * -(-bits // 8), 500 * -(-bits // 8))]


def test_a_narrow_value_times_a_factor_of_its_row_is_exact() -> None:
    x, f = integers(9, 40, below=1 << 22), integers(9, 1, below=1 << 40)
    x_parts, f_parts = shares(x), shares(f)

    def act(party: Party, rank: int) -> Program[torch.Tensor]:
        value = NarrowValue(party, x_parts[rank], 24, factor=(9, 1))
        opened, factor = yield from party.open("scaled", value.masked, value.masked_factor(f_parts[rank]))
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
        value = MatrixValue(party, left_parts[rank], right_parts[rank], bits)
        return value.settle(*(yield from party.open("matrices", *value.masked)))

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
            return (yield from layers[party.rank].prepared(party, (3, 5)).apply("layer", parts[party.rank], 48))

        one, other = pair.run(*(act(party) for party in pair.parties))
        assert signed(one + other, 48).equal(x @ weight.words + weight.bias)
        assert pair.log == [("layer", 0, x.numel() * 6)]


@pytest.mark.parametrize("function", ["inverse", "inverse root"])
def test_a_table_holds_the_polynomial_to_its_second_derivative(function: Literal["inverse", "inverse root"]) -> None:
    high, scale, offset = 3.0, 2.0**40, 1e-3
    divisor = high if function == "inverse" else high / 2
    curve = Curve(steps=7, unit=high / (1 << 17), offset=offset, divisor=divisor, scale=scale)
    table = Table((200,), 9, function, curve)
    argument = torch.linspace((1 << 17) * 0.05, (1 << 17) * 0.99, 200).round().long()
    parts = shares(argument)

    def act(party: Party, rank: int) -> Program[torch.Tensor]:
        value = TableValue(party, parts[rank], table)
        return value.settle(*(yield from party.open("table", value.masked)))

    found, pair = both(act)
    x = argument.double() * curve.unit + offset
    interval = high / 512
    if function == "inverse":
        expected = goldschmidt_inverse(x / high, 7) / high
        # Up to an interval from where the line touches, which has the slope of a secant: f''' adds little.
        curvature = 2 / (x - interval) ** 3
    else:
        expected = goldschmidt_inverse_root(x / (high / 2), 7) / math.sqrt(high / 2)
        curvature = 0.75 * (x - interval) ** -2.5
    # Half of the second derivative times the square of the distance; as much again for the secant.
    assert ((found / scale - expected).abs() <= curvature * interval**2 + 2.0**-30).all()
    assert pair.log == [("table", 200 * 3, 200 * 3)]


def test_what_is_opened_is_new_in_every_pass() -> None:
    x = integers(400, below=1 << 14)
    parts = shares(x)
    seen = []

    def act(party: Party, rank: int) -> Program[torch.Tensor]:
        value = NarrowValue(party, parts[rank], 16)
        (opened,) = yield from party.open("narrow", value.masked)
        return opened & 0xFFFF

    for _ in range(2):
        pair = Pair()
        one, other = pair.run(*(act(party, party.rank) for party in pair.parties))
        assert one.equal(other)
        seen.append(one)
    # Uniform over 65,536 values: 400 of them agree by chance in hardly one place.
    assert (seen[0] == seen[1]).sum() < 5
    assert (shifted(seen[0], 16, 15) != 0).any()


def test_cutting_both_factors_leaves_their_product_correct_to_the_last_bits() -> None:
    x, w = integers(4, 12, below=1 << 30), integers(12, 3, below=1 << 8)
    cut = sum(signed(shifted(part, 64, 16), 48) for part in shares(x))
    found = signed(product(cut, w, 48, right_bits=9), 48)
    # Every element is off by less than one last bit.
    assert ((found - (x @ w) / 2**16).abs() <= w.abs().sum(0) + 1).all()


NARROW = {"type": "Narrow", "shape": (2, 3), "bits": 16, "degree": 1, "factor": (2, 1)}
MATRIX = {"type": "Matrix", "operation": "matmul", "left": (4, 4), "right": (4, 4), "arguments": ()}
CURVE = {"steps": 1, "unit": 1.0, "offset": 0.0, "divisor": 1.0, "scale": 1.0}
TABLE = {"type": "Table", "shape": (2,), "index_bits": 1, "function": "inverse", "curve": CURVE}
NOT_DEALT: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "a factor of more dimensions than its value": (NARROW, {"factor": (5, 2, 3)}, "shape"),
    "a factor that is larger than its value": (NARROW, {"factor": (2, 4)}, "shape"),
    "a product of elements": (MATRIX, {"operation": "mul"}, "only matrices"),
    "a convolution": (MATRIX, {"operation": "conv2d", "left": (1, 4, 8, 8), "right": (4, 4, 1, 1)}, "only matrices"),
    "a product with arguments": (MATRIX, {"arguments": (("groups", 1),)}, "only matrices"),
    "a row": (MATRIX, {"left": (4,)}, "only matrices"),
    "a column": (MATRIX, {"right": (4,)}, "only matrices"),
    "matrices that do not fit": (MATRIX, {"right": (3, 4)}, "no such product"),
    "a real as an integer": (TABLE, {"curve": CURVE | {"unit": 1}}, "not in their canonical encoding"),
    "a real that is none": (TABLE, {"curve": CURVE | {"offset": math.nan}}, "float"),
    "fields in another order": (dict(reversed(NARROW.items())), {}, "not in their canonical encoding"),
}


@pytest.mark.parametrize("case", NOT_DEALT)
def test_a_dealer_takes_only_what_the_specification_has(case: str) -> None:
    request, change, reason = NOT_DEALT[case]
    with pytest.raises(RequestError, match=reason):
        decoded_requests(msgspec.msgpack.encode([request | change]))


@pytest.mark.parametrize("request_", [NARROW, MATRIX, TABLE])
def test_a_dealer_takes_what_the_specification_has(request_: dict[str, Any]) -> None:
    assert len(decoded_requests(msgspec.msgpack.encode([request_]))) == 1


def test_an_order_that_is_nested_without_end_is_none() -> None:
    with pytest.raises(RequestError):
        decoded_requests(b"\x91\x82\xa1a" + b"\x91" * 100_000)
