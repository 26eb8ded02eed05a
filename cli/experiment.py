"""`tacit experiment`: a table or figure of a paper, reproduced."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from tacit.cli import output

if TYPE_CHECKING:
    from tacit.simulate.experiments.measurement import Measurement
    from tacit.simulate.experiments.study import ArmResult, ClaimVerdict, Study

LIST = "list"


def experiment(
    name: Annotated[str, typer.Argument(metavar="NAME|list", help="Table or figure; `list` names them all.")],
    small: Annotated[bool, typer.Option("--small", help="The small twin, which runs in minutes.")] = False,
    seeds: Annotated[str, typer.Option(metavar="0-4|0,2,7", help="Every arm runs once with each of these.")] = "0-4",
    data: Annotated[
        Path | None,
        typer.Option(metavar="FILE.npz|DIRECTORY", help="Images, or the files of CIFAR-10; default of a twin: digits."),
    ] = None,
    arm: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Only this arm, or all whose name fits, as 'lenet-*'. Repeatable."),
    ] = None,
    device: Annotated[str, output.device_option("Where clients train and the server evaluates: cpu or cuda.")] = "cpu",
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Default runs/<name>, for a twin <name>-small.")
    ] = None,
    json_file: Annotated[Path | None, output.json_option("Write table.json here too.", metavar="FILE")] = None,
) -> None:
    """Reproduce a table or figure of a paper: every arm with every seed, by real parties under secure aggregation.

    Writes table.md, table.json and plot.svg into the output directory, where the runs are too. Interrupted, the same
    command goes on where it was; finished runs are not repeated. Arms without all of their runs are named as such.

    Exit status: 0 all runs completed; 1 a run failed; 2 wrong input; 3 a round was aborted; 4 a server was lost;
    130 Ctrl-C.
    """
    from tacit.simulate.experiments.catalogue import MEASUREMENTS, STUDIES

    console = output.screen()
    if name == LIST:
        _list(console)
        return
    directory = out or Path("runs") / (f"{name}-small" if small else name)
    chosen = _Chosen(small, seeds, data, tuple(arm or ()), device, directory, json_file)
    if study := STUDIES.get(name):
        verdicts: Sequence[ClaimVerdict] = _run(console, study, chosen)
    elif chosen.arms and name in MEASUREMENTS:
        raise output.failure(f"--arm: {name} has rows, which are measured together; leave it out", output.WRONG_INPUT)
    elif measurement := MEASUREMENTS.get(name):
        verdicts = _measure(console, measurement, chosen)
    else:
        names = ", ".join([*STUDIES, *MEASUREMENTS])
        raise output.failure(f"there is no experiment {name!r}; choose one of {names}", output.WRONG_INPUT)
    for verdict in verdicts:
        word = {True: "holds", False: "DOES NOT HOLD", None: "not decided"}[verdict.holds]
        output.say(console, f"{word}: {verdict.claim} ({verdict.detail})")
    output.say(console, f"table.md, table.json and plot.svg are in {directory}")


@dataclass(frozen=True)
class _Chosen:
    """What the command line says."""

    small: bool
    seeds: str
    data: Path | None
    arms: tuple[str, ...]
    """Patterns of names; none: all of them."""
    device: str
    out: Path
    json_file: Path | None

    def command(self, name: str) -> str:
        """That repeats it."""
        # Imported here: drawing takes a second to load, and nobody waits for it before the runs are over.
        from tacit.simulate.experiments.page import command_line

        return command_line(
            name, small=self.small, seeds=self.seeds, data=self.data, device=self.device, patterns=self.arms
        )


def _run(console: Console, study: Study, chosen: _Chosen) -> list[ClaimVerdict]:
    from tacit.cli.interruption import interruptible
    from tacit.cli.study_screen import StudyScreen, results_table
    from tacit.parties.runs.directory import RunDirectoryError
    from tacit.parties.session.event_log import EventLogError
    from tacit.simulate.experiments.data import DataError
    from tacit.simulate.experiments.engine import AbortedError, ArmsError, prepare, run_study
    from tacit.simulate.experiments.study import SeedsError, read_seeds
    from tacit.simulate.federation.processes import InputError, ProcessError, ServerLostError, SimulationError

    wrong = (SeedsError, ArmsError, DataError, RunDirectoryError)
    with output.complaining((wrong, output.WRONG_INPUT), (OSError, output.FAILED)):
        work = prepare(
            study,
            small=chosen.small,
            seeds=read_seeds(chosen.seeds),
            data=chosen.data,
            device=chosen.device,
            out=chosen.out,
            patterns=chosen.arms or ("*",),
        )
    watcher = StudyScreen(console, work)
    kept = "finished runs are kept: give the same command again"

    async def shown() -> list[ArmResult]:
        with watcher:
            return await run_study(work, watcher)

    def write(results: list[ArmResult]) -> None:
        from tacit.simulate.experiments.page import Page

        if results:
            Page(work=work, results=results, command=chosen.command(study.name)).write(chosen.out, chosen.json_file)

    try:
        try:
            results = asyncio.run(interruptible(shown()))
        except KeyboardInterrupt:
            # What is finished can be read, and what is not is named beside it.
            write(work.results())
            raise
        write(results)
    except KeyboardInterrupt:
        raise output.failure(f"interrupted; {kept}", output.INTERRUPTED) from None
    except InputError as error:
        raise output.failure(error, output.WRONG_INPUT) from None
    except AbortedError as error:
        raise output.failure(error, output.ABORTED) from None
    except ServerLostError as error:
        raise output.failure(f"{error}; {kept}", output.SERVER_LOST) from None
    except (SimulationError, ProcessError, EventLogError, RunDirectoryError, OSError) as error:
        raise output.failure(f"{error}; {kept}", output.FAILED) from None
    console.print(results_table(study, results))
    return study.judge(results)


def _measure(console: Console, measurement: Measurement, chosen: _Chosen) -> list[ClaimVerdict]:
    """What needs no federation is measured in this process."""
    from tacit.parties.runs.directory import RunDirectoryError, claim
    from tacit.simulate.experiments.study import read_seeds
    from tacit.simulate.federation.processes import ProcessError

    begun = False

    def progress(line: str) -> None:
        nonlocal begun
        begun = True
        output.say(console, line)
        status.update(measurement.claim.shows)

    with output.complaining(((ValueError, OSError, RunDirectoryError), output.WRONG_INPUT)):
        numbers, out = read_seeds(chosen.seeds), chosen.out
        prepared = measurement.prepare(small=chosen.small, data=chosen.data)
        claim(out)
    try:
        with console.status("training the first model") as status:
            findings = prepared.measure(seeds=numbers, device=chosen.device, progress=progress)
        from tacit.simulate.experiments.page import write_measurement

        return write_measurement(
            measurement.claim,
            prepared.differences,
            findings,
            small=chosen.small,
            command=chosen.command(measurement.claim.name),
            directory=out,
            json_file=chosen.json_file,
        )
    except KeyboardInterrupt:
        raise output.failure("interrupted; nothing is kept", output.INTERRUPTED) from None
    except (ValueError, OSError, FloatingPointError, ProcessError) as error:
        if not any(out.iterdir()):
            out.rmdir()
        raise output.failure(error, output.FAILED if begun else output.WRONG_INPUT) from None


def _list(console: Console) -> None:
    from tacit.simulate.experiments.catalogue import MEASUREMENTS, STUDIES

    for study in STUDIES.values():
        output.say(console, study.name, style="bold")
        output.say(console, f"  {study.paper}: {study.shows}")
        output.say(console, f"  arms: {', '.join(arm.name for arm in study.small.arms)}")
        for name, size, data in (("full size", study.full, "CIFAR-10"), ("--small", study.small, "digits or --data")):
            models = dict.fromkeys(arm.experiment.model.name for arm in size.arms)
            rounds = size.arms[0].experiment.federation.rounds
            data = f"{data} or GTSRB" if study.images_per_client and size is study.full else data
            output.say(console, f"  {name}: {', '.join(models)}, {rounds} rounds, {data}")
    for measurement in MEASUREMENTS.values():
        output.say(console, measurement.claim.name, style="bold")
        output.say(console, f"  {measurement.claim.paper}: {measurement.claim.shows}")
        for line in measurement.summary():
            output.say(console, f"  {line}")
