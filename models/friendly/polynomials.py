"""The functions of a transformer block as polynomials, and how far each is from the function that it stands for.

After Tastan and Nandakumar 2025 ("A Framework for Double-Blind Federated Adaptation of Foundation Models", section
4.1): the exponential of the softmax by its Taylor series (Eq. 2), GELU by a square (Eq. 3), the inverse by the product
of Goldschmidt (Eq. 4 and Algorithm 1). The paper does not say how LayerNorm gets its square root; here it comes from
Goldschmidt's iteration for the inverse square root (Goldschmidt 1964; Markstein 2004).

Every function takes a torch tensor or a shared tensor of CrypTen and uses nothing that one of the two lacks. Arguments
are scaled beforehand so that powers stay small: in fixed point each product is off by one last bit, and a polynomial of
values within -1 ... 1 adds these up without making them larger. Divisions by whole numbers are cheap and exact there.
"""

from __future__ import annotations

import math
from typing import Any


def taylor_exponential(x: Any, bound: float, degree: int) -> Any:
    """exp(bound x) for x within -1 ... 1, by the first `degree` + 1 terms of its series.

    Positive for every x where the degree is even. Takes degree - 1 products one after the other (Horner's scheme).
    """
    coefficients = [bound**power / math.factorial(power) for power in range(degree + 1)]
    value = x * coefficients[-1] + coefficients[-2]
    for coefficient in reversed(coefficients[:-2]):
        value = value * x + coefficient
    return value


def exponential_error(bound: float, degree: int) -> float:
    """Largest error of `taylor_exponential`: the terms that it leaves out at x = 1, at most exp(b) b^(d+1) / (d+1)!."""
    power = degree + 1
    term = math.exp(power * math.log(bound) - math.lgamma(power + 1))
    total = 0.0
    while total + term > total or power < bound:
        total += term
        power += 1
        term *= bound / power
    return total


def exponential_share(bound: float, degree: int) -> float:
    """The same error as a share of exp(bound), 0 to 1; for any bound, however large."""
    kept = sum(math.exp(power * math.log(bound) - math.lgamma(power + 1) - bound) for power in range(degree + 1))
    # Where little is left out, the difference would have few digits; the bound is small there.
    return 1 - kept if kept < 0.5 else exponential_error(bound, degree) * math.exp(-bound)


def lowest_argument(degree: int) -> float:
    """Where the Taylor polynomial of exp turns around, below zero; above, it rises and is positive.

    It is the zero of the one of odd degree among degree - 1 and degree: each is the derivative of the next.
    """
    odd = degree - 1 if degree % 2 == 0 else degree
    low, high = -2.0 * odd - 1.0, 0.0
    while high - low > 1e-9:
        middle = (low + high) / 2
        if sum(middle**power / math.factorial(power) for power in range(odd + 1)) < 0:
            low = middle
        else:
            high = middle
    return high


def quadratic_gelu(x: Any) -> Any:
    """0.125 x^2 + 0.25 x + 0.5, as one square and one division.

    No approximation to the last digit: at 0 it is 1/2 where GELU is 0. A model learns to live with it (distillation).
    """
    return (x.square() + x * 2 + 4) / 8


def goldschmidt_inverse(x: Any, steps: int) -> Any:
    """1/x for x within 0 ... 2, both excluded, by the product of 1 + (1 - x)^(2^i) over i = 0 ... steps.

    Its relative error is (1 - x)^(2^(steps + 1)).
    """
    rest = 1 - x
    inverse = rest + 1
    for _ in range(steps):
        rest = rest.square()
        inverse = inverse * (rest + 1)
    return inverse


def inverse_error(low: float, high: float, steps: int) -> float:
    """Largest relative error of `goldschmidt_inverse` for x within low ... high, where 0 < low <= high < 2."""
    return math.pow(max(abs(1 - low), abs(1 - high)), 2 ** (steps + 1))


def goldschmidt_inverse_root(x: Any, steps: int) -> Any:
    """1/sqrt(x) for x within 0 ... 3, both excluded, by coupled iterations for sqrt(x) and 1/(2 sqrt(x)).

    With e = 1 - x y^2 for the value y of a step, which is 1 at first, the next one has e^2 (3 + e) / 4; the relative
    error of y is 1 - sqrt(1 - e). Where x is so small that the steps do not suffice, y is about 1.5^steps: too small,
    never unbounded.
    """
    factor = 1.5 - x / 2
    root, half_inverse = x * factor, factor / 2
    for step in range(1, steps):
        factor = 1.5 - root * half_inverse
        half_inverse = half_inverse * factor
        if step < steps - 1:
            root = root * factor
    return half_inverse * 2


def inverse_root_error(low: float, high: float, steps: int) -> float:
    """Largest relative error of `goldschmidt_inverse_root` for x within low ... high, where 0 < low <= high < 3."""
    return max(_inverse_root_error(low, steps), _inverse_root_error(high, steps), 0.0)


def _inverse_root_error(x: float, steps: int) -> float:
    # The error of a step grows with |e| on either side of zero, so that the ends of an interval are its worst points.
    error = 1 - x
    for _ in range(steps):
        error = error**2 * (3 + error) / 4
    return abs(1 - math.sqrt(1 - error))
