"""`tacit adapt`: private training of adapters, by data owners, beside a private model of another party."""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

import typer
from rich.console import Console

from tacit.cli import output
from tacit.cli.interruption import interruptible
from tacit.cli.progress import Progress
from tacit.parties.runs.reveals import GIVES_AWAY

if TYPE_CHECKING:  # Its imports take a moment to load.
    from tacit.simulate.adaptation.results import AdaptationSummary


_What = partial(typer.Option, rich_help_panel="Training")
_Model = partial(typer.Option, rich_help_panel="A pretrained model")
_How = partial(typer.Option, rich_help_panel=(HOW := "Execution and results"))


def adapt(
    experiment: Annotated[
        Path | None,
        typer.Argument(metavar="EXPERIMENT.toml", help="Experiment file; `tacit config --adaptation` prints one."),
    ] = None,
    clients: Annotated[int | None, _What(help="Number of data owners.")] = None,
    rounds: Annotated[int | None, _What(help="Rounds of training.")] = None,
    adapter: Annotated[
        Literal["parallel", "linear-probe"] | None, _What(help="Adapters beside blocks, or a head alone.")
    ] = None,
    reveal: Annotated[
        Literal["none", "sampled", "all"] | None,
        _What(help="Block outputs for data owners (INSECURE)."),
    ] = None,
    data: Annotated[
        Path | None, _What(metavar="SOURCE", help="An .npz, or a folder with a folder for each class.")
    ] = None,
    seed: Annotated[int | None, _What(min=0, max=2**63 - 1, metavar="N", help="Makes a run repeatable.")] = None,
    model: Annotated[str, _Model(metavar="NAME", help="Its architecture in timm; all classes are trained.")] = "",
    checkpoint: Annotated[Path | None, _Model(metavar="FILE", help="Its weights, a .safetensors file.")] = None,
    image_size: Annotated[
        int | None, _Model(min=8, max=1024, metavar="PIXELS", help="Edge of the images that it takes.")
    ] = None,
    device: Annotated[str, output.device_option("Device of the owners: cpu (default) or cuda.", panel=HOW)] = "cpu",
    out: Annotated[Path | None, _How(metavar="DIR", help="Default runs/<time>-<name>.")] = None,
    json_file: Annotated[Path | None, output.json_option("The summary.", metavar="FILE", panel=HOW)] = None,
    quiet: Annotated[bool, _How("--quiet", help="Show nothing but errors.")] = False,
) -> None:
    """Train adapters beside a private model on private images.

    A model owner has a vision transformer, data owners have images of other classes, and a dealer helps; each is a
    process of this machine. Adapters and a head are trained on secret shares between the model owner and each data
    owner, and only sums over all data owners are opened to them. Without arguments four data owners learn five digits
    beside a model that knows the other five. With --model and --checkpoint they learn all classes of --data beside a
    pretrained model.

    Exit status: 0 all rounds completed; 1 the run failed; 2 wrong input; 3 a round was lost; 130 Ctrl-C.
    """
    from tacit.models.configuration import images_at
    from tacit.parties.runs.adaptation import AdaptationExperiment
    from tacit.parties.runs.directory import RunDirectoryError
    from tacit.parties.runs.experiment import load_as, with_overrides
    from tacit.simulate.federation.processes import ProcessError, warm_up
    from tacit.simulate.federation.run import default_directory

    with output.complaining(((ValueError, RunDirectoryError, FileNotFoundError), output.WRONG_INPUT)):
        base = AdaptationExperiment() if experiment is None else load_as(AdaptationExperiment, experiment)
        more: dict[str, dict[str, Any]] = {"adaptation": {"reveal": reveal}}
        if model or checkpoint is not None:
            if not model or checkpoint is None:
                raise ValueError("--model and --checkpoint go together: an architecture of timm, and its weights")
            more["model"] = {"name": model, "checkpoint": str(checkpoint)}
            more["adaptation"] |= {"known_classes": []}
        if image_size is not None:
            more["model"] = more.get("model", {}) | {"image_size": image_size}
        if data is not None:
            more["data"] = images_at(data)
        if adapter is not None and adapter != base.kind:
            base = base.with_adapter(adapter)
        chosen = with_overrides(base, clients=clients, rounds=rounds, seed=seed, more=more, where="command line")
        chosen.check_place()
    console = Console(highlight=False, quiet=quiet)
    if chosen.adaptation.reveal != "none":
        output.warn(f'reveal = "{chosen.adaptation.reveal}": {GIVES_AWAY}')
    with output.complaining(((RunDirectoryError,), output.WRONG_INPUT), (OSError, output.FAILED)):
        warm_up()
        with Progress(console, "loading torch"):
            # Imported here, after all checks that do not need it, and while the fork server loads the same.
            from tacit.cli.adaptation_screen import AdaptationScreen
            from tacit.simulate.adaptation.plan import Folder
            from tacit.simulate.adaptation.run import adapt as run
            from tacit.simulate.adaptation.run import make_folder
        folder = Folder(out or default_directory(chosen.name))
        make_folder(chosen, folder)
    screen = AdaptationScreen(console, chosen)
    try:
        with screen.progress:
            summary = asyncio.run(interruptible(run(chosen, folder, device=device, show=screen.show)))
    except KeyboardInterrupt:
        raise output.failure(f"interrupted; what was learned is in {folder.path}", output.INTERRUPTED) from None
    except (ProcessError, FloatingPointError) as error:
        raise output.failure(error, output.FAILED) from None
    except (ValueError, OSError) as error:
        if screen.begun:
            raise output.failure(error, output.FAILED) from None
        folder.run.discard()
        raise output.failure(error, output.WRONG_INPUT) from None
    output.keep_json(json_file, summary)
    output.show(console, summary)
    output.say(console, f"everything is in {folder.path}; ask what was learned: tacit predict {folder.path}")
    raise _outcome(summary, chosen.federation.rounds)


def _outcome(summary: AdaptationSummary, planned: int) -> typer.Exit:
    completed = len(summary.completed)
    if completed == planned:
        return typer.Exit()
    reason = f"round {summary.failed[0].round}: {summary.failed[0].detail}" if summary.failed else summary.ended
    return output.failure(f"{completed} of {planned} rounds were completed; {reason}", output.ABORTED)


PANEL: Final = "On this machine"
COMMANDS: Final = {"adapt": adapt}
RESULTS: Final = {
    "adaptation": ("adapt; summary.json", "tacit.simulate.adaptation.results:AdaptationSummary"),
}
