"""A server that hands on rosters as it likes: unsigned, older, changed, or one to some and another to others."""

from collections.abc import Callable

import pytest
from msgspec.structs import replace

from tacit.protocol.core.errors import Code
from tacit.protocol.core.messages import Abort
from tacit.protocol.core.primitives import SigningKey
from tacit.protocol.core.roster import Member, Roster, RosterChange
from tacit.protocol.session.messages import Hello, NewRoster, Welcome
from tacit.protocol.session.rounds import RosterChanged, RoundDone
from tacit.protocol.session.states import SessionState, TrainingState
from tacit.protocol.sum.exchange import Dropped
from tacit.protocol.sum.policy import Policy
from tacit.simulate.world.federation import SERVER, MemoryFederation, small_configuration
from tacit.simulate.world.world import Parcel, Streams, altered, new_members
from tests.cases import cases

VICTIM = "client-0"
OPERATOR, SERVERS_OWN = SigningKey(b"\x11" * 32), SigningKey(b"\x12" * 32)
PLANTED = SigningKey(b"\x13" * 32)
"""Of a member that is the server's own."""
CLIENTS = tuple(f"client-{number}" for number in range(9))
ROSTER, SIGNING = new_members(
    {SERVER: "server"} | dict.fromkeys(CLIENTS, "client"),  # type: ignore[arg-type]
    Streams(b"rosters of a server"),
    {name: 1 + number // 2 for number, name in enumerate(CLIENTS[:8])},
)
UNGROUPED = tuple(replace(member, group=0) for member in ROSTER.members)


def signed(
    members: tuple[Member, ...], version: int, operator: SigningKey = OPERATOR, *, lineage: bytes = bytes(32)
) -> Roster:
    return Roster.signed(members, version=version, operator=operator, lineage=lineage)


def grouped(policy: Policy | None = None) -> MemoryFederation:
    """Four pairs, and one that waits, after the first round of version 5 of the roster. policy: of the victim."""
    one = MemoryFederation(
        small_configuration(8, colluders=0, dropout=0.34, parameters=60),
        0,
        rounds=2,
        members=(signed(ROSTER.members, 5), SIGNING),
        policies={VICTIM: policy or Policy(least_corrupt=0.0)},
    )
    one.paused = True
    one.start()
    assert one.server.state is SessionState.BETWEEN_ROUNDS
    return one


def changed(name: str, **fields: object) -> tuple[Member, ...]:
    return tuple(replace(member, **fields) if member.name == name else member for member in ROSTER.members)


def with_keys(name: str) -> tuple[Member, ...]:
    """Another key of a member, whose private one the server knows."""
    former = ROSTER.member(name).signing_public
    return changed(name, signing_public=PLANTED.public, previous=(former,))


def spoilt(roster: Roster) -> NewRoster:
    return NewRoster(roster=roster.encoded, signature=bytes(64))


def told(members: tuple[Member, ...], version: int = 6, operator: SigningKey = OPERATOR) -> NewRoster:
    roster = signed(members, version, operator)
    return NewRoster(roster=roster.encoded, signature=roster.signature)


def formerly(version: int) -> NewRoster:
    """Of before the operator made the roster anew, with a member that it has removed since."""
    roster = signed(with_keys("client-1"), version, lineage=b"\x07" * 32)
    return NewRoster(roster=roster.encoded, signature=roster.signature)


LIES: dict[str, tuple[Callable[[], NewRoster], Code]] = {
    "another key of a member, unsigned": (lambda: spoilt(signed(with_keys("client-1"), 6)), Code.SIGNATURE),
    "another key of a member": (lambda: told(with_keys("client-1"), operator=SERVERS_OWN), Code.SIGNATURE),
    "a member of its own": (
        lambda: told((*ROSTER.members, replace(ROSTER.members[1], name="x", curve_public=b"\x01" * 32,
                      signing_public=PLANTED.public)), operator=SERVERS_OWN),
        Code.SIGNATURE,
    ),
    "without the others": (lambda: told(ROSTER.members[:2], operator=SERVERS_OWN), Code.SIGNATURE),
    "a former lineage": (lambda: formerly(6), Code.ROSTER),
    "no operator": (lambda: NewRoster(roster=ROSTER.encoded, signature=b""), Code.SIGNATURE),
    "an older version": (lambda: told(ROSTER.members, 4), Code.ROSTER),
    "its own version again": (lambda: told(ROSTER.members, 5), Code.ROSTER),
    "another one of its version": (lambda: told(changed("client-8", group=5), 5), Code.ROSTER),
}  # fmt: skip


@cases("lie", LIES)
@pytest.mark.threat("server/forges-rosters")
def test_what_the_operator_has_not_signed_as_later_is_not_taken_up(lie: str) -> None:
    make, code = LIES[lie]
    one = grouped()
    one.put(one.forge(SERVER, VICTIM, make(), round=0))
    one.advance()
    ended = one.ended(VICTIM)
    assert ended is not None
    assert ended.code is code
    assert not one.outcome(RosterChanged)
    aborts = [parcel.message for parcel in one.log if parcel.sender == VICTIM and parcel.packet.kind is Abort]
    assert [(abort.code, abort.culprit) for abort in aborts] == [(code, SERVER)]


MOVES = {
    "into another group": changed(VICTIM, group=2),
    "in exchange": tuple(
        replace(member, group={"client-1": 2, "client-2": 1}.get(member.name, member.group))
        for member in ROSTER.members
    ),
    "somebody into its group": changed("client-8", group=1),
    "out of all groups": UNGROUPED,
}


@cases("move", MOVES)
@pytest.mark.threat("server/moves-members")
def test_nobody_takes_up_that_somebody_moves_to_another_group(move: str) -> None:
    """Even from the operator, and whether it is in one of the groups or not."""
    one = grouped()
    for name in CLIENTS:
        one.put(one.forge(SERVER, name, told(MOVES[move]), round=0))
    assert {one.ended(name).code for name in CLIENTS} == {Code.MEMBERS}  # type: ignore[union-attr]
    assert not one.outcome(RosterChanged)


@pytest.mark.threat("server/moves-members")
def test_another_key_in_a_group_is_accepted_by_owners_only() -> None:
    """The operator puts a key of the server's into the place of client-1: its only companion asks its owner."""
    one = grouped()
    one.change_roster(signed(with_keys("client-1"), 6))
    ended = one.ended(VICTIM)
    assert ended is not None
    assert (ended.code, one.rosters[VICTIM].version) == (Code.POLICY, 5)


@pytest.mark.threat("server/moves-members")
def test_groups_that_end_are_a_change_of_members() -> None:
    """The operator has whole groups wait, which adds, removes and rotates nobody: fewer clients are in a sum then."""
    fewer = tuple(replace(member, group=0) if member.group == 3 else member for member in ROSTER.members)
    accepted: tuple[RosterChange, ...]
    for accepted in ((), ("add", "remove", "rotate")):
        one = grouped(Policy(least_corrupt=0.0, roster_changes=accepted))
        one.put(one.forge(SERVER, VICTIM, told(fewer), round=0))
        one.advance()
        over = one.ended(VICTIM)
        assert over is not None
        assert over.code is Code.POLICY
        assert not one.outcome(RosterChanged)


@pytest.mark.threat("server/two-rosters")
def test_no_sum_of_two_views() -> None:
    """The operator made two rosters of one version. The server has half of the clients take up the one, the others the
    other, and greets each half with the hash that it wants to see."""
    one = MemoryFederation(small_configuration(4), 0, rounds=2, members=(signed(UNGROUPED[:5], 5), SIGNING))
    one.paused = True
    one.start()
    left, right = (signed((*UNGROUPED[:5], other), 6) for other in UNGROUPED[5:7])
    for name in CLIENTS[2:4]:
        one.put(one.forge(SERVER, name, NewRoster(roster=right.encoded, signature=right.signature), round=0))
    one.change_roster(left)
    assert [one.rosters[name] for name in CLIENTS[:4]] == [left, left, right, right]

    def lie(parcel: Parcel) -> list[Parcel]:
        message, deceived = parcel.packet.kind, {parcel.sender, parcel.receiver} & set(CLIENTS[2:4])
        if deceived and message is Hello:
            return [altered(parcel, message=Hello(roster=left.hash))]
        if deceived and message is Welcome:
            return [altered(parcel, message=replace(parcel.message, roster=right.hash))]
        return [parcel]

    one.hook = lie
    one.paused = False
    one.start(*CLIENTS[:4])
    one.settle()
    first, *later = one.outcome(RoundDone)
    assert first.survivors == CLIENTS[:4]
    assert [done.total for done in later] == [None]
    dropped: tuple[Dropped, ...] = later[0].dropped
    assert {drop.member for drop in dropped if drop.code is Code.SIGNATURE} == {*CLIENTS[2:4]}


@pytest.mark.threat("server/two-rosters")
def test_who_took_up_the_other_one_is_not_led_back() -> None:
    one = MemoryFederation(small_configuration(4), 0, members=(signed(UNGROUPED[:5], 6), SIGNING))
    one.rosters[VICTIM] = signed((*UNGROUPED[:5], UNGROUPED[6]), 6)
    one.start()
    ended = one.ended(VICTIM)
    assert ended is not None
    assert ended.code is Code.ROSTER
    assert "it is another version 6" in ended.detail
    assert one.clients[VICTIM].state is TrainingState.ENDED
