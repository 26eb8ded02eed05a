"""A federation whose roster is changed between two rounds: the others go on, and nobody goes by two rosters."""

from collections.abc import Callable

import numpy as np
from msgspec.structs import replace

from tacit.protocol.core.errors import Code
from tacit.protocol.core.machine import Ended
from tacit.protocol.core.primitives import SigningKey
from tacit.protocol.core.roster import Member, Roster
from tacit.protocol.group_key.holder import LastModel, Reencrypt
from tacit.protocol.session.messages import Hello, NewRoster
from tacit.protocol.session.rounds import RosterChanged, RoundDone
from tacit.protocol.session.states import SessionState
from tacit.protocol.sum.policy import Policy
from tacit.simulate.world.federation import GRACE, JOIN_SECONDS, MemoryFederation, small_configuration
from tacit.simulate.world.world import Streams, new_members
from tests.cases import cases

OPERATOR, LINEAGE = SigningKey(b"\x11" * 32), bytes(range(32))
NAMES = ("server", *(f"client-{number}" for number in range(9)))
ROSTER, SIGNING = new_members(
    {name: "server" if name == "server" else "client" for name in NAMES}, Streams(b"changed rosters")
)
MEMBERS = {member.name: member for member in ROSTER.members}


def version(number: int, *members: Member) -> Roster:
    """All others are former members of it."""
    names = {"server", *(member.name for member in members)}
    former = tuple(member for name, member in MEMBERS.items() if name not in names)
    members = (MEMBERS["server"], *members)
    return Roster.signed(members, version=number, operator=OPERATOR, lineage=LINEAGE, former=former)


def clients(*numbers: int, groups: tuple[int, ...] = ()) -> list[Member]:
    chosen = [MEMBERS[f"client-{number}"] for number in numbers]
    return [replace(one, group=group) for one, group in zip(chosen, groups or (0,) * len(chosen), strict=True)]


def rotated(member: Member) -> Member:
    other, former = SigningKey(b"\x22" * 32).public, member.signing_public
    return replace(member, curve_public=b"\x01" * 32, signing_public=other, previous=(former,))


FIRST = version(1, *clients(0, 1, 2, 3))


def federation(roster: Roster = FIRST, **changes: object) -> MemoryFederation:
    """One that has held a round, and whose server is about to go on."""
    one = MemoryFederation(small_configuration(5, **changes), 0, rounds=3, members=(roster, dict(SIGNING)))
    one.paused = True
    one.start()
    assert one.server.state is SessionState.BETWEEN_ROUNDS
    return one


def go_on(one: MemoryFederation) -> MemoryFederation:
    one.paused = False
    one.start()
    return one.settle()


def test_the_others_go_on_without_who_is_removed_and_with_who_is_added() -> None:
    one = federation()
    session = one.server.session
    one.change_roster(version(2, *clients(0, 1, 2, 4)))
    for name in ("client-0", "client-1", "client-2"):
        assert one.rosters[name] == one.roster
        assert one.ended(name) == Ended(Code.ROSTER, "it goes on with version 2 of the roster")
    gone = one.ended("client-3")
    assert gone is not None
    assert "version 2 is without 'client-3': its operator has removed it" in gone.detail
    assert gone.final
    assert one.rosters["client-3"] == FIRST
    one.rosters["client-4"] = one.roster
    go_on(one)
    first, second, third = one.outcome(RoundDone)
    assert (first.round, first.survivors) == (1, FIRST.clients)
    assert [(done.round, done.survivors) for done in (second, third)] == [
        (2, one.roster.clients),
        (3, one.roster.clients),
    ]
    assert session != one.server.session
    for done in (first, second, third):
        np.testing.assert_array_equal(done.total, one.plain_sum(done))


def test_other_keys_are_those_that_sign_from_then_on() -> None:
    one = federation()
    one.change_roster(version(2, rotated(MEMBERS["client-0"]), *clients(1, 2, 3)))
    assert [change.difference.rotated for change in one.outcome(RosterChanged)] == [("client-0",)] * 3
    assert one.rosters["client-0"] == FIRST
    one.rosters["client-0"], one.signing["client-0"] = one.roster, SigningKey(b"\x22" * 32)
    go_on(one)
    assert [done.survivors for done in one.outcome(RoundDone)] == [FIRST.clients] * 3


