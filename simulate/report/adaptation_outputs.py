"""What files for programs hold that adaptations, and benchmarks of them, write. As outputs.py."""

from __future__ import annotations

from typing import Any, Literal, TypedDict

from tacit.parties.runs.directory import Invocation, Seed
from tacit.parties.runs.outputs import DroppedClient, PhaseFigures


class JudgedFigures(TypedDict):
    """Common adapters on test images that nobody has learned from."""

    accuracy: float
    balanced_accuracy: float
    loss: float


class AdaptationRound(TypedDict):
    """A round of learning."""

    round: int
    status: Literal["completed", "aborted", "lost"]
    """Lost: summed, and not told to the data owners."""
    detail: str
    """Why it has no result; empty if it has one."""
    survivors: list[str]
    dropped: list[DroppedClient]
    images: int | None
    """That all data owners together have learned from."""
    refused_batches: int
    train_loss: float | None
    """Of these images while they were learned from, by the sums; as the accuracy."""
    train_accuracy: float | None
    accuracy: float | None
    """Of the common adapters after the round, on test images; as the two below."""
    balanced_accuracy: float | None
    loss: float | None
    seconds: float


class AdaptationParty(TypedDict):
    """A party of an adaptation, and its part in the secure sums."""

    role: Literal["dealer", "model-owner", "data-owner"]
    phases: dict[str, PhaseFigures]


class AdaptationOwner(TypedDict):
    """A data owner, and its passes with the model owner; bytes as the data owner counts them."""

    round: int
    """The last that it has learned from."""
    batches: int
    refused: int
    sessions: int
    seconds: float
    waited_seconds: float
    bytes_sent: int
    bytes_received: int
    weights_bytes: int
    """Of masked layers, which come before the first batch of a session."""
    ended: str


class BatchFigures(TypedDict):
    """Batches of all data owners; medians are null without any."""

    count: int
    refused: int
    seconds: float | None
    waited_seconds: float | None
    data_owner_bytes: int | None
    model_owner_bytes: int | None
    material_to_data_owner_bytes: int | None
    """Sent by the dealer, as the next."""
    material_to_model_owner_bytes: int | None


class SumNoiseFigures(TypedDict):
    """Noise of the model owner on the sums that it told, with the whole model as the unit."""

    deviation: float
    """Of every common parameter."""
    largest_norm: float
    """Of all parameters, by the public bounds."""
    sums: int
    """Told so far, which is what the figures below are of."""
    delta: float
    epsilon: float
    largest_epsilon: float | None
    """The budget; null without one."""


class AdaptationFigures(TypedDict):
    """summary.json of `tacit adapt`."""

    name: str
    reveal: Literal["none", "sampled", "all"]
    protects: str
    """What that protects, in words."""
    classes: list[str]
    parameters: int
    before: JudgedFigures
    final_accuracy: float | None
    """On test images, after the last round that was learned; as the two below. Null if there is none."""
    final_balanced_accuracy: float | None
    final_loss: float | None
    rounds: list[AdaptationRound]
    owners: dict[str, AdaptationOwner]
    batches: BatchFigures
    dealer_bytes: dict[str, int]
    """Of material for all batches, by the owner that it went to, as that counts it."""
    noise: SumNoiseFigures | None
    """Null without noise."""
    parties: dict[str, AdaptationParty]
    ended: str
    wall_seconds: float
    configuration: dict[str, Any]
    seed: Seed | None
    sessions: list[Invocation]


class GrownFigures(TypedDict):
    """What a batch costs by the size of something."""

    seconds: dict[str, float]
    seconds_for_each_more: dict[str, float]
    """By the larger of two neighbouring sizes."""


class AdaptationArmFigures(TypedDict):
    """A batch of learning, online at the data owner."""

    online_seconds: float
    seconds: dict[str, float]
    """Of its parts."""
    backward_of_forward: float | None
    waited_seconds: float
    """For material, before the batch."""
    sustained_seconds: float
    online_bytes_sent: dict[str, int]
    dealer_bytes: dict[str, int]
    rounds: int
    peak_bytes: dict[str, int]
    per_operation: dict[str, Any]
    by_blocks: GrownFigures
    by_batch: GrownFigures


class AdaptationBenchmarkFigures(TypedDict):
    """Batches of double-blind adaptation."""

    blocks: int
    batch: int
    repeats: int
    cores: int
    """Where all parties have run."""
    arms: dict[str, AdaptationArmFigures]
    """By what data owners are told of outputs of blocks."""
    plaintext: dict[str, float]
