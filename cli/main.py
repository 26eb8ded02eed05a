"""The `tacit` command. Everything slow is imported inside the commands, so that --help answers at once."""

from __future__ import annotations

import atexit
import os
import sys
from importlib.metadata import version
from typing import Annotated, Literal

import typer

from tacit.cli.adapt import adapt
from tacit.cli.audit import audit
from tacit.cli.bench import app as bench
from tacit.cli.conformance import app as conformance
from tacit.cli.data import app as data
from tacit.cli.distill import distill
from tacit.cli.experiment import experiment
from tacit.cli.host import client, data_owner, dealer, model_owner, server, status
from tacit.cli.infer import infer
from tacit.cli.keys import app as keys
from tacit.cli.output import WRONG_INPUT, failure
from tacit.cli.predict import predict
from tacit.cli.preflight import preflight
from tacit.cli.report import compare, report
from tacit.cli.roster import app as roster
from tacit.cli.schema import schema
from tacit.cli.simulation import simulate
from tacit.cli.usage import Commands

app = typer.Typer(
    cls=Commands,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Private federated learning of vision transformers: real processes, secure aggregation, one command.",
)


def main() -> None:
    """Entry point of the command."""
    statuses: list[int] = []
    # Registered first, and so called last.
    atexit.register(_end_at_once, statuses)
    try:
        app()
    except SystemExit as ended:
        if isinstance(ended.code, int):
            statuses.append(ended.code)
        raise


def _end_at_once(statuses: list[int]) -> None:
    """Do without taking the interpreter apart, which takes seconds once torch is loaded; unless it ends by a defect."""
    if statuses:
        try:
            sys.stdout.flush()
            sys.stderr.flush()
        except OSError:
            return
        os._exit(statuses[0])


@app.callback(invoke_without_command=True)
def top(show_version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False) -> None:
    """Options of the command itself."""
    if show_version:
        typer.echo(f"tacit {version('tacit')}")
        raise typer.Exit


app.command()(simulate)


@app.command()
def config(
    party: Annotated[
        Literal["server", "client", "dealer", "model-owner", "data-owner"] | None,
        typer.Option(help="Print the file of a party on a host of its own instead."),
    ] = None,
    adaptation: Annotated[bool, typer.Option("--adaptation", help="Print that of `tacit adapt` instead.")] = False,
) -> None:
    """Print the default experiment file, with every key explained."""
    from tacit.parties.hosting.party_file import party_toml
    from tacit.parties.runs.adaptation import AdaptationExperiment
    from tacit.parties.runs.experiment import Experiment
    from tacit.parties.runs.reference import experiment_toml

    if party is not None and adaptation:
        raise failure("--adaptation is an experiment, and --party a party: choose one", WRONG_INPUT)
    experiment = AdaptationExperiment() if adaptation else Experiment()
    typer.echo(experiment_toml(experiment) if party is None else party_toml(party), nl=False)


app.command()(preflight)
app.command()(server)
app.command()(client)
app.command()(dealer)
app.command("model-owner")(model_owner)
app.command("data-owner")(data_owner)
app.command()(status)
app.command()(distill)
app.command()(infer)
app.command()(adapt)
app.command()(predict)
app.command()(audit)
app.command()(experiment)
app.command()(report)
app.command()(compare)
app.command()(schema)
app.add_typer(keys, name="keys")
app.add_typer(roster, name="roster")
app.add_typer(data, name="data")
app.add_typer(bench, name="bench")
app.add_typer(conformance, name="conformance")
