"""The schemas of the output files for programs (runs, parties, rosters, data), and the tables of a run.

All of these files begin with the field `schema`. Writers are checked against these types, and `tacit schema` prints
them as JSON Schema. Keys keep their name and meaning; others may join them. The number of a schema rises when one is
taken away or changes.

rounds.csv and clients.csv are the rounds of a summary for programs that read rows. A row of the first is a round; one
of the second, a client in a round. An unknown value is empty.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping
from typing import Any, Final, Literal, NotRequired, TypedDict

from tacit.parties.runs.classes import TestClasses
from tacit.parties.runs.directory import Invocation, RunDirectory, Seed, write_output, writing
from tacit.parties.runs.incidents import Incident

ROUND_COLUMNS: Final = (
    "round", "status", "code", "culprit", "accuracy", "balanced_accuracy", "loss", "train_accuracy", "train_loss",
    "held_out_round", "held_out_images", "held_out_accuracy", "held_out_loss", "samples", "clipped", "cohort",
    "survivors", "dropped", "seconds", "bytes_sent",
)  # fmt: skip
CLIENT_COLUMNS: Final = (
    "round", "client", "in_sum", "dropped_phase", "dropped_code", "dropped_detail", "bytes_sent", "training_seconds",
    "choosing_seconds", "kept",
)  # fmt: skip


def keep_summary(run: RunDirectory, summary: Mapping[str, Any]) -> None:
    """Write summary.json and both tables. OSError, as of `writing`, if one of them cannot be written."""
    write_output("summary", summary, run.summary)
    for name, columns, rows in (
        ("rounds.csv", ROUND_COLUMNS, _rounds(summary)),
        ("clients.csv", CLIENT_COLUMNS, _clients(summary)),
    ):
        path = run.path / name
        with writing(path), path.open("w", encoding="utf-8", newline="") as file:
            table = csv.DictWriter(file, columns, lineterminator="\n", extrasaction="ignore")
            table.writeheader()
            table.writerows(rows)


def _rounds(summary: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    for entry in summary["rounds"]:
        held_out = {f"held_out_{key}": value for key, value in (entry["held_out"] or {}).items()}
        counts = {key: len(entry[key] or ()) for key in ("cohort", "survivors", "dropped")}
        # Of all parties together; by client they are in the other table.
        yield entry | held_out | counts | {"bytes_sent": sum(entry["bytes_sent"].values())}


def _clients(summary: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    for entry in summary["rounds"]:
        dropped = {drop["party"]: drop for drop in entry["dropped"] or ()}
        for client in entry["cohort"] or ():
            lost = {f"dropped_{key}": value for key, value in dropped.get(client, {}).items()}
            yield {
                "round": entry["round"],
                "client": client,
                "in_sum": client in (entry["survivors"] or ()),
                "bytes_sent": entry["bytes_sent"].get(client),
                **lost,
                **entry["local"].get(client, {}),
            }


class PhaseFigures(TypedDict):
    """A party in a phase, over all rounds."""

    seconds: float
    bytes_sent: int
    bytes_received: int


class PartyFigures(TypedDict):
    """A party of a run."""

    role: Literal["server", "client"]
    training_seconds: float
    """Of its updates, over all rounds and sessions, as the next two."""
    protocol_seconds: float
    """Of computing the protocol."""
    waiting_seconds: float
    """The rest of its rounds."""
    phases: dict[str, PhaseFigures]


class LocalFigures(TypedDict):
    """What a client said of its own update."""

    kept: int
    layers: list[str]
    training_seconds: float
    choosing_seconds: float


class DroppedClient(TypedDict):
    """A client that a round lost."""

    party: str
    phase: str
    included_in_sum: bool | None
    code: str
    detail: str


class HeldOutFigures(TypedDict):
    """What clients' held-out images say of the model after `round`."""

    round: int
    images: int
    accuracy: float
    loss: float


class RoundFigures(TypedDict):
    """A round."""

    round: int
    status: Literal["completed", "aborted"]
    code: str | None
    detail: str | None
    culprit: str | None
    accuracy: float | None
    balanced_accuracy: float | None
    """Mean over the classes of the test images; null where the server has none."""
    loss: float | None
    train_accuracy: float | None
    train_loss: float | None
    samples: int | None
    clipped: int | None
    held_out: HeldOutFigures | None
    cohort: list[str]
    absent: dict[str, str] | None
    """Clients of the roster that are not in the cohort, each with why; null in runs of an earlier version."""
    repeated: bool | None
    """Whether it lost its clients and was held again: it does not count. Null in runs of an earlier version."""
    survivors: list[str]
    dropped: list[DroppedClient]
    seconds: float
    bytes_sent: dict[str, int]
    local: dict[str, LocalFigures]


class AggregationFigures(TypedDict, total=False):
    """The sum, as the server proposed it; empty before it did."""

    parameters: int
    ring_bits: int
    vector_bytes: int
    step: float
    max_weight: int
    colluders: int
    clients: int
    """That take part."""
    cohort: int
    """Most of them in a round."""
    threshold: int
    neighbours: int
    configuration_hash: str
    evaluates: Literal["images", "sums"]


class PixelStatistics(TypedDict):
    """Mean and deviation of pixels, where a first sum told them."""

    mean: list[float]
    std: list[float]
    clients: int
    pixels: int


class PrivacyFigures(TypedDict):
    """What noise guarantees; an epsilon of null is infinite."""

    delta: float
    epsilon_update: float | None
    epsilon_sum: float | None


class VerifiedRound(TypedDict):
    """A secure sum that --verify has checked."""

    round: int
    clients: int
    largest_error: float
    bound: float


class Summary(TypedDict):
    """summary.json: the figures of a run."""

    name: str
    final_accuracy: float | None
    final_balanced_accuracy: float | None
    final_loss: float | None
    wall_seconds: float
    protocol_share: float | None
    test_classes: TestClasses | None
    rounds: list[RoundFigures]
    statistics: PixelStatistics | None
    incidents: list[Incident]
    parties: dict[str, PartyFigures]
    privacy: PrivacyFigures | None
    aggregation: AggregationFigures
    configuration: dict[str, Any]
    seed: Seed | None
    sessions: list[Invocation]
    ended: NotRequired[str]
    verified: NotRequired[list[VerifiedRound]]


class LearnedRound(TypedDict):
    """A round of learning that all data owners were told of, or that was lost: then figures are null."""

    round: int
    lost: str | None
    """Why it was."""
    owners: int | None
    images: int | None
    train_loss: float | None
    train_accuracy: float | None


class LearnedFigures(TypedDict):
    """What a data owner has learned with others beside a model that it does not get."""

    adapters: str
    """The file."""
    round: int
    """After which they are."""
    rounds: list[LearnedRound]
    planned: int
    classes: list[str]
    weights: str
    batches: int
    refused_batches: int
    data_owner_bytes: int
    model_owner_bytes: int
    dealer_bytes: int
    """Of material for these batches, to this data owner."""


class AnsweredImage(TypedDict):
    """What a model says of an image."""

    image: str
    label: str | None
    labels: list[str] | None
    confidence: float | None
    logits: list[float] | None
    refused: bool


class AnswerFigures(TypedDict):
    """What a data owner was answered, and what it cost."""

    images: list[AnsweredImage]
    accuracy: float | None
    classes: list[str]
    weights: str
    passes: int
    online_seconds: float
    waited_for_material_seconds: float
    data_owner_bytes: int
    model_owner_bytes: int
