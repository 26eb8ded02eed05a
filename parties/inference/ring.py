"""Shares modulo a power of two: narrower rings, and exact matrix products by way of floating point.

A value x is shared as x_0 + x_1 modulo 2^bits. Words are int64; their bits above the lowest `bits` are undefined. Three
operations are local, and save the traffic of the protocol:

- Shares modulo 2^64 are shares modulo 2^bits as well, as long as x lies within -2^(bits - 1) ... 2^(bits - 1) - 1.
- Each party may truncate the lowest m bits of its own share, if the result is read modulo 2^(bits - m): the carry at
  the top of the ring, which makes local truncation fail in a ring of constant width, is a multiple of 2^(bits - m)
  then. Each party rounds to the nearest, so the sum has an error below one last bit, with mean zero.
- A party sends the lowest bits / 8 bytes of a word.

So precision is traded for width; `Narrow` (material.py) extends a value to a wide ring again.

Sums of products of two tensors are written as in Einstein notation, with letters for dimensions: `btd,rd->btr` sums
over d. Each is a product of matrices: dimensions of both factors and the result come first, and those of the factors
alone are summed over. If the left factor is shorter in a common dimension, only the first elements of the right one are
used: the known first rows of a left factor are multiplied by their counterparts.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from typing import Any, Final

import numpy as np
import torch

from tacit.parties.inference.byte_products import product_of_bytes, worthwhile
from tacit.protocol.inference.schedule import WORD_BITS as WORD_BITS
from tacit.protocol.inference.schedule import byte_width as byte_width

Octets = np.ndarray[Any, np.dtype[np.uint8]]

SPARE: Final = 0.97
"""Usable part of the range up to a power of two; rounding needs a little."""
_EXACT_BITS = 53
"""Integers up to 2^53 are exact in float64."""
_FEW = 10.0
"""Most terms per word for a direct product: 0.7 ns a term, against 13 ns to split a word of 64 bits, or 8 ns of 40."""
_ONES = 2.0**52
_ONES_WORD = int(np.float64(_ONES).view(np.int64))
_COUNTING = 1.5 * 2.0**52
_COUNTING_WORD = int(np.float64(_COUNTING).view(np.int64))


def shifted(share: torch.Tensor, bits: int, by: int) -> torch.Tensor:
    """This party's share, signed, of x / 2^by modulo 2^(bits - by); by >= 1."""
    return (share + (1 << (by - 1))) << (WORD_BITS - bits) >> (WORD_BITS - bits + by)


def signed(words: torch.Tensor, bits: int) -> torch.Tensor:
    """The representatives within -2^(bits - 1) ... 2^(bits - 1) - 1."""
    return words if bits == WORD_BITS else words << (WORD_BITS - bits) >> (WORD_BITS - bits)


def packed(words: torch.Tensor, bits: int) -> Octets:
    """Words as uint8 (elements, bytes), little-endian. Bits above `bits` are cleared, since their mask does not hide
    them."""
    width = byte_width(bits)
    return joined([(words, bits)], words.numel() * width).reshape(-1, width)


def joined(parts: Iterable[tuple[torch.Tensor, int]], size: int) -> Octets:
    """Pack words, each with their bits, one after the other into `size` bytes."""
    room, start = np.empty(size + 8, np.uint8), 0
    for words, bits in parts:
        width = byte_width(bits)
        cleared = words if bits == 8 * width else words & ((1 << bits) - 1)
        plain = np.ascontiguousarray(cleared.cpu().numpy(), "<i8").reshape(-1)
        # Whole words are written, in order: each overwrites the excess bytes of the previous one.
        np.ndarray(plain.shape, "<i8", room, start, (width,))[:] = plain
        start += plain.size * width
    return room[:start]


