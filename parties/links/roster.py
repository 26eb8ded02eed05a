"""The roster as a file: one TOML table `[[member]]` with name, role, curve and signing key for each party, and the
number of its group where clients are in groups.

A roster is made from the members' cards. Once it is in use, groups never change: newcomers are groups of their own, and
who goes takes its group along, because sums before and after could else differ by a single client. The file is public
but must arrive unchanged: compare the fingerprint of the roster over a second channel.
"""

import os
from collections.abc import Collection, Sequence
from pathlib import Path

import msgspec

from tacit.parties.links.keys import PartyKeys, decode_key, encode_key
from tacit.protocol.core.roster import Member, Role, Roster, group_numbers


class RosterFileError(Exception):
    """A roster file cannot be written, read or accepted; the message names the file and the entry."""


def make_roster(cards: Sequence[Member], *, group_size: int = 0) -> Roster:
    """A roster of these members, whose clients are in groups of at least `group_size`; 0: in none. ValueError."""
    return Roster(_grouped(cards, group_size, first=1))


def with_members(roster: Roster, cards: Sequence[Member], *, group_size: int = 0) -> Roster:
    """The roster with these members after those that it has. Newcomers are in groups of their own, if in any.

    ValueError for who is in it already, and where newcomers would be in groups and the others not, or the reverse.
    """
    known = {member.name: member for member in roster.members}
    for card in cards:
        if (former := known.get(card.name)) is not None:
            same = card == msgspec.structs.replace(former, group=0)
            raise ValueError(
                f"{card.name!r} is in the roster already"
                + ("" if same else ", with other keys or another role: remove it first; it is then a new member")
            )
    newcomers = any(card.role == "client" for card in cards)
    if newcomers and roster.clients and bool(roster.groups) != bool(group_size):
        raise ValueError(
            "the clients of the roster are in groups: give --group-size, of the newcomers' own groups"
            if roster.groups
            else "the clients of the roster are in no groups: leave out --group-size, or make the roster anew"
        )
    last = max(member.group for member in roster.members)
    return Roster((*roster.members, *_grouped(cards, group_size, first=last + 1)))


def without_members(roster: Roster, names: Collection[str]) -> Roster:
    """The roster without these. LookupError for a name that it lacks, ValueError if some of a group would stay."""
    for name in names:
        roster.member(name)
        if stay := [other for other in roster.group_of(name) if other not in names]:
            raise ValueError(
                f"{name!r} is in a group with {', '.join(stay)}, and goes with all of it: remove them as well, and "
                "add who stays as a new group"
            )
    return Roster(tuple(member for member in roster.members if member.name not in names))


def check_card(roster: Roster, card: Member, *, where: str) -> Member:
    """The entry of this member. ValueError, which says where, if it has other keys or another role."""
    try:
        member = roster.member(card.name)
    except LookupError as error:
        raise ValueError(f"{where}: {error}: ask its operator to add {card.name}.card") from None
    if (card.curve_public, card.signing_public) != (member.curve_public, member.signing_public):
        raise ValueError(
            f"{where}: it has other public keys for {card.name!r}: it is stale, or of another federation; use the "
            "roster and the key file that belong together"
        )
    if card.role != member.role:
        raise ValueError(
            f"{where}: {card.name!r} has the role {member.role!r} in it, not {card.role!r}: use the roster, or the "
            "party, of the right role"
        )
    return member


def check_own(roster: Roster, keys: PartyKeys, role: Role | None = None, *, where: str) -> Member:
    """The entry of the owner of these keys, who has this role, if one is named. ValueError as of `check_card`."""
    known = {member.name: member.role for member in roster.members}
    return check_card(roster, keys.member(role or known.get(keys.name, "server")), where=where)


def write_roster(roster: Roster, path: Path, *, replace: bool = False) -> None:
    """Write a roster file, whole or not at all. Raises RosterFileError when it exists already and is not to be
    replaced, or cannot be written."""
    tables = [
        f'[[member]]\nname = "{member.name}"\nrole = "{member.role}"\n'
        f'curve = "{encode_key(member.curve_public)}"\nsigning = "{encode_key(member.signing_public)}"\n'
        + (f"group = {member.group}\n" if member.group else "")
        for member in roster.members
    ]
    if path.exists() and not replace:
        raise RosterFileError(f"{path}: exists already; move it away, its hash may be in use")
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        temporary.write_text("\n".join(tables), encoding="ascii")
        os.replace(temporary, path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise RosterFileError(f"{path}: cannot be written: {error.strerror}") from error


def read_roster(path: Path) -> Roster:
    """Read and check a roster file. Raises RosterFileError with the file, the member and the key at fault."""
    try:
        entries = msgspec.toml.decode(path.read_bytes(), type=_RosterFile).member
    except FileNotFoundError as error:
        raise RosterFileError(f"{path}: no such file; ask the operator of the server for the roster") from error
    except OSError as error:
        raise RosterFileError(f"{path}: cannot be read: {error.strerror}") from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise RosterFileError(f"{path}: {error}") from error
    try:
        return Roster(tuple(_member(entry) for entry in entries))
    except ValueError as error:
        raise RosterFileError(f"{path}: {error}") from error


class _Entry(msgspec.Struct, forbid_unknown_fields=True):
    name: str
    role: Role
    curve: str
    signing: str
    group: int = 0


class _RosterFile(msgspec.Struct, forbid_unknown_fields=True):
    member: list[_Entry]


def _grouped(cards: Sequence[Member], size: int, *, first: int) -> tuple[Member, ...]:
    """The members, clients among them in groups of at least this size."""
    count = sum(card.role == "client" for card in cards)
    if 0 < count < size:
        raise ValueError(f"--group-size {size}: {count} clients make no group of {size}")
    numbers = iter(group_numbers(count, size, first))
    return tuple(
        msgspec.structs.replace(card, group=next(numbers)) if card.role == "client" else card for card in cards
    )


def _member(entry: _Entry) -> Member:
    keys = {}
    for purpose, text in (("curve", entry.curve), ("signing", entry.signing)):
        try:
            keys[purpose] = decode_key(text)
        except ValueError as error:
            raise ValueError(f"member {entry.name!r}, {purpose}: {error}; copy it from the member's card") from None
    return Member(
        name=entry.name,
        role=entry.role,
        curve_public=keys["curve"],
        signing_public=keys["signing"],
        group=entry.group,
    )
