"""Products of operands that are opened once are exact, whichever is opened first; contractions are those of
torch.einsum."""

from typing import Any

import pytest
import torch

from tacit.parties.inference.operations import Operands, Party, Program, products_request
from tacit.parties.inference.ring import contracted, contracted_shape, packed, signed
from tests.parties.inference.in_memory import Pair, shares

SHAPES = {"x": (3, 5, 4), "W": (2, 4), "y": (3, 5, 2), "a": (1,), "e": (3, 2, 4)}
PRODUCTS = {
    "x W^T": ("x", "W", "btd,rd->btr"),
    "y^T x": ("y", "x", "btr,btd->rd"),
    "each": ("x", "y", "btd,btr->bdr"),
    "scaled": ("a", "W", "a,rd->ard"),
    "squares": ("W", "W", "rd,rd->"),
    "first": ("e", "y", "btd,btr->dr"),
}


def drawn(shape: tuple[int, ...], below: int = 1 << 20) -> torch.Tensor:
    return torch.randint(-below, below, shape)


@pytest.mark.parametrize(
    "letters", [letters for _, _, letters in PRODUCTS.values()] + ["ba,cb->ac", ",->", "ab,cd->bdca"]
)
def test_a_contraction_is_that_of_einsum(letters: str) -> None:
    sizes = dict(zip("abcdrt", (1, 2, 3, 4, 5, 6), strict=True))
    left, right = (tuple(sizes[letter] for letter in part) for part in letters.split("->")[0].split(","))
    one, other = drawn(left), drawn(right)
    found = contracted(letters, one, other, 64)
    assert found.equal(torch.einsum(letters, one, other))
    assert contracted_shape(letters, left, right) == tuple(found.shape)


def test_large_contractions_are_exact_modulo_a_power_of_two() -> None:
    one, other = torch.randint(-(2**63), 2**63 - 1, (64, 70)), torch.randint(-(2**63), 2**63 - 1, (90, 64))
    assert contracted("ab,ca->cb", one, other, 64).equal(torch.einsum("ab,ca->cb", one, other))


@pytest.mark.parametrize("letters", ["btd,rd", "btd,rd->btx", "bbd,rd->br", "btd,rd->btrr", "btd,rd->bt", "bt,rd->btr"])
def test_what_is_no_contraction_is_refused(letters: str) -> None:
    with pytest.raises(ValueError, match=r"contraction|letters|stands"):
        contracted_shape(letters, (3, 5, 4), (2, 4))


def test_sizes_that_differ_are_refused() -> None:
    with pytest.raises(ValueError, match=r"d is 4 and 3 in \(3, 5, 4\) and \(2, 3\)"):
        contracted_shape("btd,rd->btr", (3, 5, 4), (2, 3))


def test_of_a_longer_right_factor_the_first_elements_count() -> None:
    one, other = drawn((3, 2, 4)), drawn((3, 5, 6))
    assert contracted("btd,btr->dr", one, other, 64).equal(torch.einsum("btd,btr->dr", one, other[:, :2]))
    assert contracted_shape("btd,btr->btdr", (3, 2, 4), (3, 5, 6)) == (3, 2, 4, 6)


def test_an_operand_is_opened_once_and_serves_all_its_products() -> None:
    values = {name: drawn(shape) for name, shape in SHAPES.items()}
    parts = {name: shares(value) for name, value in values.items()}

    def act(party: Party, rank: int) -> Program[dict[str, torch.Tensor]]:
        operands, found = Operands(party, SHAPES, PRODUCTS), {}
        ready = {"W": ["squares"], "x": ["x W^T"], "a": ["scaled"], "e": [], "y": ["y^T x", "each", "first"]}
        for name, products in ready.items():
            (words,) = yield from party.open(name, operands.masked(name, parts[name][rank]))
            operands.settle(name, words)
            found |= {product: operands.product(product) for product in products}
        return found

    pair = Pair()
    one, other = pair.run(*(act(party, party.rank) for party in pair.parties))
    for name, (left, right, letters) in PRODUCTS.items():
        assert (one[name] + other[name]).equal(contracted(letters, values[left], values[right], 64)), name
    octets = {name: 8 * values[name].numel() for name in ("W", "x", "a", "e", "y")}
    assert pair.log == [(name, size, size) for name, size in octets.items()]
    assert pair.requests == [products_request(SHAPES, PRODUCTS)]


def test_an_operand_of_fewer_bits_has_products_of_as_many() -> None:
    left, right = drawn((5, 4)), drawn((4, 3))
    both, other = shares(left), shares(right)

    def act(party: Party, rank: int) -> Program[Any]:
        operands = Operands(party, {"A": (5, 4), "B": (4, 3)}, {"A B": ("A", "B", "ab,bc->ac")})
        masked = operands.masked("A", both[rank], 50), operands.masked("B", other[rank])
        for name, words in zip("AB", (yield from party.open("matrices", *masked)), strict=True):
            operands.settle(name, words)
        return operands.product("A B")

    pair = Pair()
    one, two = pair.run(*(act(party, party.rank) for party in pair.parties))
    assert signed(one + two, 50).equal(left @ right)
    assert pair.log == [("matrices", packed(left, 50).nbytes + 8 * 12, 7 * 20 + 8 * 12)]


def test_a_mask_hides_one_value() -> None:
    operands = Operands(Pair().parties[0], SHAPES, PRODUCTS)
    operands.masked("a", drawn((1,)))
    with pytest.raises(RuntimeError, match=r"the operand a was masked already"):
        operands.masked("a", drawn((1,)))
