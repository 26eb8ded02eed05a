"""`tacit experiment`: reproduce a table or figure of a paper."""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path
from typing import Annotated, Final

import typer
from rich.console import Console

from tacit.cli import output
from tacit.cli.interruption import interruptible

LIST = "list"
KEPT = "finished runs are kept: give the same command again"


_What = partial(typer.Option, rich_help_panel="Experiment")
_How = partial(typer.Option, rich_help_panel=(HOW := "Execution and results"))


def experiment(
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME|FILE.py|list", help="Table or figure, or a file that defines STUDY; `list` names all tables."
        ),
    ],
    small: Annotated[bool, _What("--small", help="The small version, which runs in minutes.")] = False,
    seeds: Annotated[str, _What(metavar="0-4|0,2,7", help="Every row runs once with each of these.")] = "0-4",
    arm: Annotated[
        list[str] | None, _What(metavar="NAME", help="Only this row, or all that fit, as 'lenet-*'. Repeatable.")
    ] = None,
    data: Annotated[
        Path | None, _What(metavar="FILE.npz|DIRECTORY", help="Images, or CIFAR-10; default of --small: digits.")
    ] = None,
    checkpoint: Annotated[
        Path | None, _What(metavar="FILE", help="Initial weights of models, from timm, as .safetensors.")
    ] = None,
    device: Annotated[
        str, output.device_option("Device of training and evaluation: cpu (the default) or cuda.", panel=HOW)
    ] = "cpu",
    out: Annotated[Path | None, _How(metavar="DIR", help="Default runs/<name>, small: runs/<name>-small.")] = None,
    json_file: Annotated[
        Path | None, output.json_option("Write table.json here too.", metavar="FILE", panel=HOW)
    ] = None,
) -> None:
    """Reproduce a table or figure of a paper.

    Runs every row with every seed, with real parties under secure aggregation unless the row says otherwise. Writes
    table.md, table.json and plot.svg into the output directory, beside the runs. After an interruption the same command
    resumes; finished runs are not repeated. Rows that lack runs are marked.

    Exit status: 0 all runs completed; 1 a run failed; 2 wrong input; 3 a round was aborted; 4 a server was lost; 130
    Ctrl-C.
    """
    from tacit.parties.runs.directory import RunDirectoryError
    from tacit.simulate.experiments.catalogue import find_study
    from tacit.simulate.experiments.measures import Request, read_seeds

    console = output.screen()
    if name == LIST:
        _list(console)
        return
    with output.complaining(((ValueError, RunDirectoryError), output.WRONG_INPUT), (OSError, output.FAILED)):
        study = find_study(name)
        directory = out or Path("runs") / (f"{study.name}-small" if small else study.name)
        request = Request(
            seeds=read_seeds(seeds),
            data=data,
            device=device,
            out=directory,
            run=lambda work: asyncio.run(interruptible(work)),
            checkpoint=checkpoint,
        )
        # Imported here: wrong names are refused before anything slow is loaded.
        from tacit.simulate.experiments.engine import command_line, prepare

        patterns = tuple(arm or ())
        work = prepare(study, request, small=small, patterns=patterns or ("*",))
    command = command_line(
        name, small=small, seeds=seeds, data=data, device=device, patterns=patterns, checkpoint=checkpoint
    )

    from tacit.cli.study_screen import StudyScreen
    from tacit.parties.session.event_log import EventLogError
    from tacit.simulate.experiments.engine import run_study
    from tacit.simulate.experiments.federations import AbortedError
    from tacit.simulate.experiments.page import write
    from tacit.simulate.federation.processes import InputError, ProcessError, ServerLostError, SimulationError

    failures = (
        SimulationError,
        ProcessError,
        EventLogError,
        RunDirectoryError,
        OSError,
        ValueError,
        FloatingPointError,
    )
    try:
        try:
            with StudyScreen(console, work) as watcher:
                run_study(work, watcher)
        finally:
            # Written after an interruption too: it lists finished and missing runs.
            result = work.result(command=command)
            if result.finished:
                write(result, directory, draw=study.draw, details=study.details(result), json_file=json_file)
    except KeyboardInterrupt:
        raise output.failure(f"interrupted; {KEPT}", output.INTERRUPTED) from None
    except InputError as error:
        raise output.failure(error, output.WRONG_INPUT) from None
    except AbortedError as error:
        raise output.failure(error, output.ABORTED) from None
    except ServerLostError as error:
        raise output.failure(f"{error}; {KEPT}", output.SERVER_LOST) from None
    except failures as error:
        raise output.failure(f"{error}; {KEPT}", output.FAILED) from None
    output.show(console, result)
    output.say(console, f"table.md, table.json and plot.svg are in {directory}")


def _list(console: Console) -> None:
    from tacit.simulate.experiments.catalogue import STUDIES

    for study in STUDIES.values():
        output.say(console, study.name, style="bold")
        output.say(console, f"  {study.paper}: {study.shows}")
        output.say(console, f"  rows: {'; '.join(row.name for row in (study.small or study.full).rows)}")
        output.say(console, f"  columns: {', '.join(quantity.heading for quantity in study.columns)}")
        for title, size in (("full size", study.full), ("--small", study.small)):
            if size is not None:
                output.say(console, f"  {title}: {size.measure.summary(size.rows)}")


PANEL: Final = "On this machine"
COMMANDS: Final = {"experiment": experiment}
RESULTS: Final = {
    "study": ("experiment; table.json", "tacit.simulate.experiments.results:StudyResult"),
}
