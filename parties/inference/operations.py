"""The operations of private inference on shares: values are masked, opened in one message, and settled.

No sockets: a program is a generator that yields what it sends and expects (`Communication`) and receives the answer.
Independent openings share one message, which is one round. A party is a rank (MODEL or DATA) and its source of
correlated randomness; both run the same program.

In a product of shared operands (Beaver) each operand is opened once, as soon as it is known, for all of its products. A
product is available as soon as both of its operands are.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import islice
from typing import Final, TypeVar

import torch

from tacit.models.training import CPU
from tacit.parties.correlated.material import Request
from tacit.parties.inference.material import (
    CHECK_HARMONICS,
    NORM_WAVE_BITS,
    NORM_WORDS,
    Contraction,
    Fixed,
    Matrix,
    Narrow,
    Products,
    Scores,
    Waves,
    turned,
)
from tacit.parties.inference.ring import WORD_BITS, contracted, product
from tacit.parties.inference.waves import Wave, at, factors, rounded, waves
from tacit.protocol.inference.schedule import COARSE

MODEL: Final = 0
DATA: Final = 1

T = TypeVar("T")
Words = tuple[torch.Tensor, int]
"""int64 words, and the number of their significant lowest bits."""
Expected = tuple[tuple[int, ...], int]
"""A shape, and the bits of its words."""


@dataclass(frozen=True, repr=False)
class Communication:
    operation: str
    sent: tuple[Words, ...]
    expected: tuple[Expected, ...]


Program = Generator[Communication, list[torch.Tensor], T]


@dataclass(frozen=True, repr=False)
class Party:
    rank: int
    take: Callable[[Request], list[torch.Tensor]]
    """Take this party's words for a request: free ones, then shares of the dependent ones. Used once."""
    device: torch.device = CPU
    """Device of a program's tensors; taken words are on the CPU, and so are those from the other party."""

    def supplied(self, requests: Iterable[Request]) -> Party:
        """Return the same party with the words for these requests at hand, for a program that takes them in this
        order."""
        words = deque((request, [part.to(self.device) for part in self.take(request)]) for request in requests)

        def take(request: Request) -> list[torch.Tensor]:
            expected, found = words.popleft() if words else (None, [])
            if request != expected:
                raise RuntimeError(f"the program asks for {request}, the material at hand is for {expected}")
            return found

        return Party(self.rank, take, self.device)

    def open(self, operation: str, *masked: Words) -> Program[list[torch.Tensor]]:
        """Open values: both parties exchange their shares; returns the sums."""
        received = yield Communication(operation, masked, tuple((tuple(words.shape), bits) for words, bits in masked))
        return [words + other.to(self.device) for (words, _), other in zip(masked, received, strict=True)]

    def tell(self, operation: str, words: Words, *, to: int) -> Program[torch.Tensor | None]:
        """Send one party's words to the other, which alone receives them."""
        if self.rank != to:
            yield Communication(operation, (words,), ())
            return None
        (received,) = yield Communication(operation, (), ((tuple(words[0].shape), words[1]),))
        return received.to(self.device)


def together(programs: Sequence[Program[T]]) -> Program[list[T]]:
    """Run programs of the same steps side by side; their messages of a step travel together."""
    results: list[T] = []
    received: Sequence[list[torch.Tensor] | None] = [None] * len(programs)
    while True:
        exchanges = []
        for program, words in zip(programs, received, strict=True):
            try:
                exchanges.append(next(program) if words is None else program.send(words))
            except StopIteration as stop:
                results.append(stop.value)
        if not exchanges:
            return results
        sent = tuple(words for exchange in exchanges for words in exchange.sent)
        expected = tuple(words for exchange in exchanges for words in exchange.expected)
        arrived = iter((yield Communication(exchanges[0].operation, sent, expected)))
        received = [list(islice(arrived, len(exchange.expected))) for exchange in exchanges]


