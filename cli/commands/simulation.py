"""`tacit simulate`: from arguments to a plan, from events to lines, from the outcome to an exit status."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, Literal

import typer
from rich.console import Console

from tacit.cli import output
from tacit.cli.interruption import interruptible

if TYPE_CHECKING:
    from tacit.parties.runs.summary import Summary
    from tacit.protocol.core.events import Event

_STARTED = [time.time()]


_What = partial(typer.Option, rich_help_panel="Experiment")
_How = partial(typer.Option, rich_help_panel=(HOW := "Execution"))
_Result = partial(typer.Option, rich_help_panel=(RESULT := "Results"))
_Fault = partial(typer.Option, rich_help_panel="Fault injection (docs/faults.md)")
_AT: Final = "PARTY@PHASE[:ROUND]"


def simulate(
    context: typer.Context,
    experiment: Annotated[
        Path | None, typer.Argument(metavar="EXPERIMENT.toml", help="Experiment file; `tacit config` prints one.")
    ] = None,
    clients: Annotated[int | None, _What(help="Number of clients.")] = None,
    rounds: Annotated[int | None, _What(help="Rounds, those of a resumed run included.")] = None,
    seed: Annotated[int | None, _What(help="Makes the model reproducible, bit for bit.")] = None,
    seeds: Annotated[str | None, _What(metavar="0-4|0,2,7", help="One run for each; mean and spread.")] = None,
    limit: Annotated[int | None, _What(min=1, metavar="N", help="Most training images of a client.")] = None,
    settings: Annotated[list[str] | None, _What("--set", metavar="KEY=VALUE", help="As in training.epochs=2.")] = None,
    resume: Annotated[Path | None, _What(metavar="RUN", help="Continue the run in this directory.")] = None,
    workers: Annotated[int | None, _How(help="Processes of all clients; 0: one for each.")] = None,
    device: Annotated[str, output.device_option("cpu (the default) or cuda.", panel=HOW)] = "cpu",
    engine: Annotated[
        Literal["processes", "ray"], _How(metavar="NAME", help="processes, or the package ray.", show_default=False)
    ] = "processes",
    address: Annotated[str | None, _How(metavar="HOST:PORT", help="Cluster of Ray; default this machine.")] = None,
    verify: Annotated[bool, _How("--verify", help="Record updates, and check every secure sum.")] = False,
    out: Annotated[Path | None, _Result(metavar="DIR", help="Default runs/<time>-<name>.")] = None,
    json_file: Annotated[Path | None, output.json_option("The summary.", metavar="FILE", panel=RESULT)] = None,
    dashboard: Annotated[str | None, _Result(metavar="HOST:PORT", help="Show it in a browser, as at :8080.")] = None,
    tensorboard: Annotated[Path | None, _Result(metavar="DIR", help="Write metrics for TensorBoard.")] = None,
    quiet: Annotated[bool, _Result("--quiet", help="Show nothing but errors.")] = False,
    drop: Annotated[list[str] | None, _Fault(metavar=_AT, help="Kill a party when it enters a phase.")] = None,
    stall: Annotated[list[str] | None, _Fault(metavar=_AT, help="Freeze a party.")] = None,
    restart: Annotated[list[str] | None, _Fault(metavar=_AT, help="Kill a client, start it again.")] = None,
    slow: Annotated[list[str] | None, _Fault(metavar="PARTY:KBIT", help="Limit a link.")] = None,
    cheat: Annotated[list[str] | None, _Fault(metavar="CLIENT@HOW[:ROUND]", help="Make a client malicious.")] = None,
) -> None:
    """Train a model on this machine, under secure aggregation.

    A server and its clients are processes; with --workers many clients share a few. Without arguments five clients
    train a small vision transformer on scikit-learn's digits. Exit status: 0 all rounds completed; 1 the run failed; 2
    wrong input; 3 a round was aborted; 4 the server was lost; 130 Ctrl-C.
    """
    if seeds is not None:
        raise _each(
            seeds,
            {"--seed": seed, "--resume": resume, "--dashboard": dashboard},
            partial(
                simulate, context, experiment, clients=clients, rounds=rounds, limit=limit, settings=settings,
                workers=workers, device=device, engine=engine, address=address, verify=verify,
                tensorboard=tensorboard, quiet=quiet, drop=drop, stall=stall, restart=restart, slow=slow, cheat=cheat,
            ),
            experiment=experiment, out=out, json_file=json_file, console=Console(highlight=False, quiet=quiet),
        )  # fmt: skip
    from tacit.cli.screen import Screen
    from tacit.models.configuration import place
    from tacit.parties.runs.directory import RunDirectory, RunDirectoryError
    from tacit.parties.runs.experiment import (
        Experiment,
        ExperimentError,
        check_factories,
        load,
        settings_of,
        with_overrides,
    )
    from tacit.parties.runs.kept_functions import find
    from tacit.parties.runs.own_functions import with_kept
    from tacit.parties.runs.reading import recorded
    from tacit.parties.session.event_log import EventLogError
    from tacit.simulate.dashboard.server import DashboardError, listening
    from tacit.simulate.federation import run as federation
    from tacit.simulate.federation.actors import MissingRayError, require_ray
    from tacit.simulate.federation.faults import FaultError, read_faults
    from tacit.simulate.federation.processes import InputError, ProcessError, ServerLostError, SimulationError
    from tacit.simulate.federation.run import VerificationError
    from tacit.simulate.report.tensorboard import MissingTensorBoardError, TensorBoard

    missing = (MissingTensorBoardError, MissingRayError)
    with output.complaining(
        (
            (ExperimentError, RunDirectoryError, FaultError, DashboardError, EventLogError, *missing),
            output.WRONG_INPUT,
        ),
        (OSError, output.FAILED),
    ):
        if resume is not None:
            given = {
                "an experiment file": experiment,
                "--clients": clients,
                "--seed": seed,
                "--limit": limit,
                "--set": settings,
                "--out": out,
            }
            if surplus := [name for name, value in given.items() if value is not None]:
                raise output.failure(
                    f"--resume continues a run as it is: leave out {', '.join(surplus)}", output.WRONG_INPUT
                )
            opened = RunDirectory.open(resume)
            federation.check_unedited(opened)
            base, where = load(opened.experiment), "--rounds"
            if module := find(resume):
                base = with_kept(base, module)
        else:
            base, where = load(experiment) if experiment is not None else Experiment(), "command line"
        more = settings_of(settings or ())
        if limit is not None:
            more.setdefault("data", {})["limit"] = limit
        chosen = with_overrides(
            base, clients=clients, rounds=rounds, seed=seed, workers=workers, more=more, where=where
        )
        check_factories(chosen, str(experiment or resume or where))
        with output.complaining((FileNotFoundError, output.WRONG_INPUT)):
            place(chosen.data)
        parties = federation.party_names(chosen.clients)
        faults = read_faults(
            drop=drop or (),
            stall=stall or (),
            restart=restart or (),
            slow=slow or (),
            cheat=cheat or (),
            parties=parties,
        )
        directory = resume or out or federation.default_directory(chosen.name)
        board = None if tensorboard is None else TensorBoard(tensorboard, directory, output.warn)
        door = None if dashboard is None else context.with_resource(listening(dashboard))
        if engine == "ray":
            require_ray()
        elif address is not None:
            raise output.failure("--address is of a cluster of Ray: add --engine ray", output.WRONG_INPUT)
        ray = (address or "") if engine == "ray" else None
        options = {
            "ray": ray,
            "device": device,
            "verify": verify,
            "started": _STARTED.pop() if _STARTED else time.time(),
            "faults": faults,
        }
        if resume is not None:
            plan = federation.resumed_plan(chosen, RunDirectory(resume), **options)
        else:
            plan = federation.new_plan(chosen, directory, **options)
        browser = None
        if door is not None:
            # Imported here: few runs have one.
            from tacit.simulate.dashboard.server import Dashboard

            browser = Dashboard(door, chosen, recorded(plan.run.path / "events"))
            context.call_on_close(browser.close)
    for line in plan.unread:
        output.warn(line)
    console = Console(highlight=False, quiet=quiet)
    screen = Screen(console, chosen, plan.run.path)
    if board is not None:
        # It ends with the command, when the report is written.
        context.with_resource(board)

    def show(event: Event) -> None:
        if browser is not None:
            browser.take(event)
        if board is not None:
            board.take(event)
        screen.show(event)

    async def shown() -> Summary:
        # Inside the coroutine, so that an interruption after the announcement finds a running loop.
        with browser or nullcontext(), screen:
            if browser is not None:
                # Also with --quiet: nobody else knows the token.
                output.say(output.screen(), f"live at {browser.link}")
            return await federation.simulate(plan, show)

    try:
        summary = asyncio.run(interruptible(shown()))
    except KeyboardInterrupt:
        if remedy := federation.kept(plan):
            raise output.failure(f"interrupted; {remedy}", output.INTERRUPTED) from None
        plan.run.discard()
        raise output.failure("interrupted before the first round; nothing is kept", output.INTERRUPTED) from None
    except InputError as error:
        if resume is None:
            plan.run.discard()
        raise output.failure(error, output.WRONG_INPUT) from None
    except SimulationError as error:
        if error.summary is not None:
            output.keep_json(json_file, error.summary)
        if isinstance(error, ServerLostError):
            kept = federation.kept(plan) or "no model is kept"
            raise output.failure(f"{error}; {kept}", output.SERVER_LOST) from None
        raise output.failure(error, output.FAILED) from None
    except (VerificationError, ProcessError, RunDirectoryError, EventLogError, OSError) as error:
        raise output.failure(error, output.FAILED) from None
    output.keep_json(json_file, summary)
    output.show(console, summary)
    output.say(console, f"everything is in {plan.run.path}")
    raise output.outcome(summary, plan.run.path)


def _each(
    text: str,
    others: dict[str, object],
    run: Callable[..., None],
    *,
    experiment: Path | None,
    out: Path | None,
    json_file: Path | None,
    console: Console,
) -> typer.Exit:
    """Run each seed in its own directory, and show mean and spread. Returns the exit: 3 if a round of any run was
    aborted; any other failure of a run ends all."""
    from tacit.parties.runs.experiment import Experiment, ExperimentError, load
    from tacit.simulate.experiments.measures import read_seeds
    from tacit.simulate.federation.run import default_directory

    if given := [name for name, value in others.items() if value is not None]:
        raise output.failure(f"--seeds makes a run of its own for every seed: leave out {given[0]}", output.WRONG_INPUT)
    with output.complaining(((ValueError, ExperimentError), output.WRONG_INPUT), (OSError, output.FAILED)):
        numbers = read_seeds(text)
        place = out or default_directory((Experiment() if experiment is None else load(experiment)).name)
    status, runs = 0, []
    for number in numbers:
        runs.append(place / f"seed-{number}")
        try:
            run(seed=number, out=runs[-1])
        except typer.Exit as ended:
            if ended.exit_code not in (0, output.ABORTED):
                raise
            status = status or ended.exit_code
    from tacit.simulate.report.comparison import compare

    found = compare(runs)
    output.keep_json(json_file, found)
    output.show(console, found)
    output.say(console, f"everything is in {place}; `tacit compare {place}/seed-*` draws it")
    return typer.Exit(status)


PANEL: Final = "On this machine"
COMMANDS: Final = {"simulate": simulate}
RESULTS: Final = {
    "summary": ("simulate, server; summary.json", "tacit.parties.runs.summary:Summary"),
}