def test_who_was_away_is_handed_the_last_version() -> None:
    one = federation()
    one.kill("client-2")
    one.rosters["client-2"] = FIRST
    one.change_roster(version(2, *clients(0, 1, 2, 3, 4)))
    one.change_roster(version(3, *clients(0, 1, 2, 3)))
    one.start_client("client-2")
    one.settle(until=one.now)
    assert one.rosters["client-2"].version == 3
    assert [type(parcel.message) for parcel in one.log[-2:]] == [Hello, NewRoster]
    assert "client-2" not in one.server.presence.barred
    # The others hold version 2, and are handed version 3 in turn.
    one.start("client-0", "client-1", "client-3")
    go_on(one)
    assert [done.survivors for done in one.outcome(RoundDone)] == [FIRST.clients] * 3


def test_another_roster_without_an_operator_bars_nobody() -> None:
    one = MemoryFederation(small_configuration(4), 4)
    right = one.roster
    one.rosters["client-0"] = Roster(right.members[:-1])
    one.run()
    assert one.ended("client-0") is not None
    assert one.ended("client-0").code is Code.ROSTER  # type: ignore[union-attr]
    other = MemoryFederation(small_configuration(4), 4)
    other.rosters["client-0"] = Roster(right.members[:-1])
    other.start()
    assert other.server.state is SessionState.GATHERING
    del other.rosters["client-0"]
    other.start_client("client-0")
    other.settle()
    assert [done.survivors for done in other.outcome(RoundDone)] == [right.clients]


def test_a_server_that_was_set_back_is_refused_by_whoever_has_the_newer_one() -> None:
    one = federation()
    newer = version(2, *clients(0, 1, 2))
    one.rosters["client-0"] = newer
    one.start_client("client-0")
    one.settle(until=one.now)
    ended = one.ended("client-0")
    assert ended is not None
    assert (ended.code, one.rosters["client-0"]) == (Code.ROSTER, newer)
    assert "it is the older version 1; this party holds version 2" in ended.detail


CHANGES: dict[str, Callable[[], list[Member]]] = {
    "add": lambda: clients(0, 1, 2, 3, 4),
    "remove": lambda: clients(0, 1, 2),
    "rotate": lambda: [*clients(0, 1, 2), rotated(MEMBERS["client-3"])],
}


@cases("change", CHANGES)
@cases("accepted", CHANGES)
def test_a_policy_accepts_kinds_of_changes(change: str, accepted: str) -> None:
    one = MemoryFederation(
        small_configuration(5), 0, rounds=2, members=(FIRST, dict(SIGNING)),
        policies={"client-0": Policy(roster_changes=(accepted,))},  # type: ignore[arg-type]
    )  # fmt: skip
    one.paused = True
    one.start()
    one.change_roster(version(2, *CHANGES[change]()))
    ended = one.ended("client-0")
    assert ended is not None
    assert ended.code is (Code.ROSTER if change == accepted else Code.POLICY)
    assert (one.rosters["client-0"] == one.roster) == (change == accepted)
    assert one.rosters["client-1"] == one.roster


def test_before_the_first_round_a_server_changes_at_once() -> None:
    one = MemoryFederation(small_configuration(5), 0, members=(FIRST, dict(SIGNING)))
    one.start("client-0", "client-1", "client-2")
    assert one.server.state is SessionState.GATHERING
    one.change_roster(version(2, *clients(0, 1, 2)))
    assert {name: roster.version for name, roster in one.rosters.items()} == {f"client-{n}": 2 for n in range(3)}
    go_on(one)
    assert [done.survivors for done in one.outcome(RoundDone)] == [one.roster.clients]


PAIRED = (1, 1, 2, 2, 3, 3, 4, 4, 0)
PAIRS = version(1, *clients(*range(9), groups=PAIRED))


def grouped() -> MemoryFederation:
    one = MemoryFederation(
        small_configuration(8, colluders=0, dropout=0.34, parameters=60), 0, rounds=4, members=(PAIRS, dict(SIGNING))
    )
    one.paused = True
    one.start()
    assert one.outcome(RoundDone)[0].survivors == PAIRS.clients[:8]
    return one


