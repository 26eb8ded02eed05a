"""`tacit report`: make the report of a run again."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tacit.cli.output import WRONG_INPUT, complaining, failure, warn


def report(
    directory: Annotated[
        Path, typer.Argument(metavar="DIR", help="Run directory, as `tacit simulate` or `tacit adapt` writes it.")
    ],
    others: Annotated[
        list[Path] | None,
        typer.Argument(metavar="LOGS", help="Event logs of other hosts, or directories of such; clocks are aligned."),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="File to write; default report.html in the run directory.")] = None,
) -> None:
    """Make the report of a run from its event logs: one HTML page that needs nothing else.

    Logs of parties on other hosts are merged into it, their clocks aligned by the messages that both ends noted.

    Exit status: 0 the page is written; 2 wrong input.
    """
    from tacit.parties.runs.adaptation import is_adaptation
    from tacit.parties.runs.directory import RunDirectory, RunDirectoryError
    from tacit.parties.runs.experiment import ExperimentError
    from tacit.parties.session.event_log import EventLogError

    try:
        with complaining(((EventLogError, ExperimentError, RunDirectoryError), WRONG_INPUT)):
            run = RunDirectory.of_a_run(directory)
            if is_adaptation(run.experiment):
                from tacit.simulate.adaptation.page import report_of
                from tacit.simulate.adaptation.plan import Folder

                if others:
                    raise failure("an adaptation has all its logs in its folder: name no others", WRONG_INPUT)
                typer.echo(report_of(Folder(directory), out=out))
                return
            # Imported here: what draws takes half a second to load.
            from tacit.simulate.report.page import write_report

            typer.echo(write_report(run, *others or (), out=out, on_unread=warn))
    except OSError as error:
        place = error.filename or out or directory / "report.html"
        raise failure(f"{place}: {error.strerror}; choose another file with --out", WRONG_INPUT) from None