class NarrowValue:
    """A shared value of few bits, opened under a mask, with its ring extension (see material.py).

    |x| < 2^(bits - 2). Powers, and a product with a factor that is opened too, cost no message."""

    def __init__(
        self,
        party: Party,
        shape: tuple[int, ...],
        bits: int,
        *,
        degree: int = 1,
        factor: tuple[int, ...] | None = None,
        ring: int = WORD_BITS,
    ) -> None:
        self._rank, self._bits, self._degree = party.rank, bits, degree
        words = party.take(Narrow(shape, bits, degree, factor, ring))
        self._mask = words[0]
        self._factor_mask = words[0] if factor is None else words[1]
        first, *others = words[1 if factor is None else 2 :]
        # The share of r_0 itself: the dealer's word is the excess of the sum of the drawn masks.
        self._dependent = [self._mask + (first << bits), *others]
        self._place = self._public = words[0]

    def masked(self, share: torch.Tensor) -> Words:
        masked = share + self._mask
        return (masked + (1 << (self._bits - 2)) if self._rank == MODEL else masked), self._bits

    def settle(self, opened: torch.Tensor) -> None:
        place = opened & ((1 << self._bits) - 1)
        # Powers and products of both outcomes differ by 2^bits times the dealer's words.
        wrapped = place >> (self._bits - 1) << self._bits
        self._place = place
        self._public = place - (1 << (self._bits - 2))
        half = len(self._dependent) // 2
        pairs = zip(self._dependent[:half], self._dependent[half:], strict=True)
        self._dependent = [torch.addcmul(low, wrapped, difference) for low, difference in pairs]

    def polynomial(self, coefficients: Sequence[int]) -> torch.Tensor:
        """The share, in the wide ring, of the sum of coefficients[i] x^i, of at most the requested degree.

        P(p - r) is the sum of (-r)^j P^(j)(p) / j!, whose coefficients are integers again."""
        rows = _derivatives(tuple(coefficients))
        share = _horner(rows[0], self._public) if self._rank == MODEL else torch.zeros_like(self._public)
        for order, (row, power) in enumerate(zip(rows[1:], self._dependent, strict=False), 1):
            share.addcmul_(_horner(row, self._public), power, value=-1 if order % 2 else 1)
        return share

    def value(self) -> torch.Tensor:
        return self._public - self._dependent[0] if self._rank == MODEL else -self._dependent[0]

    def masked_factor(self, share: torch.Tensor) -> Words:
        return share + self._factor_mask, WORD_BITS

    def times(self, opened_factor: torch.Tensor) -> torch.Tensor:
        """The share of x f in the wide ring, where f + B was opened."""
        return self.value() * opened_factor - self._public * self._factor_mask + self._dependent[self._degree]


class WaveValue:
    """Fourier approximation of a function, whose period is the lowest COARSE bits of the value (see waves.py)."""

    def __init__(
        self,
        party: Party,
        shape: tuple[int, ...],
        wave: Wave,
        ring: int,
        bits: int = COARSE,
        *,
        check: Wave | None = None,
    ) -> None:
        self._rank, self._bits = party.rank, bits
        # Half a megabyte for two harmonics: computed here, ahead of the value.
        self._sums = [(each, factors(each, party.device)) for each in (wave, check) if each is not None]
        self._mask, *self._words = party.take(Waves(shape, len(wave.cosines), wave.words, ring, bits))
        own = slice(2 * CHECK_HARMONICS) if bits == COARSE else slice(2 * len(wave.cosines), None)
        self._kept = slice(0) if check is None else own
        self._opened = self._mask

    def masked(self, share: torch.Tensor) -> Words:
        return share + self._mask, self._bits

    def settle(self, opened: torch.Tensor) -> torch.Tensor:
        """The share of the function's value, times 2^wave.bits, from the sum of both masked shares."""
        self._opened = opened & ((1 << self._bits) - 1)
        # These words are most of a pass's memory, so words are released after their last use.
        words, self._words = self._words, self._words[self._kept]
        return self._sum(self._opened & ((1 << COARSE) - 1), words)

    def checked(self) -> torch.Tensor:
        """The share of another sum of harmonics, whose period is the whole ring.

        If that is the same period, the sum has no more harmonics than the function, and its words as many bits."""
        words, self._words = self._words, []
        return self._sum(turned(self._opened, self._bits), words)

    def _sum(self, place: torch.Tensor, waves: Sequence[torch.Tensor]) -> torch.Tensor:
        wave, tables = self._sums.pop(0)
        constant = wave.constant << wave.words if self._rank == MODEL else 0
        share, places = torch.full_like(place, constant), place.int()
        for factor, words in zip(tables, waves, strict=False):
            share.addcmul_(at(factor, places).long(), words)
        return share


