"""Batches of double-blind adaptation: what a step of learning costs model owner, data owner and dealer, part by part.

The model is a vision transformer of the default sizes with random weights, whose functions are softmax, GELU and
LayerNorm themselves, as `tacit adapt` has it. Its owner rehearses with random labelled images, and a data owner learns
from others, in the session of learning_session.py; all processes on two cores, one thread each. In one session
correlated randomness is received before the clock of a batch starts: the online seconds. In another one batches follow
each other while correlated randomness is made and sent, as in use: the sustained seconds. Fewer blocks and smaller
batches are measured too: the cost should grow by as much for every block, and for every image.

Beside it the same steps in the clear.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, replace
from itertools import pairwise
from statistics import mean, median
from typing import Any, Final, Literal

import torch

from tacit.models.adapters.configuration import ParallelConfiguration, Reveal
from tacit.models.adapters.federated import Features, FullBatches, Schedule, rehearsal
from tacit.models.adapters.gradients import descent, stepped
from tacit.models.adapters.parallel import FinalNorm, block_outputs, each
from tacit.models.configuration import ModelConfiguration
from tacit.models.friendly.calibration import calibrate
from tacit.models.friendly.transformer import STOCK, FriendlyTransformer, convert
from tacit.models.networks import build
from tacit.parties.adaptation.learning_passes import LearningPasses
from tacit.parties.adaptation.public import PublicLearning, step_sizes
from tacit.parties.adaptation.rehearsed import fitted_learning
from tacit.parties.inference.conversation import AHEAD
from tacit.parties.inference.data_owner import PassCosts
from tacit.parties.inference.operations import DATA
from tacit.parties.inference.passes import RoundCost
from tacit.parties.inference.private_model import PrivateModel, prepared_model
from tacit.parties.inference.stages import material_bytes
from tacit.simulate.adaptation.setting import Labelled
from tacit.simulate.bench.ends import BenchmarkError, Progress
from tacit.simulate.bench.learning_session import LearningSession, SessionCosts, learn
from tacit.simulate.bench.results import (
    AdaptationBenchmarkResult,
    LearningBatchMetrics,
    PartSeconds,
    PlaintextStep,
    SizeMetrics,
    per_operation,
)
from tacit.simulate.federation.party_files import MODEL_OWNER
from tacit.simulate.insecure.revealed_outputs import RevealedPasses
from tacit.simulate.private_inference.inference import DATA_OWNER

_CLASSES: Final = 10
_RATE: Final = 0.02
_TYPICAL: Final = 64
"""Images that the model owner has."""
_MARGIN: Final = 1.5
"""Margin of the model's bounds, as in a served model."""
_TOKEN: Final = 0.5
"""Deviation of the class token's values: about that of other tokens. Timm begins with almost none, which no trained
model has."""
_CORES: Final = 2
_STEP: Final = "step"
_BACKWARDS: Final = "backwards"
_PARTS: Final = {"lift": "adapters", "parameters": "adapters", "adapter": "adapters"}
"""Part of a step, by operation; all others are the head, or the backward pass."""

ARMS: Final[tuple[Reveal, ...]] = ("none", "all")


@dataclass(frozen=True, kw_only=True)
class AdaptationBenchmark:
    """Settings of the benchmark."""

    blocks: int = 4
    batch: int = 16
    repeats: int = 5


@dataclass(frozen=True, repr=False)
class _Task:
    """A model, what is public of a learning beside it, and a data owner's images."""

    transformer: FriendlyTransformer
    model: PrivateModel
    learning: PublicLearning
    own: Labelled


def measure(setting: AdaptationBenchmark, progress: Progress) -> AdaptationBenchmarkResult:
    """Run the sessions and return their cost. ProcessError if a party fails, BenchmarkError if none can be run here, or
    a batch is out of range.

    The first batch of a session does not count. A round counts from the end of the one before, so that computation
    behind an operation's last round counts for the next operation. With outputs revealed the step is in the clear:
    there is no backward pass on shares.
    """
    cores = frozenset(sorted(os.sched_getaffinity(0))[:_CORES])
    progress("making the model, and rehearsing")
    task = _task(setting)
    try:
        arms: dict[str, LearningBatchMetrics] = {
            reveal: _arm(reveal, setting, task, cores, progress) for reveal in ARMS
        }
    except OSError as error:
        raise BenchmarkError(f"the parties cannot be run here: {error}") from error
    progress("in the clear")
    return AdaptationBenchmarkResult(
        blocks=setting.blocks,
        batch=setting.batch,
        repeats=setting.repeats,
        cores=len(cores),
        arms=arms,
        plaintext=_plaintext(setting, task),
    )


def _task(setting: AdaptationBenchmark) -> _Task:
    model: Any = build(ModelConfiguration(depth=setting.blocks), classes=_CLASSES, channels=1, seed=1).eval()
    generator = torch.Generator().manual_seed(1)
    count, side = _TYPICAL + setting.batch, model.patch_embed.img_size[0]
    with torch.no_grad():
        model.cls_token.copy_(_TOKEN * torch.randn(model.cls_token.shape, generator=generator))
    images = torch.randn(count, 1, side, side, generator=generator)
    labels = torch.randint(_CLASSES, (count,), generator=generator)
    typical, own = Labelled(images[:_TYPICAL], labels[:_TYPICAL]), Labelled(images[_TYPICAL:], labels[_TYPICAL:])
    friendly = convert(model, STOCK)
    calibrate(friendly, typical.images, margin=_MARGIN)
    friendly.requires_grad_(False)
    private = prepared_model(friendly, typical.images, margin=_MARGIN)
    adapter, public, batches = ParallelConfiguration(), private.public, 1 + setting.repeats
    schedule = Schedule(rounds=1, learning_rate=_RATE, decay_rounds=())
    reached = rehearsal(
        Features(outputs=block_outputs(friendly, typical.images), labels=typical.labels),
        adapter,
        schedule,
        FullBatches(setting.batch, batches),
        classes=_CLASSES,
        epsilon=public.epsilon,
        seed=1,
    )
    sizes = step_sizes(public, adapter, classes=_CLASSES, batch=setting.batch)
    learning = PublicLearning(
        public=public,
        scales=fitted_learning(reached, public, sizes, rate=_RATE).scales,
        adapter=adapter,
        classes=_CLASSES,
        batch=setting.batch,
        batches=batches,
        schedule=schedule,
        seed=1,
        names=tuple(str(number) for number in range(_CLASSES)),
    )
    return _Task(friendly, private, learning, own)


