"""`tacit infer`: ask a model that somebody else has, about images that it does not see."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, Literal

import typer

from tacit.cli.output import all_answered, json_option, measured
from tacit.parties.hosting.protocols import ProtocolName
from tacit.simulate.insecure import KNOWN_GIVES_AWAY

if TYPE_CHECKING:
    from tacit.simulate.private_inference.results import InferenceResult

IMAGES: Final = typer.Option(
    metavar="N|PATH", help="Number of test images, an image file, or a folder of them; default: all tests."
)
LABELS: Final = typer.Option(
    min=0,
    max=16,
    help="The model owner reveals so many labels of an image, the best first, and no confidences; 0: logits.",
)


def infer(
    directory: Annotated[
        Path | None,
        typer.Argument(
            metavar="[DIR]", help="A run of `tacit simulate` or `tacit server`, or results of `tacit distill`."
        ),
    ] = None,
    model: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="Instead of DIR: an architecture of timm, with the tag of its weights if images are prepared as for "
            "these (vit_base_patch16_224.mae).",
        ),
    ] = "",
    checkpoint: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Its weights, as timm names them: a .safetensors file.")
    ] = None,
    calibration: Annotated[
        Path | None,
        typer.Option(
            metavar="PATH",
            help="Typical images for the bounds of the model's values: a file, or a folder of them; default: those "
            "that a run was trained on, those of --images for a checkpoint.",
        ),
    ] = None,
    image_size: Annotated[
        int,
        typer.Option(
            min=0,
            max=4096,
            metavar="PIXELS",
            help="Edge of the images that a checkpoint takes; 0: that of its pretraining, or 224 where this has more "
            "than 1,024 tokens.",
        ),
    ] = 0,
    images: Annotated[str | None, IMAGES] = None,
    data: Annotated[
        str | None,
        typer.Option(
            metavar="SOURCE", help='Where test images come from, if not where the model\'s did: "digits", or an .npz.'
        ),
    ] = None,
    batch: Annotated[int, typer.Option(min=1, max=4096, help="Images at a time.")] = 16,
    protocol: Annotated[
        ProtocolName,
        typer.Option(
            help="What computes on shares: Tacit's own protocol, or CrypTen's tensors (crypten), which need a student "
            "of `tacit distill` and check no range."
        ),
    ] = "tacit",
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
    labels: Annotated[int, LABELS] = 0,
    device: Annotated[str, typer.Option(help="Where all parties compute: cpu or cuda.")] = "cpu",
    json_file: Annotated[Path | None, json_option("Write answers and costs here.", metavar="FILE")] = None,
) -> None:
    """Private inference: a model owner's model classifies images that only their owner sees.

    The model is a vision transformer of timm's that `tacit simulate` has trained, or a checkpoint, as it is; or a
    distilled student. A model without a head, or with a projection in its place, gives features: --json holds them.
    Model owner, data owners and dealer are processes of this machine that talk over ZeroMQ with CURVE. Only the data
    owner learns labels, and confidences unless labels alone are revealed. They are compared with the model in the
    clear, which a real data owner does not have.

    Exit status: 0 all are answered; 1 a party failed, an image was refused or cannot be read, or the file cannot be
    written; 2 wrong input; 130 Ctrl-C.
    """
    from tacit.simulate.federation.processes import ProcessError, warm_up
    from tacit.simulate.private_inference.inference_request import InferenceRequest, wanted_model

    def work(progress: Callable[[str], None]) -> InferenceResult:
        served = wanted_model(
            directory,
            architecture=model,
            checkpoint=checkpoint,
            calibration=calibration,
            images=images,
            image_size=image_size,
        )
        request = InferenceRequest(model=served, images=images, source=data, protocol=protocol)
        progress("loading torch")
        # If the parties cannot be started here, `private_images.infer` says so.
        with suppress(OSError):
            warm_up()
        # Imported here, after all that can be judged without it, and while the fork server loads the same.
        from tacit.simulate.private_inference import private_images

        return private_images.infer(
            request,
            input=input,
            batch=batch,
            data_owners=data_owners,
            device=device,
            labels=labels,
            progress=progress,
        )

    all_answered(measured(work, json_file, failed=ProcessError))


PANEL: Final = "On this machine"
COMMANDS: Final = {"infer": infer}
RESULTS: Final = {
    "inference": ("infer", "tacit.simulate.private_inference.results:InferenceResult"),
}
