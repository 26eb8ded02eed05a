"""`tacit roster`: make a roster from the members' cards, change it, and compare it between members."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import msgspec
import typer

from tacit.cli.output import WRONG_INPUT, complaining, json_option, keep_json, screen
from tacit.cli.output import show as show_result
from tacit.parties.runs.results import Column, Result, Table, prose

if TYPE_CHECKING:
    from tacit.parties.links.keys import PartyKeys
    from tacit.protocol.core.roster import Member, Roster

app = typer.Typer(no_args_is_help=True, help="The roster: who takes part, with which keys.")

RosterFile = Annotated[Path, typer.Argument(metavar="ROSTER", help="Roster file.")]
Cards = Annotated[
    list[str],
    typer.Argument(metavar="CARD", help="Lines that `tacit init` printed, files of such lines, or NAME.card."),
]
GroupSize = Annotated[
    int,
    typer.Option(min=0, help="Smallest group, whose members enter a sum together or not at all; 0: no groups."),
]
Operator = Annotated[
    Path | None,
    typer.Option(metavar="KEY", help="Key file of the roster's operator, who signs every version of it."),
]
Standby = Annotated[
    str,
    typer.Option(
        metavar="KEY",
        help="Standby key, which may replace the operator's: public key, as `tacit keys new` prints it, or key file.",
    ),
]


class RosterMember(msgspec.Struct, frozen=True, kw_only=True):
    """A member of a roster; keys as in roster files."""

    name: str
    role: str
    group: int
    """Number of the group; 0 without groups, and for a member that waits for one."""
    waiting: bool
    """Whether it waits for a group."""
    curve: str
    signing: str


class RosterDescription(Result, frozen=True, kw_only=True, tag="tacit.roster.1"):
    """The members of a roster, and its identification."""

    fingerprint: str
    hash: str
    version: int
    members: list[RosterMember]

    def view(self) -> Iterator[Table]:
        """The members, with their signing keys."""
        columns = (Column("name"), Column("role", prose), Column("group"), Column("signing key", prose))
        rows = [
            (one.name, one.role, "waits" if one.waiting else one.group or None, one.signing) for one in self.members
        ]
        yield Table(columns=columns, rows=rows)


@app.command()
def make(
    cards: Cards,
    out: Annotated[Path, typer.Option(metavar="ROSTER", help="File to write.")] = Path("roster.toml"),
    group_size: GroupSize = 0,
    operator: Operator = None,
    standby: Standby = "",
) -> None:
    """Make a roster from the cards of all members. Their order numbers the clients.

    Send the file, or the printed line, to every party, then compare the fingerprint with each by phone. With --operator
    the roster has versions: `add`, `remove` and `rotate` make the next one, which parties take up between two rounds,
    while they run. The operator's key is made if it is missing.

    Exit status: 0 done; 2 wrong input.
    """
    from tacit.parties.links.keys import generate, save_operator
    from tacit.parties.links.roster import make_roster, roster_line, write_roster

    with _input_errors():
        members = _read_cards(cards)
        # Checked before a key is created.
        make_roster(members, group_size=group_size)
        if operator is not None and operator.suffix == ".key" and not operator.exists():
            operator.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            typer.echo(f"{save_operator(generate(operator.stem), operator.parent)}: keep it, and show it to nobody")
        key, spare = _read_key(operator), _read_public(standby)
        made = make_roster(members, group_size=group_size, operator=key, standby=spare)
        write_roster(made, out)
    _print_fingerprint(out, made)
    typer.echo(roster_line(made))


@app.command()
def add(
    roster: RosterFile,
    cards: Annotated[list[str] | None, typer.Argument(metavar="CARD", help="Cards of new members, or lines.")] = None,
    group_size: GroupSize = 0,
    operator: Operator = None,
) -> None:
    """Add members to a roster.

    In a roster with groups, new members wait; with --group-size they form new groups with all others that wait, if they
    fill one. Give a roster with an operator to the server, which sends it to everybody; without an operator every party
    needs the new file.

    Exit status: 0 done; 2 wrong input.
    """
    from tacit.parties.links.roster import with_members

    def change(found: Roster) -> Roster:
        return with_members(found, _read_cards(cards or ()), group_size=group_size, operator=_read_key(operator))

    _change(roster, change)


@app.command()
def remove(
    roster: RosterFile,
    names: Annotated[list[str], typer.Argument(metavar="NAME...", help="Members to remove.")],
    operator: Operator = None,
) -> None:
    """Remove members from a roster.

    Their groups are retired: remaining members wait until `add` puts them into a new group.

    Exit status: 0 done; 2 wrong input.
    """
    from tacit.parties.links.roster import without_members

    _change(roster, lambda found: without_members(found, names, operator=_read_key(operator)))


@app.command()
def rotate(
    roster: RosterFile,
    card: Annotated[str, typer.Argument(metavar="CARD", help="The member's new card, or its line.")],
    was: Annotated[
        str, typer.Option(metavar="NAME", help="Old name of the member, if the new card has another one.")
    ] = "",
    operator: Operator = None,
) -> None:
    """Give a member other keys, and another name, by its new card.

    Spent privacy budget stays spent. The clients of its group ask their owners before they accept the change.

    Exit status: 0 done; 2 wrong input.
    """
    from tacit.parties.links.roster import with_other_keys

    _change(roster, lambda found: with_other_keys(found, *_read_cards([card]), was=was, operator=_read_key(operator)))


@app.command()
def sign(
    roster: RosterFile,
    operator: Annotated[Path, typer.Option(metavar="KEY", help="Key file of the operator, or of its standby key.")],
    standby: Standby = "",
) -> None:
    """Sign a roster again as its next version, or let the standby key replace the operator's.

    Signed by the standby key, the version makes that key the operator for good: parties that take it up accept nothing
    more from the old key. --standby names the next standby key, if the roster has none or this version uses it; it must
    never have been an operator's.

    Exit status: 0 done; 2 wrong input.
    """
    from tacit.parties.links.keys import load
    from tacit.parties.links.roster import signed_again

    _change(roster, lambda found: signed_again(found, load(operator), _read_public(standby)))


@app.command()
def show(
    roster: RosterFile, json_file: Annotated[Path | None, json_option("Write the members to this file too.")] = None
) -> None:
    """Show the members of a roster, and its fingerprint.

    Exit status: 0 done; 1 the file of --json cannot be written; 2 wrong input.
    """
    from tacit.parties.links.keys import encode_key
    from tacit.parties.links.roster import read_roster

    with _input_errors():
        found = read_roster(roster)
    shown = RosterDescription(
        fingerprint=found.fingerprint,
        hash=found.hash.hex(),
        version=found.version,
        members=[
            RosterMember(
                name=member.name,
                role=member.role,
                group=member.group,
                waiting=member.name in found.waiting,
                curve=encode_key(member.curve_public),
                signing=encode_key(member.signing_public),
            )
            for member in found.members
        ],
    )
    keep_json(json_file, shown)
    show_result(screen(), shown)
    _print_fingerprint(roster, found)


@app.command()
def check(
    roster: RosterFile,
    files: Annotated[
        list[Path] | None, typer.Argument(metavar="CARD|KEY", help="Cards or key files that must be in it.")
    ] = None,
    fingerprint: Annotated[str | None, typer.Option(metavar="DIGITS", help="Fingerprint of another party.")] = None,
) -> None:
    """Check a roster: its signature, its fingerprint, and that it contains these keys.

    Exit status: 0 all checks passed; 2 a check failed, or wrong input.
    """
    from tacit.parties.links.keys import load
    from tacit.parties.links.roster import RosterFileError, check_card, check_own, read_roster

    with _input_errors():
        found = read_roster(roster)
        for path in files or ():
            if path.suffix == ".key":
                check_own(found, load(path), where=str(roster))
            else:
                (card,) = _read_cards([str(path)])
                check_card(found, card, where=str(roster))
        if fingerprint is not None and "".join(fingerprint.split()) != found.fingerprint.replace(" ", ""):
            raise RosterFileError(
                f"{roster}: its fingerprint is {found.fingerprint}, another one than was given: one of the two rosters "
                "is stale or was changed; get it again from its operator"
            )
    _print_fingerprint(roster, found)


def _input_errors() -> AbstractContextManager[None]:
    from tacit.parties.links.keys import KeyFileError
    from tacit.parties.links.roster import RosterFileError

    return complaining(((ValueError, LookupError, OSError, KeyFileError, RosterFileError), WRONG_INPUT))


def _change(path: Path, change: Callable[[Roster], Roster]) -> None:
    from tacit.parties.links.roster import read_roster, write_roster

    with _input_errors():
        made = change(read_roster(path))
        write_roster(made, path, replace=True)
    _print_fingerprint(path, made)


def _read_key(path: Path | None) -> PartyKeys | None:
    from tacit.parties.links.keys import load

    return None if path is None else load(path)


def _read_public(given: str) -> bytes:
    """A public key, given as text or as a key file."""
    from tacit.parties.links.keys import decode_key, load

    if not given or Path(given).is_file():
        return load(Path(given)).signing_public if given else b""
    try:
        return decode_key(given)
    except ValueError as error:
        raise ValueError(f"--standby {given!r}: no such key file, and {error}") from None


def _read_cards(given: Sequence[str]) -> list[Member]:
    from tacit.parties.links.keys import CARD_LINE, load_card, read_card_lines

    cards: list[Member] = []
    for one in given:
        text, path = one, Path(one)
        if CARD_LINE not in one:
            text = path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""
        cards += read_card_lines(text) if CARD_LINE in text else [load_card(path)]
    return cards


def _print_fingerprint(path: Path, roster: Roster) -> None:
    version = f"version {roster.version}, " if roster.operator else ""
    groups = f", in {len(roster.groups)} groups" if roster.groups else ""
    waiting = f", {len(roster.waiting)} of them waiting for one" if roster.waiting else ""
    former = f"; {len(roster.former)} former" if roster.former else ""
    typer.echo(
        f"{path}: {version}{len(roster.members)} members, {len(roster.clients)} of them clients"
        f"{groups}{waiting}{former}"
    )
    typer.echo(f"fingerprint {roster.fingerprint}")


PANEL: Final = "Between hosts"
COMMANDS: Final = {"roster": app}
RESULTS: Final = {
    "roster": ("roster show", "tacit.cli.commands.roster:RosterDescription"),
}
