"""Contributions without secure aggregation: plain float32 values, and their exact weighted sum.

A contribution is the values, not multiplied by their weight (0 if that is 0); the weights, of one byte if max_weight is
below 256, else of four, up to a whole word; and the metrics, of eight bytes. A sum adds products as float64 in the
order of the members, so that it is the same bit for bit for every order of arrival.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from tacit.secagg.packing import METRIC_BITS, Contribution, Encoded, Integers, Packing, Total, WeightForm, check_range
from tacit.secagg.ring import Ring, Words
from tacit.secagg.work import WorkKind, work

WORD_BITS: Final = 32
_METRIC_WORDS: Final = 2


@dataclass(frozen=True, kw_only=True)
class PlainPacking(Contribution):
    """Layout of a contribution that the server sees. ValueError if the sum of the weights could overflow."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.form is WeightForm.WORDS:
            raise ValueError("words of the ring are summed under masks alone")
        if (bits := (self.clients * self.max_weight).bit_length()) > 63:
            raise ValueError(f"the sums need weights of {bits} bits; 63 are possible: lower clients or max_weight")

    @property
    def ring(self) -> Ring:
        """The words of a contribution: any 32 bits."""
        return Ring(WORD_BITS)

    @property
    def step(self) -> float:
        """Largest quantisation error of a value, as in Packing: values are exact."""
        return 0.0

    @property
    def length(self) -> int:
        """Number of words of a contribution."""
        return self._metrics_start + _METRIC_WORDS * len(self.metrics)

    @cached_property
    def weights_length(self) -> int:
        """Number of weights: 1, one for each tensor, or D."""
        sizes = {WeightForm.SCALAR: 1, WeightForm.TENSOR: len(self.tensor_sizes)}
        return sizes.get(self.form, self.values_length)

    def error_bound(self, contributors: int) -> float:
        """Largest distance of a sum to the float64 sum of the products in the order of the members."""
        return 0.0

    def encode(
        self,
        values: npt.NDArray[np.floating[Any]],
        weights: int | Integers | npt.NDArray[np.bool_],
        metrics: Mapping[str, int],
        generator: np.random.Generator | None = None,
    ) -> Encoded:
        """The words of values [D], which are not multiplied by their weights, of the weights, and of metrics.

        generator: not used, because nothing is rounded. ValueError as in Packing.encode."""
        self._checked_values(values)
        weights = self._checked_weights(weights)
        words = np.zeros(self.length, self.ring.word)
        numbers = words[: self.values_length].view("<f4")
        for block, block_weights in self._contributed_blocks(weights):
            numbers[block] = np.where(block_weights > 0, values[block], 0)
        given = weights.reshape(-1).astype(self._weight).view(np.uint8)
        words[self.values_length : self._metrics_start].view(np.uint8)[: given.size] = given
        words[self._metrics_start :] = np.array(self._checked_metrics(metrics), "<u8").view(self.ring.word)
        self.check(words)
        return Encoded(words, 0)

    def check(self, words: Words, start: int = 0) -> None:
        """ValueError unless these words, from `start` on, are possible in an honest contribution."""
        values_end, weights_end = self.values_length, self._metrics_start
        values = words[: max(0, values_end - start)].view("<f4")
        finite = np.isfinite(values)
        if not finite.all():
            index = int(np.argmin(finite))
            raise ValueError(f"value {start + index} is {values[index]}: only finite numbers can be aggregated")
        first = max(start, values_end)
        weights = words[first - start : max(first, weights_end) - start].view(self._weight)
        if weights.size and int(weights.max()) > self.max_weight:
            raise ValueError(f"a weight is {int(weights.max())}, above max_weight = {self.max_weight}")
        begun = (first - values_end) * self.ring.wire_bytes // self._weight.itemsize
        if weights[max(0, self.weights_length - begun) :].any():
            raise ValueError("there are more weights than values")
        first = max(start, weights_end)
        # The second word of a metric has at most 16 bits.
        high = words[first - start :][(first - weights_end + 1) % _METRIC_WORDS :: _METRIC_WORDS]
        if high.size and int(high.max()) >> (METRIC_BITS - WORD_BITS):
            raise ValueError(f"a metric is not below 2^{METRIC_BITS}")

    def decode(self, words: npt.NDArray[Any], *, contributors: int) -> Total:
        """The sums in the total of a PlainSum, or the numbers in the words of one contribution. ValueError for a total
        beyond the reach of so many contributors."""
        self._checked_contributors(contributors)
        if words.dtype == self.ring.word:
            alone = PlainSum(self, 1)
            alone.add(0, words)
            words = alone.total
        length = self.values_length + self.weights_length + len(self.metrics)
        if words.dtype != np.uint64 or words.shape != (length,):
            raise ValueError(f"expected {length} sums, got {words.dtype} of shape {words.shape}")
        weights = words[self.values_length :][: self.weights_length].astype(np.int64)
        metrics = words[length - len(self.metrics) :].tolist()
        check_range(weights, 0, contributors * self.max_weight, "weights")
        check_range(np.array(metrics, object), 0, contributors * ((1 << METRIC_BITS) - 1), "metrics")
        return Total(
            values=words[: self.values_length].view("<f8"),
            weights=weights.reshape(()) if self.form is WeightForm.SCALAR else weights,
            metrics=dict(zip(self.metrics, metrics, strict=True)),
            tensor_sizes=self.tensor_sizes,
        )

    @property
    def _weight(self) -> np.dtype[Any]:
        return np.dtype("<u1" if self.max_weight < 256 else "<u4")

    @cached_property
    def _metrics_start(self) -> int:
        return self.values_length + -(-self.weights_length * self._weight.itemsize // self.ring.wire_bytes)


AnyPacking = Packing | PlainPacking
"""Layout of a contribution, secure or not."""


class PlainSum:
    """Running sum of contributions of members 0, 1, ..., in any order of arrival.

    One is added as soon as all members before it have come or are skipped; until then its words are kept."""

    def __init__(self, packing: PlainPacking, members: int) -> None:
        self._packing = packing
        self._members = members
        self._waiting: dict[int, Words] = {}
        self._skipped: set[int] = set()
        self._next = 0
        length = packing.values_length + packing.weights_length + len(packing.metrics)
        self._total: npt.NDArray[np.uint64] = np.zeros(length, "<u8")

    @property
    def total(self) -> npt.NDArray[np.uint64]:
        """The sum once no member is missing: values as the bits of float64 [D], then weights and metrics."""
        if self._next < self._members:
            raise ValueError(f"member {self._next} has neither come nor been skipped")
        return self._total

    def add(self, member: int, words: Words) -> None:
        """Add the contribution of a member, once."""
        self._waiting[member] = words
        self._proceed()

    def skip(self, member: int) -> None:
        """Do not wait for a member that has not come."""
        self._skipped.add(member)
        self._proceed()

    def _proceed(self) -> None:
        while self._next in self._waiting or self._next in self._skipped:
            if self._next in self._waiting:
                self._add(self._waiting.pop(self._next))
            self._next += 1

    @work(WorkKind.SUMMING)
    def _add(self, words: Words) -> None:
        packing, total = self._packing, self._total
        values, start, end = words[: packing.values_length].view("<f4"), packing.values_length, packing._metrics_start
        weights = words[start:end].view(packing._weight)[: packing.weights_length]
        sums = total[:start].view("<f8")
        by_form = weights[0] if packing.form is WeightForm.SCALAR else weights
        for block, block_weights in packing._contributed_blocks(np.asarray(by_form)):
            sums[block] += values[block].astype(np.float64) * block_weights
        total[start : start + packing.weights_length] += weights
        total[start + packing.weights_length :] += words[end:].view("<u8")
