"""What may change from one version of a roster to a later one.

An operator signs every version (roster.py), so that nobody else adds members, removes them or gives them other keys. A
party takes up a later version of the roster that it holds, of the same operator, that keeps these rules. They look at
two versions, however many there were between, so that whoever was away can take up the last one:

- The server stays, with its keys; whoever else stays has the role that it had.
- Clients are in groups, or are in none, as before.
- A group stays as it is, or it is retired: at least one of its members is gone, or waits. Who is left of it waits as
  well, until its operator admits it in a group that there was not. So nobody moves from one group to another.

Who a group consists of is its names; that a member of it has another key is a change of the group too, which its own
clients ask their owners about (session/groups.py).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from tacit.protocol.core.errors import Code, RemoteProtocolError
from tacit.protocol.core.roster import Roster

RosterChange = Literal["add", "remove", "rotate"]
ROSTER_CHANGES: Final[tuple[RosterChange, ...]] = ("add", "remove", "rotate")


@dataclass(frozen=True)
class Difference:
    """What sets a later version of a roster apart, by the names of members."""

    added: tuple[str, ...]
    removed: tuple[str, ...]
    rotated: tuple[str, ...]
    """Who stays and has other keys."""
    regrouped: tuple[str, ...]
    """Clients that stay, and wait now or are in a group that there was not."""

    @property
    def changes(self) -> tuple[RosterChange, ...]:
        """What kinds of changes there are."""
        happened = zip(ROSTER_CHANGES, (self.added, self.removed, self.rotated), strict=True)
        return tuple(change for change, names in happened if names)


def check_later(held: Roster, offered: Roster, own: str) -> Difference:
    """What a party of this name takes up. Refuses (ROSTER) what is no later version for it, and (MEMBERS) what breaks
    the rules."""
    if not held.operator:
        raise _refused(f"this party holds a roster without an operator, which has no versions: give {own} the new one")
    if offered.operator != held.operator:
        raise _refused("another operator has signed it")
    if offered.version <= held.version:
        same = offered.version == held.version
        raise _refused(
            f"it is {'another' if same else 'the older'} version {offered.version}; this party holds version "
            f"{held.version}: {'its operator has made two' if same else 'give the server the newer one'}"
        )
    mine = {member.name: member for member in offered.members}.get(own)
    if mine is None:
        raise _refused(f"version {offered.version} is without {own!r}: its operator has removed it")
    former = held.member(own)
    if (mine.curve_public, mine.signing_public) != (former.curve_public, former.signing_public):
        raise _refused(
            f"version {offered.version} has other keys of {own!r} than this party: its operator rotated them"
        )
    check_rules(held, offered)
    return difference(held, offered)


def check_rules(held: Roster, offered: Roster) -> None:
    """Refuse (MEMBERS) what no operator may change while a federation goes on."""
    if offered.server != held.server:
        raise _broken(f"the server {held.server.name!r} is another one, or has other keys")
    roles = {member.name: member.role for member in held.members}
    for member in offered.members:
        if roles.get(member.name, member.role) != member.role:
            raise _broken(f"{member.name!r} was a {roles[member.name]}, and is a {member.role}")
    if held.clients and bool(held.groups) != bool(offered.groups):
        raise _broken("clients were in groups, and are in none, or the reverse")
    stay = set(map(frozenset, offered.groups))
    in_groups = {name for group in offered.groups for name in group}
    for group in held.groups:
        if frozenset(group) not in stay and in_groups.issuperset(group):
            raise _broken(f"the group of {', '.join(group)} is another one, and none of them has gone")


def difference(held: Roster, offered: Roster) -> Difference:
    """What sets a later version apart."""
    before, after = ({member.name: member for member in roster.members} for roster in (held, offered))
    stay = [name for name in after if name in before]
    return Difference(
        added=tuple(name for name in after if name not in before),
        removed=tuple(name for name in before if name not in after),
        rotated=tuple(
            name
            for name in stay
            if (before[name].curve_public, before[name].signing_public)
            != (after[name].curve_public, after[name].signing_public)
        ),
        regrouped=tuple(
            name
            for name in stay
            if (name in held.waiting, frozenset(held.group_of(name)))
            != (name in offered.waiting, frozenset(offered.group_of(name)))
        ),
    )


def _refused(detail: str) -> RemoteProtocolError:
    return RemoteProtocolError(Code.ROSTER, f"a roster that cannot be taken up: {detail}")


def _broken(detail: str) -> RemoteProtocolError:
    return RemoteProtocolError(Code.MEMBERS, f"a roster that cannot be taken up: {detail}")
