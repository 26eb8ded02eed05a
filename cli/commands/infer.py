"""`tacit infer`: private inference on images with a model of another party."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, Literal

import typer

from tacit.cli.output import all_answered, device_option, json_option, measured
from tacit.parties.hosting.protocols import ProtocolName

if TYPE_CHECKING:
    from tacit.simulate.private_inference.results import InferenceResult

_Model = partial(typer.Option, rich_help_panel="A checkpoint instead of DIR")
ASKED, HOW = "Question", "Execution and results"
_How = partial(typer.Option, rich_help_panel=HOW)
IMAGES: Final = typer.Option(
    metavar="N|PATH", help="Number of test images, a file, or a folder; default all test images.", rich_help_panel=ASKED
)
LABELS: Final = typer.Option(
    min=0,
    max=16,
    metavar="N",
    help="Reveal the best N labels without confidences; 0: logits.",
    show_default=False,
    rich_help_panel=ASKED,
)
DEVICE: Final = device_option("Of all parties: cpu (the default) or cuda.", panel=HOW)
JSON: Final = json_option("Write answers and costs here.", metavar="FILE", panel=HOW)


def infer(
    directory: Annotated[
        Path | None,
        typer.Argument(
            metavar="[DIR]", help="A run of `tacit simulate` or `tacit server`, or results of `tacit distill`."
        ),
    ] = None,
    model: Annotated[str, _Model(metavar="NAME", help="Its architecture in timm: NAME, or NAME.TAG.")] = "",
    checkpoint: Annotated[Path | None, _Model(metavar="FILE", help="Its weights, a .safetensors file.")] = None,
    image_size: Annotated[
        int, _Model(min=0, max=4096, metavar="PIXELS", help="Edge; 0: as in pretraining.", show_default=False)
    ] = 0,
    calibration: Annotated[
        Path | None, _Model(metavar="PATH", help="Typical images; default a run's, or --images.")
    ] = None,
    images: Annotated[str | None, IMAGES] = None,
    data: Annotated[
        str | None,
        typer.Option(metavar="SOURCE", help='Other test images: "digits", or an .npz.', rich_help_panel=ASKED),
    ] = None,
    labels: Annotated[int, LABELS] = 0,
    batch: Annotated[int, _How(min=1, max=4096, metavar="N", help="Images at a time.")] = 16,
    data_owners: Annotated[int, _How(min=1, max=64, metavar="N", help="Data owners, which divide the images.")] = 1,
    protocol: Annotated[ProtocolName, _How(help="crypten needs a distilled student, and checks no range.")] = "tacit",
    input: Annotated[
        Literal["known", "shared"],
        _How("--input", help="Block inputs: shared, or known (INSECURE)."),
    ] = "shared",
    device: Annotated[str, DEVICE] = "cpu",
    json_file: Annotated[Path | None, JSON] = None,
) -> None:
    """Classify private images with a private model, on secret shares.

    The model is a run of `tacit simulate` or `tacit server`, a checkpoint of timm, or a distilled student. A model
    without a head, or with a projection instead, returns features, which --json contains. Model owner, data owners and
    dealer are processes of this machine that talk over ZeroMQ with CURVE. Only the data owner receives labels, with
    confidences unless --labels is given. The answers are compared with those of the model in the clear, which no real
    party could do.

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
        # `private_images.infer` reports if the parties cannot be started here.
        with suppress(OSError):
            warm_up()
        # Imported here, after all checks that do not need it, and while the fork server loads the same.
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
