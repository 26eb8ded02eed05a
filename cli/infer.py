"""`tacit infer`: ask a model that somebody else has, about images that it does not see."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from rich.console import Console

from tacit.cli.output import json_option, measured, say, table

_SHOWN = 20


def infer(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="Results of `tacit distill`.")],
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
            metavar="SOURCE", help='Where test images come from, if not where the student\'s did: "digits", or an .npz.'
        ),
    ] = None,
    batch: Annotated[int, typer.Option(min=1, max=4096, help="Images at a time.")] = 16,
    input: Annotated[
        Literal["known", "shared"],
        typer.Option("--input", help="The data owner is told the input of every block, as in the paper, or nobody is."),
    ] = "known",
    data_owners: Annotated[
        int, typer.Option(min=1, max=64, help="Share the images among so many data owners, served at the same time.")
    ] = 1,
    device: Annotated[str, typer.Option(help="Where both owners compute: cpu or cuda.")] = "cpu",
    json_file: Annotated[Path | None, json_option("Write the figures here.", metavar="FILE")] = None,
) -> None:
    """Private inference: a model owner's student classifies images that only their owner sees.

    Model owner, data owners and dealer are processes of this machine that talk over ZeroMQ with CURVE. Only the data
    owner learns labels and confidences. Both are compared with the student in the clear, which a real data owner
    does not have.

    Exit status: 0 done; 1 a party failed, or the file cannot be written; 2 wrong input; 130 Ctrl-C.
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
        return private_images.infer(request, **options, progress=progress)

    measured(work, _show, json_file, schema="inference", failed=ProcessError)


def _show(console: Console, figures: dict[str, Any]) -> None:
    images, operations = figures["images"], figures["per_operation"]
    shown = [(row["image"], row["label"], f"{row['confidence']:.3f}") for row in images[:_SHOWN]]
    console.print(table(("image", "label", "confidence"), shown, left=("label",)))
    if len(images) > _SHOWN:
        console.print(f"and {len(images) - _SHOWN} more; --json FILE has all of them")
    keys = ("seconds", "data_owner_bytes", "model_owner_bytes", "rounds")
    total = {key: sum(row[key] for row in operations.values()) for key in keys}
    rows = [
        (name, f"{row['seconds']:.2f}", *(f"{row[key] / 1e6:.2f}" for key in keys[1:3]), f"{row['rounds']:.0f}")
        for name, row in [*operations.items(), ("all", total)]
    ]
    console.print(table(("operation", "seconds", "MB sent by data owner", "by model owner", "rounds"), rows))
    count = len(images)
    known = "" if figures["accuracy"] is None else f", {figures['accuracy']:.1%} of them right"
    say(
        console,
        f"{count} images{known}; the same label in the clear for {figures['agreement']:.1%}, logits differ by at most "
        f"{figures['largest_difference']:.4f}; {1000 * figures['online_seconds'] / count:.0f} ms an image online, and "
        f"{1000 * figures['waited_for_material_seconds'] / count:.0f} ms of waiting for material; masked weights: "
        f"{figures['weights_bytes'] / 1e6:.1f} MB",
    )
