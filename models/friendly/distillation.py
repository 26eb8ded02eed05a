"""Distillation: an MPC-friendly student learns from the model that it was converted from (Tastan and Nandakumar 2025).

Stage 1 compares intermediate values (section 4.1 and Appendix A), stage 2 the predictions at a temperature (Eq. 15), on
request with the labels' cross-entropy (section 5.2). docs/distillation.md lists what differs from the paper. A student
is saved as a checkpoint with its polynomials and intervals in the metadata.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import msgspec
import torch
from torch import nn
from torch.nn.functional import cross_entropy, mse_loss

from tacit.models import checkpoint
from tacit.models.configuration import ModelConfiguration
from tacit.models.friendly.calibration import fix_intervals, intervals
from tacit.models.friendly.configuration import DistillationConfiguration
from tacit.models.friendly.metrics import DistillationEpoch, DistillationStage, StudentMetrics
from tacit.models.friendly.polynomials import ActivationError, Interval, lowest_argument
from tacit.models.friendly.transformer import STOCK, Approximation, FriendlyTransformer, convert
from tacit.models.layout import Layout
from tacit.models.networks import build
from tacit.models.training import EVALUATION_BATCH

_KEY = "friendly"


class _Friendly(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    softmax_degree: int | None
    inverse_steps: int | None
    intervals: dict[str, tuple[float, float]]
    quadratic_gelu: bool = True


def save(path: Path, model: FriendlyTransformer, approximation: Approximation) -> None:
    """Write a student and its intervals. Raises as tacit.models.checkpoint.save does."""
    layout = Layout.of(model)
    found = {name: (low, high) for name, (low, high) in intervals(model).items()}
    description = _Friendly(**dataclasses.asdict(approximation), intervals=found)
    metadata = {_KEY: msgspec.json.encode(description).decode()}
    checkpoint.save(path, layout=layout, flat=layout.flatten(model), metadata=metadata)


def load(path: Path, configuration: ModelConfiguration, *, classes: int, channels: int) -> FriendlyTransformer:
    """Read the student in `path`, in evaluation mode; `configuration` is the architecture of its teacher.

    Raises as tacit.models.checkpoint.load and convert() do, and ValueError for a file without a student.
    """
    teacher = _architecture(configuration, classes=classes, channels=channels)
    flat, metadata = checkpoint.load(path, Layout.of(convert(teacher, STOCK)))
    if _KEY not in metadata:
        raise ValueError(f"checkpoint {str(path)!r} holds no distilled model; `tacit distill` makes one")
    try:
        found = msgspec.json.decode(metadata[_KEY], type=_Friendly)
        approximation = Approximation(
            softmax_degree=found.softmax_degree,
            inverse_steps=found.inverse_steps,
            quadratic_gelu=found.quadratic_gelu,
        )
        student = convert(teacher, approximation)
        fix_intervals(student, {name: Interval(*ends) for name, ends in found.intervals.items()})
    except (msgspec.MsgspecError, ValueError) as error:
        raise ValueError(f"checkpoint {str(path)!r}: {error}") from error
    Layout.of(student).load_into(student, flat)
    return student.eval()


def load_stock(path: Path, configuration: ModelConfiguration, *, classes: int, channels: int) -> FriendlyTransformer:
    """Read the timm model in `path`, of the architecture `configuration`, with exact functions, in evaluation mode, not
    calibrated. Raises as tacit.models.checkpoint.load and convert() do."""
    model = _architecture(configuration, classes=classes, channels=channels)
    convert(model, STOCK)  # One that cannot be converted is refused before its file is read.
    layout = Layout.of(model)
    flat, _ = checkpoint.load(path, layout)
    layout.load_into(model, flat)
    return convert(model, STOCK).eval()


def _architecture(configuration: ModelConfiguration, *, classes: int, channels: int) -> nn.Module:
    return build(configuration.architecture, classes=classes, channels=channels, seed=0)


RANGE_WEIGHT: Final = 10.0
"""Weight of the loss that keeps scores where the polynomial is accurate."""
DECAY: Final = 0.1
"""Factor of the learning rate at each of the configured epochs."""


@dataclass
class Trace:
    embedding: torch.Tensor = field(default_factory=lambda: torch.empty(0))
    """Tokens that enter the first block [B, T, D]."""
    attention: list[torch.Tensor] = field(default_factory=list)
    """Q K^T / sqrt(D/H) [B, H, T, T]."""
    hidden: list[torch.Tensor] = field(default_factory=list)
    """Tokens after the block [B, T, D]."""


@contextmanager
def traced(model: nn.Module) -> Iterator[Trace]:
    """Trace every call of the model, timm's or MPC-friendly, within the block; a call replaces the last.

    The attention matrices are recomputed from queries and keys, since timm does not expose them.
    """
    trace = Trace()
    network: Any = model
    blocks: Sequence[Any] = list(network.blocks)

    def enter(_: nn.Module, inputs: tuple[torch.Tensor, ...]) -> None:
        trace.embedding, trace.attention, trace.hidden = inputs[0], [], []

    def attend(attention: Any) -> Callable[[nn.Module, Any, torch.Tensor], None]:
        heads: int = getattr(attention, "heads", None) or attention.num_heads

        def look(_: nn.Module, inputs: Any, joint: torch.Tensor) -> None:
            images, tokens, width = joint.shape
            query, key, _value = joint.reshape(images, tokens, 3, heads, width // (3 * heads)).permute(2, 0, 3, 1, 4)
            trace.attention.append((query * attention.scale) @ (key - key.mean(-2, keepdim=True)).transpose(-2, -1))

        return look

    def leave(_: nn.Module, inputs: Any, output: torch.Tensor) -> None:
        trace.hidden.append(output)

    handles = [blocks[0].register_forward_pre_hook(enter)]
    handles += [block.attn.qkv.register_forward_hook(attend(block.attn)) for block in blocks]
    handles += [block.register_forward_hook(leave) for block in blocks]
    try:
        yield trace
    finally:
        for handle in handles:
            handle.remove()


def layer_losses(student: Trace, teacher: Trace, within: Interval) -> dict[str, torch.Tensor]:
    """Return the losses of stage 1 for one batch, to be summed. The student learns scores `within` an interval."""
    wanted = [scores.clamp(within.low, within.high) for scores in teacher.attention]
    return {
        "embedding": mse_loss(student.embedding, teacher.embedding),
        "attention": _total(student.attention, wanted),
        "hidden": _total(student.hidden, teacher.hidden),
    }


def range_loss(student: Trace, within: Interval) -> torch.Tensor:
    """Return the excess of the student's attention scores over an interval: mean squares, summed over the blocks."""
    outside = [scores - scores.clamp(within.low, within.high) for scores in student.attention]
    return torch.stack([scores.square().mean() for scores in outside]).sum()


