"""Each polynomial against the function in float64, within the error that it states; and Algorithm 1 as printed."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tacit.models.friendly.polynomials import (
    exponential_error,
    exponential_share,
    goldschmidt_inverse,
    goldschmidt_inverse_root,
    inverse_error,
    inverse_root_error,
    lowest_argument,
    quadratic_gelu,
    taylor_exponential,
)
from tests.cases import cases

ROUNDING = 2.0**-44
"""Relative: a few dozen operations in float64, each off by 2^-53 of numbers that may be 2^3 larger."""

degrees = st.integers(1, 16)
steps = st.integers(1, 12)


def within(low: float, high: float) -> st.SearchStrategy[float]:
    return st.floats(low, high)


def tensor(value: float) -> torch.Tensor:
    return torch.tensor(value, dtype=torch.float64)


@given(x=within(-1, 1), bound=within(0.01, 12), degree=degrees)
def test_the_exponential_is_within_the_remainder(x: float, bound: float, degree: int) -> None:
    value = taylor_exponential(tensor(x), bound, degree).item()
    # All terms of the polynomial, and of the remainder, add up to no more than exp(bound).
    assert abs(value - math.exp(bound * x)) <= exponential_error(bound, degree) + ROUNDING * math.exp(bound)


@given(bound=within(0.01, 12), degree=degrees)
def test_the_remainder_is_the_error_at_the_end_and_within_lagranges_form(bound: float, degree: int) -> None:
    found = math.exp(bound) - taylor_exponential(tensor(1.0), bound, degree).item()
    assert abs(found - exponential_error(bound, degree)) <= ROUNDING * math.exp(bound)
    first = bound ** (degree + 1) / math.factorial(degree + 1)
    assert first * (1 - 1e-12) <= exponential_error(bound, degree) <= first * math.exp(bound) * (1 + 1e-12)


@cases("degree", range(1, 17))
def test_above_its_lowest_argument_the_polynomial_rises_and_is_positive(degree: int) -> None:
    lowest = lowest_argument(degree)
    x = torch.linspace(lowest, 8, 4001, dtype=torch.float64)
    value = taylor_exponential(x / 8, 8.0, degree)
    assert bool((value.diff() > 0).all())
    # An odd polynomial starts at its zero, an even one where it is lowest.
    if degree % 2:
        assert abs(value[0].item()) < 1e-6
    else:
        assert value[0].item() > 0
        below = taylor_exponential((tensor(lowest) - 0.01) / 8, 8.0, degree)
        assert below > value[0]


@given(x=within(-100, 100))
def test_quadratic_gelu_is_the_formula_of_the_paper(x: float) -> None:
    assert quadratic_gelu(tensor(x)).item() == pytest.approx(0.125 * x**2 + 0.25 * x + 0.5, rel=1e-12, abs=1e-12)


def algorithm_1(x: float, degree: int) -> float:
    a, b = 2 - x, 1 - x
    for _ in range(degree):
        b = b**2
        a = a * (1 + b)
    return a


@given(x=within(0.001, 1.999), count=steps)
def test_the_inverse_is_algorithm_1_and_off_by_what_equation_4_leaves_out(x: float, count: int) -> None:
    value = goldschmidt_inverse(tensor(x), count).item()
    assert value == pytest.approx(algorithm_1(x, count), rel=1e-12)
    error = (1 - x) ** 2.0 ** (count + 1)
    # The bases 1 - x are known to 2^-53, and are taken to a power of 2^(count + 1).
    assert abs(1 - value * x - error) <= 2.0 ** (count + 1) * ROUNDING
    assert error <= inverse_error(x, x, count) * (1 + 1e-12)


@given(low=within(0.001, 2.9), high=within(0.001, 2.9), x=within(0, 1), count=steps)
def test_the_inverse_root_is_within_its_error_on_an_interval(low: float, high: float, x: float, count: int) -> None:
    low, high = min(low, high), max(low, high)
    inside = low + x * (high - low)
    value = goldschmidt_inverse_root(tensor(inside), count).item()
    assert abs(1 - value * math.sqrt(inside)) <= inverse_root_error(low, high, count) + 2.0**count * ROUNDING


@given(x=within(0.05, 2.9))
def test_enough_steps_give_the_inverse_root(x: float) -> None:
    assert goldschmidt_inverse_root(tensor(x), 12).item() == pytest.approx(x**-0.5, rel=1e-12)
    assert inverse_root_error(x, x, 12) < 1e-12


@given(x=within(1e-9, 2.9), count=steps)
def test_too_few_steps_give_an_inverse_root_that_is_too_small_but_bounded(x: float, count: int) -> None:
    value = goldschmidt_inverse_root(tensor(x), count).item()
    assert -1e-9 <= value <= min(x**-0.5, 1.5**count) * (1 + 1e-9)


@given(st.floats(1e-3, 600), st.integers(1, 16))
def test_the_share_of_an_exponential_is_its_error_over_its_value(bound: float, degree: int) -> None:
    assert exponential_share(bound, degree) == pytest.approx(
        exponential_error(bound, degree) / math.exp(bound), rel=1e-9
    )


def test_of_a_very_large_exponential_everything_is_left_out() -> None:
    assert exponential_share(1e4, 6) == 1
    assert 1 - 1e-9 < exponential_share(720, 16) <= 1
