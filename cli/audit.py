"""`tacit audit`: what the parties of a configuration can make out of what they see."""

from __future__ import annotations

import asyncio
import secrets
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from tacit.cli import legacy_output, output
from tacit.cli.interruption import interruptible


def audit(
    configuration: Annotated[
        Path | None,
        typer.Argument(
            metavar="EXPERIMENT.toml|RUN",
            help="What to attack: an experiment of `tacit simulate` or `tacit adapt`; without it, every protection of "
            "the house.",
        ),
    ] = None,
    adversaries: Annotated[
        list[str] | None,
        typer.Option(
            "--as",
            metavar="PARTY[+PARTY...]",
            help="Who attacks: server, client, client-3, server+client-2, wire; of an adaptation data-owner, "
            "data-owner-3, model-owner. Repeatable.",
        ),
    ] = None,
    attacks: Annotated[
        list[str] | None,
        typer.Option(
            "--attack", metavar="NAME", help="Repeatable; default: those for the model. `list` names them all."
        ),
    ] = None,
    images: Annotated[int, typer.Option(help="Images that are attacked in every row.", min=2, max=1000)] = 10,
    data: Annotated[
        Path | None,
        typer.Option(metavar="FILE.npz|DIRECTORY", help="Images, or the files of CIFAR-10; default digits."),
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Makes an audit repeatable.", min=0, max=2**63 - 1)] = None,
    full: Annotated[bool, typer.Option("--full", help="Search as long as the papers do (hours).")] = False,
    out: Annotated[Path | None, typer.Option(metavar="DIR", help="Default runs/<time>-audit.")] = None,
    json_file: Annotated[Path | None, output.json_option("Write the figures to this file too.")] = None,
) -> None:
    """Attack a configuration with exactly what its parties received and drew, and say what came back.

    It runs the configuration, parts of it, and the same with nothing protected, by real processes that record; an
    adaptation with every way of telling data owners outputs of blocks. An attack that fails where nothing is protected
    is said not to have attacked anything. Writes audit.html, audit.json.

    Exit status: 0 all was run, and what could not be attacked is said; 1 a run failed; 2 wrong input; 130 Ctrl-C.
    """
    if "list" in (attacks or ()):
        _list()
        return
    from tacit.parties.runs.adaptation import is_adaptation
    from tacit.parties.runs.directory import RunDirectory, RunDirectoryError, write_output
    from tacit.parties.runs.experiment import ExperimentError, load
    from tacit.simulate.audit.adversaries import AdversaryError, default_order
    from tacit.simulate.federation.processes import InputError, ProcessError, SimulationError, warm_up
    from tacit.simulate.federation.run import default_directory

    console = output.screen()
    with output.complaining(
        ((ExperimentError, RunDirectoryError, AdversaryError, InputError, FileNotFoundError), output.WRONG_INPUT),
        ((ProcessError, SimulationError, ValueError, OSError), output.FAILED),
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
            from tacit.simulate.adaptation_audit.run import adaptation_order, arms_of, audit_adaptation

            chosen = adaptation_order(path, run, seed=seed, **asked)
            work, arms = partial(audit_adaptation, chosen), arms_of(chosen.experiment)
        else:
            order = default_order(experiment, seed=secrets.randbits(31) if seed is None else seed, **asked)
            work, arms = partial(run_audit, order), order.arms
        with console.status("") as status:
            found, pictures = asyncio.run(interruptible(work(status.update)))
        figures = _builtins(found)
        write_output("audit", figures, directory / "audit.json")
        write_page(found, pictures, arms, directory / "audit.html")
    legacy_output.keep_json(json_file, "audit", figures)
    _show(console, found)
    output.say(console, str(directory / "audit.html"))
    from tacit.simulate.audit.figures import NOTHING_SEEN

    if unseen := dict.fromkeys(row.about for row in found.rows if row.what == NOTHING_SEEN):
        rounds = "every round ended before there was anything to attack; make them succeed first (tacit simulate)"
        raise output.failure(f"{', '.join(unseen)}: {rounds}", output.FAILED)


def _show(console: Console, found: Any) -> None:
    """Tables of what came back, but for those that would be empty."""
    rows = [
        (
            row.about,
            row.adversary,
            f"{row.what} ({row.cohort})",
            row.attack,
            "" if row.figures is None or not row.figures.decibels else f"{row.figures.decibels} dB",
            "" if row.figures is None else f"{row.figures.identified:.0%}",
            row.verdict,
        )
        for row in found.rows
    ]
    if rows:
        heads = ("configuration", "adversary", "has", "attack", "PSNR", "identified", "")
        console.print(
            legacy_output.table(
                heads, rows, left=("configuration", "has", ""), least=("identified", "has", "adversary")
            )
        )
    told = [
        (
            row.about,
            row.adversary,
            f"{row.what} ({row.cohort})",
            f"{row.alone:.1%}",
            "" if row.labels is None else f"{row.labels.right:.0%} ({row.labels.blind:.0%})",
            row.verdict,
        )
        for row in found.observations
    ]
    if told:
        names = ("configuration", "adversary", "has", "of one client alone", "labels right (blindly)", "labels")
        console.print(legacy_output.table(names, told))
    copied = [
        (
            row.about,
            row.adversary,
            row.what,
            row.attack,
            "" if row.figures is None else f"{row.figures.agreement:.0%} ({row.figures.floor:.0%})",
            "" if row.figures is None else f"{row.figures.accuracy:.0%} ({row.figures.floor_accuracy:.0%})",
            "" if row.figures is None or not row.figures.errors else f"{max(row.figures.errors):.2f}",
            row.verdict,
        )
        for row in found.models
    ]
    if copied:
        shown = ("configuration", "adversary", "told", "attack", "agreement (floor)", "accuracy (floor)", "error", "")
        least = ("accuracy (floor)", "error", "told", "adversary")
        console.print(legacy_output.table(shown, copied, left=("configuration", "told", ""), least=least))
    if found.limits:
        from tacit.simulate.audit.figures import CHANNEL, ends

        channel = [one for one in found.limits if one.factor == CHANNEL]
        sent = [(one.setting, f"{one.figures.decibels} dB") for one in channel]
        console.print(legacy_output.table(("closed form on what one client sends of one image", "PSNR"), sent))
        output.say(console, f"the closed form recovers images up to {ends(found.limits)}")
    if found.attempts:
        tried = [(one.does, one.expected, one.seen, "holds" if one.holds else "FAILS") for one in found.attempts]
        console.print(legacy_output.table(("a server that cheats", "a client is to", "the client", ""), tried))
    elif found.no_attempts:
        output.say(console, f"no server was played that cheats: {found.no_attempts}")


def _builtins(found: Any) -> dict[str, Any]:
    import msgspec

    built: dict[str, Any] = msgspec.to_builtins(found)
    return built


def _list() -> None:
    from tacit.simulate.adaptation_audit.run import IMAGE_ATTACKS, MODEL_ATTACKS, SOURCES
    from tacit.simulate.audit.attacks import ATTACKS

    rows = [(attack.name, attack.about, attack.source) for attack in ATTACKS.values()]
    rows += [(name, about, SOURCES[name]) for name, about in {**MODEL_ATTACKS, **IMAGE_ATTACKS}.items()]
    output.screen().print(legacy_output.table(("attack", "what it does", "from"), rows, left=("what it does", "from")))
