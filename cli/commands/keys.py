"""`tacit keys`: a party makes its own keys, on its own host."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Final, Literal

import typer

from tacit.cli.output import WRONG_INPUT, complaining

app = typer.Typer(no_args_is_help=True, help="The keys of a party.")
_ENROLLED: dict[str, Any] = {"model-owner": "server", "data-owner": "client"}
"""What the roster calls those that it has no word for."""


@app.callback()
def keys() -> None:
    """The keys of a party."""


@app.command()
def new(
    name: Annotated[str, typer.Argument(help="Of the party in the roster: a-z, 0-9 and the hyphen.")],
    role: Annotated[
        Literal["server", "client", "dealer", "model-owner", "data-owner", "operator"],
        typer.Option(help="What it is. A roster calls a model owner its server, and data owners clients."),
    ],
    out: Annotated[Path, typer.Option(metavar="DIR", help="Where both files go.")] = Path(),
) -> None:
    """Make NAME.key, which never leaves this host, and NAME.card, for whoever makes the roster.

    The card holds the public keys, name and role, signed with the party's own key. An operator, who signs the versions
    of a roster, has none: the roster has its key. Nothing is overwritten.

    Exit status: 0 done; 2 wrong input.
    """
    from tacit.parties.links.keys import KeyFileError, generate, save, save_operator

    with complaining(((ValueError, KeyFileError), WRONG_INPUT)):
        if role == "operator":
            typer.echo(f"{save_operator(generate(name), out)}: keep it where rosters are made, and nowhere else")
            return
        secret, card = save(generate(name), out, role=_ENROLLED.get(role, role))
    typer.echo(f"{secret}: keep it on this host, and nowhere else")
    typer.echo(f"{card}: hand it to whoever makes the roster")


PANEL: Final = "Between hosts"
COMMANDS: Final = {"keys": app}