class MatrixValue:
    """A Beaver product of two shared matrices modulo 2^bits, whose openings may happen at different times."""

    def __init__(self, party: Party, left: tuple[int, ...], right: tuple[int, ...], bits: int) -> None:
        self._rank, self._bits = party.rank, bits
        self._left, self._right, self._product = party.take(Matrix("matmul", left, right, words=bits))

    def masked_left(self, share: torch.Tensor) -> Words:
        """Masked left factor to open."""
        return share - self._left, self._bits

    def masked_right(self, share: torch.Tensor) -> Words:
        return share - self._right, self._bits

    def settle(self, left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
        """The share of the product, from the two opened differences."""
        return _beaver(self._rank, (left, right), (self._left, self._right), self._product, self._bits)


class ScoresValue:
    """Products of queries and keys [..., T, d] modulo 2^bits, and a measure of the norm of each query and key: the sum
    over its entries of 1 - cos(2 pi x / 2^turn), times 2^(NORM_WAVE_BITS + cosine_bits), with a small offset so that
    rounding cannot make it negative."""

    def __init__(self, party: Party, shape: tuple[int, ...], bits: int, turns: tuple[int, int]) -> None:
        self._rank, self._bits, self._turns, self._size = party.rank, bits, turns, shape[-1]
        queries, keys, self._product, *self._waves = party.take(Scores(shape, bits, *turns))
        self._masks = (queries, keys)

    def masked(self, queries: torch.Tensor, keys: torch.Tensor) -> tuple[Words, Words]:
        return (queries + self._masks[0], self._bits), (keys + self._masks[1], self._bits)

    def settle(self, *opened: torch.Tensor) -> torch.Tensor:
        left, right = (-mask for mask in self._masks)
        pair = (opened[0], opened[1].transpose(-2, -1))
        return _beaver(self._rank, pair, (left, right.transpose(-2, -1)), self._product, self._bits)

    def spread(self, *opened: torch.Tensor) -> list[torch.Tensor]:
        """The shares modulo 2^NORM_WORDS of the sums, of queries and of keys, [..., T]."""
        bits = cosine_bits(self._size)
        # Of 2 d terms, each has an error of at most half of 2^-bits and half of 2^-NORM_WAVE_BITS.
        constant = self._size * ((1 << (NORM_WAVE_BITS + bits)) + (1 << NORM_WAVE_BITS) + (1 << bits))
        found = []
        for sums, turn, (cosine, sine) in zip(opened, self._turns, self._waves, strict=True):
            pair = (rounded(wave, bits) for wave in waves(1, turned(sums, turn)))
            share = -sum(wave * words for wave, words in zip(pair, (cosine, sine), strict=True)).sum(-1)
            found.append(share + constant if self._rank == MODEL else share)
        return found


@dataclass(frozen=True, repr=False)
class FixedLinear:
    """x W + b for a weight that was masked once: one message from the data owner, of the size of the input.

    The model owner holds W and b, the data owner F = W - V for the dealer's V. Only R F, the part that does not depend
    on x, is computed beforehand (`prepared`)."""

    number: int
    words: torch.Tensor
    """int64 (in, out): W or F."""
    bias: torch.Tensor | None
    """int64 (out), at the model owner: the addend."""
    weight_bits: int
    """Bits of the greatest entry of W, including the sign."""

    def to(self, device: torch.device) -> FixedLinear:
        bias = None if self.bias is None else self.bias.to(device)
        return replace(self, words=self.words.to(device), bias=bias)

    def prepared(self, party: Party, rows: tuple[int, ...], ring: int) -> PreparedLinear:
        """Prepare for one input of these rows, modulo 2^ring."""
        shape = (self.words.shape[0], self.words.shape[1])
        words = party.take(Fixed(MODEL, rows, self.number, shape, ring))
        if party.rank == MODEL:
            return PreparedLinear(self, party, ring, torch.empty(0), words[0])
        return PreparedLinear(self, party, ring, words[0], product(words[0], self.words, ring) + words[1])


@dataclass(frozen=True, repr=False)
class PreparedLinear:
    linear: FixedLinear
    party: Party
    ring: int
    mask: torch.Tensor
    """R at the data owner."""
    constant: torch.Tensor
    """R F + Z at the data owner, R V - Z at the model owner."""

    def apply(self, operation: str, share: torch.Tensor) -> Program[torch.Tensor]:
        """The share of x W + b modulo 2^ring."""
        result = yield from self.multiplied(operation, share)
        return result if self.linear.bias is None else result.add_(self.linear.bias)

    def multiplied(self, operation: str, share: torch.Tensor) -> Program[torch.Tensor]:
        """The share of x W modulo 2^ring."""
        if self.party.rank == DATA:
            yield from self.party.tell(operation, (share - self.mask, self.ring), to=MODEL)
            return self.constant
        received = yield from self.party.tell(operation, (share, self.ring), to=MODEL)
        assert received is not None
        result = product(share + received, self.linear.words, self.ring, right_bits=self.linear.weight_bits)
        return result.add_(self.constant)


def cosine_bits(size: int) -> int:
    """Fractional bits of a public cosine, so that a sum of 2 size of them stays in its ring."""
    return NORM_WORDS - 2 - NORM_WAVE_BITS - math.ceil(math.log2(size))


def _beaver(
    rank: int,
    opened: tuple[torch.Tensor, torch.Tensor],
    masks: tuple[torch.Tensor, torch.Tensor],
    share: torch.Tensor,
    bits: int,
) -> torch.Tensor:
    """(D + A)(E + B) modulo 2^bits, for the opened D and E, and this party's shares of A, B and A B."""
    factor = opened[1] + masks[1] if rank == MODEL else masks[1]
    return product(opened[0], factor, bits) + product(masks[0], opened[1], bits) + share


@lru_cache(maxsize=256)
def _derivatives(coefficients: tuple[int, ...]) -> list[tuple[int, ...]]:
    """Coefficients of P, P', P'' / 2! ...: each row's x^i coefficient is i + 1 times the previous row's next one, over
    the order."""
    rows = [coefficients]
    for order in range(1, len(coefficients)):
        rows.append(tuple(power * value // order for power, value in enumerate(rows[-1]))[1:])
    return rows


def _horner(coefficients: Sequence[int], x: torch.Tensor) -> torch.Tensor:
    result = torch.full_like(x, _wrapped(coefficients[-1]))
    for coefficient in reversed(coefficients[:-1]):
        result *= x
        result += _wrapped(coefficient)
    return result


def _wrapped(value: int) -> int:
    """An integer modulo 2^64, in the range of int64."""
    return (value + (1 << 63)) % (1 << 64) - (1 << 63)


def products_request(operands: Mapping[str, tuple[int, ...]], products: Mapping[str, tuple[str, str, str]]) -> Products:
    """operands: shapes by name; products: names of two operands, and letters of their dimensions (ring.py)."""
    numbers = {name: number for number, name in enumerate(operands)}
    found = [Contraction(numbers[left], numbers[right], letters) for left, right, letters in products.values()]
    return Products(tuple(operands.values()), tuple(found))


class Operands:
    """One use of a `Products` with named operands and products, see `products_request`."""

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
        """Masked operand to open, once. Opened with fewer bits than a word, its products are correct in as many."""
        if name in self._hidden:
            raise RuntimeError(f"the operand {name} was masked already: a second value under its mask would tell both")
        self._hidden.add(name)
        return share - self._masks[name], bits

    def settle(self, name: str, opened: torch.Tensor) -> None:
        self._opened[name] = opened

    def product(self, name: str) -> torch.Tensor:
        left, right, letters = self._products[name]
        one, other = self._opened[left], self._opened[right]
        factor = other + self._masks[right] if self._rank == MODEL else self._masks[right]
        found = contracted(letters, one, factor, WORD_BITS) + contracted(letters, self._masks[left], other, WORD_BITS)
        return found + self._dependent[name]