def prediction_loss(student: torch.Tensor, teacher: torch.Tensor, temperature: float) -> torch.Tensor:
    """Return the loss of stage 2 for logits [B, classes]. ValueError for a temperature that is not positive."""
    if not 0 < temperature < math.inf:
        raise ValueError(f"the temperature is a positive finite number, not {temperature}")
    return cross_entropy(student / temperature, (teacher / temperature).softmax(dim=-1))


def distill(
    teacher: nn.Module,
    student: FriendlyTransformer,
    x: torch.Tensor,
    y: torch.Tensor,
    test: tuple[torch.Tensor, torch.Tensor],
    configuration: DistillationConfiguration,
    *,
    seed: int,
    device: torch.device,
    stages: Sequence[DistillationStage] = ("layers", "predictions"),
    progress: Callable[[DistillationEpoch], None] = lambda epoch: None,
) -> list[DistillationEpoch]:
    """Train the student in place on images x, float32 [N, C, S, S], and, if configured, on labels y, int64 [N]; it is
    left on `device`, not calibrated.

    test: images and labels for the accuracy after every epoch, which steers nothing. `seed` decides the order of the
    images. Raises ValueError for no images or images that are not finite, FloatingPointError or ActivationError as soon
    as a loss or an activation is not finite.
    """
    if len(x) == 0:
        raise ValueError("a model is distilled on at least one image")
    teacher.to(device).eval()
    student.to(device)
    order = torch.Generator().manual_seed(seed)
    within = Interval(lowest_argument(configuration.softmax_degree), configuration.largest_score)
    epochs: list[DistillationEpoch] = []
    plan: dict[DistillationStage, tuple[int, float]] = {
        "layers": (configuration.layer_epochs, configuration.layer_learning_rate),
        "predictions": (configuration.prediction_epochs, configuration.prediction_learning_rate),
    }
    with traced(teacher) as theirs, traced(student) as ours:
        for stage in stages:
            count, rate = plan[stage]
            optimizer = torch.optim.Adam(student.parameters(), lr=rate)
            for _ in range(count):
                number = len(epochs) + 1
                for group in optimizer.param_groups:
                    group["lr"] = rate * DECAY ** sum(first <= number for first in configuration.decay_epochs)
                student.train()
                sums: dict[str, float] = {}
                for indices in torch.split(torch.randperm(len(x), generator=order), configuration.batch_size):
                    inputs = x[indices].to(device)
                    with torch.no_grad():
                        wanted = teacher(inputs)
                    logits = student(inputs)
                    if stage == "layers":
                        losses = layer_losses(ours, theirs, within)
                    else:
                        losses = {"prediction": prediction_loss(logits, wanted, configuration.temperature)}
                        if configuration.labels:
                            losses["labels"] = cross_entropy(logits, y[indices].to(device))
                    losses["range"] = RANGE_WEIGHT * range_loss(ours, within)
                    loss = torch.stack(list(losses.values())).sum()
                    if not math.isfinite(loss.item()):
                        raise FloatingPointError(f"the loss of a batch is {loss.item()}; take a smaller learning rate")
                    optimizer.zero_grad(set_to_none=True)
                    torch.autograd.backward(loss)
                    optimizer.step()
                    for name, value in losses.items():
                        sums[name] = sums.get(name, 0.0) + value.item() * len(indices)
                epoch = DistillationEpoch(
                    number=number,
                    stage=stage,
                    losses={name: value / len(x) for name, value in sums.items()},
                    accuracy=accuracy(student, *test, device=device),
                )
                epochs.append(epoch)
                progress(epoch)
    return epochs


