"""`tacit infer`: ask a model that somebody else has, about images that it does not see."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from rich.console import Console

from tacit.cli.legacy_output import answered_images, measured, table
from tacit.cli.output import all_answered, json_option, say
from tacit.simulate.insecure import KNOWN_GIVES_AWAY

_SHOWN = 20


def infer(
    directory: Annotated[
        Path, typer.Argument(metavar="DIR", help="A run of `tacit simulate`, or results of `tacit distill`.")
    ],
    images: Annotated[
        str | None,
        typer.Option(
            metavar="N|PATH",
            help="Number of test images, an image file, or a folder of them; default: all tests.",
        ),
    ] = None,
    data: Annotated[
        str | None,
        typer.Option(
            metavar="SOURCE", help='Where test images come from, if not where the model\'s did: "digits", or an .npz.'
        ),
    ] = None,
    batch: Annotated[int, typer.Option(min=1, max=4096, help="Images at a time.")] = 16,
    input: Annotated[
        Literal["known", "shared"],
        typer.Option(
            "--input",
            help="Nobody receives the input of a block (shared), or the data owner does, also what leaves the "
            f"embedding, in the true order, which is more than in the paper (known). Known: {KNOWN_GIVES_AWAY}.",
        ),
    ] = "shared",
    data_owners: Annotated[
        int, typer.Option(min=1, max=64, help="Share the images among so many data owners, served at the same time.")
    ] = 1,
    labels: Annotated[
        int,
        typer.Option(
            min=0,
            max=16,
            help="Data owners are told so many labels of an image alone, the best first, and no confidence; 0: logits.",
        ),
    ] = 0,
    device: Annotated[str, typer.Option(help="Where both owners compute: cpu or cuda.")] = "cpu",
    json_file: Annotated[Path | None, json_option("Write the figures here.", metavar="FILE")] = None,
) -> None:
    """Private inference: a model owner's model classifies images that only their owner sees.

    The model is a vision transformer of timm's that `tacit simulate` has trained, as it is, or a distilled student.
    Model owner, data owners and dealer are processes of this machine that talk over ZeroMQ with CURVE. Only the data
    owner learns labels, and confidences unless it is told labels alone. They are compared with the model in the clear,
    which a real data owner does not have.

    Exit status: 0 all are answered; 1 a party failed, an image was refused, or the file cannot be written; 2 wrong
    input; 130 Ctrl-C.
    """
    from tacit.simulate.federation.processes import ProcessError, warm_up
    from tacit.simulate.private_inference.inference_request import InferenceRequest

    def work(progress: Callable[[str], None]) -> dict[str, Any]:
        request = InferenceRequest(directory=directory, images=images, source=data)
        progress("loading torch")
        # If the parties cannot be started here, that is told by whoever starts them.
        with suppress(OSError):
            warm_up()
        # Imported here, after all that can be judged without it, and while the fork server loads the same.
        from tacit.simulate.private_inference import private_images

        options: dict[str, Any] = {"input": input, "batch": batch, "data_owners": data_owners, "device": device}
        options["labels"] = labels
        return private_images.infer(request, **options, progress=progress)

    all_answered(measured(work, show_answers, json_file, schema="inference", failed=ProcessError)["images"])


def show_answers(console: Console, figures: dict[str, Any]) -> None:
    """Answers, what they cost, and how they are beside those in the clear."""
    if figures.get("input") == "known":
        say(console, f"--input known: {KNOWN_GIVES_AWAY}")
    images, operations = figures["images"], figures["per_operation"]
    console.print(answered_images(images[:_SHOWN]))
    if len(images) > _SHOWN:
        console.print(f"and {len(images) - _SHOWN} more; --json FILE has all of them")
    keys = ("seconds", "data_owner_bytes", "model_owner_bytes", "rounds")
    total = {key: sum(row[key] for row in operations.values()) for key in keys}
    rows = [
        (name, f"{row['seconds']:.2f}", *(f"{row[key] / 1e6:.2f}" for key in keys[1:3]), f"{row['rounds']:.0f}")
        for name, row in [*operations.items(), ("all", total)]
    ]
    console.print(table(("operation", "seconds", "MB sent by data owner", "by model owner", "rounds"), rows))
    count, answered = len(images), figures["agreement"] is not None
    known = "" if figures["accuracy"] is None else f", {figures['accuracy']:.1%} of them right"
    compared = f"the same label in the clear for {figures['agreement']:.1%}" if answered else ""
    if figures["largest_difference"] is not None:
        compared += f", logits differ by at most {figures['largest_difference']:.4f}"
    compared += "; " if answered else ""
    say(
        console,
        f"{count} images{known}; {compared}{1000 * figures['online_seconds'] / count:.0f} ms an image online, and "
        f"{1000 * figures['waited_for_material_seconds'] / count:.0f} ms of waiting for material; masked weights: "
        f"{figures['weights_bytes'] / 1e6:.1f} MB",
    )
