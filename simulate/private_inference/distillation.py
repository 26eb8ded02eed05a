"""`tacit distill`: from an experiment file to a calibrated student, its curves and metrics (docs/distillation.md)."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from tacit.models.friendly.metrics import DistillationEpoch
from tacit.parties.runs.directory import mark_release, writing
from tacit.parties.runs.distillation import (
    RESULT,
    STUDENT,
    ConvertedMetrics,
    DistillationExperiment,
    DistillationResult,
    PolynomialMetrics,
    TeacherMetrics,
)
from tacit.parties.runs.experiment import Kind

if TYPE_CHECKING:
    from torch import nn

    from tacit.models.data import Dataset


Progress = Callable[[TeacherMetrics | ConvertedMetrics | DistillationEpoch], None]
"""Called with the metrics of every trained or converted model, and of every epoch."""


def distil(experiment: DistillationExperiment, *, device: str, out: Path, progress: Progress) -> DistillationResult:
    """Train or load the teacher, distil and calibrate the student, write all results; return distillation.json.

    Raises ValueError (ConversionError is one) or OSError for unusable data, model or device, before any training;
    FloatingPointError or ActivationError when a training diverges.
    """
    from tacit.models.checkpoint import save
    from tacit.models.data import load as load_images
    from tacit.models.friendly import distillation
    from tacit.models.friendly.calibration import calibrate, error_bounds
    from tacit.models.friendly.transformer import Approximation, convert
    from tacit.models.layout import Layout
    from tacit.models.networks import build
    from tacit.models.training import resolve_device

    settings = experiment.distillation
    approximation = Approximation(softmax_degree=settings.softmax_degree, inverse_steps=settings.inverse_steps)
    chosen = resolve_device(device)
    data = load_images(experiment.data, image_size=experiment.model.image_size)
    seed = experiment.federation.seed
    seed = secrets.randbits(63) if seed is None else seed
    began = time.monotonic()
    teacher = build(
        experiment.model, classes=data.classes, channels=data.channels, seed=seed, new_head=settings.new_head
    )
    convert(teacher, approximation)  # A model that cannot be converted says so before it is trained.
    test = data.x_test, data.y_test
    trained = _train(teacher, experiment, data, seed, chosen)
    progress(trained)
    layout, path = Layout.of(teacher), out / "teacher.safetensors"
    with writing(path):
        save(path, layout=layout, flat=layout.flatten(teacher), metadata={})
    student = convert(teacher, approximation).to(chosen)
    converted = ConvertedMetrics(accuracy=distillation.accuracy(student, *test, device=chosen))
    progress(converted)
    epochs = distillation.distill(
        teacher,
        student,
        data.x_train,
        data.y_train,
        test,
        settings,
        seed=seed,
        device=chosen,
        progress=progress,
    )
    calibrate(student, data.x_train, margin=settings.margin)
    calibrated = distillation.judge(student, teacher, *test, device=chosen)
    mark_release(out)
    with writing(out / STUDENT):
        distillation.save(out / STUDENT, student, approximation)
    result = DistillationResult(
        name=experiment.name,
        seed=seed,
        device=device,
        parameters=layout.size,
        test_images=len(test[0]),
        teacher=trained,
        converted=converted,
        student=calibrated,
        epochs=epochs,
        polynomials=[
            PolynomialMetrics(place=bound.name, low=bound.interval.low, high=bound.interval.high, error=bound.error)
            for bound in error_bounds(student)
        ],
        seconds=time.monotonic() - began,
        experiment=msgspec.to_builtins(experiment),
    )
    result.write(out / RESULT)
    with writing(out / "curves.png"):
        draw(result, out / "curves.png")
    return result


def with_data(experiment: Kind, source: str | None) -> Kind:
    """Return the experiment with images from this source ("digits", or an .npz file); unchanged without one."""
    if source is None:
        return experiment
    data = msgspec.structs.replace(experiment.data, source=source, directory="")
    return msgspec.structs.replace(experiment, data=data)


def draw(result: DistillationResult, path: Path) -> None:
    """Draw accuracy and losses by epoch as a PNG, with separate stages, like Fig. 7 of the paper."""
    from matplotlib.figure import Figure

    from tacit.simulate.report.figures import INK, PALETTE, style

    epochs = result.epochs
    with style():
        figure = Figure(figsize=(9.0, 4.0), dpi=120)
        left, right = figure.subplots(1, 2)
        numbers, accuracies = [epoch.number for epoch in epochs], [100 * epoch.accuracy for epoch in epochs]
        left.plot(numbers, accuracies, "o-", color=PALETTE[0], markersize=3, label="student")
        left.axhline(100 * result.teacher.accuracy, color=INK, linestyle="--", label="teacher")
        left.set_title("test accuracy (%)")
        names = dict.fromkeys(name for epoch in epochs for name in epoch.losses)
        for name, colour in zip(names, PALETTE[1:], strict=False):
            points = [(epoch.number, epoch.losses[name]) for epoch in epochs if name in epoch.losses]
            right.plot(*zip(*points, strict=True), "o-", color=colour, markersize=3, label=name)
        right.set_yscale("log")
        right.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
        right.set_title("losses")
        boundary = sum(epoch.stage == "layers" for epoch in epochs) + 0.5
        for axes in (left, right):
            axes.axvline(boundary, color="#8a949f", linestyle=":")
            axes.set_xlabel("epoch (dotted: stage 2 begins)")
            axes.grid(axis="y")
        figure.legend(loc="outside lower center", ncols=7)
        figure.savefig(path)


def _train(
    teacher: nn.Module, experiment: DistillationExperiment, data: Dataset, seed: int, device: Any
) -> TeacherMetrics:
    from tacit.models.training import EVALUATION_BATCH, evaluate, train

    settings = experiment.distillation
    epochs = settings.teacher_epochs if settings.new_head or not experiment.model.checkpoint else 0
    if epochs:
        training = msgspec.structs.replace(experiment.training, epochs=epochs)
        train(teacher, data.x_train, data.y_train, training, seed=seed, device=device)
    judged = evaluate(teacher, data.x_test, data.y_test, batch_size=EVALUATION_BATCH, device=device)
    return TeacherMetrics(accuracy=judged.accuracy, loss=judged.loss, epochs=epochs)