@torch.no_grad()
def accuracy(student: FriendlyTransformer, x: torch.Tensor, y: torch.Tensor, *, device: torch.device) -> float:
    """Return the fraction of images [N, C, S, S] classified as labelled [N]. The student is left in training mode."""
    student.train()
    correct = 0
    for inputs, labels in zip(torch.split(x, EVALUATION_BATCH), torch.split(y, EVALUATION_BATCH), strict=True):
        correct += int((student(inputs.to(device)).argmax(dim=1) == labels.to(device)).sum().item())
    return correct / len(x)


@torch.no_grad()
def judge(
    student: FriendlyTransformer, teacher: nn.Module, x: torch.Tensor, y: torch.Tensor, *, device: torch.device
) -> StudentMetrics:
    """Evaluate a student against labels y [N] and against its teacher, on images x [N, C, S, S]."""
    student.to(device).eval()
    teacher.to(device).eval()
    labels: list[torch.Tensor] = []
    wanted: list[torch.Tensor] = []
    for batch in torch.split(x, EVALUATION_BATCH):
        inputs = batch.to(device)
        wanted.append(teacher(inputs).argmax(dim=1).cpu())
        try:
            labels.append(student(inputs).argmax(dim=1).cpu())
        except ActivationError:
            labels.append(torch.cat([_label(student, image) for image in torch.split(inputs, 1)]))
    ours, theirs = torch.cat(labels), torch.cat(wanted)
    return StudentMetrics(
        accuracy=(ours == y).double().mean().item(),
        agreement=(ours == theirs).double().mean().item(),
        refused=int((ours == _REFUSED).sum().item()),
    )


_REFUSED = -1


def _label(student: FriendlyTransformer, image: torch.Tensor) -> torch.Tensor:
    try:
        label: torch.Tensor = student(image).argmax(dim=1).cpu()
    except ActivationError:
        return torch.tensor([_REFUSED])
    return label


def _total(ours: Sequence[torch.Tensor], theirs: Sequence[torch.Tensor]) -> torch.Tensor:
    return torch.stack([mse_loss(student, teacher) for student, teacher in zip(ours, theirs, strict=True)]).sum()
