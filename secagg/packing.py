"""Packing of a client's contribution into one vector of ring words: values, weights and metrics.

Values are quantised to integers q in two's complement, so that the sum of the words is the sum of the integers as long
as it fits. With a weight per coordinate the word is

    (weight << value_field) + q   mod 2^bits,

wide enough that |sum q| < 2^(value_field - 1): the low bits of the summed word are sum q, and the rest is exactly the
sum of weights. Weights of the other forms, and metrics, are split into limbs in extra words at the end. A configuration
in which any sum could wrap is refused when the packing is made.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from tacit.secagg.ring import Quantiser, Ring, Words, sign_extend

METRIC_BITS = 48
_BLOCK = 1 << 15  # Values processed at once: a block's temporaries stay in the cache, and memory near one vector.

Integers = npt.NDArray[np.integer[Any]]


class WeightForm(StrEnum):
    """Summed content beside the metrics: values with one weight for all, one per tensor (layer) or one per coordinate;
    or words, without a weight."""

    SCALAR = "scalar"
    TENSOR = "tensor"
    COORDINATE = "coordinate"
    WORDS = "words"
    """No quantisation: words of the ring, summed modulo 2^ring_bits, and the number of clients in the sum."""


@dataclass(frozen=True)
class Encoded:
    """A client's contribution before masking: ring words [length], and the number of clipped values."""

    words: Words = field(repr=False)
    clipped: int


@dataclass(frozen=True)
class Total:
    """The sums over the contributors: values float64 [D]; weights int64 (), [T] or [D]; metrics by name."""

    values: npt.NDArray[np.float64] = field(repr=False)
    weights: npt.NDArray[np.int64] = field(repr=False)
    metrics: dict[str, int]
    tensor_sizes: tuple[int, ...]

    def mean(self) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.bool_]]:
        """values / weights [D], and the mask [D] of coordinates with any contributor.

        Elsewhere the mean is 0 and the mask is False: the caller keeps its old parameter there."""
        per_tensor = self.weights.ndim == 1 and self.weights.shape != self.values.shape
        weights = np.repeat(self.weights, self.tensor_sizes) if per_tensor else self.weights
        moved = np.broadcast_to(weights > 0, self.values.shape).copy()
        return np.divide(self.values, weights, out=np.zeros_like(self.values), where=moved), moved


@dataclass(frozen=True, kw_only=True)
class Contribution:
    """Sizes common to every layout of a contribution. ValueError for contradictory ones.

    clients: the most clients in one sum.
    max_weight: the largest integer weight of one client, at least 1.
    tensor_sizes: number of values of each tensor; their sum is D. None if metrics are summed alone.
    metrics: names of non-negative integers below 2^48 that are summed along."""

    clients: int
    max_weight: int
    form: WeightForm
    tensor_sizes: tuple[int, ...]
    metrics: tuple[str, ...]

    def __post_init__(self) -> None:
        if self.clients < 1 or self.max_weight < 1:
            raise ValueError(f"clients ({self.clients}) and max_weight ({self.max_weight}) are at least 1")
        alone = self.metrics and self.form is WeightForm.SCALAR
        if min(self.tensor_sizes, default=1 if alone else 0) < 1:
            raise ValueError(
                f"tensor_sizes is a list of positive sizes, not {self.tensor_sizes}; it may be empty where metrics are "
                "summed alone, with one weight"
            )
        if len(set(self.metrics)) != len(self.metrics):
            raise ValueError(f"a metric is named twice: {self.metrics}")

    @cached_property
    def values_length(self) -> int:
        return sum(self.tensor_sizes)

    def _contributed_blocks(self, weights: npt.NDArray[Any]) -> Iterator[tuple[slice, npt.NDArray[Any]]]:
        """Blocks of the values whose weight is not 0 as a whole, with their weights: () or one for each value."""
        if self.form is WeightForm.TENSOR:
            ends = np.cumsum(self.tensor_sizes).tolist()
            for size, end, weight in zip(self.tensor_sizes, ends, weights, strict=True):
                if weight:
                    yield from ((block, weight) for block in _blocks(end - size, end))
        elif self.form is WeightForm.COORDINATE:
            yield from ((block, weights[block]) for block in _blocks(0, self.values_length))
        elif weights:
            yield from ((block, weights) for block in _blocks(0, self.values_length))

    def _checked_values(self, values: npt.NDArray[np.floating[Any]]) -> None:
        if values.shape != (self.values_length,):
            raise ValueError(f"expected {self.values_length} values, got shape {values.shape}")

    def _checked_contributors(self, contributors: int) -> None:
        if not 1 <= contributors <= self.clients:
            raise ValueError(f"a sum has 1 to {self.clients} contributors, not {contributors}")

    def _checked_weights(self, weights: int | Integers | npt.NDArray[np.bool_]) -> npt.NDArray[Any]:
        array = np.asarray(weights)
        shapes = {WeightForm.SCALAR: (), WeightForm.TENSOR: (len(self.tensor_sizes),)}
        shape = shapes.get(self.form, (self.values_length,))
        if array.dtype.kind not in "iub" or array.shape != shape:
            raise ValueError(f"expected integer weights of shape {shape}, got {array.dtype} of shape {array.shape}")
        if not 0 <= int(array.min()) <= int(array.max()) <= self.max_weight:
            raise ValueError(
                f"weights lie in 0..{self.max_weight}, got {int(array.min())}..{int(array.max())}: "
                "raise max_weight, which every party must agree on, or scale the weights"
            )
        return array

    def _checked_metrics(self, metrics: Mapping[str, int]) -> list[int]:
        if metrics.keys() != set(self.metrics):
            raise ValueError(f"expected the metrics {sorted(self.metrics)}, got {sorted(metrics)}")
        for name, metric in metrics.items():
            if not isinstance(metric, int) or not 0 <= metric < 1 << METRIC_BITS:
                raise ValueError(f"metric {name!r} is {metric!r}, not an integer in 0..2^{METRIC_BITS}-1")
        return [metrics[name] for name in self.metrics]


