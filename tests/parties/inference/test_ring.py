"""Narrow rings and matrix products by floating point, against Python's integers."""

from collections.abc import Callable
from itertools import product as product_of

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tacit.parties.inference.byte_products import available, product_of_bytes
from tacit.parties.inference.ring import byte_width, packed, product, product_of_digits, shifted, signed, unpacked

Multiply = Callable[..., torch.Tensor]
BITS = (16, 18, 24, 40, 46, 48, 64)
EXTREMES = [0, 1, -1, (1 << 63) - 1, -(1 << 63), (1 << 23), -(1 << 23), 0x5555555555555555]


def words(*shape: int, seed: int = 0) -> torch.Tensor:
    drawn = np.random.default_rng(seed).integers(-(1 << 63), 1 << 63, shape, np.int64, endpoint=False)
    drawn.flat[: len(EXTREMES)] = EXTREMES[: drawn.size]
    return torch.from_numpy(drawn)


def modulo(value: int, bits: int) -> int:
    return (value + (1 << (bits - 1))) % (1 << bits) - (1 << (bits - 1))


def exact(left: torch.Tensor, right: torch.Tensor, bits: int) -> list[list[int]]:
    result = np.array(left.tolist(), object) @ np.array(right.tolist(), object)
    return [[modulo(value, bits) for value in row] for row in result]


@pytest.mark.parametrize(
    "multiply",
    [
        product,
        product_of_digits,
        pytest.param(
            product_of_bytes, marks=pytest.mark.skipif(not available(), reason="needs fast products of 8-bit matrices")
        ),
    ],
)
@pytest.mark.parametrize("inner", [1, 3, 64, 197, 1024, 1536])
@pytest.mark.parametrize("bits", BITS)
def test_products_are_exact(bits: int, inner: int, multiply: Multiply) -> None:
    left, right = words(2, inner), words(inner, 2, seed=1)
    assert signed(multiply(left, right, bits), bits).tolist() == exact(left, right, bits)
    for weight_bits in (11, 20, 26, 50):
        for weight in (signed(right, weight_bits), torch.full_like(right, -(1 << (weight_bits - 1)))):
            found = multiply(left, weight, bits, right_bits=weight_bits)
            assert signed(found, bits).tolist() == exact(left, weight, bits)


@pytest.mark.parametrize("inner", [64, 197, 1024, 1536])
@pytest.mark.parametrize("bits", BITS)
def test_products_are_exact_where_sums_are_greatest(bits: int, inner: int) -> None:
    """All digits at their extremes, whatever the width of a digit is."""
    ways = [product_of_digits, *([product_of_bytes] if available() else [])]
    for multiply, width in product_of(ways, (8, *range(16, 28), 64)):
        value = modulo(-sum(1 << (place + width - 1) for place in range(0, 64, width)), 64)
        one, other = torch.full((1, inner), value), torch.full((inner, 1), value)
        assert signed(multiply(one, other, bits), bits).item() == modulo(inner * value * value, bits)
        for weight_bits, sign in product_of((8, 11, 16, 18, 20, 24, 26), (-1, 1)):
            weight = torch.full((inner, 1), sign << (weight_bits - 1))
            found = multiply(one, weight, bits, right_bits=weight_bits)
            assert signed(found, bits).item() == modulo(inner * value * (sign << (weight_bits - 1)), bits)


@pytest.mark.parametrize("shapes", [((40, 50), (50, 60)), ((3, 5), (4, 5, 6)), ((2, 3, 4), (4, 7)), ((0, 4), (4, 3))])
def test_both_ways_to_multiply_agree(shapes: tuple[tuple[int, ...], tuple[int, ...]]) -> None:
    left, right = words(*shapes[0]), words(*shapes[1], seed=1)
    assert torch.equal(product(left, right, 64), product_of_digits(left, right, 64))
    assert torch.equal(product(left.mT.mT, right.mT.contiguous().mT, 64), left @ right)


def test_large_products_are_the_same_whichever_way_is_taken() -> None:
    """Those that are multiplied by digits of 8 bits where the processor has them."""
    left, right = words(2, 130, 70), words(70, 130, seed=1)
    for bits, weight_bits in ((40, None), (44, None), (64, None), (40, 14), (64, 16)):
        weight = right if weight_bits is None else signed(right, weight_bits)
        expected = product_of_digits(left, weight, bits, right_bits=weight_bits)
        for factor in (weight, weight.mT.contiguous().mT):
            assert torch.equal(
                signed(product(left, factor, bits, right_bits=weight_bits), bits), signed(expected, bits)
            )


@settings(deadline=None, max_examples=100)
@given(
    st.integers(-(1 << 62), (1 << 62) - 1),
    st.integers(-(1 << 63), (1 << 63) - 1),
    st.sampled_from(BITS),
    st.integers(1, 13),
)
def test_a_share_is_cut_where_it_is_and_the_sum_is_off_by_less_than_one(x: int, mask: int, bits: int, by: int) -> None:
    # As far from the borders of the ring as all values are kept.
    x = modulo(x, bits - 1)
    shares = torch.tensor([mask, modulo(x - mask, 64)])
    found = sum(modulo(value, bits - by) for value in shifted(shares, bits, by).tolist())
    assert abs(modulo(found, bits - by) - x / (1 << by)) < 1 + 2.0**-20
    assert modulo(found - (x >> by), bits - by) in (0, 1, -1)


@pytest.mark.parametrize("bits", BITS)
def test_words_travel_in_as_many_bytes_as_they_need_and_show_nothing_above(bits: int) -> None:
    drawn = words(3, 5)
    octets = packed(drawn, bits)
    assert octets.shape == (15, byte_width(bits))
    assert byte_width(bits) == (bits + 7) // 8
    numbers = [int.from_bytes(row.tobytes(), "little") for row in octets]
    assert numbers == [value % (1 << bits) for value in drawn.flatten().tolist()]
    assert signed(unpacked(octets, bits, (3, 5)), bits).equal(signed(drawn, bits))
