"""`tacit preflight`: check all prerequisites of a party before a session."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final

import typer
from rich.text import Text

from tacit.cli import output
from tacit.cli.progress import Progress
from tacit.protocol.core.errors import printable

_STYLES = {"ok": "green", "warning": "yellow", "untested": "dim", "absent": "yellow", "wrong": "red"}


def preflight(
    party: Annotated[Path, typer.Argument(metavar="PARTY.toml", help="The party's file.")],
    experiment: Annotated[
        Path | None,
        typer.Argument(metavar="EXPERIMENT.toml", help="Experiment: images, model and policy are tested too."),
    ] = None,
    json_file: Annotated[Path | None, output.json_option("Write the results to this file too.")] = None,
) -> None:
    """Test everything that a party will need, with remedies.

    A party that connects to others checks, if they are there, that both speak the same version; it joins nothing and
    nobody waits for it. A data owner receives the terms of the model owner and tries its images with them. A party that
    listens tests itself.

    Exit status: 0 no problem, perhaps warnings; 1 a problem; 2 wrong input; 4 no problem, but no peer listens yet.
    """
    console = output.screen()
    output.say(console, "starting")
    from tacit.parties.hosting.party_file import PartyFileError, read_any
    from tacit.parties.runs.experiment import ExperimentError, load

    with output.complaining(((PartyFileError, ExperimentError, OSError), output.WRONG_INPUT)):
        file = read_any(party)
        chosen = None if experiment is None else load(experiment, numbered=False)
        # Loads torch: errors in the files are reported before.
        from tacit.parties.hosting.preflight import Readiness, preflight

        findings = []
        with Progress(console, "testing"):
            for finding in preflight(file, chosen):
                findings.append(finding)
                line = Text(f"{finding.check:<16}{finding.state:<10}", style=_STYLES[finding.state])
                console.print(line.append(printable(finding.detail), style="default"), soft_wrap=True)
    states = {finding.state for finding in findings}
    output.keep_json(json_file, Readiness(role=file.role, findings=findings))
    if "wrong" in states:
        raise output.failure("not ready: see the lines above that are wrong", output.FAILED)
    if "absent" in states:
        missing = "the server" if file.role == "client" else "one of the others"
        raise output.failure(f"ready, but {missing} was not reached", output.SERVER_LOST)


PANEL: Final = "Between hosts"
COMMANDS: Final = {"preflight": preflight}
RESULTS: Final = {
    "preflight": ("preflight", "tacit.parties.hosting.preflight:Readiness"),
}