def test_a_group_is_retired_and_admitted_as_a_new_one() -> None:
    """client-1 goes: client-0 waits, as client-8 did from the beginning, and then both are a group."""
    one = grouped()
    assert one.journals["client-8"] == []
    one.change_roster(version(2, *clients(0, *range(2, 9), groups=(0, *PAIRED[2:]))))
    assert one.roster.waiting == ("client-0", "client-8")
    assert {name for name, roster in one.rosters.items() if roster == one.roster} == set(one.roster.clients)
    one.paused = False
    one.rounds_left = 1
    one.start()
    one.settle(until=one.now + 1)
    assert one.outcome(RoundDone)[-1].survivors == PAIRS.clients[2:8]

    admitted = version(3, *clients(0, *range(2, 9), groups=(5, *PAIRED[2:8], 5)))
    one.roster, one.rosters, one.rounds_left = admitted, {}, 1
    one.start_server(completed=one.server.round)
    one.start()
    one.settle(until=one.now + 1)
    ended = one.ended("client-0")
    assert ended is not None
    assert ended.code is Code.POLICY
    assert f'tacit client --accept-groups "{admitted.fingerprint}"' in ended.detail
    one.accepted_groups = admitted.fingerprint
    one.start_server(completed=one.server.round)
    one.start()
    one.settle()
    assert one.outcome(RoundDone)[-1].survivors == admitted.clients


def test_only_clients_of_a_changed_group_ask_their_owners() -> None:
    one = grouped()
    keys = rotated(MEMBERS["client-2"])
    one.change_roster(
        version(2, *clients(0, 1, groups=(1, 1)), replace(keys, group=2), *clients(*range(3, 9), groups=PAIRED[3:]))
    )
    codes = {name: one.ended(name).code for name in PAIRS.clients}  # type: ignore[union-attr]
    assert {name for name, code in codes.items() if code is Code.POLICY} == {"client-3"}
    assert {name for name, roster in one.rosters.items() if roster == PAIRS} == {"client-2", "client-3"}
    one.accepted_groups = one.roster.fingerprint
    one.start_client("client-3")
    one.settle(until=one.now)
    assert one.rosters["client-3"] == one.roster


def test_a_change_that_moves_somebody_is_refused_by_everybody() -> None:
    one = grouped()
    one.change_roster(version(2, *clients(*range(9), groups=(1, 2, 2, 1, *PAIRED[4:]))))
    assert {one.ended(name).code for name in PAIRS.clients} == {Code.MEMBERS}  # type: ignore[union-attr]
    assert set(one.rosters.values()) == {PAIRS}


def test_who_was_there_before_is_waited_for_but_not_for_ever() -> None:
    # A client that does not come back holds the others up for a short time only.
    one = federation()
    one.change_roster(version(2, *clients(0, 1, 2, 3)))
    one.start_server(completed=1, enough_seconds=3.0)
    one.paused = False
    one.start("client-0", "client-1", "client-2")
    one.settle(until=one.now + 2)
    assert one.server.state is SessionState.GATHERING
    one.settle(until=one.now + 2)
    assert [done.survivors for done in one.outcome(RoundDone)[1:]] == [("client-0", "client-1", "client-2")] * 2

    one = federation()
    one.change_roster(version(2, *clients(0, 1, 2, 3)))
    one.start_server(completed=1, enough_seconds=3.0)
    one.paused = False
    one.start("client-0", "client-1")
    one.settle(until=one.now + JOIN_SECONDS - 1)
    assert one.server.state is SessionState.GATHERING
    one.start("client-2")
    one.settle(until=one.now + GRACE + 1)
    assert one.outcome(RoundDone)[-1].survivors == ("client-0", "client-1", "client-2")


def test_who_is_removed_learns_no_key_of_the_others() -> None:
    """The model is handed out, the others remember it, and encrypt it under a key that they agree on anew."""
    encrypted = {"encrypted": True, "group_key": True, "initial_model": "clients", "mode": "semi-honest"}
    one = MemoryFederation(
        small_configuration(4, **encrypted), 0, rounds=2, members=(FIRST, dict(SIGNING)), smallest_cohort=3,
        policies={name: Policy(modes=("semi-honest",)) for name in FIRST.clients},
    )  # fmt: skip
    one.paused = True
    one.start()
    one.change_roster(version(2, *clients(0, 1, 2)))
    last = one.outcome(LastModel)
    assert len(last) == 4
    go_on(one)
    keys = {order.key.key: order.key.members for order in one.outcome(Reencrypt)}
    assert list(keys.values()) == [FIRST.clients, one.roster.clients]
    assert [order.source for order in one.outcome(Reencrypt)][-1] == "remembered"
    assert [(done.round, done.survivors) for done in one.outcome(RoundDone)] == [
        (1, FIRST.clients),
        (2, one.roster.clients),
    ]