@dataclass(frozen=True, kw_only=True)
class Packing(Contribution):
    """Layout of a contribution to a secure sum. ValueError when a sum could wrap, naming the width it needs.

    clip: bound of a value before it is multiplied by its weight; weighted values are clipped to clip * max_weight.
    value_bits: 2 to 32, the resolution of a weighted value.
    ring_bits: width of the ring; by default the smallest whole number of bytes that is enough.
    """

    clip: float
    value_bits: int
    ring_bits: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        needed = self.needed_bits
        count_bits = (self.clients * self.max_weight).bit_length()
        if needed > 64 or count_bits > 63:
            raise ValueError(
                f"the sums need a ring of {needed} bits and weights of {count_bits} bits; 64 and 63 are possible: "
                "lower clients, value_bits or max_weight"
            )
        if self.ring_bits is not None and self.ring_bits < needed:
            raise ValueError(
                f"ring_bits = {self.ring_bits} is too small: sums over {self.clients} clients need {needed} bits; "
                "raise ring_bits, or lower clients, value_bits or max_weight"
            )
        _ = self.ring  # Refuses a width beyond 64 bits.

    @cached_property
    def quantiser(self) -> Quantiser:
        """Quantiser of the weighted values. ValueError if words are summed."""
        if self.form is WeightForm.WORDS:
            raise ValueError("words of the ring are summed as they are")
        return Quantiser(self.clip * self.max_weight, self.value_bits)

    @cached_property
    def value_field(self) -> int:
        """Bits of the sum of the integers of all clients in two's complement."""
        return (self.clients * self.quantiser.levels).bit_length() + 1

    @property
    def needed_bits(self) -> int:
        """Bits of the narrowest ring in which no sum wraps; for words, only their number must fit."""
        if self.form is WeightForm.WORDS:
            return self.clients.bit_length() + 1
        count_field = (self.clients * self.max_weight).bit_length() if self.form is WeightForm.COORDINATE else 0
        return self.value_field + count_field

    @cached_property
    def ring(self) -> Ring:
        return Ring(-(-self.needed_bits // 8) * 8 if self.ring_bits is None else self.ring_bits)

    @property
    def step(self) -> float:
        """Largest quantisation error of a weighted value; words are exact."""
        return 0.0 if self.form is WeightForm.WORDS else self.quantiser.step

    @property
    def length(self) -> int:
        return self._metrics_start + len(self.metrics) * self._limbs(METRIC_BITS)

    def error_bound(self, contributors: int) -> float:
        """Largest error of a decoded sum of values: a step each, and the rounding of float64."""
        # Scaling, the step and the decoded product each round once or twice: at most 2^-50 of the limit together.
        return contributors * (self.quantiser.step + self.quantiser.limit * 2.0**-50)

    def encode(
        self,
        values: npt.NDArray[np.floating[Any]],
        weights: int | Integers | npt.NDArray[np.bool_],
        metrics: Mapping[str, int],
        generator: np.random.Generator,
    ) -> Encoded:
        """The ring words of weighted values [D], their weights, and metrics.

        values: float32 or float64, already multiplied by their weight. For a weight of 0 the contribution is exactly 0,
        regardless of the value; no other value may be NaN or infinite.
        weights: an integer, integers [T] or integers (or booleans) [D], depending on the form, in 0..max_weight.
        ValueError on other input. Takes little memory beyond the words that it returns."""
        self._checked_values(values)
        weights = self._checked_weights(weights)
        tail = [] if self.form is WeightForm.COORDINATE else weights.reshape(-1).tolist()
        words = np.zeros(self.length, self.ring.word)
        words[self.values_length : self._metrics_start] = self._to_limbs(tail, self.max_weight.bit_length())
        words[self._metrics_start :] = self._to_limbs(self._checked_metrics(metrics), METRIC_BITS)
        clipped = 0
        for block, block_weights in self._contributed_blocks(weights):
            block_values = np.where(block_weights > 0, values[block], 0)
            quantised, block_clipped = self.quantiser.quantise(block_values, generator, offset=block.start)
            clipped += block_clipped
            numbers = quantised.astype(np.int64)
            if self.form is WeightForm.COORDINATE:
                numbers += block_weights.astype(np.int64) << self.value_field
            words[block] = self.ring.from_signed(numbers)
        return Encoded(words, clipped)

    def decode(self, words: Words, *, contributors: int) -> Total:
        """The sums in the sum of the words [length] of `contributors` clients.

        ValueError for a sum beyond the reach of that many contributors: a mask was left in, or a client cheated."""
        self._checked_contributors(contributors)
        self.ring.check_words(words)
        if len(words) != self.length:
            raise ValueError(f"expected {self.length} words, got {len(words)}")
        by_coordinate = self.form is WeightForm.COORDINATE
        values = np.empty(self.values_length, np.float64)
        counts = np.empty(self.values_length if by_coordinate else 0, np.int64)
        for block in _blocks(0, self.values_length):
            numbers = self.ring.signed(words[block])
            if by_coordinate:
                sums = sign_extend(numbers, self.value_field)
                count_mask = (1 << (self.ring.bits - self.value_field)) - 1
                counts[block] = ((numbers - sums) >> self.value_field) & count_mask
            else:
                sums = numbers
            check_range(sums, -contributors * self.quantiser.levels, contributors * self.quantiser.levels, "values")
            values[block] = self.quantiser.dequantise(sums)
        tail = self._from_limbs(words[self.values_length : self._metrics_start], self.max_weight.bit_length())
        metrics = self._from_limbs(words[self._metrics_start :], METRIC_BITS)
        weights = counts if by_coordinate else tail[0] if self.form is WeightForm.SCALAR else tail
        check_range(weights, 0, contributors * self.max_weight, "weights")
        check_range(metrics, 0, contributors * ((1 << METRIC_BITS) - 1), "metrics")
        return Total(
            values=values,
            weights=np.asarray(weights, np.int64),
            metrics=dict(zip(self.metrics, metrics.tolist(), strict=True)),
            tensor_sizes=self.tensor_sizes,
        )

    @property
    def _limb_bits(self) -> int:
        return self.ring.bits - self.clients.bit_length()

    @property
    def _metrics_start(self) -> int:
        tail = {WeightForm.TENSOR: len(self.tensor_sizes), WeightForm.COORDINATE: 0}.get(self.form, 1)
        return self.values_length + tail * self._limbs(self.max_weight.bit_length())

    def _limbs(self, number_bits: int) -> int:
        return -(-number_bits // self._limb_bits)

    def _to_limbs(self, numbers: Sequence[int], number_bits: int) -> Words:
        # Python integers in object arrays: a few hundred numbers of any width, without overflow.
        shifts = np.array([self._limb_bits * index for index in range(self._limbs(number_bits))], object)
        limbs = np.array(numbers, object)[:, np.newaxis] >> shifts & ((1 << self._limb_bits) - 1)
        words: Words = limbs.reshape(-1).astype(self.ring.word)
        return words

    def _from_limbs(self, words: Words, number_bits: int) -> npt.NDArray[np.object_]:
        limbs = words.reshape(-1, self._limbs(number_bits)).astype(object)
        scales = np.array([1 << self._limb_bits * index for index in range(limbs.shape[1])], object)
        numbers: npt.NDArray[np.object_] = limbs @ scales
        return numbers


def _blocks(start: int, stop: int) -> Iterator[slice]:
    for low in range(start, stop, _BLOCK):
        yield slice(low, min(low + _BLOCK, stop))


def check_range(numbers: npt.NDArray[Any], lowest: int, highest: int, what: str) -> None:
    """ValueError for a sum that honest contributions cannot have."""
    array = np.asarray(numbers)
    if array.size and not lowest <= int(array.min()) <= int(array.max()) <= highest:
        raise ValueError(
            f"summed {what} lie in {int(array.min())}..{int(array.max())}, beyond the reachable {lowest}..{highest}: "
            "a mask was not removed, or a contribution was malformed"
        )
