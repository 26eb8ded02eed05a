"""`tacit keys`: create a party's keys on its own host."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Final, Literal

import typer

from tacit.cli.output import WRONG_INPUT, complaining

app = typer.Typer(no_args_is_help=True, help="The keys of a party.")
_ENROLLED: dict[str, Any] = {"model-owner": "server", "data-owner": "client"}
"""Roster roles of parties without a role of their own."""


@app.command()
def new(
    name: Annotated[
        str | None, typer.Argument(help="Name of the party: a-z, 0-9 and the hyphen.", show_default=False)
    ] = None,
    role: Annotated[
        Literal["server", "client", "dealer", "model-owner", "data-owner", "operator"] | None,
        typer.Option(help="Role of the party. In a roster a model owner is the server, and data owners are clients."),
    ] = None,
    out: Annotated[Path, typer.Option(metavar="DIR", help="Folder of both files.")] = Path(),
    simulation: Annotated[
        int | None,
        typer.Option(min=3, metavar="N", help="Make keys and roster of N clients instead, for a simulation in Flower."),
    ] = None,
) -> None:
    """Make NAME.key, which never leaves this host, and NAME.card, for the operator of the roster.

    The card has name, role and public keys, signed with the party's own key. An operator signs versions of a roster and
    has no card, because the roster contains its key. Existing files are never overwritten.

    With --simulation N, and without NAME and --role, DIR receives a roster, and for each of the partitions 0 to N-1 of
    a simulation in Flower a folder with the keys of a client and the roster.

    Exit status: 0 done; 2 wrong input.
    """
    from tacit.parties.links.keys import KeyFileError, encode_key, generate, save, save_operator
    from tacit.parties.links.roster import RosterFileError, enrol_partitions

    with complaining(((ValueError, KeyFileError, RosterFileError, OSError), WRONG_INPUT)):
        if simulation is not None:
            if name is not None or role is not None:
                raise ValueError("--simulation makes the keys of all clients: leave out NAME and --role")
            clients = enrol_partitions(out, simulation).clients
            typer.echo(f"{out}: a roster, and folders 0 to {len(clients) - 1} with the keys of a client each")
            return
        if name is None or role is None:
            raise ValueError("give the NAME of the party and its --role, or --simulation N")
        if role == "operator":
            made = generate(name)
            typer.echo(f"{save_operator(made, out)}: keep it where rosters are made, and nowhere else")
            typer.echo(f"public key {encode_key(made.signing_public)}")
            return
        secret, card = save(generate(name), out, role=_ENROLLED.get(role, role))
    typer.echo(f"{secret}: keep it on this host, and nowhere else")
    typer.echo(f"{card}: hand it to whoever makes the roster")


@app.command()
def encrypt(
    key: Annotated[Path, typer.Argument(metavar="KEY", help="Key file.")],
    remove: Annotated[bool, typer.Option("--remove", help="Store it without encryption again.")] = False,
) -> None:
    """Encrypt a key file under a passphrase, or change its passphrase.

    Each start of the party asks for the passphrase. Without a terminal it is read from the credential NAME.passphrase
    in the folder $CREDENTIALS_DIRECTORY, which systemd fills from LoadCredential= or LoadCredentialEncrypted=.

    Exit status: 0 done; 2 wrong input.
    """
    from tacit.parties.links import keys as files

    with complaining((files.KeyFileError, WRONG_INPUT)):
        (files.decrypt if remove else files.encrypt)(key)
    typer.echo(f"{key}: {'not encrypted' if remove else 'encrypted'}")


PANEL: Final = "Between hosts"
COMMANDS: Final = {"keys": app}
