"""The roster as a file: one TOML table `[[member]]` with name, role, curve and signing key for each party, the number
of its group if clients are in groups, and its former signing keys; then `[[former]]` for each removed member. A roster
with an operator begins with its version, the operator's public key, the lineage, which is drawn when the roster is
made, the standby key that may replace the operator's, and the operator's signature of all of it.

A roster is made from the members' cards. Once it is in use, groups never change, because sums before and after could
otherwise differ by a single client: newcomers wait until they fill a group of their own, and a group that loses a
member is retired, so that its other members wait as well. The file is public but must arrive unchanged: compare the
fingerprint of the first one over a second channel. Later ones are signed.
"""

import os
import re
import zlib
from base64 import b64decode, urlsafe_b64encode
from codecs import BOM_UTF8
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Final

import msgspec

from tacit.models.file_system import replace_file
from tacit.parties.links.keys import (
    PartyKeys,
    decode_key,
    decode_signature,
    encode_key,
    encode_signature,
    generate,
    save,
)
from tacit.protocol.core.errors import RemoteProtocolError
from tacit.protocol.core.primitives import SigningKey
from tacit.protocol.core.roster import (
    LARGEST_VERSION,
    LINEAGE_BYTES,
    Member,
    Role,
    Roster,
    check_rules,
    check_version,
    group_numbers,
)

ROSTER_FILE: Final = "roster.toml"


class RosterFileError(Exception):
    """A roster file cannot be written, read or accepted; the message names the file and the entry."""


def make_roster(
    cards: Sequence[Member], *, group_size: int = 0, operator: PartyKeys | None = None, standby: bytes = b""
) -> Roster:
    """A roster of these members, whose clients are in groups of at least `group_size`; 0: no groups. With an operator
    its first version; standby: see Roster. ValueError."""
    count = sum(card.role == "client" for card in cards)
    if 0 < count < group_size:
        raise ValueError(f"--group-size {group_size}: {count} clients make no group of {group_size}")
    members = _grouped(cards, group_size, first=1)
    if operator is None:
        return Roster(members, standby=standby)
    signing, lineage = SigningKey(operator.signing_secret), os.urandom(LINEAGE_BYTES)
    return Roster.signed(members, version=1, operator=signing, lineage=lineage, standby=standby)


def enrol_partitions(place: Path, clients: int) -> Roster:
    """Make keys and roster for a simulation of another framework: the folder of partition n, from 0, is `place`/n, and
    has the keys of client-n and the roster. KeyFileError and RosterFileError if a file exists already, OSError."""
    path = place / ROSTER_FILE
    if path.exists():
        raise RosterFileError(f"{path}: exists already; use another directory")
    members = [generate("server").member("server")]
    for number in range(clients):
        own = generate(f"client-{number}")
        (place / str(number)).mkdir(parents=True, exist_ok=True)
        save(own, place / str(number), role="client")
        members.append(own.member("client"))
    roster = make_roster(members)
    for folder in (*(place / str(number) for number in range(clients)), place):
        write_roster(roster, folder / ROSTER_FILE)
    return roster


def with_members(
    roster: Roster, cards: Sequence[Member], *, group_size: int = 0, operator: PartyKeys | None = None
) -> Roster:
    """The roster with these members appended. If clients are in groups, newcomers wait; with `group_size` they, and
    waiting members, form groups of at least that size, if they fill one.

    A returning member, identified by its key or its name, has its former keys as `previous`. ValueError for a present
    member, and for groups if clients are in none."""
    known = {member.name: member for member in roster.members}
    for card in cards:
        if (former := known.get(card.name)) is not None:
            same = card == msgspec.structs.replace(former, group=0, previous=())
            raise ValueError(
                f"{card.name!r} is in the roster already"
                + ("" if same else ", with other keys or another role: `tacit roster rotate` gives it other keys")
            )
    if group_size and roster.clients and not roster.groups:
        raise ValueError("the clients of the roster are in no groups: leave out --group-size, or make the roster anew")
    last = max(member.group for member in roster.members)
    waiting = [known[name] for name in roster.waiting]
    gone, newcomers = list(roster.former), []
    for card in cards:
        for one in [one for one in gone if card.name == one.name or card.signing_public in one.signing_keys]:
            gone.remove(one)
            card = _renewed(one, card)
        newcomers.append(card)
    placed = {member.name: member for member in _grouped([*waiting, *newcomers], group_size, first=last + 1)}
    members = [placed.pop(member.name, member) for member in roster.members]
    return _changed(roster, (*members, *placed.values()), operator, former=tuple(gone))