def unpacked(octets: Octets, bits: int, shape: tuple[int, ...]) -> torch.Tensor:
    """The inverse of `packed`: int64 of this shape. Bits above `bits` are undefined."""
    width = byte_width(bits)
    # Whole, overlapping words are read, except the last ones, which have too few bytes behind them.
    whole, words = max((octets.size - 8) // width + 1, 0), np.empty(octets.size // width, "<i8")
    words[:whole] = np.ndarray((whole,), "<i8", octets, 0, (width,))
    words[whole:] = 0
    words.view(np.uint8).reshape(-1, 8)[whole:, :width] = octets.reshape(-1, width)[whole:]
    return torch.from_numpy(words).reshape(shape)


def product(left: torch.Tensor, right: torch.Tensor, bits: int, *, right_bits: int | None = None) -> torch.Tensor:
    """left @ right modulo 2^bits; int64 in and out, batched as torch.matmul.

    right_bits: the right factor is within -2^(right_bits - 1) ... 2^(right_bits - 1) itself, as a weight is; None: both
    are whole words of the ring. NumPy multiplies words directly if each takes part in few products, as in those of low
    rank."""
    if left.device.type == "cpu" and _terms(left, right) <= _FEW:
        return torch.from_numpy(left.numpy() @ right.numpy())
    if worthwhile(left, right, bits):
        return product_of_bytes(left, right, bits, right_bits=right_bits)
    return product_of_digits(left, right, bits, right_bits=right_bits)


def product_of_digits(
    left: torch.Tensor, right: torch.Tensor, bits: int, *, right_bits: int | None = None
) -> torch.Tensor:
    """The same. Torch multiplies matrices of int64 without its fast kernels.

    Factors are split into signed digits, so short that float64 adds their products exactly: digits of a and b bits have
    magnitudes of 2^(a - 1) and 2^(b - 1), so a + b - 2 + log2(inner dimension) <= 53, or 52 if two sums are added."""
    inner_bits = math.ceil(math.log2(max(left.shape[-1], 1)))
    room = _EXACT_BITS + 1 - inner_bits
    whole = right_bits is None or right_bits > room - 16
    most = room // 2 if whole or right_bits is None else min(room + 1 - right_bits, _EXACT_BITS - 1)
    # No wider than that number of digits needs: smaller sums are converted faster.
    left_width = -(-bits // -(-bits // most))
    right_width = left_width if whole or right_bits is None else right_bits
    left_digits = _digits(left, bits, left_width)
    right_digits = _digits(right, bits, right_width) if whole else [right.double()]
    small = left_width + right_width - 2 + inner_bits + (len(right_digits) > 1) <= _EXACT_BITS - 2
    total: torch.Tensor | None = None
    for place in range(len(left_digits)):
        # Digits of one place: all together, two sums of exact terms at a time.
        pairs = [(i, place - i) for i in range(place + 1) if place - i < len(right_digits)]
        for start in range(0, len(pairs), 2):
            term = left_digits[pairs[start][0]] @ right_digits[pairs[start][1]]
            for i, j in pairs[start + 1 : start + 2]:
                term += left_digits[i] @ right_digits[j]
            words = _integers(term, small=small)
            if place:
                words <<= place * left_width
            total = words if total is None else total.add_(words)
    assert total is not None
    return total


def _terms(left: torch.Tensor, right: torch.Tensor) -> float:
    """Products of two words in left @ right, per word of factors and result; 0 for vectors."""
    if min(left.dim(), right.dim()) < 2:
        return math.inf
    batch = np.broadcast_shapes(left.shape[:-2], right.shape[:-2])
    result = math.prod(batch) * left.shape[-2] * right.shape[-1]
    return result * left.shape[-1] / max(left.numel() + right.numel() + result, 1)


def _integers(whole: torch.Tensor, *, small: bool) -> torch.Tensor:
    """Integers in float64 as int64; in place, and much faster, within -2^51 ... 2^51."""
    if not small:
        return whole.long()
    # From 2^52 on the last bit of a float64 has the value 1: its representation is the integer.
    return whole.add_(_COUNTING).view(torch.int64).sub_(_COUNTING_WORD)


def _digits(words: torch.Tensor, bits: int, width: int) -> list[torch.Tensor]:
    """float64 digits, least significant first, whose weighted sum is the words modulo 2^bits."""
    places, half = range(0, bits, width), 1 << (width - 1)
    # With half a digit added at every place, digits are plain bit fields, each half a digit too large.
    raised = words + int(np.uint64(sum(half << place for place in places) & ((1 << WORD_BITS) - 1)).view(np.int64))
    digits = []
    for place in places:
        digit = (raised >> place).bitwise_and_((1 << min(width, bits - place)) - 1)
        # From 2^52 on the last bit of a float64 has the value 1: a digit is inserted as it is.
        digits.append(digit.bitwise_or_(_ONES_WORD).view(torch.float64).sub_(_ONES + half))
    return digits


_FORM: Final = re.compile(r"([a-z]*),([a-z]*)->([a-z]*)")


def contracted_shape(letters: str, left: tuple[int, ...], right: tuple[int, ...]) -> tuple[int, ...]:
    """Shape of the result. ValueError for letters that are no contraction, or do not fit the factors' shapes."""
    form = _FORM.fullmatch(letters)
    if form is None or any(len(set(part)) < len(part) for part in form.groups()):
        raise ValueError(f"'{letters}' is no contraction, as 'btd,rd->btr' is one")
    one, other, result = form.groups()
    if len(one) != len(left) or len(other) != len(right):
        raise ValueError(f"'{letters}' are not as many letters as {left} and {right} have dimensions")
    # A single letter would be neither summed over nor kept.
    if any((one + other + result).count(letter) < 2 for letter in one + other + result):
        raise ValueError(f"'{letters}': each letter stands in both factors, or in one and in the result")
    sizes = dict(zip(one, left, strict=True))
    for letter, size in zip(other, right, strict=True):
        if sizes.setdefault(letter, size) > size:
            raise ValueError(f"'{letters}': {letter} is {sizes[letter]} and {size} in {left} and {right}")
    return tuple(sizes[letter] for letter in result)


def contracted(letters: str, left: torch.Tensor, right: torch.Tensor, bits: int) -> torch.Tensor:
    """The result modulo 2^bits; int64 in and out. ValueError as in `contracted_shape`."""
    contracted_shape(letters, tuple(left.shape), tuple(right.shape))
    factors, result = letters.split("->")
    one, other = factors.split(",")
    lengths = dict(zip(one, left.shape, strict=True))
    right = right[tuple(slice(lengths.get(letter)) for letter in other)]
    both = [letter for letter in result if letter in one and letter in other]
    rows = [letter for letter in result if letter not in other]
    columns = [letter for letter in result if letter not in one]
    inner = [letter for letter in one if letter not in result]
    # Summed dimensions are contiguous in both factors, which is up to three times as fast.
    turned = _matrices(right, other, both, columns, inner).transpose(-2, -1)
    found = product(_matrices(left, one, both, rows, inner), turned, bits)
    sizes = dict(zip(one, left.shape, strict=True)) | dict(zip(other, right.shape, strict=True))
    order = [*both, *rows, *columns]
    return found.reshape([sizes[letter] for letter in order]).permute([order.index(letter) for letter in result])


def _matrices(tensor: torch.Tensor, letters: str, *groups: list[str]) -> torch.Tensor:
    places = [[letters.index(letter) for letter in group] for group in groups]
    shape = [math.prod(tensor.shape[place] for place in group) for group in places]
    return tensor.permute([place for group in places for place in group]).reshape(shape).contiguous()
