"""Sums of products of two tensors whose dimensions have letters: `btd,rd->btr` sums over d, as Einstein wrote them.

Each is a product of matrices: dimensions that both factors and the result have come first, those that both factors
alone have are summed over. Where the left one is shorter in a dimension that both have, the first elements of the right
one count: what is known of the first rows alone is multiplied by just these.
"""

from __future__ import annotations

import math
import re
from typing import Final

import torch

from tacit.parties.inference.ring import product

_FORM: Final = re.compile(r"([a-z]*),([a-z]*)->([a-z]*)")


def contracted_shape(letters: str, left: tuple[int, ...], right: tuple[int, ...]) -> tuple[int, ...]:
    """Of the result. ValueError for letters that are no contraction, or do not fit the shapes of the factors."""
    form = _FORM.fullmatch(letters)
    if form is None or any(len(set(part)) < len(part) for part in form.groups()):
        raise ValueError(f"'{letters}' is no contraction, as 'btd,rd->btr' is one")
    one, other, result = form.groups()
    if len(one) != len(left) or len(other) != len(right):
        raise ValueError(f"'{letters}' are not as many letters as {left} and {right} have dimensions")
    # What stands once is neither summed over nor left.
    if any((one + other + result).count(letter) < 2 for letter in one + other + result):
        raise ValueError(f"'{letters}': each letter stands in both factors, or in one and in the result")
    sizes = dict(zip(one, left, strict=True))
    for letter, size in zip(other, right, strict=True):
        if sizes.setdefault(letter, size) > size:
            raise ValueError(f"'{letters}': {letter} is {sizes[letter]} and {size} in {left} and {right}")
    return tuple(sizes[letter] for letter in result)


def contracted(letters: str, left: torch.Tensor, right: torch.Tensor, bits: int) -> torch.Tensor:
    """The result modulo 2^bits; int64 in and out. ValueError as of `contracted_shape`."""
    contracted_shape(letters, tuple(left.shape), tuple(right.shape))
    factors, result = letters.split("->")
    one, other = factors.split(",")
    lengths = dict(zip(one, left.shape, strict=True))
    right = right[tuple(slice(lengths.get(letter)) for letter in other)]
    both = [letter for letter in result if letter in one and letter in other]
    rows = [letter for letter in result if letter not in other]
    columns = [letter for letter in result if letter not in one]
    inner = [letter for letter in one if letter not in result]
    # What is summed over lies side by side in both, which is up to three times as fast.
    turned = _matrices(right, other, both, columns, inner).transpose(-2, -1)
    found = product(_matrices(left, one, both, rows, inner), turned, bits)
    sizes = dict(zip(one, left.shape, strict=True)) | dict(zip(other, right.shape, strict=True))
    order = [*both, *rows, *columns]
    return found.reshape([sizes[letter] for letter in order]).permute([order.index(letter) for letter in result])


def _matrices(tensor: torch.Tensor, letters: str, *groups: list[str]) -> torch.Tensor:
    """With one dimension for each group of letters."""
    places = [[letters.index(letter) for letter in group] for group in groups]
    shape = [math.prod(tensor.shape[place] for place in group) for group in places]
    return tensor.permute([place for group in places for place in group]).reshape(shape).contiguous()
