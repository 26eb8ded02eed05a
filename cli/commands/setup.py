"""`tacit init` and `tacit up`: set up a folder for each party, and start the first round."""

from __future__ import annotations

import ctypes
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from threading import Thread
from types import FrameType
from typing import IO, TYPE_CHECKING, Annotated, Final, Literal

import typer

from tacit.cli import output
from tacit.cli.commands import host

if TYPE_CHECKING:
    from tacit.parties.hosting.party_file import PartyFile

_LISTENING: Final = "0.0.0.0:7007"
_ENTRY: Final = "from tacit.cli.entry import main; main()"
_PR_SET_PDEATHSIG: Final = 1


def init(
    role: Annotated[Literal["server", "client"], typer.Argument(help="Role of the party.")],
    name: Annotated[
        str | None, typer.Argument(help="Name of the party: a-z, 0-9 and the hyphen; default of a server: server.")
    ] = None,
    address: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT", help=f"Where the server is reached; at the server where it listens, or {_LISTENING}."
        ),
    ] = None,
    images: Annotated[
        str | None,
        typer.Option(
            metavar="PATH",
            help="The party's own images: a folder of class folders, an .npz file, or digits. A server needs none.",
        ),
    ] = None,
    out: Annotated[Path | None, typer.Option(metavar="DIR", help="Folder to make, instead of NAME.")] = None,
) -> None:
    """Make a party's folder: keys, party.toml, and a card to send.

    Asks for missing values at a terminal. Send the printed card to the operator of the roster; the keys stay here.

    Exit status: 0 done; 2 wrong input.
    """
    from tacit.parties.hosting.folder import WRONG_INPUT, begin_folder

    name = name or ("server" if role == "server" else _ask("NAME", "name of this client"))
    if role == "client":
        address = address or _ask("--address", "address of the server, HOST:PORT")
        images = images or _ask("--images", "images of this client: a folder, an .npz file, or digits")
    folder = out or Path(name)
    with output.complaining(((*WRONG_INPUT, OSError), output.WRONG_INPUT)):
        line = begin_folder(folder, name, role, address=address or _LISTENING, images=images or "")
    typer.echo(f"{folder}: keys and party.toml; this line goes to whoever makes the roster:")
    typer.echo(line)


def _ask(option: str, what: str) -> str:
    if not sys.stdin.isatty():
        raise output.failure(f"{option} is missing: the {what}", output.WRONG_INPUT)
    return str(typer.prompt(what))


def up(
    folders: Annotated[list[Path], typer.Argument(metavar="DIR", help="Folder of a party, with its party.toml.")],
    roster: Annotated[
        str | None,
        typer.Option(
            metavar="ROSTER", help="At the first start: the line that `tacit roster make` printed, or a file."
        ),
    ] = None,
    stay: Annotated[bool, typer.Option("--stay", help="As of `tacit client`.")] = False,
) -> None:
    """Start the parties of these folders, after `tacit preflight`.

    A server runs the experiment.toml of its folder. `tacit server DIR/party.toml` and `tacit client DIR/party.toml`
    start the same parties without the test.

    Exit status: that of the party's command, the largest of several; 1 if preflight finds a problem.
    """
    from tacit.parties.hosting.folder import PARTY_FILE, WRONG_INPUT, take_roster
    from tacit.parties.hosting.party_file import read_any

    with output.complaining(((*WRONG_INPUT, OSError), output.WRONG_INPUT)):
        for folder in folders:
            if not (folder / PARTY_FILE).exists():
                raise ValueError(f"{folder / PARTY_FILE}: no such file; make the folder by `tacit init`")
        opened = [(folder / PARTY_FILE, read_any(folder / PARTY_FILE)) for folder in folders]
        for path, file in opened:
            if roster is not None:
                take_roster(file, roster)
            elif not Path(file.roster).exists():
                raise ValueError(
                    f"{file.roster}: no roster yet: send the card to whoever makes it, and start by `tacit up "
                    f"{path.parent} --roster` with the line that comes back"
                )
    if len(folders) > 1:
        raise typer.Exit(_together(folders, ["--stay"] if stay else []))
    _start(*opened[0], stay=stay)


def _start(path: Path, file: PartyFile, *, stay: bool) -> None:
    experiment = path.with_name("experiment.toml")
    chosen = experiment if file.role == "server" and experiment.exists() else None
    _check(file, chosen)
    match file.role:
        case "server":
            host.server(path, chosen)
        case "client":
            host.client(path, stay)
        case "dealer":
            host.dealer(path)
        case "model-owner":
            host.model_owner(path)
        case _:
            host.data_owner(path)


def _check(file: PartyFile, experiment: Path | None) -> None:
    console = output.screen()
    output.say(console, "looking whether everything is there")
    from tacit.parties.runs.experiment import ExperimentError, load

    with output.complaining(((ExperimentError, OSError), output.WRONG_INPUT)):
        chosen = None if experiment is None else load(experiment, numbered=False)
        from tacit.parties.hosting.preflight import preflight

        wrong = []
        for one in preflight(file, chosen):
            if one.state in ("wrong", "warning"):
                wrong.append(one)
            if one.check == "training":
                # The rest concerns the server, for which a client waits.
                break
    for one in wrong:
        output.say(console, f"{one.check} {one.state}: {one.detail}", style="yellow")
    if any(one.state == "wrong" for one in wrong):
        raise output.failure("not started: see the lines above", output.FAILED)


def _together(folders: Sequence[Path], options: Sequence[str]) -> int:
    """Start each in its own process, and print its output with its name; returns the largest exit status."""

    def follow(name: str, said: IO[str]) -> None:
        for line in said:
            typer.echo(f"{name:<12}{line}", nl=False)

    # Ends with a parent that is killed.
    bind = ctypes.CDLL(None).prctl
    children = [
        subprocess.Popen(
            [sys.executable, "-c", _ENTRY, "up", str(folder), *options],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
            preexec_fn=lambda: bind(_PR_SET_PDEATHSIG, signal.SIGTERM),
        )
        for folder in folders
    ]

    def end(number: int, frame: FrameType | None) -> None:
        for child in children:
            child.terminate()

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, end)
    readers = [
        Thread(target=follow, args=(folder.name, child.stdout), daemon=True)
        for folder, child in zip(folders, children, strict=True)
    ]
    for reader in readers:
        reader.start()
    # A child that a signal ended has a negative status.
    worst = max(child.wait() % 256 for child in children)
    for reader in readers:
        reader.join()
    return worst


PANEL: Final = "Between hosts"
COMMANDS: Final = {"init": init, "up": up}
