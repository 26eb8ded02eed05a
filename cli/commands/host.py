"""A party on its own host: `tacit server`, `client`, `status`, and for private inference `dealer`, `model-owner`,
`data-owner`."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from rich.console import Console

from tacit.cli import output

if TYPE_CHECKING:
    from tacit.parties.hosting.folder import OpenedParty
    from tacit.parties.hosting.running import PartyOutcome
    from tacit.parties.runs.adaptation import LearnedAdapters
    from tacit.parties.session.shell import Hooks
    from tacit.protocol.core.events import Event
    from tacit.protocol.core.machine import Ended
    from tacit.simulate.dashboard.server import Dashboard


PartyToml = Annotated[
    Path, typer.Argument(metavar="PARTY.toml", help="The party's file; `tacit config --party` prints one.")
]
MetricsPlace = Annotated[
    str | None,
    typer.Option("--metrics", metavar="HOST:PORT", help="Serve /metrics and /healthz; :8080 for this host alone."),
]
Quiet = Annotated[bool, typer.Option("--quiet", help="Show nothing but errors.")]


@contextmanager
def _exit_statuses(*wrong_input: type[Exception]) -> Iterator[None]:
    """Map errors that a party's owner can fix to an exit status. wrong_input: more errors of that status."""
    from tacit.parties.hosting.folder import MENDABLE, WRONG_INPUT
    from tacit.parties.links.client_endpoint import UnreachableError
    from tacit.parties.links.endpoint import AddressError

    with output.complaining(
        (UnreachableError, output.SERVER_LOST),
        ((AddressError, FloatingPointError, *WRONG_INPUT, *wrong_input), output.WRONG_INPUT),
        (MENDABLE, output.FAILED),
    ):
        yield


def _run(
    party: OpenedParty[Any], show: Callable[[Event], None], hooks: Hooks | None = None, metrics: str | None = None
) -> PartyOutcome:
    """Run a party until it ends by itself, or by Ctrl-C or SIGTERM. metrics: address to serve its metrics at, if any.
    DashboardError, a ValueError, if that fails."""
    from tacit.cli.interruption import interruptible
    from tacit.parties.hosting.running import run_party

    if metrics is None:
        return asyncio.run(interruptible(run_party(party, show=show, hooks=hooks)))
    from tacit.parties.hosting.folder import Status, read_status
    from tacit.simulate.dashboard.metrics import PARTY_MEASURES, Metrics
    from tacit.simulate.dashboard.server import MetricsPage, listening

    # Its folder has no status before its first run.
    first = Status(name=party.name, role=party.file.role, process=0, since=0.0)
    found = Metrics(lambda: read_status(party.folder) if party.folder.status.exists() else first, PARTY_MEASURES)
    with listening(metrics) as listener, MetricsPage(listener, found, token=_token(party)) as page:
        elsewhere = "" if listener.place.loopback else f", with the token in {_token(party)}"
        output.say(output.screen(), f"metrics at {page.link}{elsewhere}")
        return asyncio.run(interruptible(run_party(party, show=show, hooks=hooks)))


def _token(party: OpenedParty[Any]) -> Path:
    """File of the access token for this party's pages."""
    return party.folder.path / "page-token"


def _failed(ended: Ended) -> typer.Exit:
    from tacit.protocol.core.errors import Code

    lost = ended.code in (Code.LEFT, Code.TIMEOUT)
    return output.failure(ended.detail, output.SERVER_LOST if lost else output.FAILED)


