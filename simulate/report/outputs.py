"""The schemas of output files that experiments, private inference, adaptations, benchmarks and conformance write.

The rules for runs (parties/runs/outputs.py) hold here too.
"""

from __future__ import annotations

from typing import Any, Literal, NotRequired, TypedDict

from tacit.parties.runs.directory import Invocation, Seed
from tacit.parties.runs.outputs import DroppedClient, PhaseFigures


class InferredImage(TypedDict):
    """What a student says of an image."""

    image: str
    label: str | None
    labels: list[str] | None
    confidence: float | None
    refused: bool


class OperationFigures(TypedDict):
    """An operation on shares."""

    seconds: float
    data_owner_bytes: int
    model_owner_bytes: int
    rounds: int


class PrivateAnswers(TypedDict):
    """What was told of images, beside what is said of them in the clear, and what it cost."""

    images: list[InferredImage]
    agreement: float | None
    largest_difference: float | None
    accuracy: float | None
    relative_error: float | None
    weights_bytes: int
    passes: int
    online_seconds: float
    waited_for_material_seconds: float
    per_operation: dict[str, OperationFigures]
    batch: int
    labels: int


class InferenceFigures(PrivateAnswers):
    """Private inference, and what it cost."""

    input: str
    data_owners: int


class PredictionFigures(PrivateAnswers):
    """Predictions by what was learned beside a model, and what they cost."""

    round: int
    """The last of what was learned."""


class TeacherFigures(TypedDict):
    """A teacher on test images."""

    accuracy: float
    loss: float
    epochs: int


class DistillationEpoch(TypedDict):
    """An epoch of distillation."""

    number: int
    stage: int | str
    losses: dict[str, float]
    accuracy: float


class StudentFigures(TypedDict):
    """A student on test images."""

    accuracy: float
    agreement: float
    refused: int


class PolynomialFigures(TypedDict):
    """A polynomial in the place of a function."""

    place: str
    low: float
    high: float
    error: float


class DistillationFigures(TypedDict):
    """distillation.json: a teacher, its student, and how it became one."""

    name: str
    seed: int
    device: str
    parameters: int
    test_images: int
    teacher: TeacherFigures
    converted: dict[str, float]
    student: StudentFigures
    epochs: list[DistillationEpoch]
    polynomials: list[PolynomialFigures]
    seconds: float
    experiment: dict[str, Any]


class ExperimentVerdict(TypedDict):
    """Whether a sentence of a paper holds; null where the runs do not decide it."""

    claim: str
    criterion: str
    holds: bool | None
    detail: str


class StudyArm(TypedDict):
    """An arm of a study, with its runs."""

    name: str
    published: str
    quantity: str
    mean: float
    spread: float | None
    runs: list[dict[str, Any]]


class StudyTable(TypedDict):
    """table.json of an experiment that trains federations."""

    study: str
    size: str
    command: str
    machine: str
    date: str
    data: str
    device: str
    seeds: list[int]
    arms: list[StudyArm]
    unfinished: list[str]
    verdicts: list[ExperimentVerdict]
    differences: list[str]


class MeasurementTable(TypedDict):
    """table.json of an experiment that needs no federation."""

    study: str
    size: str
    command: str
    machine: str
    date: str
    rows: list[dict[str, Any]]
    runs: list[dict[str, Any]]
    verdicts: list[ExperimentVerdict]
    differences: list[str]


class SumBenchmarkFigures(TypedDict):
    """One secure sum, timed."""

    client_total_ms: float
    client_total_p95_ms: float
    server_total_ms: float
    client_ms: dict[str, float]
    client_p95_ms: dict[str, float]
    server_ms: dict[str, float]
    bytes_up_per_client: int
    bytes_down_per_client: int
    expansion: float
    masks_per_client: float
    masks_expanded_by_server: int
    keystream_ratio: float
    masking_ms: float
    peak_rss_mb: float
    server_peak_rss_mb: float
    peak_over_vector: float
    neighbours: int
    threshold: int
    ring_bits: int
    survivors: int
    sum_is_exact: bool
    wall_seconds: float
    profile_seconds: NotRequired[dict[str, float]]


class NetworkBenchmarkFigures(TypedDict):
    """What the network costs."""

    clients: int
    rounds: int
    parameters: int
    training_seconds: float
    seconds_without_delay: float
    by_delay_ms: dict[str, dict[str, float]]
    upload: dict[str, dict[str, float]]
    memory: dict[str, float]


class StudentBenchmarkFigures(TypedDict):
    """A student on shares, by CrypTen."""

    images: int
    batch: int
    check: bool
    agreement: float
    accuracy: float
    accuracy_in_the_clear: float
    largest_difference: float
    seconds_per_image: float
    megabytes_per_image: float
    rounds_per_batch: float


class CheckedVectors(TypedDict):
    """A file of test vectors; `fault` is empty if all of it holds."""

    file: str
    steps: int
    fault: str


class VectorVerdicts(TypedDict):
    """Test vectors."""

    files: list[CheckedVectors]


class PlayedCase(TypedDict):
    """A case that a live party was played."""

    case: str
    expected: str
    seen: str
    holds: bool


class PeerVerdicts(TypedDict):
    """All cases that a live party was played."""

    cases: list[PlayedCase]


class BlockBenchmarkFigures(TypedDict):
    """Transformer blocks on shares."""

    model: str
    blocks: int
    batch: int
    input: str
    repeats: int
    device: str
    latency_ms: float | None
    bandwidth_mbit: float | None
    against: str | None
    cores: int
    """Where all parties have run."""
    true_functions: dict[str, Any]
    polynomials: dict[str, Any]
    crypten: NotRequired[dict[str, Any]]
    crypten_ttp: NotRequired[dict[str, Any]]


class ComparedRound(TypedDict):
    """A completed round of a run, on the server's test images."""

    round: int
    accuracy: float | None
    balanced_accuracy: float | None
    loss: float | None


class ComparedRun(TypedDict):
    """A run beside others; counts and costs are of all its rounds."""

    run: str
    directory: str
    completed: int
    aborted: int
    lost_clients: int
    final_accuracy: float | None
    final_balanced_accuracy: float | None
    final_loss: float | None
    best_accuracy: float | None
    wall_seconds: float
    round_seconds: float | None
    """Median of the completed rounds."""
    payload_bytes: int
    server_computing_seconds: float
    client_training_seconds: float | None
    """Median of the clients."""
    seed: int | None
    curve: list[ComparedRound]


class KeyDifference(TypedDict):
    """A key of the experiment with the value in each run; null where a run has no such key."""

    key: str
    values: list[Any]


class Comparison(TypedDict):
    """Several runs, and what differs in their experiments."""

    runs: list[ComparedRun]
    differences: list[KeyDifference]


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
