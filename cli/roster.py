"""`tacit roster`: who takes part, made from the members' cards, and compared between them."""

from __future__ import annotations

from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tacit.cli.output import WRONG_INPUT, complaining, json_option, keep_json, screen, table

if TYPE_CHECKING:
    from tacit.protocol.core.roster import Member, Roster

app = typer.Typer(no_args_is_help=True, help="The roster: who takes part, with which keys.")

RosterFile = Annotated[Path, typer.Argument(metavar="ROSTER", help="Roster file.")]
Cards = Annotated[list[Path], typer.Argument(metavar="CARD...", help="Cards, as `tacit keys new` makes them.")]
GroupSize = Annotated[
    int,
    typer.Option(min=0, help="Least clients in a group, whose members are in a sum all or none; 0: no groups."),
]


@app.callback()
def roster() -> None:
    """The roster: who takes part, with which keys."""


@app.command()
def make(
    cards: Cards,
    out: Annotated[Path, typer.Option(metavar="ROSTER", help="File to write.")],
    group_size: GroupSize = 0,
) -> None:
    """Make a roster from the cards of all members; their order numbers the clients.

    Give the file to every party, then compare the fingerprint with each by telephone.

    Exit status: 0 done; 2 wrong input.
    """
    from tacit.parties.links.roster import make_roster, write_roster

    with _complaining():
        made = make_roster(_read_cards(cards), group_size=group_size)
        write_roster(made, out)
    _tell(out, made)


@app.command()
def add(roster: RosterFile, cards: Cards, group_size: GroupSize = 0) -> None:
    """Add members behind those of a roster. Newcomers are in groups of their own, where clients are in groups.

    Every party needs the new file. Exit status: 0 done; 2 wrong input.
    """
    from tacit.parties.links.roster import read_roster, with_members, write_roster

    with _complaining():
        made = with_members(read_roster(roster), _read_cards(cards), group_size=group_size)
        write_roster(made, roster, replace=True)
    _tell(roster, made)


@app.command()
def remove(
    roster: RosterFile, names: Annotated[list[str], typer.Argument(metavar="NAME...", help="Who goes.")]
) -> None:
    """Remove members from a roster; whoever is in a group goes with the whole group.

    Every party needs the new file. Exit status: 0 done; 2 wrong input.
    """
    from tacit.parties.links.roster import read_roster, without_members, write_roster

    with _complaining():
        made = without_members(read_roster(roster), names)
        write_roster(made, roster, replace=True)
    _tell(roster, made)


@app.command()
def show(
    roster: RosterFile, json_file: Annotated[Path | None, json_option("Write the members to this file too.")] = None
) -> None:
    """Show the members of a roster, and its fingerprint.

    Exit status: 0 done; 1 the file of --json cannot be written; 2 wrong input.
    """
    from tacit.parties.links.keys import encode_key
    from tacit.parties.links.roster import read_roster

    with _complaining():
        found = read_roster(roster)
    members = [
        {
            "name": member.name,
            "role": member.role,
            "group": member.group,
            "curve": encode_key(member.curve_public),
            "signing": encode_key(member.signing_public),
        }
        for member in found.members
    ]
    keep_json(json_file, {"fingerprint": found.fingerprint, "hash": found.hash.hex(), "members": members})
    rows = [(str(one["name"]), str(one["role"]), str(one["group"] or ""), str(one["signing"])) for one in members]
    screen().print(table(("name", "role", "group", "signing key"), rows, left=("role", "signing key")))
    typer.echo(f"fingerprint {found.fingerprint}")


@app.command()
def check(
    roster: RosterFile,
    files: Annotated[
        list[Path] | None, typer.Argument(metavar="[CARD|KEY]...", help="Cards or key files that must be in it.")
    ] = None,
    fingerprint: Annotated[
        str | None, typer.Option(metavar="DIGITS", help="What somebody else reads out; spaces do not matter.")
    ] = None,
) -> None:
    """Check that a roster is whole, is the one that others have, and has the keys of these files.

    Exit status: 0 all of it holds; 2 it does not, or wrong input.
    """
    from tacit.parties.links.keys import load
    from tacit.parties.links.roster import RosterFileError, check_card, check_own, read_roster

    with _complaining():
        found = read_roster(roster)
        for path in files or ():
            if path.suffix == ".key":
                check_own(found, load(path), where=str(roster))
            else:
                (card,) = _read_cards([path])
                check_card(found, card, where=str(roster))
        if fingerprint is not None and "".join(fingerprint.split()) != found.fingerprint.replace(" ", ""):
            raise RosterFileError(
                f"{roster}: its fingerprint is {found.fingerprint}, another one than was given: one of the two rosters "
                "is stale or was changed; get it again from its operator"
            )
    _tell(roster, found)


def _complaining() -> AbstractContextManager[None]:
    from tacit.parties.links.keys import KeyFileError
    from tacit.parties.links.roster import RosterFileError

    return complaining(((ValueError, LookupError, KeyFileError, RosterFileError), WRONG_INPUT))


def _read_cards(paths: list[Path]) -> list[Member]:
    from tacit.parties.links.keys import load_card

    return [load_card(path) for path in paths]


def _tell(path: Path, roster: Roster) -> None:
    groups = f", in {len(roster.groups)} groups" if roster.groups else ""
    typer.echo(f"{path}: {len(roster.members)} members, {len(roster.clients)} of them clients{groups}")
    typer.echo(f"fingerprint {roster.fingerprint}")
