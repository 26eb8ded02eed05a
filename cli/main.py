"""The `tacit` command. Everything slow is imported inside the commands, so that --help answers at once."""

from __future__ import annotations

import time
from importlib.metadata import version
from pathlib import Path
from typing import Annotated

import typer

from tacit.cli.bench import app as bench
from tacit.cli.conformance import app as conformance
from tacit.cli.data import app as data
from tacit.cli.distill import distill
from tacit.cli.experiment import experiment
from tacit.cli.groups import app as groups
from tacit.cli.infer import infer
from tacit.cli.json_file import check_json
from tacit.cli.report import report

BEGAN = time.monotonic()

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Private federated learning of vision transformers: real processes, secure aggregation, one command.",
)


def main() -> None:
    """Entry point of the command."""
    app()


@app.callback(invoke_without_command=True)
def top(show_version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False) -> None:
    """Options of the command itself."""
    if show_version:
        typer.echo(f"tacit {version('tacit')}")
        raise typer.Exit


@app.command()
def simulate(
    experiment: Annotated[
        Path | None, typer.Argument(metavar="[EXPERIMENT.toml]", help="Experiment file; `tacit config` prints one.")
    ] = None,
    clients: Annotated[int | None, typer.Option(help="Number of clients.")] = None,
    rounds: Annotated[int | None, typer.Option(help="Rounds of the run, those of a resumed run included.")] = None,
    seed: Annotated[int | None, typer.Option(help="Makes the model reproducible, bit for bit.")] = None,
    device: Annotated[str, typer.Option(help="Where clients train and the server evaluates: cpu or cuda.")] = "cpu",
    out: Annotated[Path | None, typer.Option(help="Run directory; default runs/<time>-<name>.")] = None,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write the summary to this file too.")] = None,
    verify: Annotated[bool, typer.Option("--verify", help="Record every update, and check every secure sum.")] = False,
    resume: Annotated[Path | None, typer.Option(help="Continue the run in this directory.")] = None,
    drop: Annotated[
        list[str] | None,
        typer.Option(metavar="PARTY@PHASE[:ROUND]", help="Kill a party when it enters a phase. Repeatable."),
    ] = None,
    stall: Annotated[
        list[str] | None, typer.Option(metavar="PARTY@PHASE[:ROUND]", help="Freeze a party. Repeatable.")
    ] = None,
    restart: Annotated[
        list[str] | None,
        typer.Option(metavar="PARTY@PHASE[:ROUND]", help="Kill a client and start it again. Repeatable."),
    ] = None,
    slow: Annotated[
        list[str] | None, typer.Option(metavar="PARTY:KBIT", help="Limit a link, in 1,000 bits/s. Repeatable.")
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="Show nothing but errors.")] = False,
) -> None:
    """Train a model with one server and several clients on this machine, under secure aggregation.

    Every party is a process of its own; they talk over ZeroMQ with CURVE on loopback TCP. Without arguments five
    clients train a small vision transformer on scikit-learn's digits.

    Parties are server, client-1, client-2, ...; phases are TRAIN, ADVERTISE_KEYS, SHARE_KEYS, MASKED_INPUT,
    CONSISTENCY_CHECK and UNMASK; rounds count from 1.

    Exit status: 0 all rounds completed; 1 the run failed; 2 wrong input; 3 a round was aborted; 4 the server was lost;
    130 Ctrl-C.
    """
    from tacit.cli.simulation import run_simulation

    check_json(json_file)
    raise typer.Exit(
        run_simulation(
            experiment=experiment,
            clients=clients,
            rounds=rounds,
            seed=seed,
            device=device,
            out=out,
            json_file=json_file,
            verify=verify,
            resume=resume,
            drop=drop or (),
            stall=stall or (),
            restart=restart or (),
            slow=slow or (),
            quiet=quiet,
            began=BEGAN,
        )
    )


@app.command()
def config() -> None:
    """Print the default experiment file, with every key explained."""
    from tacit.simulate.runs.experiment import Experiment
    from tacit.simulate.runs.reference import experiment_toml

    typer.echo(experiment_toml(Experiment()), nl=False)


app.command()(distill)
app.command()(infer)
app.command()(experiment)
app.command()(report)
app.add_typer(data, name="data")
app.add_typer(groups, name="groups")
app.add_typer(bench, name="bench")
app.add_typer(conformance, name="conformance")
