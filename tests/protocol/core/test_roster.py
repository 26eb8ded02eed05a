"""Rosters, their hashes and versions, and the encoding of sets of members."""

from hashlib import sha256
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tacit.protocol.core.errors import Code, RemoteProtocolError
from tacit.protocol.core.primitives import SigningKey, verify
from tacit.protocol.core.roster import Member, Members, Role, Roster, RosterLabel, check_name, encode_members
from tests.cases import cases


def member(name: str, role: Role, seed: int) -> Member:
    return Member(name=name, role=role, curve_public=bytes([seed]) * 32, signing_public=bytes([255 - seed]) * 32)


MEMBERS = (
    member("server", "server", 1),
    member("b", "client", 2),
    member("dealer", "dealer", 3),
    member("a", "client", 4),
)
ROSTER = Roster(MEMBERS)


def test_members_and_clients_are_found_in_their_order() -> None:
    assert ROSTER.clients == ("b", "a")
    assert [ROSTER.index(name) for name in ROSTER.clients] == [0, 1]
    assert [ROSTER.member(entry.name) for entry in MEMBERS] == list(MEMBERS)
    assert ROSTER.server is MEMBERS[0]
    for name in ["nobody", "", "server ", "B"]:
        with pytest.raises(LookupError, match=r"its members are server, b, dealer, a"):
            ROSTER.member(name)
    for name in ["nobody", "server", "dealer"]:
        with pytest.raises(LookupError, match=f"{name}.*its clients are b, a"):
            ROSTER.index(name)


def fixed_text(text: bytes) -> bytes:
    return bytes([0xA0 + len(text)]) + text


def test_hash_matches_its_definition_written_by_hand() -> None:
    # msgpack: fixarray 0x90+n, fixstr 0xA0+n, bin 8 0xC4 length.
    rows = b"".join(
        b"\x95"
        + fixed_text(name)
        + fixed_text(role)
        + b"\xc4\x20"
        + bytes([seed]) * 32
        + b"\xc4\x20"
        + bytes([255 - seed]) * 32
        + b"\x00"
        for name, role, seed in [
            (b"server", b"server", 1),
            (b"b", b"client", 2),
            (b"dealer", b"dealer", 3),
            (b"a", b"client", 4),
        ]
    )
    assert ROSTER.hash == sha256(b"\x92" + fixed_text(b"tacit/1 roster") + b"\x94" + rows).digest()


CHANGES = [
    {"name": "c"},
    {"role": "dealer"},
    {"curve_public": bytes([9]) * 32},
    {"signing_public": bytes([9]) * 32},
]


@cases("change", CHANGES)
@cases("position", [1, 3])
def test_every_field_of_every_member_enters_the_hash(change: dict[str, object], position: int) -> None:
    changed = list(MEMBERS)
    changed[position] = msgspec.structs.replace(changed[position], **change)
    assert Roster(tuple(changed)).hash != ROSTER.hash


GROUPS = {"b": 300, "a": 2, "c": 2, "d": 300, "e": 300}
"""Clients in two groups, by their numbers."""


def grouped(groups: dict[str, int]) -> Roster:
    clients = [
        msgspec.structs.replace(member(name, "client", 10 + n), group=groups[name]) for n, name in enumerate(groups)
    ]
    return Roster((MEMBERS[0], *clients))


def test_groups_enter_the_hash() -> None:
    hashes = {grouped(GROUPS | change).hash for change in ({}, {"a": 300}, {"b": 1}, dict.fromkeys(GROUPS, 0))}
    assert len(hashes) == 4
    row = [b"\x95" + fixed_text(b"b") + fixed_text(b"client"), b"\xc4\x20" + bytes([10]) * 32]
    row += [b"\xc4\x20" + bytes([245]) * 32, b"\xcd\x01\x2c"]
    server = b"\x95" + 2 * fixed_text(b"server") + b"\xc4\x20" + b"\1" * 32 + b"\xc4\x20" + b"\xfe" * 32 + b"\x00"
    text = b"\x92" + fixed_text(b"tacit/1 roster") + b"\x92" + server + b"".join(row)
    assert grouped({"b": 300}).hash == sha256(text).digest()


def test_groups_are_listed_by_their_first_members_and_who_has_none_waits() -> None:
    roster = grouped(GROUPS)
    assert roster.groups == (("b", "d", "e"), ("a", "c"))
    assert [roster.group_of(name) for name in ("d", "a")] == [("b", "d", "e"), ("a", "c")]
    assert ROSTER.groups == ()
    assert ROSTER.group_of("a") == ("a",)
    roster = grouped(GROUPS | {"c": 0, "e": 0})
    assert (roster.waiting, roster.groups) == (("c", "e"), (("b", "d"), ("a",)))
    assert roster.gather(("c", "b", "d", "e"), 5) == ("b", "d")
    with pytest.raises(RemoteProtocolError, match="or one that waits"):
        roster.check_whole(("b", "d", "e"))
    assert (ROSTER.waiting, grouped(GROUPS).waiting) == ((), ())