def _arm(
    reveal: Reveal, setting: AdaptationBenchmark, task: _Task, cores: frozenset[int], progress: Progress
) -> LearningBatchMetrics:
    def run(wanted: AdaptationBenchmark, given: _Task, ahead: int | None) -> SessionCosts:
        when = "before" if ahead is None else "beside"
        text = f"reveal = {reveal}, preprocessing {when} the batches, blocks: {wanted.blocks}, images: {wanted.batch}"
        session = LearningSession(
            model=given.model, learning=given.learning, reveal=reveal, own=given.own, ahead=ahead, cores=cores
        )
        return learn(session, lambda done: progress(f"{text}, batch {done} of {given.learning.batches}"))

    timed = sorted(run(setting, task, None).batches[1:], key=lambda batch: batch.online_seconds)
    middle = timed[len(timed) // 2]
    beside = run(setting, task, AHEAD)
    online, parts = middle.online_seconds, _parts(middle)

    def smaller(name: Literal["blocks", "batch"]) -> list[SizeMetrics]:
        whole: int = getattr(setting, name)
        seconds = {whole: online}
        for size in {max(whole // 4, 1), max(whole // 2, 1)} - {whole}:
            wanted = replace(setting, blocks=size) if name == "blocks" else replace(setting, batch=size)
            found = run(wanted, _task(wanted), None).batches[1:]
            seconds[size] = median(batch.online_seconds for batch in found)
        return _by_size(seconds)

    return LearningBatchMetrics(
        online_seconds=online,
        sustained_seconds=mean(batch.offline_seconds + batch.online_seconds for batch in beside.batches[1:]),
        model_owner_bytes=sum(cost.received for cost in middle.rounds),
        data_owner_bytes=sum(cost.sent for cost in middle.rounds),
        dealer_bytes=_dealer_bytes(reveal, task.learning),
        rounds=len(middle.rounds),
        peak_bytes=beside.peak_bytes,
        seconds=parts,
        backward_over_forward=parts.backward / parts.forward or None,
        preprocessing_wait_seconds=median(batch.offline_seconds for batch in timed),
        per_operation=per_operation(middle.rounds),
        by_blocks=smaller("blocks"),
        by_batch=smaller("batch"),
    )


def _by_size(seconds: dict[int, float]) -> list[SizeMetrics]:
    sizes = sorted(seconds)
    marginal = [(seconds[size] - seconds[before]) / (size - before) for before, size in pairwise(sizes)]
    return [
        SizeMetrics(size=size, seconds=seconds[size], marginal_seconds=more)
        for size, more in zip(sizes, [None, *marginal], strict=True)
    ]


def _part(cost: RoundCost) -> str:
    if cost.stage != _STEP:
        return "backbone"
    return "backward" if cost.operation.endswith(_BACKWARDS) else _PARTS.get(cost.operation, "head")


def _parts(batch: PassCosts) -> PartSeconds:
    found = dict.fromkeys(("backbone", "adapters", "head", "backward"), 0.0)
    for cost in batch.rounds:
        found[_part(cost)] += cost.seconds
    return PartSeconds(**found, in_the_clear=batch.online_seconds - sum(found.values()))


def _dealer_bytes(reveal: Reveal, learning: PublicLearning) -> dict[str, int]:
    """Bytes of the dealer's corrections in one batch, by recipient."""
    all_blocks = (True,) * learning.public.sizes.blocks
    passes = LearningPasses(learning, 0)
    if reveal != "none":
        passes = RevealedPasses(learning, 0, DATA, lambda number: all_blocks)
    to_model_owner, to_data_owner = material_bytes(passes.course(1), learning.batch, learning.public.sizes)
    return {MODEL_OWNER: to_model_owner, DATA_OWNER: to_data_owner}


def _plaintext(setting: AdaptationBenchmark, task: _Task) -> PlaintextStep:
    first = each(torch.Tensor.float, task.learning.initial())
    # The head reads the standardised token itself.
    ones = torch.ones(task.learning.public.sizes.width)
    norm = FinalNorm(weight=ones, bias=torch.zeros_like(ones), epsilon=task.learning.epsilon)
    images, labels = task.own.images[: setting.batch], task.own.labels[: setting.batch]
    whole, steps = [], []
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        for _ in range(1 + setting.repeats):
            began = time.perf_counter()
            outputs = block_outputs(task.transformer, images)
            outputs = outputs - outputs.mean(-1, keepdim=True)
            middle = time.perf_counter()
            stepped(first, descent(first, norm, outputs, labels).gradient, _RATE)
            ended = time.perf_counter()
            whole.append(ended - began)
            steps.append(ended - middle)
    finally:
        torch.set_num_threads(threads)
    return PlaintextStep(step_seconds=median(steps[1:]), with_backbone_seconds=median(whole[1:]))
