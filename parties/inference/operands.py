"""Products of shared operands, each of which is opened once: what Beaver's trick needs of one serves all its products.

Operands are opened whenever they are known, and a product is there as soon as both of its operands are.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch

from tacit.parties.inference.contraction import contracted
from tacit.parties.inference.material import Contraction, Products
from tacit.parties.inference.operations import MODEL, Party, Words
from tacit.parties.inference.ring import WORD_BITS


def products_request(operands: Mapping[str, tuple[int, ...]], products: Mapping[str, tuple[str, str, str]]) -> Products:
    """operands: shapes by name; products: names of two operands, and letters of their dimensions (contraction.py)."""
    numbers = {name: number for number, name in enumerate(operands)}
    found = [Contraction(numbers[left], numbers[right], letters) for left, right, letters in products.values()]
    return Products(tuple(operands.values()), tuple(found))


class Operands:
    """One use of a `Products` with names, as of `products_request`."""

    def __init__(
        self, party: Party, operands: Mapping[str, tuple[int, ...]], products: Mapping[str, tuple[str, str, str]]
    ) -> None:
        self._rank, self._products = party.rank, products
        words = party.take(products_request(operands, products))
        self._masks = dict(zip(operands, words[: len(operands)], strict=True))
        self._dependent = dict(zip(products, words[len(operands) :], strict=True))
        self._hidden: set[str] = set()
        self._opened: dict[str, torch.Tensor] = {}

    def masked(self, name: str, share: torch.Tensor, bits: int = WORD_BITS) -> Words:
        """What to open of an operand, once. With fewer bits than a word has its products are right in as many."""
        if name in self._hidden:
            raise RuntimeError(f"the operand {name} was masked already: a second value under its mask would tell both")
        self._hidden.add(name)
        return share - self._masks[name], bits

    def settle(self, name: str, opened: torch.Tensor) -> None:
        """Take in the sum of both masked shares."""
        self._opened[name] = opened

    def product(self, name: str) -> torch.Tensor:
        """The share of a product whose operands are open."""
        left, right, letters = self._products[name]
        one, other = self._opened[left], self._opened[right]
        factor = other + self._masks[right] if self._rank == MODEL else self._masks[right]
        found = contracted(letters, one, factor, WORD_BITS) + contracted(letters, self._masks[left], other, WORD_BITS)
        return found + self._dependent[name]