def test_what_is_gathered_is_whole_groups() -> None:
    for names, most, gathered in [
        ("bacde", 5, "bacde"),
        ("bacde", 4, "bde"),
        ("acbde", 4, "ac"),
        ("bacd", 5, "ac"),
        ("bde", 3, "bde"),
        ("bde", 2, ""),
        ("bc", 5, ""),
        ("", 5, ""),
    ]:
        assert grouped(GROUPS).gather(tuple(names), most) == tuple(gathered)
    assert ROSTER.gather(("b", "a"), 1) == ("b",)
    assert ROSTER.gather(("a", "b"), 1) == ("a",)
    assert ROSTER.gather(("a", "b"), 2) == ("b", "a")


@cases(
    ("cohort", "whole"),
    [("bde", True), ("ac", True), ("bacde", True), ("bacd", False), ("a", False)],
)
def test_a_cohort_that_cuts_a_group_is_refused(cohort: str, whole: bool) -> None:
    if whole:
        grouped(GROUPS).check_whole(tuple(cohort))
        return
    with pytest.raises(RemoteProtocolError, match="some clients of a group without the others") as refused:
        grouped(GROUPS).check_whole(tuple(cohort))
    assert refused.value.code is Code.MEMBERS


def test_members_that_are_refused() -> None:
    for group in [-1, 10_001, 1.0, "1", None, True]:
        with pytest.raises(ValueError, match=r"member 'a': group .*; 1 to 10000, or 0 for none"):
            msgspec.structs.replace(member("a", "client", 1), group=group)
    for role in ["server", "dealer"]:
        with pytest.raises(ValueError, match="member 'a': group 1; only clients are in groups"):
            msgspec.structs.replace(member("a", role, 1), group=1)
    for name in ["a", "0", "-", "a" * 64, "hospital-7"]:
        check_name(name)
    for name in ["", "a" * 65, "A", "a b", "a\n", "ä", "a/b", "..", "a_b", 7]:
        with pytest.raises(ValueError, match="use 1 to 64 characters"):
            check_name(name)
        with pytest.raises(ValueError, match="use 1 to 64 characters"):
            member(name, "client", 1)
    for role in ["", "Server", "admin", None]:
        with pytest.raises(ValueError, match=r"member 'a': role .* is not one of server, client, dealer"):
            member("a", role, 1)
    for key in [b"", bytes(31), bytes(33), "k" * 32, bytearray(32)]:
        for field in ["curve_public", "signing_public"]:
            fields = {"name": "a", "role": "client", "curve_public": bytes(32), "signing_public": bytes(32), field: key}
            with pytest.raises(
                ValueError, match=f"member 'a': the {field.removesuffix('_public')} public key must be 32 bytes"
            ):
                Member(**fields)


OPERATOR = SigningKey(b"\x11" * 32)
LINEAGE = bytes(range(32))
SIGNED = Roster.signed(MEMBERS, version=300, operator=OPERATOR, lineage=LINEAGE)


def test_versions_are_hashed_and_signed() -> None:
    head, tail = b"\x95" + fixed_text(b"tacit/1 roster"), b"\xc4\x20" + OPERATOR.public + b"\xc4\x20" + LINEAGE
    assert SIGNED.encoded == head + ROSTER.encoded[len(head) :] + b"\xcd\x01\x2c" + tail
    assert SIGNED.hash == sha256(SIGNED.encoded).digest()
    verify(OPERATOR.public, SIGNED.signature, RosterLabel.SIGN_ROSTER, SIGNED.hash)
    assert Roster.decode(SIGNED.encoded, SIGNED.signature, held=SIGNED) == SIGNED


