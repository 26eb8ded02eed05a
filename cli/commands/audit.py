"""`tacit audit`: attacks on a configuration, with the observations of its parties."""

from __future__ import annotations

import asyncio
import secrets
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from tacit.cli import output
from tacit.cli.interruption import interruptible
from tacit.cli.progress import Progress
from tacit.parties.runs.results import Column, Table, prose

_What = partial(typer.Option, rich_help_panel="Attacks")
_How = partial(typer.Option, rich_help_panel=(HOW := "Execution and results"))


def audit(
    configuration: Annotated[
        Path | None,
        typer.Argument(
            metavar="EXPERIMENT.toml|RUN",
            help="The configuration to attack: an experiment of `tacit simulate` or `tacit adapt`; without it, every "
            "bundled protection.",
        ),
    ] = None,
    adversaries: Annotated[
        list[str] | None,
        _What(
            "--as",
            metavar="PARTY[+PARTY...]",
            help="Adversary: server, client, client-3, server+client-2, wire; of an adaptation data-owner, "
            "data-owner-3, model-owner. Repeatable.",
        ),
    ] = None,
    attacks: Annotated[
        list[str] | None,
        _What("--attack", metavar="NAME", help="Default: those for the model; `list` names all. Repeatable."),
    ] = None,
    images: Annotated[int, _What(help="Images to attack for each kind of observation.", min=2, max=1000)] = 10,
    data: Annotated[
        Path | None, _What(metavar="FILE.npz|DIRECTORY", help="Images, or the files of CIFAR-10; default digits.")
    ] = None,
    full: Annotated[bool, _How("--full", help="Search as long as the papers do (hours).")] = False,
    seed: Annotated[int | None, _How(help="Makes an audit repeatable.", min=0, max=2**63 - 1)] = None,
    out: Annotated[Path | None, _How(metavar="DIR", help="Default runs/<time>-audit.")] = None,
    json_file: Annotated[Path | None, output.json_option("Write the result to this file too.", panel=HOW)] = None,
) -> None:
    """Attack a configuration and measure what is reconstructed.

    Runs the configuration, its parts, and the same without protection, with real processes, and records exactly what
    each party received and drew. For an adaptation, every way to reveal block outputs is attacked. An attack that fails
    without protection counts as "not attacked" everywhere. Writes audit.html and audit.json.

    Exit status: 0 all attacks ran; 1 a run failed, or recorded nothing; 2 wrong input; 130 Ctrl-C.
    """
    if "list" in (attacks or ()):
        output.screen().print(output.terminal(_attack_list()))
        return
    from tacit.parties.runs.directory import RunDirectory, RunDirectoryError
    from tacit.parties.runs.experiment import ExperimentError, is_adaptation, load
    from tacit.parties.session.event_log import EventLogError
    from tacit.simulate.audit.adversaries import AdversaryError, audit_plan
    from tacit.simulate.federation.processes import InputError, ProcessError, SimulationError, warm_up
    from tacit.simulate.federation.run import default_directory

    console = output.screen()
    with output.complaining(
        ((ExperimentError, RunDirectoryError, AdversaryError, InputError, FileNotFoundError), output.WRONG_INPUT),
        ((ProcessError, SimulationError, EventLogError, ValueError, OSError), output.FAILED),
    ):
        path, run = configuration, None
        if configuration is not None and configuration.is_dir():
            run = configuration
            path = RunDirectory.of_a_run(run).experiment
        adapted = path is not None and is_adaptation(path)
        experiment = None if path is None or adapted else load(path)
        warm_up()
        directory = out or default_directory("audit")
        asked: dict[str, Any] = {
            "adversaries": adversaries or (),
            "attacks": attacks or (),
            "images": images,
            "data": data,
            "full": full,
            "out": directory,
        }
        # Imported here: attacks take torch.
        from tacit.simulate.audit.page import write_page
        from tacit.simulate.audit.run import audit as run_audit

        work: Any
        if adapted and path is not None:
            from tacit.simulate.adaptation_audit.run import adaptation_audit_plan, audit_adaptation

            work = partial(audit_adaptation, adaptation_audit_plan(path, run, seed=seed, **asked))
        else:
            drawn = secrets.randbits(31) if seed is None else seed
            plan = audit_plan(experiment, seed=drawn, **asked)
            for one in plan.unattackable:
                output.say(console, one.text, style="yellow")
            work = partial(run_audit, plan)
        with Progress(console) as progress:
            result, pictures = asyncio.run(interruptible(work(progress.update)))
        result.write(directory / "audit.json")
        write_page(result, pictures, directory / "audit.html")
    output.keep_json(json_file, result)
    output.show(console, result)
    output.say(console, str(directory / "audit.html"))
    if result.not_observed:
        rounds = "every round ended before there was anything to attack; make them succeed first (tacit simulate)"
        raise output.failure(f"{', '.join(result.not_observed)}: {rounds}", output.FAILED)


def _attack_list() -> Table:
    from tacit.simulate.adaptation_audit.run import IMAGE_ATTACKS, MODEL_ATTACKS
    from tacit.simulate.audit.attacks import ATTACKS

    rows = [(attack.name, attack.about, attack.source) for attack in ATTACKS.values()]
    rows += [(name, *texts) for name, texts in {**MODEL_ATTACKS, **IMAGE_ATTACKS}.items()]
    return Table(columns=(Column("attack"), Column("what it does", prose), Column("from", prose)), rows=rows)


PANEL: Final = "On this machine"
COMMANDS: Final = {"audit": audit}
RESULTS: Final = {
    "audit": ("audit", "tacit.simulate.audit.results:AuditResult"),
}
