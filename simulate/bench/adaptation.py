"""Benchmark of double-blind adaptation: cost of an image's pass and of a step on kept shares, for all three parties.

The model is a timm vision transformer with random weights. One session receives correlated randomness before the clock
of a pass or a step starts (online seconds), another one during back-to-back passes and steps (sustained seconds).
Training covers the head alone, or also an adapter beside each block; the same steps run in the clear for comparison.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from statistics import mean, median
from typing import Any, Final

import torch

from tacit.models.adapters.configuration import AdapterConfiguration, LinearProbeConfiguration, ParallelConfiguration
from tacit.models.adapters.federated import Schedule
from tacit.models.adapters.gradients import descent, stepped
from tacit.models.configuration import ModelConfiguration
from tacit.models.friendly.calibration import calibrate
from tacit.models.friendly.transformer import STOCK, FriendlyTransformer, convert
from tacit.models.networks import build
from tacit.parties.adaptation.events import ImagesKept
from tacit.parties.adaptation.learning_passes import LearningPasses
from tacit.parties.adaptation.public import PublicLearning
from tacit.parties.adaptation.rehearsed import Lesson, rehearsed_learning
from tacit.parties.inference.conversation import AHEAD
from tacit.parties.inference.data_owner import PassCosts
from tacit.parties.inference.passes import RoundCost
from tacit.parties.inference.private_model import PrivateModel, prepared_model
from tacit.parties.inference.stages import material_bytes
from tacit.simulate.adaptation.clear import features, head_norm
from tacit.simulate.adaptation.setting import Labelled
from tacit.simulate.bench.ends import BenchmarkError, Progress
from tacit.simulate.bench.learning_session import LearningSession, SessionCosts, learn
from tacit.simulate.bench.results import (
    AdaptationBenchmarkResult,
    ImageMetrics,
    LearningMetrics,
    PartSeconds,
    PlaintextStep,
    per_operation,
)
from tacit.simulate.federation.party_files import MODEL_OWNER
from tacit.simulate.private_inference.inference import DATA_OWNER

_CLASSES: Final = 10
_RATE: Final = 2.0**-10
"""Small enough for steps on random weights to be in range; the cost of a step does not depend on it."""
_TYPICAL: Final = 64
"""Images of the model owner."""
_MARGIN: Final = 1.5
"""Margin of the model's bounds, as in a served model."""
_TOKEN: Final = 0.5
"""Deviation of the class token's values, close to that of other tokens. timm's initial one is almost zero, unlike any
trained model's."""
_CORES: Final = 2
_BACKWARDS: Final = "backwards"
_PARTS: Final = {"lift": "adapters", "parameters": "adapters", "adapter": "adapters"}
"""Part of a step, by operation; all others are the head, or the backward pass."""

ARMS: Final[dict[str, AdapterConfiguration]] = {
    "linear-probe": LinearProbeConfiguration(),
    "parallel": ParallelConfiguration(),
}


@dataclass(frozen=True, kw_only=True)
class AdaptationBenchmark:
    """Settings of the benchmark."""

    model: str = "vit_small_patch16_224"
    blocks: int = 2
    image_size: int = 112
    batch: int = 16
    repeats: int = 3


@dataclass(frozen=True, repr=False)
class _Task:
    """A model, the public part of an adaptation, and a data owner's images."""

    transformer: FriendlyTransformer
    model: PrivateModel
    learning: PublicLearning
    own: Labelled


def measure(setting: AdaptationBenchmark, progress: Progress) -> AdaptationBenchmarkResult:
    """Run the sessions and return their cost. ProcessError if a party fails, BenchmarkError if none can be run here, or
    a batch is out of range; ValueError for an unavailable model.

    The first pass and the first step of a session are not counted. A round counts from the end of the previous one, so
    that computation after an operation's last round counts for the next operation.
    """
    cores = frozenset(sorted(os.sched_getaffinity(0))[:_CORES])
    arms: dict[str, LearningMetrics] = {}
    for name, adapter in ARMS.items():
        progress(f"{name}: making the model, and rehearsing")
        task = _task(setting, adapter)
        try:
            arms[name] = _arm(name, setting, task, cores, progress)
        except OSError as error:
            raise BenchmarkError(f"the parties cannot be run here: {error}") from error
    return AdaptationBenchmarkResult(
        model=setting.model,
        blocks=setting.blocks,
        tokens=task.learning.public.sizes.tokens,
        width=task.learning.public.sizes.width,
        batch=setting.batch,
        repeats=setting.repeats,
        cores=len(cores),
        arms=arms,
    )


