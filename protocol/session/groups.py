"""The group of a client over its sessions, as its journal has it.

Whatever sums are opened, members of a group stand in them with one and the same factor, as long as each of them keeps
to one group. So a client keeps to its own, the keys of whose members it writes down; another group, or none, it refuses
until its owner accepts the roster that has it. Every such change lets one difference through: of a sum before it and
one after it. While a client waits for a group it is in no sum, and has nothing to accept.
"""

from __future__ import annotations

from collections.abc import Iterable

from tacit.protocol.core.errors import Code, RemoteProtocolError
from tacit.protocol.core.primitives import Label, digest
from tacit.protocol.core.roster import Roster
from tacit.protocol.session.rounds import GroupEntry, JournalLine

NO_GROUP = b""


def group_hash(roster: Roster, client: str) -> bytes:
    """What a client writes down of its group: a hash of its members' signing keys, empty where it has none."""
    if not roster.member(client).group:
        return NO_GROUP
    return digest(Label.GROUP, *sorted(roster.member(name).signing_public for name in roster.group_of(client)))


def journalled_group(journal: Iterable[JournalLine]) -> bytes | None:
    """The group that a client with this journal keeps to; None where it may be any.

    Who took part and wrote no group was in none.
    """
    group = None
    for line in journal:
        if isinstance(line, GroupEntry):
            group = line.group
        elif group is None:
            group = NO_GROUP
    return group


def check_group(former: bytes | None, roster: Roster, client: str, *, accepted: str = "") -> tuple[GroupEntry, ...]:
    """What is to be written before a session with this roster. Refuses another group than the former.

    accepted: the fingerprint of a roster whose group the client's owner accepts, whichever it is.
    """
    if client in roster.waiting:
        return ()
    group = group_hash(roster, client)
    if former is None:
        return (GroupEntry(group=group),) if group else ()
    if former == group:
        return ()
    if accepted == roster.fingerprint:
        return (GroupEntry(group=group),)
    raise RemoteProtocolError(
        Code.POLICY,
        f"this client was in {'another group' if former else 'no group'} before, by its journal, than in the roster: "
        "sums before and after may differ by it alone; where its owner agrees, and the others of the group have the "
        f'same fingerprint: tacit client --accept-groups "{roster.fingerprint}"',
    )
