"""`tacit conformance`: whether this installation, or a party at the other end of a link, speaks the protocol right.

Everything slow is imported inside the command, so that --help answers at once.
"""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tacit.cli.json_file import check_json, keep_json
from tacit.cli.outcome import WRONG_INPUT

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.table import Table

    from tacit.simulate.conformance.peer.script import PeerVerdict as PeerVerdict
    from tacit.simulate.conformance.vectors import VectorVerdict


app = typer.Typer(no_args_is_help=True, help="Check what speaks the protocol.")


@app.callback()
def conformance() -> None:
    """Check what speaks the protocol."""


@app.command()
def vectors(
    directory: Annotated[
        Path | None, typer.Argument(metavar="[DIRECTORY]", help="Vectors; by default those of this installation.")
    ] = None,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write the verdicts to this file.")] = None,
) -> None:
    """Check this installation against test vectors: every operation must have exactly the outcome that is expected.

    Exit status: 0 all vectors hold; 1 they do not, or the file cannot be written; 2 wrong input.
    """
    from tacit.simulate.conformance.vectors import check, installed, vector_files

    check_json(json_file)
    folder = installed() if directory is None else directory
    try:
        paths = vector_files(folder)
        if not paths:
            raise _wrong_input(f"{folder}: there are no vectors; name a directory with vector files (*.json)")
        verdicts = [check(path.name, path.read_bytes()) for path in paths]
    except OSError as error:
        raise _wrong_input(f"{error.filename or folder}: {error.strerror}; name a directory with vectors") from None
    _show(verdicts)
    keep_json(json_file, verdicts)
    raise typer.Exit(1 if any(verdict.fault for verdict in verdicts) else 0)


class Side(StrEnum):
    """Whom the command plays."""

    CLIENT = "client"
    SERVER = "server"
    MODEL_OWNER = "model-owner"
    DATA_OWNER = "data-owner"
    OWNERS = "owners"


@app.command()
def peer(
    address: Annotated[str, typer.Argument(metavar="tcp://HOST:PORT", help="Of the live party, or to listen at.")],
    side: Annotated[Side, typer.Option("--as", help="Whom this command plays; the live party is the other one.")],
    keys: Annotated[Path, typer.Option(metavar="DIR", help="roster.toml and the keys of those whom it plays.")],
    dealer: Annotated[
        str | None,
        typer.Option(
            metavar="tcp://HOST:PORT",
            help="As model-owner or data-owner: where the dealer listens, which it plays too.",
        ),
    ] = None,
    case: Annotated[
        list[str] | None, typer.Option(help="Play only this case, after the honest one. Repeatable.")
    ] = None,
    wait: Annotated[float, typer.Option(min=1.0, help="Seconds to wait for any sign of the live party.")] = 60.0,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write the verdicts to this file.")] = None,
) -> None:
    """Play the other side against a live party, honestly and not, and see that it does what the specification says.

    A party whose session ends must be started again; run it in a loop. docs/conformance.md describes every case.

    Exit status: 0 all cases hold; 1 they do not, or the file cannot be written; 2 wrong input, or no
    link to the party.
    """
    import asyncio

    from rich.console import Console

    from tacit.parties.links.endpoint import EndpointError
    from tacit.parties.links.keys import KeyFileError
    from tacit.parties.links.roster import RosterFileError
    from tacit.simulate.conformance.peer.play import play
    from tacit.simulate.conformance.peer.script import PeerError

    check_json(json_file)

    def tell(text: str) -> None:
        typer.echo(f"tacit: {text}", err=True)

    try:
        playing = play(address, side.value, keys, dealer_address=dealer, names=case or (), wait=wait, tell=tell)
        verdicts = asyncio.run(playing)
    except (PeerError, KeyFileError, RosterFileError, EndpointError) as error:
        raise _wrong_input(str(error)) from None
    console = Console(highlight=False)
    console.print(_peer_table(verdicts))
    failed = sum(not verdict.holds for verdict in verdicts)
    console.print(f"{len(verdicts)} cases: {f'{failed} do not hold' if failed else 'all hold'}")
    keep_json(json_file, verdicts)
    raise typer.Exit(1 if failed else 0)


def _peer_table(verdicts: Sequence[PeerVerdict]) -> Table:
    from rich.table import Table
    from rich.text import Text

    table = Table()
    for heading in ("case", "expected", "seen", "verdict"):
        table.add_column(heading, no_wrap=heading in ("case", "verdict"), overflow="fold")
    for verdict in verdicts:
        style = "" if verdict.holds else "red"
        outcome = "holds" if verdict.holds else "FAILS"
        table.add_row(*(Text(cell, style) for cell in (verdict.case, verdict.expected, verdict.seen, outcome)))
    return table


def _show(verdicts: Sequence[VectorVerdict]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console(highlight=False)
    table = Table()
    table.add_column("file", no_wrap=True)
    table.add_column("operations", justify="right")
    table.add_column("verdict", overflow="fold")
    for verdict in verdicts:
        fault = Text(verdict.fault or "holds", style="red" if verdict.fault else "")
        table.add_row(Text(verdict.file), str(verdict.operations), fault)
    console.print(table)
    failed = sum(bool(verdict.fault) for verdict in verdicts)
    operations = sum(verdict.operations for verdict in verdicts)
    summary = f"{failed} do not hold" if failed else "all hold"
    console.print(f"{len(verdicts)} files, {operations} operations: {summary}")


def _wrong_input(text: str) -> typer.Exit:
    typer.echo(f"tacit: {text}", err=True)
    return typer.Exit(WRONG_INPUT)
