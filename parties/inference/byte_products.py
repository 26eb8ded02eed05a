"""Exact matrix products of ring words by digits of 8 bits, for processors with fast products of such digits (VNNI).

A word is split into signed digits, the least significant first. All products of digits with the same total place are
one product of 8-bit matrices: the left factor's digits lie side by side, and the right factor's below each other in the
opposite order, so that every place is a slice of both. The sum is exact in 32 bits.

Torch's product of 8-bit matrices is oneDNN's, whose intermediate sums saturate on processors without these
instructions. So it is used only if the processor has them and products of the extreme digits are correct.
"""

from __future__ import annotations

import math
import sys
from functools import cache
from itertools import product as choices
from typing import Any, Final

import numpy as np
import torch

_DIGIT: Final = 8
_WORD_DIGITS: Final = 8
_HALVES: Final = np.uint64(0x8080_8080_8080_8080).view(np.int64)
_LONGEST: Final = 1 << 16
"""Most terms of a sum: with magnitudes of 2^7 and, inside oneDNN, 2^8, it stays below 2^31."""
_LEAST_WORK: Final = 1 << 20
"""Products of two words below which the split into digits costs more than it saves."""

Digits = np.ndarray[Any, np.dtype[np.int8]]


@cache
def available() -> bool:
    """Whether this processor and this release of torch multiply 8-bit matrices fast, and exactly."""
    supported = getattr(torch.cpu, "_is_vnni_supported", None)
    if sys.byteorder != "little" or not hasattr(torch, "_int_mm") or supported is None or not supported():
        return False
    extremes = (-(1 << (_DIGIT - 1)), (1 << (_DIGIT - 1)) - 1)
    try:
        return all(_is_exact(left, right) for left, right in choices(extremes, extremes))
    except RuntimeError:
        return False


def _is_exact(left: int, right: int, inner: int = 96) -> bool:
    factors = torch.full((32, inner), left, dtype=torch.int8), torch.full((inner, 32), right, dtype=torch.int8)
    return bool((torch._int_mm(*factors) == inner * left * right).all())


def worthwhile(left: torch.Tensor, right: torch.Tensor, bits: int) -> bool:
    """Whether `product_of_bytes` supports this product, and is the faster way."""
    if left.device.type != "cpu" or right.dim() != 2 or left.dim() < 2:
        return False
    inner, rows = left.shape[-1], math.prod(left.shape[:-1])
    fits = inner * -(-bits // _DIGIT) <= _LONGEST
    return fits and rows * inner * right.shape[1] >= _LEAST_WORK and available()


def product_of_bytes(
    left: torch.Tensor, right: torch.Tensor, bits: int, *, right_bits: int | None = None
) -> torch.Tensor:
    """left [..., K] @ right [K, N] modulo 2^bits; int64 in and out; right_bits as in ring.product."""
    inner, places = left.shape[-1], -(-bits // _DIGIT)
    # The range of signed digits is asymmetric, so one bit is spare.
    right_digits = places if right_bits is None else min(places, right_bits // _DIGIT + 1)
    beside = torch.from_numpy(_beside(left.reshape(-1, inner), places))
    below = torch.from_numpy(_below(right, right_digits))
    total: np.ndarray[Any, np.dtype[np.int64]] | None = None
    for place in reversed(range(places)):
        last = min(place, right_digits - 1)  # Right digit that pairs with the first left digit.
        factors = beside[:, (place - last) * inner : (place + 1) * inner], below[(right_digits - 1 - last) * inner :]
        term = torch._int_mm(*factors).numpy()
        if total is None:
            total = term.astype(np.int64)
        else:
            total <<= _DIGIT
            total += term
    assert total is not None
    return torch.from_numpy(total).reshape(*left.shape[:-1], right.shape[1])


def _beside(words: torch.Tensor, count: int) -> Digits:
    """Digits of words [M, K] side by side, [M, count * K], the least significant first."""
    digits, (rows, inner) = _digits(words), words.shape
    found: Digits = np.empty((rows, count, inner), np.int8)
    for place in range(count):
        found[:, place] = digits[..., place]
    return found.reshape(rows, count * inner)


def _below(words: torch.Tensor, count: int) -> Digits:
    """Digits of words [K, N] below each other, [count * K, N], the least significant last."""
    digits, (inner, columns) = _digits(words), words.shape
    found: Digits = np.empty((count, inner, columns), np.int8)
    for place in range(count):
        found[count - 1 - place] = digits[..., place]
    return found.reshape(count * inner, columns)


def _digits(words: torch.Tensor) -> Digits:
    # With half a digit added at every place, digits are bytes; removing that half again flips the highest bit.
    raised = np.add(words.numpy(), _HALVES, order="C")
    raised ^= _HALVES
    found: Digits = raised.view(np.int8).reshape(*raised.shape, _WORD_DIGITS)
    return found
