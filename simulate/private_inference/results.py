"""Results of `tacit infer` and `tacit predict`: answers beside those in the clear, and their cost by operation."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from tacit.parties.hosting.protocols import PROTOCOLS, ProtocolName
from tacit.parties.runs.answers import PrivateAnswers
from tacit.parties.runs.results import Caution, Column, Table, byte_count, decimals, plain
from tacit.simulate.insecure import KNOWN_GIVES_AWAY, Input


class OperationMetrics(msgspec.Struct, kw_only=True):
    """An operation on shares, in all passes; bytes are those of shares, by sender."""

    seconds: float = 0.0
    data_owner_bytes: int = 0
    model_owner_bytes: int = 0
    rounds: int = 0

    def add(self, other: OperationMetrics) -> None:
        """Add another one's counts."""
        self.seconds += other.seconds
        self.data_owner_bytes += other.data_owner_bytes
        self.model_owner_bytes += other.model_owner_bytes
        self.rounds += other.rounds


class ComparedAnswers(PrivateAnswers, frozen=True, kw_only=True):
    """Answers to data owners on this machine, compared with those of the model in the clear."""

    agreement: float | None
    """Share of the answered images with the same label in the clear; null without any, and for features."""
    largest_difference: float | None
    """Largest difference of a logit, or feature, from that in the clear; null where labels alone were received."""
    relative_error: float | None
    """Norm of these differences, relative to that of the logits, or features, in the clear; null likewise."""
    weights_bytes: int
    """Bytes of masked weights, received once by each data owner."""
    per_operation: dict[str, OperationMetrics]
    batch: int
    labels: int
    """Labels received per image; 0 for logits."""
    notes: tuple[str, ...] = ()
    """Skipped files beside the images."""

    def view(self) -> Iterator[Table | str]:
        """The first images, the cost of all operations, and the comparison."""
        yield from self.notes
        yield from self.first_images()
        yield self.operation_table
        yield self.disclosed
        compared = [] if self.agreement is None else [f"the same label in the clear for {self.agreement:.1%}"]
        if self.largest_difference is not None:
            what = "features" if any(one.features for one in self.images) else "logits"
            compared.append(f"{what} differ by at most {self.largest_difference:.4f}")
        comparison = f"{', '.join(compared)}; " if compared else ""
        yield f"{self.sentence(comparison)}; masked weights: {byte_count(self.weights_bytes)}"

    @property
    def operation_table(self) -> Table:
        total = OperationMetrics()
        for one in self.per_operation.values():
            total.add(one)
        return Table(
            columns=(
                Column("operation"),
                Column("seconds", decimals(2)),
                Column("sent by data owner", byte_count),
                Column("by model owner", byte_count),
                Column("rounds", plain),
            ),
            rows=[
                (name, one.seconds, one.data_owner_bytes, one.model_owner_bytes, one.rounds)
                for name, one in {**self.per_operation, "all": total}.items()
            ],
        )


class InferenceResult(ComparedAnswers, frozen=True, kw_only=True, tag="tacit.inference.4"):
    """Private inference with the model of a run or a distillation."""

    input: Input
    """Whether the data owner knows the input of blocks, which is INSECURE, or no party does."""
    data_owners: int
    protocol: ProtocolName
    """Protocol that computed on shares."""
    beyond: int
    """Images beyond the intervals of a student's polynomials, which it refuses in the clear; not compared."""

    def view(self) -> Iterator[Table | str]:
        """See ComparedAnswers; first a warning if the data owner knows the input of blocks, and last the differences of
        another protocol."""
        if self.input == "known":
            yield Caution(f"--input known: {KNOWN_GIVES_AWAY}")
        yield from super().view()
        yield from PROTOCOLS[self.protocol].claims
        if self.beyond:
            yield f"images beyond the student's intervals in the clear, which are not compared: {self.beyond}"


class PredictionResult(ComparedAnswers, frozen=True, kw_only=True, tag="tacit.prediction.3"):
    """Private inference with the adapters that the data owners trained."""

    round: int
    """Round of the common adapters."""
