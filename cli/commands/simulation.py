"""`tacit simulate`: from arguments to a plan, from events to lines, from the outcome to an exit status."""

from __future__ import annotations

import asyncio
import time
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, Literal

import typer
from rich.console import Console

from tacit.cli import output
from tacit.cli.interruption import interruptible

if TYPE_CHECKING:
    from tacit.parties.runs.summary import Summary
    from tacit.protocol.core.events import Event

STARTED = time.time()


def simulate(
    context: typer.Context,
    experiment: Annotated[
        Path | None, typer.Argument(metavar="EXPERIMENT.toml", help="Experiment file; `tacit config` prints one.")
    ] = None,
    clients: Annotated[int | None, typer.Option(help="Number of clients.")] = None,
    rounds: Annotated[int | None, typer.Option(help="Rounds of the run, those of a resumed run included.")] = None,
    seed: Annotated[int | None, typer.Option(help="Makes the model reproducible, bit for bit.")] = None,
    workers: Annotated[
        int | None, typer.Option(help="Processes that host all clients, which take turns in them; 0: one for each.")
    ] = None,
    engine: Annotated[
        Literal["processes", "ray"], typer.Option(help="What starts the processes of clients (ray: extra ray).")
    ] = "processes",
    address: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="A cluster of Ray; without it, one on this machine.")
    ] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="Most training images of a client.")] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="As in training.epochs=2. Repeatable."),
    ] = None,
    device: Annotated[str, output.device_option("Where clients train and the server evaluates: cpu or cuda.")] = "cpu",
    out: Annotated[Path | None, typer.Option(help="Run directory; default runs/<time>-<name>.")] = None,
    json_file: Annotated[Path | None, output.json_option("Write the summary to this file too.")] = None,
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
    cheat: Annotated[
        list[str] | None,
        typer.Option(metavar="CLIENT@HOW[:ROUND]", help="Let a client cheat in a round. Repeatable."),
    ] = None,
    dashboard: Annotated[
        str | None,
        typer.Option(metavar="HOST:PORT", help="Show the run in a browser; :8080 for this machine alone."),
    ] = None,
    tensorboard: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Write metrics by round for TensorBoard there (extra tensorboard)."),
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="Show nothing but errors.")] = False,
) -> None:
    """Train a model with one server and several clients on this machine, under secure aggregation.

    Every party is a process of its own, or many clients share a few (--workers); they talk over ZeroMQ with CURVE on
    loopback TCP. Without arguments five clients train a small vision transformer on scikit-learn's digits.

    Parties are server, client-1, client-2, ...; phases are ADVERTISE_KEYS, SHARE_KEYS, TRAIN, MASKED_INPUT,
    CONSISTENCY_CHECK and UNMASK; rounds count from 1. Clients cheat by words, commitment, complaint or upload.

    Exit status: 0 all rounds completed; 1 the run failed; 2 wrong input; 3 a round was aborted; 4 the server was lost;
    130 Ctrl-C.
    """
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
        options = {"ray": ray, "device": device, "verify": verify, "started": STARTED, "faults": faults}
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
        # In here: whoever interrupts what the screen has announced finds a loop that runs.
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


PANEL: Final = "On this machine"
COMMANDS: Final = {"simulate": simulate}
RESULTS: Final = {
    "summary": ("simulate, server; summary.json", "tacit.parties.runs.summary:Summary"),
}
