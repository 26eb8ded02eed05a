"""`tacit experiment`: a table or figure of a paper, reproduced."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tacit.cli.json_file import check_json

if TYPE_CHECKING:
    from rich.console import Console

    from tacit.simulate.experiments.engine import PreparedStudy
    from tacit.simulate.experiments.study import ArmResult

LIST = "list"


def experiment(
    name: Annotated[str, typer.Argument(metavar="NAME|list", help="Table or figure; `list` names them all.")],
    small: Annotated[bool, typer.Option("--small", help="The small twin, which runs in minutes.")] = False,
    seeds: Annotated[str, typer.Option(metavar="0-4|0,2,7", help="Every arm runs once with each of these.")] = "0-4",
    data: Annotated[
        Path | None,
        typer.Option(metavar="FILE.npz|DIRECTORY", help="Images, or the files of CIFAR-10; default of a twin: digits."),
    ] = None,
    device: Annotated[str, typer.Option(help="Where clients train and the server evaluates: cpu or cuda.")] = "cpu",
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Default runs/<name>, for a twin <name>-small.")
    ] = None,
    json_file: Annotated[Path | None, typer.Option("--json", metavar="FILE", help="Write table.json here too.")] = None,
) -> None:
    """Reproduce a table or figure of a paper: every arm with every seed, by real parties under secure aggregation.

    Writes table.md, table.json and plot.svg into the output directory, where the runs are too. Interrupted, the same
    command goes on where it was; finished runs are not repeated.

    Exit status: 0 all runs completed; 1 a run failed; 2 wrong input; 3 a round was aborted; 4 a server was lost;
    130 Ctrl-C.
    """
    from rich.console import Console

    if name == LIST:
        _list(Console(highlight=False))
        return
    check_json(json_file)
    raise typer.Exit(_run(name, small=small, seeds=seeds, data=data, device=device, out=out, json_file=json_file))


def _run(
    name: str, *, small: bool, seeds: str, data: Path | None, device: str, out: Path | None, json_file: Path | None
) -> int:
    from rich.console import Console

    from tacit.cli.outcome import ABORTED, FAILED, INTERRUPTED, SERVER_LOST, WRONG_INPUT, complain
    from tacit.cli.simulation import interruptible
    from tacit.cli.study_screen import StudyScreen
    from tacit.parties.session.event_log import EventLogError
    from tacit.simulate.experiments.catalogue import STUDIES
    from tacit.simulate.experiments.data import DataError
    from tacit.simulate.experiments.engine import AbortedError, OutputError, prepare, run_study
    from tacit.simulate.experiments.seeds import SeedsError, read_seeds
    from tacit.simulate.experiments.tastan_approximations import MEASUREMENTS
    from tacit.simulate.federation.processes import ProcessError
    from tacit.simulate.federation.supervision import InputError, ServerLostError, SimulationError
    from tacit.simulate.runs.directory import RunDirectoryError

    console, errors = Console(highlight=False), Console(stderr=True, highlight=False)
    study = STUDIES.get(name)
    if study is None and name not in MEASUREMENTS:
        names = ", ".join([*STUDIES, *MEASUREMENTS])
        return complain(errors, f"there is no experiment {name!r}; choose one of {names}", WRONG_INPUT)
    if device not in ("cpu", "cuda"):
        return complain(errors, f"--device {device}: choose cpu or cuda", WRONG_INPUT)
    if study is None:
        from tacit.cli.measurement import run_measurement

        return run_measurement(name, small=small, seeds=seeds, data=data, device=device, out=out, json_file=json_file)
    directory = out or Path("runs") / (f"{name}-small" if small else name)
    try:
        work = prepare(study, small=small, seeds=read_seeds(seeds), data=data, device=device, out=directory)
    except (SeedsError, DataError, OutputError) as error:
        return complain(errors, error, WRONG_INPUT)
    except OSError as error:
        return complain(errors, error, FAILED)
    screen = StudyScreen(console, work)
    kept = "finished runs are kept: give the same command again"

    async def shown() -> list[ArmResult]:
        with screen:
            return await run_study(work, screen)

    try:
        results = asyncio.run(interruptible(shown()))
        _write(console, work, results, seeds=seeds, data=data, json_file=json_file)
    except KeyboardInterrupt:
        return complain(errors, f"interrupted; {kept}", INTERRUPTED)
    except InputError as error:
        return complain(errors, error, WRONG_INPUT)
    except AbortedError as error:
        return complain(errors, error, ABORTED)
    except ServerLostError as error:
        return complain(errors, f"{error}; {kept}", SERVER_LOST)
    except (SimulationError, ProcessError, EventLogError, RunDirectoryError, OSError) as error:
        return complain(errors, f"{error}; {kept}", FAILED)
    return 0


def _write(
    console: Console,
    work: PreparedStudy,
    results: list[ArmResult],
    *,
    seeds: str,
    data: Path | None,
    json_file: Path | None,
) -> None:
    # Imported here: drawing takes a second to load, and nobody waits for it before the runs are over.
    from tacit.cli.study_screen import results_table
    from tacit.simulate.experiments.page import Page, command_line
    from tacit.simulate.runs.directory import write_json

    command = command_line(work.study.name, small=work.small, seeds=seeds, data=data, device=work.device)
    page = Page(work=work, results=results, command=command)
    page.write(work.out)
    if json_file is not None:
        write_json(page.figures(), json_file)
    console.print(results_table(work.study, results))
    for verdict in work.study.judge(results):
        word = {True: "holds", False: "DOES NOT HOLD", None: "not decided"}[verdict.holds]
        console.print(f"{word}: {verdict.claim} ({verdict.detail})", markup=False, soft_wrap=True)
    console.print(f"table.md, table.json and plot.svg are in {work.out}", markup=False, soft_wrap=True)


def _list(console: Console) -> None:
    from tacit.simulate.experiments.catalogue import STUDIES
    from tacit.simulate.experiments.tastan_approximations import MEASUREMENTS

    def show(line: str, style: str = "") -> None:
        console.print(line, style=style, markup=False, soft_wrap=True)

    for study in STUDIES.values():
        show(study.name, style="bold")
        show(f"  {study.paper}: {study.shows}")
        show(f"  arms: {', '.join(arm.name for arm in study.small.arms)}")
        for name, size, data in (("full size", study.full, "CIFAR-10"), ("--small", study.small, "digits or --data")):
            models = dict.fromkeys(arm.experiment.model.name for arm in size.arms)
            rounds = size.arms[0].experiment.federation.rounds
            data = f"{data} or GTSRB" if study.images_per_client and size is study.full else data
            show(f"  {name}: {', '.join(models)}, {rounds} rounds, {data}")
    for measurement in MEASUREMENTS.values():
        show(measurement.name, style="bold")
        show(f"  {measurement.paper}: {measurement.shows}")
        show(f"  arms: degree {', '.join(row.name for row in measurement.rows)}")
        show("  full size: vit_base_patch16_384, 1 epoch, Fed-ISIC2019")
        show("  --small: vit, 1 epoch, digits or --data")
