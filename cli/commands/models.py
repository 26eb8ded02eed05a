"""`tacit models`: inspect a model file, and merge adapters into it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final

import typer

from tacit.cli.output import FAILED, WRONG_INPUT, complaining, failure, json_option, keep_json, screen, show

app = typer.Typer(no_args_is_help=True, help="Show model files, and merge adapters.")
_FILE: Final = typer.Argument(metavar="FILE", help="A .safetensors file, or a run directory with one.")


@app.callback()
def models() -> None:
    """Look at model files, and merge adapters."""


@app.command("show")
def show_model(
    file: Annotated[Path, _FILE],
    json_file: Annotated[Path | None, json_option("Write the description to this file too.")] = None,
) -> None:
    """Show the architecture, classes, images and trained part of a model file.

    Exit status: 0 done; 1 the file of --json cannot be written; 2 wrong input.
    """
    from tacit.parties.runs.model_file import ModelFile

    with complaining(((ValueError, OSError), WRONG_INPUT)):
        found = ModelFile.of(_model(file))
    keep_json(json_file, found)
    show(screen(), found)


@app.command()
def merge(
    file: Annotated[Path, _FILE],
    out: Annotated[Path, typer.Option(metavar="FILE", help="File to write.")] = Path("merged.safetensors"),
) -> None:
    """Merge LoRA adapters (model.tune = "lora") into the weights, so that timm loads the model.

    Exit status: 0 done; 1 the file cannot be written; 2 wrong input.
    """
    from tacit.models.merging import merge_file

    if out.exists():
        raise failure(f"{out} exists already: choose another file with --out", WRONG_INPUT)
    with complaining(((ValueError, FileNotFoundError), WRONG_INPUT), (OSError, FAILED)):
        count = merge_file(_model(file), out)
    typer.echo(f"{out}: {count} layers merged")


def _model(path: Path) -> Path:
    return path / "model.safetensors" if path.is_dir() else path


PANEL: Final = "Settings and results"
COMMANDS: Final = {"models": app}
RESULTS: Final = {
    "model": ("models show", "tacit.parties.runs.model_file:ModelFile"),
}
