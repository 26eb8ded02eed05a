"""`tacit conformance`: whether this installation, or a party at the other end of a link, speaks the protocol right.

Everything slow is imported inside the command, so that --help answers at once.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from rich.table import Table
from rich.text import Text

from tacit.cli.legacy_output import keep_json, table
from tacit.cli.output import FAILED, WRONG_INPUT, complaining, failure, json_option, screen
from tacit.protocol.core.errors import printable

JsonFile = Annotated[Path | None, json_option("Write the verdicts to this file.")]

app = typer.Typer(no_args_is_help=True, help="Check what speaks the protocol.")


@app.command()
def vectors(
    directory: Annotated[
        Path | None, typer.Argument(metavar="DIRECTORY", help="Vectors; by default those of this installation.")
    ] = None,
    json_file: JsonFile = None,
) -> None:
    """Check this installation against test vectors: all outcomes must be exactly as expected.

    Exit status: 0 all vectors hold; 1 they do not, or the file cannot be written; 2 wrong input.
    """
    from tacit.simulate.conformance.vectors import check, installed, vector_files

    folder = installed() if directory is None else directory
    try:
        paths = vector_files(folder)
        if not paths:
            raise failure(f"{folder}: there are no vectors; name a directory with vector files (*.json)", WRONG_INPUT)
        verdicts = [check(path.name, path.read_bytes()) for path in paths]
    except OSError as error:
        place = error.filename or folder
        raise failure(f"{place}: {error.strerror}; name a directory with vectors", WRONG_INPUT) from None
    failing = [verdict for verdict in verdicts if verdict.fault]
    rows = [(Text(verdict.file), str(verdict.steps), _judged(verdict.fault, False)) for verdict in failing]
    made = table(("file", "steps", "verdict"), rows, left=("verdict",))
    made.columns[0].no_wrap = True
    steps = sum(verdict.steps for verdict in verdicts)
    _end(
        made,
        f"{len(verdicts)} files, {steps} steps",
        len(failing),
        json_file,
        "vectors",
        {"files": verdicts},
    )


@app.command()
def peer(
    address: Annotated[str, typer.Argument(metavar="tcp://HOST:PORT", help="Of the live party, or to listen at.")],
    side: Annotated[
        Literal[
            "client", "server", "model-owner", "data-owner", "owners", "adapting-model-owner", "adapting-data-owner"
        ],
        typer.Option("--as", help="Whom this command plays; the live party is the other one."),
    ],
    keys: Annotated[Path, typer.Option(metavar="DIR", help="roster.toml and the keys of those whom it plays.")],
    dealer: Annotated[
        str | None,
        typer.Option(
            metavar="tcp://HOST:PORT",
            help="As one of model owner and data owner: where the dealer listens, which it plays too.",
        ),
    ] = None,
    sums: Annotated[
        str | None,
        typer.Option(metavar="tcp://HOST:PORT", help="As adapting-model-owner: where the dealer serves the sums."),
    ] = None,
    case: Annotated[
        list[str] | None, typer.Option(help="Play only this case, after the honest one. Repeatable.")
    ] = None,
    wait: Annotated[float, typer.Option(min=1.0, help="Seconds to wait for any sign of the live party.")] = 60.0,
    json_file: JsonFile = None,
) -> None:
    """Play the other side against a live party, honestly and not, and see that it does what the specification says.

    A party whose session ends must be started again; run it in a loop. docs/conformance.md describes every case.

    Exit status: 0 all cases hold; 1 they do not, or the file cannot be written; 2 wrong input, or no
    link to the party.
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
    headings = ("case", "expected", "seen", "verdict")
    rows = []
    for verdict in verdicts:
        cells = (verdict.case, verdict.expected, verdict.seen, "holds" if verdict.holds else "FAILS")
        rows.append([_judged(cell, verdict.holds) for cell in cells])
    made = table(headings, rows, left=headings)
    made.columns[0].no_wrap = made.columns[3].no_wrap = True
    failed = sum(not verdict.holds for verdict in verdicts)
    _end(made, f"{len(verdicts)} cases", failed, json_file, "peer", {"cases": verdicts})


def _judged(text: str, holds: bool) -> Text:
    return Text(printable(text), style="" if holds else "red")


def _end(
    verdicts: Table, checked: str, failed: int, json_file: Path | None, schema: str, figures: dict[str, Any]
) -> None:
    """Shows what was found, keeps it, and ends the command."""
    console = screen()
    if verdicts.rows:
        console.print(verdicts)
    console.print(f"{checked}: {f'{failed} do not hold' if failed else 'all hold'}")
    keep_json(json_file, schema, figures)
    raise typer.Exit(FAILED if failed else 0)