def server(
    party: PartyToml,
    experiment: Annotated[
        Path | None,
        typer.Argument(metavar="EXPERIMENT.toml", help="Default: the unfinished experiment."),
    ] = None,
    json_file: Annotated[Path | None, output.json_option("Write the summary to this file too.")] = None,
    dashboard: Annotated[
        str | None,
        typer.Option(metavar="HOST:PORT", help="Show the run in a browser; :8080 for this host alone."),
    ] = None,
    quiet: Quiet = False,
) -> None:
    """Run an experiment as the server of a federation between hosts.

    The same command resumes after the last finished round, and does nothing once all rounds are done. Model, events,
    summary and report are in a run directory in the party's folder.

    Exit status: 0 all rounds are done, and at least one has a sum; 1 failed; 2 wrong input; 3 no round has a sum, or
    too few clients came; 130 Ctrl-C or SIGTERM.
    """
    console = Console(highlight=False, quiet=quiet)
    output.say(console, "starting")
    from tacit.cli.screen import Screen
    from tacit.parties.hosting.folder import open_party
    from tacit.parties.hosting.party_file import ServerFile
    from tacit.parties.runs.directory import RunDirectory
    from tacit.parties.runs.events import RunOpened
    from tacit.parties.runs.experiment import check_factories, load
    from tacit.parties.runs.reading import recorded
    from tacit.parties.runs.summary import Summary
    from tacit.simulate.dashboard.server import listening
    from tacit.simulate.report.page import write_report

    screen: Screen | None = None
    browser: Dashboard | None = None

    def show(event: Event) -> None:
        nonlocal screen, browser
        if isinstance(event, RunOpened):
            run = RunDirectory(Path(event.directory))
            running = load(run.experiment, numbered=False)
            screen = Screen(console, running, run.path, server=opened.name)
            output.say(console, event.text)
            if listener is not None:
                # Imported here: few runs have one.
                from tacit.simulate.dashboard.server import Dashboard

                earlier = recorded(run.path / "events")
                token = _token(opened)
                browser = stack.enter_context(Dashboard(listener, running, earlier, one_machine=False, token=token))
                # Also with --quiet: nobody else knows the token.
                output.say(output.screen(), f"live at {browser.link}")
            return
        if screen is not None:
            screen.show(event)
        if browser is not None:
            browser.take(event)

    with _exit_statuses(), ExitStack() as stack:
        opened = open_party(ServerFile, party)
        chosen = None if experiment is None else load(experiment, numbered=False)
        if chosen is not None:
            check_factories(chosen, str(experiment))
        if chosen is not None and chosen.federation.seed is not None:
            output.say(console, "federation.seed is ignored: between hosts all randomness is the operating system's")
        for address in opened.file.advertise:
            output.say(console, f"clients reach it at {address}")
        output.say(console, f"roster {opened.roster.fingerprint}")
        listener = None if dashboard is None else stack.enter_context(listening(dashboard))
        # Loads torch: errors in the files are reported before.
        from tacit.parties.hosting.server import ServerHooks

        outcome = _run(opened, show, ServerHooks(chosen))
        run, summary = outcome.run, outcome.result
        assert run is not None
        assert isinstance(summary, Summary)
        write_report(run)
    output.keep_json(json_file, summary)
    output.show(console, summary)
    output.say(console, f"everything is in {run.path}")
    raise output.outcome(summary, run.path, done=outcome.ended.code is None)


def client(
    party: PartyToml,
    stay: Annotated[bool, typer.Option("--stay", help="Join every session, until stopped.")] = False,
    accept_groups: Annotated[
        str | None,
        typer.Option(
            metavar="FINGERPRINT",
            help="Accept another group than before in the roster with this fingerprint; compare it with the group "
            "first.",
        ),
    ] = None,
    metrics: MetricsPlace = None,
    spent: Annotated[
        float | None,
        typer.Option(
            min=0.0,
            max=100.0,
            metavar="EPSILON",
            help="Privacy budget that former updates of this client spent, 0 if none: once, if neither journal nor "
            "server knows. Larger amounts that others know still count.",
        ),
    ] = None,
    quiet: Quiet = False,
) -> None:
    """Take part in a federation with the images of this host.

    The party's folder has its log and its journal, which keeps a restarted client from entering a round twice. `tacit
    status` shows its state.

    Exit status: 0 the session is finished; 1 failed, or one side refused; 2 wrong input; 4 the server was not reached,
    or lost; 130 Ctrl-C or SIGTERM.
    """
    console = Console(highlight=False, quiet=quiet)
    output.say(console, "starting")
    from tacit.parties.hosting.folder import open_party
    from tacit.parties.hosting.party_file import ClientFile, check_data

    with _exit_statuses():
        opened = open_party(ClientFile, party)
        check_data(opened.file, party)
        output.say(console, f"roster {opened.roster.fingerprint}")
        output.say(console, f"{opened.name} joins {opened.file.connect}")
        # Loads torch: errors in the files are reported before.
        from tacit.parties.hosting.client import ClientHooks

        hooks = ClientHooks()
        digits = "".join((accept_groups or "").split())
        hooks.spent = spent
        hooks.stay, hooks.accepted_groups = stay, " ".join(re.findall(".{5}", digits))
        ended = _run(opened, output.party_screen(console), hooks, metrics).ended
    if ended.code is not None:
        raise _failed(ended)
    output.say(console, ended.detail)


def status(
    party: PartyToml,
    json_file: Annotated[Path | None, output.json_option("Write what is shown to this file too.")] = None,
) -> None:
    """Show a party's state: round, phase, missing parties, errors.

    Exit status: 0 it runs; 1 it does not, or the file of --json cannot be written; 2 wrong input, or it never ran.
    """
    from tacit.parties.hosting.folder import PartyFolder, StatusError, read_status
    from tacit.parties.hosting.party_file import PartyFileError, read_any

    with output.complaining(((PartyFileError, StatusError, OSError), output.WRONG_INPUT)):
        found = read_status(PartyFolder(Path(read_any(party).directory)))
    output.keep_json(json_file, found)
    output.show(output.screen(), found)
    raise typer.Exit(0 if found.running else output.FAILED)


