"""The roster as a file: one TOML table `[[member]]` with name, role, curve and signing key for each party, and the
number of its group where clients are in groups.

The file is public but must arrive unchanged: compare the hash of the roster over a second channel.
"""

from pathlib import Path

import msgspec

from tacit.parties.links.keys import decode_key, encode_key
from tacit.protocol.core.roster import Member, Role, Roster


class RosterFileError(Exception):
    """A roster file cannot be written, read or accepted; the message names the file and the entry."""


def write_roster(roster: Roster, path: Path) -> None:
    """Write a new roster file. Raises RosterFileError when it exists already or cannot be written."""
    tables = [
        f'[[member]]\nname = "{member.name}"\nrole = "{member.role}"\n'
        f'curve = "{encode_key(member.curve_public)}"\nsigning = "{encode_key(member.signing_public)}"\n'
        + (f"group = {member.group}\n" if member.group else "")
        for member in roster.members
    ]
    try:
        with path.open("x", encoding="ascii") as file:
            file.write("\n".join(tables))
    except FileExistsError as error:
        raise RosterFileError(f"{path}: exists already; move it away, its hash may be in use") from error
    except OSError as error:
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


def _member(entry: _Entry) -> Member:
    keys = {}
    for purpose, text in (("curve", entry.curve), ("signing", entry.signing)):
        try:
            keys[purpose] = decode_key(text)
        except ValueError as error:
            raise ValueError(
                f"member {entry.name!r}, {purpose}: {error}; copy it from the member's .pub file"
            ) from None
    return Member(
        name=entry.name,
        role=entry.role,
        curve_public=keys["curve"],
        signing_public=keys["signing"],
        group=entry.group,
    )
