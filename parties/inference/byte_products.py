"""Exact matrix products of ring words by digits of 8 bits, for processors that multiply such digits fast (VNNI).

A word is cut into signed digits, the least significant first. Products of digits whose places add up to the same place
are one product of 8-bit matrices: the digits of the left factor lie side by side, those of the right one below each
other in the opposite order, so that every place is a slice of both. It is added up exactly in 32 bits.

Torch's product of 8-bit matrices is oneDNN's, which saturates in between on processors without these instructions.
So it is used only where the processor has them and products of the extreme digits come out right.
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
"""Terms of a sum: with magnitudes of 2^7 and, inside oneDNN, 2^8, it stays below 2^31."""
_LEAST_WORK: Final = 1 << 20
"""Products of two words, below which cutting digits costs more than it saves."""

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
    """Whether `product_of_bytes` multiplies these, and is the faster way."""
    if left.device.type != "cpu" or right.dim() != 2 or left.dim() < 2:
        return False
    inner, rows = left.shape[-1], math.prod(left.shape[:-1])
    fits = inner * -(-bits // _DIGIT) <= _LONGEST
    return fits and rows * inner * right.shape[1] >= _LEAST_WORK and available()


def product_of_bytes(
    left: torch.Tensor, right: torch.Tensor, bits: int, *, right_bits: int | None = None
) -> torch.Tensor:
    """left [..., K] @ right [K, N] modulo 2^bits; int64 in and out; right_bits as of ring.product."""
    inner, places = left.shape[-1], -(-bits // _DIGIT)
    # Signed digits reach a little less far up than down: a bit is spare.
    right_digits = places if right_bits is None else min(places, right_bits // _DIGIT + 1)
    beside = torch.from_numpy(_beside(left.reshape(-1, inner), places))
    below = torch.from_numpy(_below(right, right_digits))
    total: np.ndarray[Any, np.dtype[np.int64]] | None = None
    for place in reversed(range(places)):
        last = min(place, right_digits - 1)  # The digit on the right that meets the first one on the left.
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
    """Digits of words [M, K] as [M, count * K], the least significant first."""
    digits, (rows, inner) = _digits(words), words.shape
    found: Digits = np.empty((rows, count, inner), np.int8)
    for place in range(count):
        found[:, place] = digits[..., place]
    return found.reshape(rows, count * inner)


def _below(words: torch.Tensor, count: int) -> Digits:
    """Digits of words [K, N] as [count * K, N], the least significant last."""
    digits, (inner, columns) = _digits(words), words.shape
    found: Digits = np.empty((count, inner, columns), np.int8)
    for place in range(count):
        found[count - 1 - place] = digits[..., place]
    return found.reshape(count * inner, columns)


def _digits(words: torch.Tensor) -> Digits:
    # With half a digit added at every place, digits are bytes; each has that half too much then, which turns its sign.
    raised = np.add(words.numpy(), _HALVES, order="C")
    raised ^= _HALVES
    found: Digits = raised.view(np.int8).reshape(*raised.shape, _WORD_DIGITS)
    return found
