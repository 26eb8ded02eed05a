"""Which later version of a roster a party takes up: what may change is enumerated for all rosters of four clients."""

import re
from itertools import product

import pytest
from msgspec.structs import replace

from tacit.protocol.core.errors import Code, RemoteProtocolError
from tacit.protocol.core.primitives import SigningKey
from tacit.protocol.core.roster import Difference, Member, Role, Roster, check_later, check_rules
from tests.cases import cases

OPERATOR = SigningKey(b"\x11" * 32)


def member(name: str, role: Role = "client", *, group: int = 0, keys: int = 0) -> Member:
    seed = 2 * (ord(name[0]) - ord("a")) + 64 * keys
    return Member(
        name=name,
        role=role,
        curve_public=bytes([seed]) * 32,
        signing_public=bytes([seed + 1]) * 32,
        group=group,
        previous=tuple(bytes([seed + 1 - 64 * before]) * 32 for before in range(keys, 0, -1)),
    )


SERVER = member("server", "server")


LINEAGE = bytes(range(32))


def roster(
    *members: Member,
    version: int = 1,
    operator: SigningKey = OPERATOR,
    lineage: bytes = LINEAGE,
    former: tuple[Member, ...] = (),
) -> Roster:
    members = (SERVER, *members)
    return Roster.signed(members, version=version, operator=operator, lineage=lineage, former=former)


def signed(*members: Member, version: int) -> Roster:
    return Roster.signed(members, version=version, operator=OPERATOR, lineage=LINEAGE)


HELD = roster(member("a"), member("b"), member("d", "dealer"), version=3)


def refusal(held: Roster, offered: Roster, own: str = "a") -> tuple[Code, str]:
    with pytest.raises(RemoteProtocolError) as refused:
        check_later(held, offered, own)
    return refused.value.code, refused.value.detail