def _task(setting: AdaptationBenchmark, adapter: AdapterConfiguration) -> _Task:
    sizes = ModelConfiguration(name=setting.model, depth=setting.blocks, image_size=setting.image_size)
    model: Any = build(sizes, classes=_CLASSES, channels=3, seed=1).eval()
    generator = torch.Generator().manual_seed(1)
    # The second of two passes counts.
    count, side = _TYPICAL + 2 * setting.batch, setting.image_size
    with torch.no_grad():
        model.cls_token.copy_(_TOKEN * torch.randn(model.cls_token.shape, generator=generator))
    images = torch.randn(count, 3, side, side, generator=generator)
    labels = torch.randint(_CLASSES, (count,), generator=generator)
    typical, own = Labelled(images[:_TYPICAL], labels[:_TYPICAL]), Labelled(images[_TYPICAL:], labels[_TYPICAL:])
    friendly = convert(model, STOCK)
    calibrate(friendly, typical.images, margin=_MARGIN)
    friendly.requires_grad_(False)
    private = prepared_model(friendly, typical.images, margin=_MARGIN)
    lesson = Lesson(
        adapter=adapter,
        schedule=Schedule(rounds=1, learning_rate=_RATE, decay_rounds=()),
        batch=setting.batch,
        batches=max(1 + setting.repeats, 2),
        classes=_CLASSES,
        seed=1,
        names=tuple(str(number) for number in range(_CLASSES)),
    )
    learning, _ = rehearsed_learning(private, friendly, typical.images, typical.labels, lesson)
    return _Task(friendly, private, learning, own)


def _arm(
    name: str, setting: AdaptationBenchmark, task: _Task, cores: frozenset[int], progress: Progress
) -> LearningMetrics:
    def run(ahead: int | None) -> SessionCosts:
        text = f"{name}, preprocessing {'before' if ahead is None else 'beside'} passes and steps"
        session = LearningSession(model=task.model, learning=task.learning, own=task.own, ahead=ahead, cores=cores)
        return learn(session, lambda done: progress(f"{text}, step {done} of {task.learning.batches}"))

    before, beside = run(None), run(AHEAD)
    timed = sorted(before.batches[1:], key=lambda batch: batch.online_seconds)
    middle = timed[len(timed) // 2]
    passed = before.passes[-1]
    return LearningMetrics(
        online_seconds=middle.online_seconds,
        sustained_seconds=mean(batch.offline_seconds + batch.online_seconds for batch in beside.batches[1:]),
        model_owner_bytes=sum(cost.received for cost in middle.rounds),
        data_owner_bytes=sum(cost.sent for cost in middle.rounds),
        dealer_bytes=_dealer_bytes(task.learning, bringing=0),
        rounds=len(middle.rounds),
        peak_bytes=beside.peak_bytes,
        seconds=_parts(middle),
        preprocessing_wait_seconds=median(batch.offline_seconds for batch in timed),
        per_operation=per_operation(middle.rounds),
        image=ImageMetrics(
            online_seconds=passed.seconds / setting.batch,
            sustained_seconds=_sustained(beside.passes[-1]) / setting.batch,
            model_owner_bytes=passed.received // setting.batch,
            data_owner_bytes=passed.sent // setting.batch,
            dealer_bytes={
                party: octets // setting.batch for party, octets in _dealer_bytes(task.learning, bringing=1).items()
            },
            rounds=passed.openings,
        ),
        plaintext=_plaintext(setting, task),
    )


def _sustained(passed: ImagesKept) -> float:
    return passed.preprocessing_wait_seconds + passed.seconds


def _part(cost: RoundCost) -> str:
    return "backward" if cost.operation.endswith(_BACKWARDS) else _PARTS.get(cost.operation, "head")


def _parts(batch: PassCosts) -> PartSeconds:
    found = dict.fromkeys(("adapters", "head", "backward"), 0.0)
    for cost in batch.rounds:
        found[_part(cost)] += cost.seconds
    return PartSeconds(**found, behind=batch.online_seconds - sum(found.values()))


def _dealer_bytes(learning: PublicLearning, *, bringing: int) -> dict[str, int]:
    """Return the bytes of the dealer's corrections in the first pass of a session, by recipient: in one that brings
    images, or in a step."""
    course = LearningPasses(learning, bringing).course(1)
    to_model_owner, to_data_owner = material_bytes(course, learning.batch, learning.public.sizes)
    return {MODEL_OWNER: to_model_owner, DATA_OWNER: to_data_owner}


def _plaintext(setting: AdaptationBenchmark, task: _Task) -> PlaintextStep:
    learning, norm = task.learning, head_norm(task.learning)
    first = learning.initial()
    part = Labelled(task.own.images[: setting.batch], task.own.labels[: setting.batch])
    read = features(learning, task.transformer, part)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return PlaintextStep(
            step_seconds=_median_of(
                lambda: stepped(first, descent(first, norm, read.outputs, read.labels).gradient, _RATE),
                setting.repeats,
            ),
            image_seconds=_median_of(lambda: features(learning, task.transformer, part), setting.repeats)
            / setting.batch,
        )
    finally:
        torch.set_num_threads(threads)


def _median_of(work: Callable[[], object], repeats: int) -> float:
    """Return the median seconds of some work, without its first run."""
    found = []
    for _ in range(1 + repeats):
        began = time.perf_counter()
        work()
        found.append(time.perf_counter() - began)
    return median(found[1:])
