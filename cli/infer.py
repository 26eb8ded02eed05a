"""`tacit infer`: ask a model that somebody else has, about images that it does not see."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tacit.cli.json_file import check_json, keep_json
from tacit.cli.options import Input

if TYPE_CHECKING:
    from rich.console import Console

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
        Input,
        typer.Option("--input", help="The data owner is told the input of every block, as in the paper, or nobody is."),
    ] = Input.KNOWN,
    data_owners: Annotated[
        int, typer.Option(min=1, max=64, help="Share the images among so many data owners, served at the same time.")
    ] = 1,
    device: Annotated[str, typer.Option(help="Where both owners compute: cpu or cuda.")] = "cpu",
    json_file: Annotated[Path | None, typer.Option("--json", metavar="FILE", help="Write the figures here.")] = None,
) -> None:
    """Private inference: a model owner's student classifies images that only their owner sees.

    Model owner, data owners and dealer are processes of this machine that talk over ZeroMQ with CURVE. Only the data
    owner learns labels and confidences. Both are compared with the student in the clear, which a real data owner
    does not have.

    Exit status: 0 done; 1 a party failed, or the file cannot be written; 2 wrong input; 130 Ctrl-C.
    """
    from rich.console import Console

    from tacit.cli.outcome import FAILED, INTERRUPTED, WRONG_INPUT, complain

    console, errors = Console(highlight=False), Console(stderr=True, highlight=False)
    check_json(json_file)
    from tacit.simulate.federation.processes import ProcessError
    from tacit.simulate.private_inference import private_images

    try:
        with console.status("starting") as status:
            figures = private_images.infer(
                directory,
                images,
                source=data,
                input=input.value,
                batch=batch,
                data_owners=data_owners,
                device=device,
                progress=status.update,
            )
    except ProcessError as error:
        raise typer.Exit(complain(errors, error, FAILED)) from None
    except (ValueError, OSError) as error:
        raise typer.Exit(complain(errors, error, WRONG_INPUT)) from None
    except KeyboardInterrupt:
        raise typer.Exit(complain(errors, "interrupted", INTERRUPTED)) from None
    _show(console, figures)
    keep_json(json_file, figures)


def _show(console: Console, figures: dict[str, Any]) -> None:
    from rich.table import Table

    rows = figures["images"]
    labels = Table("image", "label", "confidence")
    labels.columns[2].justify = "right"
    for row in rows[:_SHOWN]:
        labels.add_row(row["image"], row["label"], f"{row['confidence']:.3f}")
    console.print(labels)
    if len(rows) > _SHOWN:
        console.print(f"and {len(rows) - _SHOWN} more; --json FILE has all of them")
    count = len(rows)
    table = Table("operation", "seconds", "MB sent by data owner", "by model owner", "rounds")
    for column in table.columns[1:]:
        column.justify = "right"
    operations = figures["per_operation"]
    for name, row in [*operations.items(), ("all", _total(operations))]:
        sent = [f"{row[party] / 1e6:.2f}" for party in ("data_owner_bytes", "model_owner_bytes")]
        table.add_row(name, f"{row['seconds']:.2f}", *sent, f"{row['rounds']:.0f}")
    console.print(table)
    known = "" if figures["accuracy"] is None else f", {figures['accuracy']:.1%} of them right"
    console.print(
        f"{count} images{known}; the same label in the clear for {figures['agreement']:.1%}, logits differ by at most "
        f"{figures['largest_difference']:.4f}; {1000 * figures['online_seconds'] / count:.0f} ms an image online, and "
        f"{1000 * figures['waited_for_material_seconds'] / count:.0f} ms of waiting for material; masked weights: "
        f"{figures['weights_bytes'] / 1e6:.1f} MB",
        soft_wrap=True,
    )


def _total(operations: dict[str, dict[str, float]]) -> dict[str, float]:
    keys = ("seconds", "data_owner_bytes", "model_owner_bytes", "rounds")
    return {key: sum(row[key] for row in operations.values()) for key in keys}