@cases(
    ("fields", "pattern"),
    [
        ({"version": 301}, "its signature is not that of its operator"),
        ({"members": MEMBERS[:2]}, "its signature is not that of its operator"),
        ({"operator": SigningKey(b"\x12" * 32).public}, "its signature is not that of its operator"),
        ({"signature": bytes(64)}, "its signature is not that of its operator"),
        ({"lineage": bytes(32)}, "its signature is not that of its operator"),
        ({"lineage": LINEAGE[:31]}, "its lineage has 31 bytes"),
        ({"lineage": b""}, "its lineage has 0 bytes"),
        ({"operator": b"", "version": 0, "signature": b""}, "a version, a lineage or a signature, and no operator"),
        ({"signature": b""}, "its signature is not that of its operator"),
        ({"version": 0}, "version 0: 1 to"),
        ({"version": 2**31 + 1}, "version 2147483649: 1 to"),
        ({"operator": b""}, "a version, a lineage or a signature, and no operator"),
        ({"operator": MEMBERS[1].signing_public}, "'b' has the operator's key"),
        ({"standby": bytes(32)}, "its signature is not that of its operator"),
        ({"standby": OPERATOR.public}, "the standby key of the operator has 32 bytes, and nobody else has it"),
        ({"standby": MEMBERS[1].signing_public}, "the standby key of the operator has 32 bytes, and nobody else has"),
        ({"standby": bytes(31)}, "the standby key of the operator has 32 bytes"),
    ],
)
def test_what_no_operator_signed(fields: dict[str, Any], pattern: str) -> None:
    with pytest.raises(ValueError, match=pattern):
        msgspec.structs.replace(SIGNED, **fields)


STANDBY = SigningKey(b"\x13" * 32)


def test_a_standby_key_ends_the_encoding_and_may_sign_another_one() -> None:
    held = Roster.signed(MEMBERS, version=300, operator=OPERATOR, lineage=LINEAGE, standby=STANDBY.public)
    assert held.encoded == b"\x96" + SIGNED.encoded[1:] + b"\xc4\x20" + STANDBY.public
    by_standby = Roster.signed(MEMBERS, version=300, operator=STANDBY, lineage=LINEAGE)
    assert Roster.decode(by_standby.encoded, by_standby.signature, held=held) == by_standby
    with pytest.raises(RemoteProtocolError):
        Roster.decode(by_standby.encoded, by_standby.signature, held=SIGNED)


def signed(encoded: bytes) -> bytes:
    return OPERATOR.sign(RosterLabel.SIGN_ROSTER, sha256(encoded).digest())


def test_only_the_operator_signs_and_only_what_is_a_roster() -> None:
    for encoded in [
        ROSTER.encoded,
        SIGNED.encoded + b"\0",
        SIGNED.encoded[:-1],
        SIGNED.encoded.replace(b"\xcd\x01\x2c", b"\xce\0\0\x01\x2c"),
        SIGNED.encoded.replace(b"tacit/1 roster", b"tacit/2 roster"),
        SIGNED.encoded.replace(b"\xa1a", b"\xa1b"),
        b"",
    ]:
        with pytest.raises(RemoteProtocolError) as refused:
            Roster.decode(encoded, signed(encoded), held=SIGNED)
        assert refused.value.code is Code.MALFORMED
    for encoded, signature in ((SIGNED.encoded, bytes(64)), (b"", SIGNED.signature)):
        with pytest.raises(RemoteProtocolError) as refused:
            Roster.decode(encoded, signature, held=SIGNED)
        assert refused.value.code is Code.SIGNATURE


@given(st.permutations(MEMBERS))
@settings(max_examples=24)
def test_order_enters_the_hash(members: list[Member]) -> None:
    assert (Roster(tuple(members)).hash == ROSTER.hash) == (tuple(members) == MEMBERS)


def test_members_that_do_not_go_together() -> None:
    with pytest.raises(ValueError, match="'a' is in the roster twice"):
        Roster((*MEMBERS, member("a", "client", 5)))
    for mine in ["curve_public", "signing_public"]:
        for theirs in ["curve_public", "signing_public"]:
            intruder = msgspec.structs.replace(member("c", "client", 5), **{mine: getattr(MEMBERS[1], theirs)})
            with pytest.raises(ValueError, match="'c' has a public key that 'b' also has"):
                Roster((*MEMBERS, intruder))
    for members in [
        (),  # empty
        MEMBERS[1:],  # none
        (*MEMBERS, member("second", "server", 5)),  # two
    ]:
        with pytest.raises(ValueError, match="exactly one member with the role 'server'"):
            Roster(members)


@st.composite
def sets(draw: st.DrawFn) -> tuple[set[int], int]:
    size = draw(st.integers(1, 40))
    return draw(st.sets(st.integers(0, size - 1))), size


@given(st.sets(st.integers(0, 20)), st.sets(st.integers(0, 20)))
def test_sets_as_sent_compare_like_sets(some: set[int], others: set[int]) -> None:
    first, second = (Members(encode_members(members, 21), 21) for members in (some, others))
    assert list(first) == sorted(some)
    assert len(first) == len(some)
    assert [member in first for member in range(-1, 25)] == [member in some for member in range(-1, 25)]
    assert (first <= second) == (some <= others)
    assert (first == second, hash(first) == hash(second)) == (some == others, some == others)
