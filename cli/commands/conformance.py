"""`tacit conformance`: check this installation, or a party at the other end of a link, against the protocol.

Slow modules are imported inside the command, so that --help answers at once.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, Literal

import typer

from tacit.cli.output import FAILED, WRONG_INPUT, complaining, failure, json_option, keep_json, screen, show
from tacit.cli.progress import Progress
from tacit.protocol.core.errors import printable

if TYPE_CHECKING:
    from tacit.simulate.conformance.peer.script import PeerVerdicts
    from tacit.simulate.conformance.vectors import VectorVerdicts

JsonFile = Annotated[Path | None, json_option("Write the verdicts to this file.")]

app = typer.Typer(no_args_is_help=True, help="Test implementations of the protocol.")


@app.command()
def vectors(
    directory: Annotated[
        Path | None, typer.Argument(metavar="DIRECTORY", help="Vectors; by default those of this installation.")
    ] = None,
    json_file: JsonFile = None,
) -> None:
    """Check this installation against the test vectors.

    Exit status: 0 all vectors passed; 1 some failed, or the file cannot be written; 2 wrong input.
    """
    from tacit.simulate.conformance.vectors import VectorVerdicts, check, installed, vector_files

    folder = installed() if directory is None else directory
    try:
        paths = vector_files(folder)
        if not paths:
            raise failure(f"{folder}: there are no vectors; name a directory with vector files (*.json)", WRONG_INPUT)
        verdicts = VectorVerdicts(files=[check(path.name, path.read_bytes()) for path in paths])
    except OSError as error:
        place = error.filename or folder
        raise failure(f"{place}: {error.strerror}; name a directory with vectors", WRONG_INPUT) from None
    _end(verdicts, json_file)


@app.command()
def peer(
    address: Annotated[str, typer.Argument(metavar="tcp://HOST:PORT", help="Of the live party, or to listen.")],
    side: Annotated[
        Literal[
            "client", "server", "model-owner", "data-owner", "owners", "adapting-model-owner", "adapting-data-owner"
        ],
        typer.Option("--as", help="Role of this command; the live party is its peer."),
    ],
    keys: Annotated[Path, typer.Option(metavar="DIR", help="roster.toml and keys of the played parties.")],
    dealer: Annotated[
        str | None,
        typer.Option(
            metavar="tcp://HOST:PORT",
            help="With --as model-owner or data-owner: address of the dealer, which is played too.",
        ),
    ] = None,
    sums: Annotated[
        str | None,
        typer.Option(metavar="tcp://HOST:PORT", help="With --as adapting-model-owner: address of the secure sums."),
    ] = None,
    case: Annotated[
        list[str] | None, typer.Option(help="Play only this case, after the honest one. Repeatable.")
    ] = None,
    wait: Annotated[float, typer.Option(min=1.0, help="Seconds to wait for any sign of the live party.")] = 60.0,
    json_file: JsonFile = None,
) -> None:
    """Test a live party: play its peer, honest and malicious, and compare its answers with the specification.

    Restart the party when its session ends; run it in a loop. docs/conformance.md describes every case.

    Exit status: 0 all cases passed; 1 some failed, or the file cannot be written; 2 wrong input, or no link to the
    party.
    """
    import asyncio

    from tacit.parties.links.endpoint import EndpointError
    from tacit.parties.links.keys import KeyFileError
    from tacit.parties.links.roster import RosterFileError
    from tacit.simulate.conformance.peer.play import Addresses, play
    from tacit.simulate.conformance.peer.script import PeerError

    def tell(text: str) -> None:
        typer.echo(f"tacit: {printable(text)}", err=True)

    with complaining(((PeerError, KeyFileError, RosterFileError, EndpointError), WRONG_INPUT)):
        playing = play(Addresses(address, dealer, sums), side, keys, names=case or (), wait=wait, tell=tell)
        verdicts = asyncio.run(playing)
    _end(verdicts, json_file)


@app.command()
def client(
    case: Annotated[
        list[str] | None, typer.Option(help="Play only this case, after the honest one. Repeatable.")
    ] = None,
    json_file: JsonFile = None,
) -> None:
    """Test a client of this installation against a malicious server.

    The client is a process of its own, with fresh keys.

    Exit status: 0 all cases passed; 1 some failed, the client's process ended, or the file cannot be written; 2 wrong
    input.
    """
    import asyncio
    import tempfile

    from tacit.cli.interruption import interruptible
    from tacit.simulate.conformance.peer.own_client import play_cases
    from tacit.simulate.conformance.peer.play import chosen
    from tacit.simulate.conformance.peer.script import PeerError
    from tacit.simulate.federation.processes import ProcessError, warm_up

    console = screen()
    with (
        complaining((PeerError, WRONG_INPUT), ((ProcessError, OSError), FAILED)),
        tempfile.TemporaryDirectory(prefix="tacit-") as folder,
        Progress(console, "starting the client") as progress,
    ):
        cases = chosen("server", case or ())
        warm_up()
        playing = play_cases(Path(folder) / "client", progress.update, cases)
        verdicts = asyncio.run(interruptible(playing))
    _end(verdicts, json_file)


def _end(verdicts: VectorVerdicts | PeerVerdicts, json_file: Path | None) -> None:
    show(screen(), verdicts)
    keep_json(json_file, verdicts)
    raise typer.Exit(FAILED if verdicts.failed else 0)


PANEL: Final = "Settings and results"
COMMANDS: Final = {"conformance": app}
RESULTS: Final = {
    "vectors": ("conformance vectors", "tacit.simulate.conformance.vectors:VectorVerdicts"),
    "peer": ("conformance peer, conformance client", "tacit.simulate.conformance.peer.script:PeerVerdicts"),
}