def test_what_is_different_is_named() -> None:
    dealer = member("d", "dealer")
    offered = roster(member("c"), member("b", keys=1), member("a"), version=5, former=(dealer,))
    found = check_later(HELD, offered, "a")
    assert found == Difference(added=("c",), removed=("d",), rotated=("b",), regrouped=())
    assert found.changes == ("add", "remove", "rotate")
    assert check_later(HELD, roster(*HELD.members[1:], version=4), "a").changes == ()
    held = roster(*(member(name, group=1 + number // 2) for number, name in enumerate("abce")), member("f"))
    groups = {"a": 9, "b": 9, "c": 0, "f": 3, "g": 3}
    offered = roster(*(member(name, group=groups[name]) for name in groups), version=2, former=(member("e"),))
    found = check_later(held, offered, "a")
    assert found == Difference(added=("g",), removed=("e",), rotated=(), regrouped=("c", "f"))
    assert found.changes == ("add", "remove", "regroup")


OTHER = SigningKey(b"\x12" * 32)
NOT_LATER = {
    "an older version": (roster(member("a"), version=2), "it is the older version 2; this party holds version 3"),
    "another one of the version": (roster(member("a"), version=3), "it is another version 3;.*has made two"),
    "the same one": (HELD, "it is another version 3"),
    "another operator": (roster(member("a"), version=4, operator=OTHER), "another operator has signed it"),
    "another lineage": (roster(member("a"), version=4, lineage=bytes(32)), "version 4 is of another lineage"),
    "no operator": (Roster(HELD.members), "another operator has signed it"),
    "without this party": (roster(member("b"), version=4), "version 4 is without 'a': its operator has removed it"),
    "other keys of this party": (
        roster(member("a", keys=1), version=4),
        "version 4 has other keys of 'a' than this party",
    ),
}


def test_what_is_no_later_version_for_a_party() -> None:
    for offered in NOT_LATER:
        found, pattern = NOT_LATER[offered]
        code, detail = refusal(HELD, found)
        assert code is Code.ROSTER
        assert re.search(pattern, detail)
    code, detail = refusal(Roster(HELD.members), roster(member("a"), version=1))
    assert (code, "a roster without an operator" in detail) == (Code.ROSTER, True)


SPARE, NEXT = SigningKey(b"\x13" * 32), SigningKey(b"\x14" * 32)


def test_a_standby_key_takes_the_operators_place_for_good() -> None:
    members = HELD.members

    def made(version: int, operator: SigningKey, standby: SigningKey | None) -> Roster:
        spare = standby.public if standby else b""
        return Roster.signed(members, version=version, operator=operator, lineage=LINEAGE, standby=spare)

    # The operator names one where there is none, and does not change it afterwards.
    named = made(4, OPERATOR, SPARE)
    check_later(HELD, named, "a")
    for other in (None, NEXT):
        code, detail = refusal(named, made(5, OPERATOR, other))
        assert (code, "only that key itself replaces it" in detail) == (Code.ROSTER, True)
    # The standby key is later than anything that a thief of the operator's key has signed.
    exhausted = made(2**31, OPERATOR, SPARE)
    for standby in (None, NEXT):
        taken = made(5, SPARE, standby)
        check_later(exhausted, taken, "a")
        for former in (made(2**31, OPERATOR, SPARE), made(6, OPERATOR, None)):
            assert refusal(taken, former) == refusal(taken, made(6, OTHER, None))
    assert refusal(exhausted, made(5, SPARE, OPERATOR))[0] is Code.ROSTER
    assert refusal(HELD, made(4, SPARE, None))[0] is Code.ROSTER
    # The rules for members are the same.
    renamed = tuple(replace(one, name="other") if one is SERVER else one for one in members)
    assert refusal(named, Roster.signed(renamed, version=5, operator=SPARE, lineage=LINEAGE))[0] is Code.MEMBERS


BROKEN = {
    "the server's name": (SERVER.name, {"name": "other"}),
    "the server's keys, and it names none before": (SERVER.name, {"signing_public": bytes([200]) * 32}),
    "a role": ("d", {"role": "client"}),
    "groups where there were none": ("b", {"group": 1}),
}


@cases("change", BROKEN)
def test_what_nobody_changes(change: str) -> None:
    name, fields = BROKEN[change]
    members = tuple(replace(one, **fields) if one.name == name else one for one in HELD.members)
    assert refusal(HELD, Roster.signed(members, version=4, operator=OPERATOR, lineage=LINEAGE))[0] is Code.MEMBERS


def test_a_server_with_other_keys_names_those_before() -> None:
    other = replace(SERVER, curve_public=bytes([200]) * 32, signing_public=bytes([201]) * 32)
    named = replace(other, previous=(SERVER.signing_public,))
    members = HELD.members[1:]
    assert check_later(HELD, offered := signed(named, *members, version=4), "a").rotated == (SERVER.name,)
    # Another member that names them is not the server, and once rotated they never come back.
    thief = replace(member("e"), previous=(SERVER.signing_public,))
    assert refusal(HELD, signed(other, *members, thief, version=4))[0] is Code.MEMBERS
    assert refusal(offered, signed(SERVER, *members, version=5))[0] is Code.MEMBERS


GONE = -1
PLACES = tuple(product((GONE, 0, 1, 2), repeat=4))
"""Where each of four clients is: gone, in no group, or in one of two."""
GROUPED = {
    places: Roster(
        (SERVER, *(member(name, group=place) for name, place in zip("abce", places, strict=True) if place != GONE)),
        former=tuple(member(name) for name, place in zip("abce", places, strict=True) if place == GONE),
    )
    for places in PLACES
}


def may_become(before: tuple[int, ...], after: tuple[int, ...]) -> bool:
    if max(before) != GONE and (max(before) > 0) != (max(after) > 0):
        return False
    for number in {place for place in before if place > 0}:
        group = [client for client in range(4) if before[client] == number]
        retired = any(after[client] <= 0 for client in group)
        others = [after[client] for client in range(4) if client not in group]
        stays = len({after[client] for client in group}) == 1 and after[group[0]] not in others
        if not (retired or stays):
            return False
    return True


def refused(held: Roster, offered: Roster) -> Code | None:
    try:
        check_rules(held, offered)
    except RemoteProtocolError as error:
        return error.code
    return None


def test_nobody_moves_from_one_group_to_another() -> None:
    found = {(before, after): refused(GROUPED[before], GROUPED[after]) for before, after in product(PLACES, repeat=2)}
    assert found == {places: None if may_become(*places) else Code.MEMBERS for places in found}
    assert set(found.values()) == {None, Code.MEMBERS}


@cases(
    ("before", "after", "allowed"),
    [
        ((1, 1, 2, 2), (1, 2, 1, 2), False),
        ((1, 1, 2, 2), (2, 2, 1, 1), True),
        ((1, 1, 0, 0), (1, 1, 2, 2), True),
        ((1, 1, 1, 0), (1, 1, 1, 1), False),
        ((1, 1, 2, 2), (GONE, 0, 2, 2), True),
        ((1, 1, 2, 2), (GONE, 2, 2, 2), False),
        ((1, 1, 1, 2), (GONE, 1, 1, 2), True),
        ((1, 1, 0, 0), (0, 0, 0, 0), False),
    ],
)
def test_some_of_them_by_hand(before: tuple[int, ...], after: tuple[int, ...], allowed: bool) -> None:
    assert may_become(before, after) is allowed
