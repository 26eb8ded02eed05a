"""`tacit config`: example files of experiments and parties, with every key explained."""

from __future__ import annotations

from typing import Annotated, Final, Literal

import typer

from tacit.cli.output import WRONG_INPUT, failure


def config(
    party: Annotated[
        Literal["server", "client", "dealer", "model-owner", "data-owner"] | None,
        typer.Option(help="Print a party file instead."),
    ] = None,
    adaptation: Annotated[bool, typer.Option("--adaptation", help="Print that of `tacit adapt`.")] = False,
    short: Annotated[bool, typer.Option("--short", help="Print only the keys that most simulations change.")] = False,
) -> None:
    """Print the default experiment file, with every key explained."""
    from tacit.parties.hosting.party_file import party_toml
    from tacit.parties.runs.adaptation import AdaptationExperiment
    from tacit.parties.runs.experiment import Experiment
    from tacit.parties.runs.reference import SHORT, experiment_toml

    if (party is not None) + adaptation + short > 1:
        raise failure("--party, --adaptation and --short print files of their own: choose one", WRONG_INPUT)
    experiment = AdaptationExperiment() if adaptation else Experiment()
    if party is not None:
        typer.echo(party_toml(party), nl=False)
    else:
        typer.echo(experiment_toml(experiment, only=SHORT if short else ()), nl=False)


PANEL: Final = "Settings and results"
COMMANDS: Final = {"config": config}
