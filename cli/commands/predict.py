"""`tacit predict`: private inference with trained adapters, beside a model of another party."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from tacit.cli.commands.infer import DEVICE, HOW, IMAGES, JSON, LABELS
from tacit.cli.output import all_answered, measured

if TYPE_CHECKING:
    from tacit.simulate.private_inference.results import PredictionResult


def predict(
    directory: Annotated[Path, typer.Argument(metavar="RUN", help="A run of `tacit adapt`.")],
    images: Annotated[str | None, IMAGES] = None,
    labels: Annotated[int, LABELS] = 0,
    batch: Annotated[
        int, typer.Option(min=1, max=1024, help="Images at a time, at most as in training.", rich_help_panel=HOW)
    ] = 16,
    device: Annotated[str, DEVICE] = "cpu",
    json_file: Annotated[Path | None, JSON] = None,
) -> None:
    """Classify private images with adapters from `tacit adapt`.

    The model owner has the model; a data owner has adapters, head and images; a dealer helps. The model owner learns
    neither adapters nor images, and the data owner receives only the answers. They are compared with those in the
    clear, which no real party could do.

    Exit status: 0 all are answered; 1 a party failed, an image was refused or cannot be read, or the file cannot be
    written; 2 wrong input; 130 Ctrl-C.
    """
    from tacit.simulate.federation.processes import ProcessError, warm_up

    def work(progress: Callable[[str], None]) -> PredictionResult:
        progress("loading torch")
        # `predict` reports if the parties cannot be started here.
        with suppress(OSError):
            warm_up()
        from tacit.simulate.adaptation.plan import Folder
        from tacit.simulate.private_inference.private_images import PredictionRequest, predict

        request = PredictionRequest(folder=Folder(directory), images=images)
        return predict(request, batch=batch, device=device, labels=labels, progress=progress)

    all_answered(measured(work, json_file, failed=ProcessError))


PANEL: Final = "On this machine"
COMMANDS: Final = {"predict": predict}
RESULTS: Final = {
    "prediction": ("predict", "tacit.simulate.private_inference.results:PredictionResult"),
}
