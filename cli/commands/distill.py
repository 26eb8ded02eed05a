"""`tacit distill`: turn a trained vision transformer into one of additions and multiplications."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final

import typer

from tacit.cli import output
from tacit.cli.progress import Progress


def distill(
    experiment: Annotated[
        Path | None,
        typer.Argument(metavar="EXPERIMENT.toml", help="Experiment file, with or without a section \\[distillation]."),
    ] = None,
    data: Annotated[
        str | None,
        typer.Option(metavar="SOURCE", help='Images instead of data.source: "digits", or an .npz file.'),
    ] = None,
    seed: Annotated[
        int | None, typer.Option(min=0, max=2**63 - 1, help="Fixes initial weights and the order of images.")
    ] = None,
    new_head: Annotated[
        bool, typer.Option("--new-head", help="Give a checkpoint for other classes a new head, and train it.")
    ] = False,
    device: Annotated[str, output.device_option("Where both models run: cpu or cuda.")] = "cpu",
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Directory of the results; default runs/<time>-<name>-student.")
    ] = None,
    json_file: Annotated[Path | None, output.json_option("Write distillation.json here too.", metavar="FILE")] = None,
) -> None:
    """Distil a vision transformer into an MPC-friendly one.

    The student consists of additions and multiplications, so it runs on shares and on ciphertexts. The teacher is
    model.checkpoint, whose head must be for the classes of the images, or is trained first on all images of the
    experiment. Writes teacher.safetensors, student.safetensors, distillation.json and curves.png.

    Exit status: 0 done; 1 training diverged, or the results cannot be written; 2 wrong input; 130 Ctrl-C.
    """
    import msgspec

    from tacit.models.configuration import TRAINING_BYTES, check_memory
    from tacit.models.friendly.metrics import DistillationEpoch
    from tacit.parties.hosting.folder import available_memory
    from tacit.parties.runs.directory import RunDirectoryError, claim
    from tacit.parties.runs.distillation import ConvertedMetrics, DistillationExperiment, TeacherMetrics
    from tacit.parties.runs.experiment import load_as
    from tacit.simulate.federation.run import default_directory
    from tacit.simulate.private_inference.distillation import distil, with_data

    console = output.screen()
    with output.complaining(((ValueError, RunDirectoryError), output.WRONG_INPUT)):
        base = DistillationExperiment() if experiment is None else load_as(DistillationExperiment, experiment)
        chosen = with_data(base, data)
        if new_head:
            settings = msgspec.structs.replace(chosen.distillation, new_head=True)
            chosen = msgspec.structs.replace(chosen, distillation=settings)
        if seed is not None:
            chosen = msgspec.structs.replace(chosen, federation=msgspec.structs.replace(chosen.federation, seed=seed))
        check_memory(chosen.model, bytes_each=TRAINING_BYTES[chosen.training.optimizer], available=available_memory())
        directory = out or default_directory(f"{chosen.name}-student")
        claim(directory)
    with output.complaining(), Progress(console, "loading torch"):
        # Imported here, after all checks that do not need it.
        from tacit.models.friendly.polynomials import ActivationError

    total = chosen.distillation.layer_epochs + chosen.distillation.prediction_epochs
    begun = False

    def progress(metrics: TeacherMetrics | ConvertedMetrics | DistillationEpoch) -> None:
        nonlocal begun
        begun = True
        match metrics:
            case TeacherMetrics():
                shown = f"teacher {f'trained for {metrics.epochs} epochs' if metrics.epochs else 'loaded'}:"
            case ConvertedMetrics():
                shown = "converted, before distillation:"
            case DistillationEpoch():
                losses = ", ".join(f"{name} {value:.4f}" for name, value in metrics.losses.items())
                shown = f"epoch {metrics.number:>3} of {total}  {losses} "
        output.say(console, f"{shown} test accuracy {metrics.accuracy:.3f}")
        status.update("distilling")

    try:
        with Progress(console, "training the teacher") as status:
            result = distil(chosen, device=device, out=directory, progress=progress)
    except KeyboardInterrupt:
        reason = "interrupted"
        if (teacher := directory / "teacher.safetensors").exists():
            reason += f"; the teacher is kept: set model.checkpoint to {teacher}"
        raise output.failure(reason, output.INTERRUPTED) from None
    except (ActivationError, FloatingPointError) as error:
        raise output.failure(error, output.FAILED) from None
    except (ValueError, OSError) as error:
        if not any(directory.iterdir()):
            directory.rmdir()
        raise output.failure(error, output.FAILED if begun else output.WRONG_INPUT) from None
    output.keep_json(json_file, result)
    output.show(console, result)
    output.say(console, f"{result.seconds:.0f} s; everything is in {directory}")


PANEL: Final = "On this machine"
COMMANDS: Final = {"distill": distill}
RESULTS: Final = {
    "distillation": ("distill; distillation.json", "tacit.parties.runs.distillation:DistillationResult"),
}
