"""Neighbours and threshold, ring words, the layout of the vector: docs/spec/parameters.md in exact arithmetic."""

import math
import struct
from fractions import Fraction
from typing import Any

from constants import METRIC_BITS, require
from primitives import keystream


def whole(fraction: float, members: int) -> int:
    """floor(fraction * members), of the shortest decimal that reads back as this binary64."""
    return math.floor(Fraction(repr(fraction)) * members)


def parameters(clients: int, colluders: int, dropouts: int, mode: str, graph: str) -> tuple[int, int]:
    """(neighbours, threshold); INVALID if there are none."""
    n, a, d = clients, colluders, dropouts
    require(n >= 2 and 0 <= a < n and 0 <= d < n, "INVALID")
    if graph_of(n, mode, graph) == "complete":
        t = 1 + (max(2 * n // 3, (n + a) // 2) if mode == "active" else max(a, n // 2))
        require(t <= n, "INVALID")
        return n - 1, t
    require(10 * (a + (2 if mode == "active" else 1) * d) <= 9 * n, "INVALID")
    for k in range(2, n - 1, 2):
        if k <= a + d:
            apart = Fraction(n * (n - k - 1), 2) * Fraction(math.comb(a + d, k), math.comb(n, k))
            if apart >= Fraction(1, 2**41):
                continue
        t1: int = least_exceeded(n, a, k, Fraction(1, 2**41 * n))
        t2 = k - least_exceeded(n, d, k, Fraction(1, 2**20 * n))
        if mode == "active":
            t1 = math.ceil((t1 + k - Fraction(5, 4)) / 2)
        if t2 > t1:
            return k, max(t1 + 1, 2)
    require(False, "INVALID")
    raise AssertionError


def graph_of(clients: int, mode: str, graph: str) -> str:
    if graph != "auto":
        return graph
    return "complete" if mode == "active" or clients < 20 else "regular"


def least_exceeded(n: int, marked: int, drawn: int, bound: Fraction) -> int:
    """The smallest x with Pr[Hyp(n, marked, drawn) > x] <= bound."""
    ways = math.comb(n, drawn)
    above = 0  # ways to draw more than x marked ones
    x = min(marked, drawn)
    while x > 0:
        above += math.comb(marked, x) * math.comb(n - marked, drawn - x)
        if Fraction(above, ways) > bound:
            return x
        x -= 1
    return 0


def word_bytes(bits: int) -> int:
    return (bits + 7) // 8


FORMATS = {1: "B", 2: "H", 4: "I", 8: "Q"}


def pack_words(words: list[int], bits: int) -> bytes:
    size = word_bytes(bits)
    if size in FORMATS:
        return struct.pack(f"<{len(words)}{FORMATS[size]}", *words)
    return b"".join(word.to_bytes(size, "little") for word in words)


def unpack_words(packed: bytes, bits: int) -> list[int]:
    """Words of the ring; INVALID if one of them is none, or if they are no whole number of them."""
    size = word_bytes(bits)
    require(8 <= bits <= 64 and len(packed) % size == 0, "INVALID")
    if size in FORMATS:
        words = list(struct.unpack(f"<{len(packed) // size}{FORMATS[size]}", packed))
    else:
        words = [int.from_bytes(packed[at : at + size], "little") for at in range(0, len(packed), size)]
    require(bits % 8 == 0 or all(word < 2**bits for word in words), "INVALID")
    return words


def signed(word: int, bits: int) -> int:
    return word - 2**bits if word >= 2 ** (bits - 1) else word


def mask_stream(seed: bytes, usage: bytes, bits: int, length: int, start: int = 0) -> list[int]:
    """`length` ring words of a mask, from the word `start` on, which must begin a block of the cipher."""
    size = next(size for size in FORMATS if 8 * size >= bits)
    stream = keystream(seed, usage, size * length, size * start)
    words = struct.unpack(f"<{length}{FORMATS[size]}", stream)
    return list(words) if 8 * size == bits else [word % 2**bits for word in words]


def add(words: list[int], others: list[int], sign: int, bits: int) -> list[int]:
    modulus = 2**bits
    if sign == 1:
        return [(word + other) % modulus for word, other in zip(words, others, strict=True)]
    return [(word - other) % modulus for word, other in zip(words, others, strict=True)]


class Packing:
    """What follows from the settings of a contribution; INVALID if its sum could overflow."""

    def __init__(
        self,
        clients: int,
        clip: float,
        value_bits: int,
        max_weight: int,
        form: str,
        tensor_sizes: list[int],
        metrics: list[str],
        ring_bits: int | None = None,
    ) -> None:
        self.clients, self.max_weight, self.form = clients, max_weight, form
        self.tensor_sizes, self.metrics = tensor_sizes, metrics
        require(2 <= value_bits <= 32 and clip > 0, "INVALID")
        self.levels = 2 ** (value_bits - 1) - 1
        self.value_field = (clients * self.levels).bit_length() + 1
        count_field = (clients * max_weight).bit_length() if form == "coordinate" else 0
        needed = clients.bit_length() + 1 if form == "words" else self.value_field + count_field
        self.ring_bits = ring_bits if ring_bits is not None else 8 * word_bytes(needed)
        require(8 <= self.ring_bits <= 64 and needed <= self.ring_bits, "INVALID")
        require((clients * max_weight).bit_length() <= 63 and math.isfinite(clip * max_weight), "INVALID")
        require(bool(tensor_sizes) or (bool(metrics) and form == "scalar"), "INVALID")
        require(len(set(metrics)) == len(metrics), "INVALID")
        self.bound = clip * max_weight
        self.limb_bits = self.ring_bits - clients.bit_length()
        self.weight_limbs = math.ceil(max_weight.bit_length() / self.limb_bits)
        self.metric_limbs = math.ceil(METRIC_BITS / self.limb_bits)
        self.coordinates = sum(tensor_sizes)
        self.weights = {"scalar": 1, "tensor": len(tensor_sizes), "coordinate": 0, "words": 1}[form]
        self.length = self.coordinates + self.weights * self.weight_limbs + len(metrics) * self.metric_limbs

    def spread(self, weights: Any) -> list[int]:
        """The weight of each coordinate."""
        if self.form == "scalar":
            return [weights] * self.coordinates
        if self.form == "tensor":
            return [weight for weight, size in zip(weights, self.tensor_sizes, strict=True) for _ in range(size)]
        return list(weights)

    def in_limbs(self, number: int, count: int) -> list[int]:
        return [(number >> (self.limb_bits * place)) % 2**self.limb_bits for place in range(count)]

    def from_limbs(self, words: list[int]) -> int:
        return sum(word << (self.limb_bits * place) for place, word in enumerate(words))

    def write(self, values: list[float], weights: Any, metrics: dict[str, int]) -> tuple[bytes, int]:
        """(packed words, number of values that were clipped). A value must come out as a whole number of levels."""
        words, clipped = [], 0
        for value, weight in zip(values, self.spread(weights), strict=True):
            bounded = min(max(value, -self.bound), self.bound)
            level = bounded * self.levels / self.bound if weight else 0.0
            clipped += weight != 0 and bounded != value
            require(level == int(level), "INVALID")
            words.append(((weight << self.value_field) if self.form == "coordinate" else 0) + int(level))
        for weight in {"scalar": [weights], "tensor": weights, "coordinate": []}[self.form]:
            words += self.in_limbs(weight, self.weight_limbs)
        for name in self.metrics:
            words += self.in_limbs(metrics[name], self.metric_limbs)
        return pack_words([word % 2**self.ring_bits for word in words], self.ring_bits), clipped

    def read(self, packed: bytes, contributors: int) -> dict[str, Any]:
        words = unpack_words(packed, self.ring_bits)
        require(len(words) == self.length and 1 <= contributors <= self.clients, "INVALID")
        field = self.value_field if self.form == "coordinate" else self.ring_bits
        levels = [signed(word % 2**field, field) for word in words[: self.coordinates]]
        require(all(abs(level) <= contributors * self.levels for level in levels), "INVALID")
        rest = words[self.coordinates :]
        weights: Any
        if self.form == "coordinate":
            weights = [
                ((word - level) >> field) % 2 ** (self.ring_bits - field)
                for word, level in zip(words, levels, strict=False)
            ]
        else:
            weights = []
            for _ in range(self.weights):
                weights.append(self.from_limbs(rest[: self.weight_limbs]))
                rest = rest[self.weight_limbs :]
        require(all(weight <= contributors * self.max_weight for weight in weights), "INVALID")
        metrics = {}
        for name in self.metrics:
            metrics[name] = self.from_limbs(rest[: self.metric_limbs])
            rest = rest[self.metric_limbs :]
        require(all(metric <= contributors * (2**METRIC_BITS - 1) for metric in metrics.values()), "INVALID")
        return {
            "values": [level * self.bound / self.levels for level in levels],
            "weights": weights[0] if self.form == "scalar" else weights,
            "metrics": metrics,
        }


class PlainPacking:
    """Layout of a contribution without secure aggregation; INVALID if its sum could overflow."""

    ring_bits = 32

    def __init__(
        self, clients: int, max_weight: int, form: str, tensor_sizes: list[int], metrics: list[str], **unused: Any
    ) -> None:
        require((clients * max_weight).bit_length() <= 63, "INVALID")
        require(bool(tensor_sizes) and len(set(metrics)) == len(metrics), "INVALID")
        self.max_weight, self.form, self.tensor_sizes = max_weight, form, tensor_sizes
        self.coordinates = sum(tensor_sizes)
        self.weights = {"scalar": 1, "tensor": len(tensor_sizes), "coordinate": self.coordinates}[form]
        self.weight_bytes = 1 if max_weight < 256 else 4
        self.metrics_start = self.coordinates + -(-self.weights * self.weight_bytes // 4)
        self.metrics = len(metrics)
        self.length = self.metrics_start + 2 * self.metrics

    def check(self, words: list[int], first: int) -> None:
        """VECTOR unless these words, the first of which is at `first`, can stand in a contribution."""
        for place, word in enumerate(words, first):
            if place < self.coordinates:
                require(word >> 23 & 255 != 255, "VECTOR")
            elif place < self.metrics_start:
                begun = (place - self.coordinates) * 4 // self.weight_bytes
                here = self.split(word)
                require(all(weight <= self.max_weight for weight in here), "VECTOR")
                require(not any(here[max(0, self.weights - begun) :]), "VECTOR")
            elif (place - self.metrics_start) % 2:
                require(word < 2**16, "VECTOR")

    def split(self, word: int) -> list[int]:
        return [word] if self.weight_bytes == 4 else list(struct.pack("<I", word))

    def total(self, vectors: list[list[int]]) -> list[int]:
        """Words of 64 bits: the sums of the products as float64, of the weights, and of the metrics."""
        values, weights, metrics = [0.0] * self.coordinates, [0] * self.weights, [0] * self.metrics
        for words in vectors:
            own = [weight for word in words[self.coordinates : self.metrics_start] for weight in self.split(word)]
            own = own[: self.weights]
            repeats = {"scalar": [self.coordinates], "tensor": self.tensor_sizes}.get(self.form, [1] * self.coordinates)
            spread = [weight for weight, times in zip(own, repeats, strict=True) for _ in range(times)]
            floats = struct.unpack(f"<{self.coordinates}f", pack_words(words[: self.coordinates], 32))
            values = [sum_ + value * weight for sum_, value, weight in zip(values, floats, spread, strict=True)]
            weights = [sum_ + weight for sum_, weight in zip(weights, own, strict=True)]
            pairs = words[self.metrics_start :]
            metrics = [
                sum_ + low + (high << 32) for sum_, low, high in zip(metrics, pairs[::2], pairs[1::2], strict=True)
            ]
        return [*unpack_words(struct.pack(f"<{len(values)}d", *values), 64), *weights, *metrics]