def without_members(roster: Roster, names: Collection[str], *, operator: PartyKeys | None = None) -> Roster:
    """The roster in which these are former members; the others of their groups wait. LookupError for an unknown name,
    ValueError if no group would be left."""
    retired = {other for name in names for other in roster.group_of(name)}
    gone = tuple(msgspec.structs.replace(roster.member(name), group=0) for name in dict.fromkeys(names))
    return _changed(
        roster,
        tuple(
            msgspec.structs.replace(member, group=0) if member.name in retired else member
            for member in roster.members
            if member.name not in names
        ),
        operator,
        former=(*roster.former, *gone),
    )


def with_other_keys(roster: Roster, card: Member, *, was: str = "", operator: PartyKeys | None = None) -> Roster:
    """The roster with a member's new card in place of the old one, which has the name `was`, if not the same.
    LookupError, ValueError."""
    former = roster.member(was or card.name)
    members = tuple(_renewed(former, card) if member is former else member for member in roster.members)
    return _changed(roster, members, operator)


def _renewed(former: Member, card: Member) -> Member:
    earlier = tuple(key for key in former.signing_keys if key != card.signing_public)
    return msgspec.structs.replace(card, group=former.group if card.role == "client" else 0, previous=earlier)


def signed_again(roster: Roster, operator: PartyKeys, standby: bytes = b"") -> Roster:
    """The same members, signed by the operator, who may name a standby key if there is none, or by the standby key,
    which then replaces the operator's. ValueError."""
    if not roster.standby or operator.signing_public != roster.standby:
        return _changed(roster, roster.members, operator, standby)
    # The former operator may have used up all versions; this one is later in any case.
    version, signing = roster.version % LARGEST_VERSION + 1, SigningKey(operator.signing_secret)
    made = Roster.signed(
        roster.members,
        version=version,
        operator=signing,
        lineage=roster.lineage,
        standby=standby,
        former=roster.former,
    )
    return _checked(roster, made)


def check_card(roster: Roster, card: Member, *, where: str) -> Member:
    """The entry of this member. ValueError, which names the place, if it has other keys or another role."""
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
    """The entry of the owner of these keys, with this role, if given. ValueError as in `check_card`."""
    known = {member.name: member.role for member in roster.members}
    return check_card(roster, keys.member(role or known.get(keys.name, "server")), where=where)


def write_roster(roster: Roster, path: Path, *, replace: bool = False) -> None:
    """Write a roster file atomically. RosterFileError if it exists already and `replace` is false, or if it cannot be
    written."""
    if path.exists() and not replace:
        raise RosterFileError(f"{path}: exists already; move it away, its hash may be in use")
    try:
        replace_file(path, _text(roster))
        path.chmod(0o644)
    except OSError as error:
        raise RosterFileError(f"{path}: cannot be written: {error.strerror}") from error


def _text(roster: Roster) -> bytes:
    tables = [
        f'[[{table}]]\nname = "{member.name}"\nrole = "{member.role}"\n'
        f'curve = "{encode_key(member.curve_public)}"\nsigning = "{encode_key(member.signing_public)}"\n'
        + (f"group = {member.group}\n" if member.group else "")
        + (f"previous = {[*map(encode_key, member.previous)]}\n" if member.previous else "")
        for table, some in (("member", roster.members), ("former", roster.former))
        for member in some
    ]
    if roster.operator:
        tables.insert(
            0,
            f'version = {roster.version}\noperator = "{encode_key(roster.operator)}"\n'
            f'lineage = "{encode_key(roster.lineage)}"\n'
            + (f'standby = "{encode_key(roster.standby)}"\n' if roster.standby else "")
            + f'signature = "{encode_signature(roster.signature)}"\n',
        )
    return "\n".join(tables).encode("ascii")


ROSTER_LINE: Final = "tacit-roster:"
_LARGEST: Final = 1 << 24
"""Largest roster file in bytes that is accepted as a line; one of 10,000 members has a tenth of it."""


def roster_line(roster: Roster) -> str:
    """The file of a roster as one line to paste."""
    return ROSTER_LINE + urlsafe_b64encode(zlib.compress(_text(roster), 9)).decode("ascii").rstrip("=")


