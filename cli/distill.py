"""`tacit distill`: a trained vision transformer becomes one of additions and products."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tacit.cli.json_file import check_json, keep_json

if TYPE_CHECKING:
    from rich.console import Console


def distill(
    experiment: Annotated[
        Path | None,
        typer.Argument(
            metavar="[EXPERIMENT.toml]", help="Experiment file, with or without a section \\[distillation]."
        ),
    ] = None,
    data: Annotated[
        str | None,
        typer.Option(metavar="SOURCE", help='Images instead of data.source: "digits", or an .npz file.'),
    ] = None,
    seed: Annotated[
        int | None, typer.Option(min=0, max=2**63 - 1, help="Fixes initial weights and the order of images.")
    ] = None,
    device: Annotated[str, typer.Option(help="Where both models run: cpu or cuda.")] = "cpu",
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Directory of the results; default runs/<time>-<name>-student.")
    ] = None,
    json_file: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", help="Write distillation.json here too.")
    ] = None,
) -> None:
    """Distil a vision transformer into one of additions and products, which can run on encrypted or shared values.

    The teacher is model.checkpoint, or is trained first on all images of the experiment. Writes teacher.safetensors,
    student.safetensors, distillation.json and curves.png.

    Exit status: 0 done; 1 a training diverged, or the results cannot be written; 2 wrong input; 130 Ctrl-C.
    """
    check_json(json_file)
    raise typer.Exit(_run(experiment, data=data, seed=seed, device=device, out=out, json_file=json_file))


def _run(
    experiment: Path | None,
    *,
    data: str | None,
    seed: int | None,
    device: str,
    out: Path | None,
    json_file: Path | None,
) -> int:
    import msgspec
    from rich.console import Console

    from tacit.cli.outcome import INTERRUPTED, WRONG_INPUT, complain
    from tacit.simulate.federation.run import default_directory
    from tacit.simulate.private_inference.distillation import (
        DistillationExperiment,
        ResultsError,
        claim,
        load,
        with_data,
    )
    from tacit.simulate.runs.experiment import ExperimentError

    console, errors = Console(highlight=False), Console(stderr=True, highlight=False)
    if device not in ("cpu", "cuda"):
        return complain(errors, f"--device {device}: choose cpu or cuda", WRONG_INPUT)
    try:
        chosen = with_data(load(experiment) if experiment is not None else DistillationExperiment(), data)
        if seed is not None:
            chosen = msgspec.structs.replace(chosen, federation=msgspec.structs.replace(chosen.federation, seed=seed))
        directory = out or default_directory(f"{chosen.name}-student")
        claim(directory)
    except (ExperimentError, ResultsError) as error:
        return complain(errors, error, WRONG_INPUT)
    try:
        return _distil(console, chosen, device=device, directory=directory, json_file=json_file)
    except KeyboardInterrupt:
        status, reason = INTERRUPTED, "interrupted"
        if (teacher := directory / "teacher.safetensors").exists():
            reason += f"; the teacher is kept: set model.checkpoint to {teacher}"
        return complain(errors, reason, status)


def _distil(console: Console, experiment: Any, *, device: str, directory: Path, json_file: Path | None) -> int:
    from rich.console import Console

    from tacit.cli.outcome import FAILED, WRONG_INPUT, complain
    from tacit.models.friendly.gauge import ActivationError
    from tacit.simulate.private_inference.distillation import distil

    errors = Console(stderr=True, highlight=False)
    total = experiment.distillation.layer_epochs + experiment.distillation.prediction_epochs

    def show(line: str) -> None:
        console.print(line, markup=False, soft_wrap=True)

    begun = False

    def progress(event: str, fields: dict[str, Any]) -> None:
        nonlocal begun
        begun = True
        if event == "teacher":
            trained = f"trained for {fields['epochs']} epochs" if fields["epochs"] else "loaded"
            show(f"teacher {trained}: test accuracy {fields['accuracy']:.3f}")
        elif event == "converted":
            show(f"converted, before distillation: test accuracy {fields['accuracy']:.3f}")
        else:
            losses = ", ".join(f"{name} {value:.4f}" for name, value in fields["losses"].items())
            show(f"epoch {fields['number']:>3} of {total}  {losses}  test accuracy {fields['accuracy']:.3f}")
        status.update("distilling")

    try:
        with console.status("training the teacher") as status:
            figures = distil(experiment, device=device, out=directory, progress=progress)
    except (ActivationError, FloatingPointError) as error:
        return complain(errors, error, FAILED)
    except (ValueError, OSError) as error:
        if begun:
            return complain(errors, error, FAILED)
        if not any(directory.iterdir()):
            directory.rmdir()
        return complain(errors, error, WRONG_INPUT)
    keep_json(json_file, figures)
    student = figures["student"]
    refused = f", {student['refused']} images beyond the calibrated intervals" if student["refused"] else ""
    show(
        f"student: test accuracy {student['accuracy']:.3f}, teacher {figures['teacher']['accuracy']:.3f}; "
        f"same label for {student['agreement']:.1%} of {figures['test_images']} images{refused}"
    )
    show(f"{figures['seconds']:.0f} s; everything is in {directory}")
    return 0
