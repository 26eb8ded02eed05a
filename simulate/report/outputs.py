"""What files for programs hold that experiments, private inference, benchmarks and conformance write.

As parties/runs/outputs.py, which has the rules, does for runs.
"""

from __future__ import annotations

from typing import Any, NotRequired, TypedDict


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
    operations: int
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
