"""`tacit report` rebuilds the report of a run; `tacit compare` puts several runs on one page."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final

import typer

from tacit.cli.output import FAILED, WRONG_INPUT, complaining, failure, json_option, keep_json, say, screen, show, warn
from tacit.cli.progress import Progress


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
    """Make the report of a run from its event logs, as one HTML page.

    Also writes rounds.csv and clients.csv into the run directory. Merges logs of parties on other hosts, and aligns
    their clocks by the messages that both ends logged.

    Exit status: 0 the page is written; 2 wrong input.
    """
    from tacit.parties.runs.directory import RunDirectory, RunDirectoryError
    from tacit.parties.runs.experiment import ExperimentError, is_adaptation
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
            # Imported here: drawing libraries take half a second to load.
            from tacit.simulate.report.page import write_report

            with Progress(screen(), "reading the logs and drawing"):
                page = write_report(run, *others or (), out=out, on_unread=warn)
            typer.echo(page)
            if not others:
                from tacit.parties.runs.experiment import load
                from tacit.parties.runs.summary import summarise

                # Tables of an interrupted run, whose end they lack.
                summarise(run, load(run.experiment, numbered=False), ended="").keep_tables(run)
    except OSError as error:
        place = error.filename or out or directory / "report.html"
        raise failure(f"{place}: {error.strerror}; choose another file with --out", WRONG_INPUT) from None


def compare(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN", help="Run directories, two or more.")],
    out: Annotated[Path, typer.Option(metavar="FILE", help="Page to write.")] = Path("comparison.html"),
    exported: Annotated[
        Path | None,
        typer.Option("--export", metavar="DIR", help="Write the curves there too, as SVG, PNG and CSV."),
    ] = None,
    json_file: Annotated[Path | None, json_option("Write the comparison to this file too.")] = None,
) -> None:
    """Compare runs on one page.

    The page has experiments, curves, results and costs. Runs that differ only in their seeds are one line, with
    mean and standard deviation.

    Exit status: 0 the page is written; 1 it, or the file of --json, cannot be written; 2 wrong input.
    """
    if len(runs) < 2:
        raise failure("one run is no comparison: name two or more run directories", WRONG_INPUT)
    from tacit.parties.runs.directory import RunDirectoryError, writing
    from tacit.parties.runs.experiment import ExperimentError
    from tacit.parties.session.event_log import EventLogError
    from tacit.simulate.report import comparison

    console = screen()
    with (
        complaining(((EventLogError, ExperimentError, RunDirectoryError), WRONG_INPUT), (OSError, FAILED)),
        Progress(console, "reading the logs"),
    ):
        found = comparison.compare(runs)
        page = comparison.comparison_page(found)
        with writing(out):
            out.write_text(page, encoding="utf-8")
        files = [] if exported is None else comparison.export(found, exported)
    keep_json(json_file, found)
    show(console, found)
    for path in (*files, out):
        say(console, str(path))


PANEL: Final = "Settings and results"
COMMANDS: Final = {"report": report, "compare": compare}
RESULTS: Final = {
    "comparison": ("compare", "tacit.simulate.report.comparison:Comparison"),
}
