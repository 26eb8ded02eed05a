"""Public numbers of private inference: cosines, factors of a sum of waves, tables of inverses:
docs/spec/inference-material.md, *Waves* and *Inverse tables*."""

import math
from functools import cache
from hashlib import sha256
from itertools import pairwise
from typing import Any

from constants import require

WAVE = {"constant", "cosines", "sines", "precision", "words"}
INVERSE = {"function", "unit", "offset", "scale", "steps", "divisor"}
PLACES = 2**16
ONE = 2**80


@cache
def cosines() -> list[int]:
    quarters = [(0, ONE)]
    while len(quarters) < 15:
        cosine = quarters[-1][0]
        quarters.append((math.isqrt(ONE * (ONE + cosine) // 2), math.isqrt(ONE * (ONE - cosine) // 2)))
    table = []
    for place in range(PLACES // 4 + 1):
        # Angles are added from the smallest to the largest.
        cosine, sine = ONE, 0
        for bit in range(15):
            if place >> bit & 1:
                c, s = quarters[14 - bit]
                cosine, sine = (cosine * c - sine * s) // ONE, (sine * c + cosine * s) // ONE
        table.append((cosine + 2**49) // 2**50)
    half = table + [-cosine for cosine in table[-2::-1]]
    return half + half[-2:0:-1]


def table_digest() -> bytes:
    return sha256(b"".join(word.to_bytes(8, "little", signed=True) for word in cosines())).digest()


def wave(number: int, place: int) -> tuple[int, int]:
    """Cosine and sine, at 30 fractional bits."""
    angle = number * place
    return cosines()[angle % PLACES], cosines()[(angle - PLACES // 4) % PLACES]


def rounded(value: int, bits: int) -> int:
    """From 30 fractional bits to these; half a unit goes up."""
    by = 30 - bits
    return (value + 2 ** (by - 1)) // 2**by


def factors(given: dict[str, Any], places: list[int]) -> list[list[int]]:
    coefficients = [given["constant"], *given["cosines"], *given["sines"]]
    require(given.keys() == WAVE and 1 <= len(given["cosines"]) == len(given["sines"]) <= 64, "INVALID")
    require(all(abs(each) <= 2**32 for each in coefficients), "INVALID")
    require(all(1 <= given[name] <= 28 for name in ("precision", "words")), "INVALID")
    found = []
    for number, (a, b) in enumerate(zip(given["cosines"], given["sines"], strict=True), 1):
        pairs = [wave(number, place) for place in places]
        found.append([rounded(a * cosine + b * sine, 0) for cosine, sine in pairs])
        found.append([rounded(a * sine - b * cosine, 0) for cosine, sine in pairs])
    return found


def goldschmidt_inverse(x: float, steps: int) -> float:
    rest = 1 - x
    found = rest + 1
    for _ in range(steps):
        rest = rest * rest
        found = found * (rest + 1)
    return found


def goldschmidt_root(x: float, steps: int) -> float:
    root, half = x, 0.5
    for _ in range(steps):
        factor = 1.5 - root * half
        root, half = root * factor, half * factor
    return half * 2


def inverse_table(inverse: dict[str, Any], index: int, slope: int) -> dict[str, list[int]]:
    require(inverse.keys() == INVERSE and inverse["function"] in ("inverse", "inverse root"), "INVALID")
    require(all(2.0**-100 <= inverse[name] <= 2.0**100 for name in ("unit", "scale", "divisor")), "INVALID")
    require(0 <= inverse["offset"] <= 2.0**100, "INVALID")
    require(inverse["steps"] is None or 1 <= inverse["steps"] <= 16, "INVALID")
    require(1 <= index <= 14 and 0 <= slope <= 16, "INVALID")
    ends = []
    for end in range(-1, 2**index + 1):
        x = (max(end * 2**slope * inverse["unit"], inverse["unit"]) + inverse["offset"]) / inverse["divisor"]
        if inverse["function"] == "inverse":
            value = 1 / x if inverse["steps"] is None else goldschmidt_inverse(x, inverse["steps"])
            value = value / inverse["divisor"]
        else:
            value = 1 / math.sqrt(x) if inverse["steps"] is None else goldschmidt_root(x, inverse["steps"])
            value = value / math.sqrt(inverse["divisor"])
        ends.append(value * inverse["scale"])
    slopes = [(after - before) / 2 ** (slope + 1) for before, after in zip(ends, ends[2:], strict=False)]
    return {
        "values": [round(min(end, 2.0**61)) for end in ends[1:-1]],
        "slopes": [round(max(each, -(2.0**61))) for each in slopes],
    }


def inverse_steps(low: int, high: int, scale: float) -> dict[str, list[int]]:
    require(0 <= low <= 2**32 and 0 <= high <= 2**32 and 2.0**-100 <= scale <= 2.0**100, "INVALID")
    ends = [low + 1]
    while ends[-1] < high:
        ends.append(min(ends[-1] + max(27146 * ends[-1] // 2**16, 1), high))
    roots = [math.sqrt(end * following) for end, following in pairwise(ends)]
    return {"ends": ends, "values": [min(round(scale / root), 2**62) for root in roots]}