def given_roster(given: str) -> Roster:
    """Read a roster from such a line, which a mail may have wrapped or quoted, or from the file of this name.
    RosterFileError as in `read_roster`, and for a damaged line."""
    joined = re.sub(r"[\s>]+", "", given)
    if not joined.startswith(ROSTER_LINE):
        return read_roster(Path(given))
    coded = joined.removeprefix(ROSTER_LINE)
    unpack = zlib.decompressobj()
    try:
        content = unpack.decompress(b64decode(coded + "=" * (-len(coded) % 4), b"-_", validate=True), _LARGEST)
    except (ValueError, zlib.error):
        content = b""
    if not unpack.eof or unpack.unused_data:
        raise RosterFileError(
            f"the line of the roster was damaged on its way ({len(coded)} characters): paste the whole line that "
            "`tacit roster make` printed, or give its file"
        )
    return _decoded(content, "the line of the roster")


def read_roster(path: Path) -> Roster:
    """Read and check a roster file. Raises RosterFileError with the file, the member and the key at fault."""
    try:
        return _decoded(path.read_bytes(), str(path))
    except FileNotFoundError as error:
        raise RosterFileError(f"{path}: no such file; ask the operator of the server for the roster") from error
    except OSError as error:
        raise RosterFileError(f"{path}: cannot be read: {error.strerror}") from error


def _decoded(content: bytes, where: str) -> Roster:
    try:
        file = msgspec.toml.decode(content.removeprefix(BOM_UTF8), type=_RosterFile)
        return Roster(
            tuple(_member(entry) for entry in file.member),
            file.version,
            decode_key(file.operator) if file.operator else b"",
            decode_signature(file.signature) if file.signature else b"",
            decode_key(file.lineage) if file.lineage else b"",
            decode_key(file.standby) if file.standby else b"",
            tuple(_member(entry) for entry in file.former),
        )
    except (msgspec.DecodeError, ValueError) as error:
        raise RosterFileError(f"{where}: {error}") from error


class _Entry(msgspec.Struct, forbid_unknown_fields=True):
    name: str
    role: Role
    curve: str
    signing: str
    group: int = 0
    previous: list[str] = []


class _RosterFile(msgspec.Struct, forbid_unknown_fields=True):
    member: list[_Entry]
    version: int = 0
    operator: str = ""
    lineage: str = ""
    standby: str = ""
    signature: str = ""
    former: list[_Entry] = []


def _changed(
    roster: Roster,
    members: tuple[Member, ...],
    operator: PartyKeys | None,
    standby: bytes = b"",
    former: tuple[Member, ...] | None = None,
) -> Roster:
    """The roster with these members: as the next version, if it has versions. ValueError for a forbidden change."""
    former = roster.former if former is None else former
    if not roster.operator:
        if operator is not None:
            raise ValueError("the roster has no operator: leave out --operator, or make the roster anew with it")
        made = Roster(members, standby=standby, former=former)
    elif operator is None or operator.signing_public != roster.operator:
        whose = f"{operator.name!r} is not its operator" if operator else "it has an operator"
        raise ValueError(f"{whose}: give its operator's key file as --operator")
    else:
        signing = SigningKey(operator.signing_secret)
        version, standby = roster.version + 1, standby or roster.standby
        made = Roster.signed(
            members, version=version, operator=signing, lineage=roster.lineage, standby=standby, former=former
        )
    return _checked(roster, made)


def _checked(roster: Roster, made: Roster) -> Roster:
    try:
        if roster.operator:
            check_version(roster, made)
        check_rules(roster, made)
    except RemoteProtocolError as error:
        raise ValueError(f"{error.detail}: make the roster anew") from None
    return made


def _grouped(cards: Sequence[Member], size: int, *, first: int) -> tuple[Member, ...]:
    """The members, with clients in groups of at least this size, if they fill one."""
    count = sum(card.role == "client" for card in cards)
    numbers = iter(group_numbers(count, size, first))
    return tuple(
        msgspec.structs.replace(card, group=next(numbers)) if card.role == "client" else card for card in cards
    )


def _member(entry: _Entry) -> Member:
    keys = []
    earlier = (("previous", text) for text in entry.previous)
    for purpose, text in (("curve", entry.curve), ("signing", entry.signing), *earlier):
        try:
            keys.append(decode_key(text))
        except ValueError as error:
            raise ValueError(f"member {entry.name!r}, {purpose}: {error}; copy it from the member's card") from None
    return Member(
        name=entry.name,
        role=entry.role,
        curve_public=keys[0],
        signing_public=keys[1],
        group=entry.group,
        previous=tuple(keys[2:]),
    )
