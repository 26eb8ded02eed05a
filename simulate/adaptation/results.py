"""summary.json of `tacit adapt`: the result of an adaptation, and its tables."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, Literal

import msgspec

from tacit.models.adapters.configuration import Reveal
from tacit.parties.runs.answers import verdicts_disclosed
from tacit.parties.runs.directory import Invocation, Seed
from tacit.parties.runs.privacy import MOST_EPSILON
from tacit.parties.runs.results import (
    Column,
    Result,
    Table,
    byte_count,
    decimals,
    duration,
    plain,
    prose,
    thousands,
)
from tacit.parties.runs.summary import PhaseMetrics
from tacit.parties.session.events import Dropout


class AdaptersMetrics(msgspec.Struct, frozen=True, kw_only=True):
    """Common adapters on test images without training data; loss in nats."""

    accuracy: float
    balanced_accuracy: float
    loss: float


class AdaptationRound(msgspec.Struct, frozen=True, kw_only=True):
    """A training round."""

    round: int
    status: Literal["completed", "aborted", "lost"]
    """Lost: summed, but the data owners did not receive the sum."""
    detail: str
    """Reason for a missing result; otherwise empty."""
    survivors: list[str]
    dropped: list[Dropout]
    images: int | None
    """Images in the batches of all data owners."""
    train_loss: float | None
    """Loss on these images during training, from the sums; the accuracy likewise."""
    train_accuracy: float | None
    accuracy: float | None
    """Test accuracy of the common adapters after the round; the next two fields are on test images too."""
    balanced_accuracy: float | None
    loss: float | None
    seconds: float

    @property
    def in_sum(self) -> int:
        return len(self.survivors) if self.status == "completed" else 0


class AdaptationParty(msgspec.Struct, frozen=True, kw_only=True):
    """A party of an adaptation, and its part in the secure sums."""

    role: Literal["dealer", "model-owner", "data-owner"]
    phases: dict[str, PhaseMetrics]


class DataOwnerMetrics(msgspec.Struct, frozen=True, kw_only=True):
    """A data owner and its passes with the model owner, in all rounds; bytes as the data owner counts them."""

    round: int
    """Last round whose sum it received."""
    kept_images: int
    """Images that have passed the blocks, whose shares both owners keep."""
    batches: int
    sessions: int
    online_seconds: float
    """Total over all passes: of images through the blocks, and of batches."""
    preprocessing_wait_seconds: float
    """Time waiting for the model owner and for correlated randomness, before passes."""
    bytes_sent: int
    bytes_received: int
    weights_bytes: int
    """Bytes of masked layers, received before the first batch of a session."""
    ended: str


class KeptMetrics(msgspec.Struct, frozen=True, kw_only=True):
    """Images of all data owners that have passed the blocks, counted once; sums, bytes counted by sender."""

    images: int
    passes: int
    online_seconds: float
    preprocessing_wait_seconds: float
    rounds: int | None
    """Rounds of communication of a pass; null without any."""
    data_owner_bytes: int
    model_owner_bytes: int
    preprocessing_to_data_owner_bytes: int
    """Bytes of correlated randomness from the dealer; the next field counts likewise."""
    preprocessing_to_model_owner_bytes: int


class BatchMetrics(msgspec.Struct, frozen=True, kw_only=True):
    """Batches of all data owners; medians are null without any batch, and bytes are counted by sender."""

    count: int
    refused: int | None
    """Batches out of range, over all opened sums; revealed with the last round, null before."""
    online_seconds: float | None
    """Median, like all following fields."""
    preprocessing_wait_seconds: float | None
    rounds: int | None
    """Rounds of communication of a batch."""
    data_owner_bytes: int | None
    model_owner_bytes: int | None
    preprocessing_to_data_owner_bytes: int | None
    """Bytes of correlated randomness from the dealer; the next field counts likewise."""
    preprocessing_to_model_owner_bytes: int | None


class SumNoiseMetrics(msgspec.Struct, frozen=True, kw_only=True):
    """Noise of the model owner on the sums that it revealed; the unit is the whole model."""

    deviation: float
    """Standard deviation, on every common parameter."""
    largest_norm: float
    """Largest norm of all parameters that the public bounds allow."""
    sums: int
    """Sums revealed so far, to which the guarantee below applies."""
    delta: float
    epsilon: float
    largest_epsilon: float | None
    """The budget; null without one."""

    @property
    def guarantee(self) -> str:
        weak = ", which guarantees next to nothing: what protects is how few sums are opened"
        return (
            f"noise of the model owner on these sums: standard deviation {self.deviation:g} on every common parameter; "
            f"after {self.sums} sums epsilon is {self.epsilon:.3g} for delta {self.delta:g}, the whole model being the "
            f"unit{weak if self.epsilon > MOST_EPSILON else ''}"
        )


class AdaptationSummary(Result, frozen=True, kw_only=True, tag="tacit.adaptation.3"):
    """An adaptation on one machine: accuracy and loss by round, private passes, secure sums, and their cost."""

    name: str
    reveal: Reveal
    protects: str
    """Security property of the mode, in words."""
    classes: list[str]
    parameters: int
    before: AdaptersMetrics
    """Metrics before training."""
    final_accuracy: float | None
    """Accuracy on test images after the last completed round; null without any. Likewise the two below."""
    final_balanced_accuracy: float | None
    final_loss: float | None
    rounds: list[AdaptationRound]
    owners: dict[str, DataOwnerMetrics]
    kept: KeptMetrics
    batches: BatchMetrics
    dealer_bytes: dict[str, int]
    """Bytes of correlated randomness for all passes, by recipient, as the recipient counts them."""
    noise: SumNoiseMetrics | None
    """Null without noise."""
    parties: dict[str, AdaptationParty]
    ended: str
    wall_seconds: float
    configuration: dict[str, Any]
    """The experiment."""
    seed: Seed | None
    sessions: list[Invocation]

    @property
    def completed(self) -> list[AdaptationRound]:
        return [round for round in self.rounds if round.status == "completed"]

    @property
    def failed(self) -> list[AdaptationRound]:
        return [round for round in self.rounds if round.status != "completed"]

    @property
    def pass_bytes(self) -> int:
        """Payload of all passes, with masked weights."""
        return sum(one.bytes_sent + one.bytes_received + one.weights_bytes for one in self.owners.values())

    @property
    def preprocessing_bytes(self) -> int:
        """Payload of all correlated randomness."""
        return sum(self.dealer_bytes.values())

    def view(self) -> Iterator[str]:
        """Yield accuracy, the cost of batches, and the guarantee of noise."""
        batches, accuracy = self.batches, self.final_balanced_accuracy
        result = "nothing was learned" if accuracy is None else f"balanced test accuracy {accuracy:.3f}"
        refused = f", {batches.refused} of them out of range" if batches.refused else ""
        kept = self.kept
        images = f"{kept.images} images through the blocks in {kept.online_seconds:.1f} s; " if kept.images else ""
        yield (
            f"{result}; {images}{batches.count} batches{refused}, {batches.online_seconds or 0:.2f} s each and "
            f"{batches.preprocessing_wait_seconds or 0:.2f} s of waiting for correlated randomness, of which the "
            f"dealer sent {byte_count(self.preprocessing_bytes)}; {self.wall_seconds:.0f} s in all"
        )
        if self.reveal != "none" and batches.count:
            yield verdicts_disclosed(batches.count)
        if self.noise is not None:
            yield self.noise.guarantee

    @property
    def round_table(self) -> Table:
        """Table of all rounds, with reasons for missing results."""
        columns = {**_ROUND_COLUMNS, **({"detail": Column("Reason", prose)} if self.failed else {})}
        return Table(
            columns=list(columns.values()),
            rows=[[getattr(one, key) for key in columns] for one in self.rounds],
            flagged=[number for number, one in enumerate(self.rounds) if one.status != "completed"],
        )

    @property
    def owner_table(self) -> Table:
        """Table of every data owner's passes, and the model owner's part in all of them."""
        total = {key: sum(getattr(one, key) for one in self.owners.values()) for key in _TOTALS}
        total |= {"bytes_sent": total["bytes_received"], "bytes_received": total["bytes_sent"]}
        model_owner = next(name for name, party in self.parties.items() if party.role == "model-owner")
        rows = [[name, *(getattr(one, key) for key in _OWNER_COLUMNS)] for name, one in self.owners.items()]
        rows.append([model_owner, *map(total.get, _OWNER_COLUMNS)])
        return Table(
            columns=[Column("Owner"), *_OWNER_COLUMNS.values(), Column("Correlated randomness", byte_count)],
            rows=[[*row, self.dealer_bytes[row[0]]] for row in rows],
        )


_ROUND_COLUMNS: Final = {
    "round": Column("Round", plain),
    "status": Column("Status"),
    "accuracy": Column("Accuracy", decimals(3)),
    "balanced_accuracy": Column("Balanced accuracy", decimals(3)),
    "loss": Column("Loss", decimals(3)),
    "train_accuracy": Column("Training accuracy", decimals(3)),
    "train_loss": Column("Training loss", decimals(3)),
    "in_sum": Column("In the sum", thousands),
    "images": Column("Images", thousands),
    "seconds": Column("Time", duration),
}
"""Keyed by field of a round."""
_OWNER_COLUMNS: Final = {
    "round": Column("Last round", plain),
    "kept_images": Column("Kept images", thousands),
    "batches": Column("Batches", thousands),
    "sessions": Column("Sessions", thousands),
    "online_seconds": Column("In passes", duration),
    "preprocessing_wait_seconds": Column("Waiting", duration),
    "bytes_sent": Column("Sent", byte_count),
    "bytes_received": Column("Received", byte_count),
    "weights_bytes": Column("Masked weights", byte_count),
}
"""Keyed by field of a data owner."""
_TOTALS: Final = ("kept_images", "batches", "bytes_sent", "bytes_received", "weights_bytes")
"""Fields that add up to those of the model owner, whose sent bytes are the data owners' received ones."""