def dealer(party: PartyToml, metrics: MetricsPlace = None, quiet: Quiet = False) -> None:
    """Deal correlated randomness for private inference.

    The dealer sees neither weights nor images. After a restart it deals fresh randomness. With \\[adaptation] in its
    file it also sums what data owners have trained, until the rounds are over, and resumes after the last sum.

    Exit status: 0 the rounds are over; 1 failed; 2 wrong input; 3 the rounds ended early; 130 Ctrl-C or SIGTERM.
    """
    console = Console(highlight=False, quiet=quiet)
    output.say(console, "starting")
    from tacit.parties.hosting.folder import open_party
    from tacit.parties.hosting.party_file import DealerFile
    from tacit.parties.links.endpoint import EndpointError

    with _exit_statuses(EndpointError):
        opened = open_party(DealerFile, party)
        _print_identity(console, opened.roster.fingerprint, opened.file.advertise)
        sums = opened.file.adaptation is not None
        screen = output.party_screen(console, server=opened.name if sums else None)
        ended = _run(opened, screen, metrics=metrics).ended
    if ended.code is not None:
        raise output.failure(f"the rounds ended early: {ended.detail}", output.ABORTED)
    output.say(console, f"the rounds are over: {ended.detail}")


def model_owner(party: PartyToml, metrics: MetricsPlace = None, quiet: Quiet = False) -> None:
    """Serve a private model to data owners, until stopped.

    Neither dealer nor data owners receive the model, and the model owner receives no images. After a restart, data
    owners repeat the interrupted pass. With \\[adaptation] in its file data owners train beside the model, or use what
    they have trained; the model owner learns neither.

    Exit status: 1 failed, or the dealer refused; 2 wrong input; 4 the dealer was not reached; 130 Ctrl-C or SIGTERM.
    """
    console = Console(highlight=False, quiet=quiet)
    output.say(console, "starting")
    from tacit.parties.hosting.folder import open_party
    from tacit.parties.hosting.party_file import ModelOwnerFile

    with _exit_statuses():
        opened = open_party(ModelOwnerFile, party)
        _print_identity(console, opened.roster.fingerprint, opened.file.advertise)
        _run(opened, output.party_screen(console), metrics=metrics)


def data_owner(
    party: PartyToml,
    json_file: Annotated[Path | None, output.json_option("Write answers and costs here.", metavar="FILE")] = None,
    quiet: Quiet = False,
) -> None:
    """Ask a private model about the images of this host.

    The images stay here. Only this party learns the answers, and keeps them in its folder. The same command resumes
    after the last answer, and does nothing once everything is answered. With \\[adaptation] in its file it trains
    beside the model, with other data owners; its folder has the common adapters after every round. With purpose =
    "prediction" there, it asks with these adapters.

    Exit status: 0 all is answered, or trained; 1 failed, a peer refused, or an image was not answered; 2 wrong input; 3
    a round was lost; 4 a peer was not reached, or lost; 130 Ctrl-C or SIGTERM.
    """
    console = Console(highlight=False, quiet=quiet)
    output.say(console, "starting")
    from tacit.parties.hosting.folder import open_party
    from tacit.parties.hosting.party_file import DataOwnerFile
    from tacit.parties.runs.adaptation import LearnedAdapters
    from tacit.parties.runs.answers import Answers

    with _exit_statuses():
        opened = open_party(DataOwnerFile, party)
        output.say(console, f"roster {opened.roster.fingerprint}")
        outcome = _run(opened, output.party_screen(console))
    if outcome.result is not None:
        output.keep_json(json_file, outcome.result)
    if outcome.ended.code is not None:
        raise _failed(outcome.ended)
    assert outcome.result is not None
    output.show(console, outcome.result)
    if isinstance(outcome.result, Answers):
        output.all_answered(outcome.result)
    elif isinstance(outcome.result, LearnedAdapters):
        _all_learned(outcome.result)


def _all_learned(learned: LearnedAdapters) -> None:
    lost = [one for one in learned.rounds if one.lost is not None]
    completed = len(learned.rounds) - len(lost)
    if completed < learned.planned:
        reason = f"round {lost[0].round}: {lost[0].lost}" if lost else "the sums of the others were not received"
        raise output.failure(f"{completed} of {learned.planned} rounds were completed; {reason}", output.ABORTED)


def _print_identity(console: Console, fingerprint: str, addresses: tuple[str, ...]) -> None:
    for address in addresses:
        output.say(console, f"the others reach it at {address}")
    output.say(console, f"roster {fingerprint}")


PANEL: Final = "Between hosts"
COMMANDS: Final = {
    "server": server,
    "client": client,
    "dealer": dealer,
    "model-owner": model_owner,
    "data-owner": data_owner,
    "status": status,
}
RESULTS: Final = {
    "answers": ("data-owner", "tacit.parties.runs.answers:Answers"),
    "learned": ("data-owner, where it learns", "tacit.parties.runs.adaptation:LearnedAdapters"),
    "status": ("status", "tacit.parties.hosting.folder:Status"),
}
