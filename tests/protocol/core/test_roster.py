"""The roster refuses what would make its members ambiguous, and its hash can be computed by anybody from the text."""

from hashlib import sha256

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tacit.protocol.core.roster import Member, Role, Roster, check_name


def member(name: str, role: Role, seed: int) -> Member:
    return Member(name=name, role=role, curve_public=bytes([seed]) * 32, signing_public=bytes([255 - seed]) * 32)


MEMBERS = (
    member("server", "server", 1),
    member("b", "client", 2),
    member("dealer", "dealer", 3),
    member("a", "client", 4),
)
ROSTER = Roster(MEMBERS)


def test_clients_keep_roster_order() -> None:
    assert ROSTER.clients == ("b", "a")
    assert [ROSTER.index(name) for name in ROSTER.clients] == [0, 1]


def test_members_are_found_by_name() -> None:
    assert [ROSTER.member(entry.name) for entry in MEMBERS] == list(MEMBERS)
    assert ROSTER.server is MEMBERS[0]


@pytest.mark.parametrize("name", ["nobody", "", "server ", "B"])
def test_unknown_name(name: str) -> None:
    with pytest.raises(LookupError, match=r"its members are server, b, dealer, a"):
        ROSTER.member(name)


@pytest.mark.parametrize("name", ["nobody", "server", "dealer"])
def test_only_clients_have_an_index(name: str) -> None:
    with pytest.raises(LookupError, match=f"{name}.*its clients are b, a"):
        ROSTER.index(name)


def fixed_text(text: bytes) -> bytes:
    return bytes([0xA0 + len(text)]) + text


def test_hash_matches_its_definition_written_by_hand() -> None:
    # msgpack: fixarray 0x90+n, fixstr 0xA0+n, bin 8 0xC4 length.
    rows = b"".join(
        b"\x94"
        + fixed_text(name)
        + fixed_text(role)
        + b"\xc4\x20"
        + bytes([seed]) * 32
        + b"\xc4\x20"
        + bytes([255 - seed]) * 32
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


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: next(iter(change)))
@pytest.mark.parametrize("position", [1, 3])
def test_every_field_of_every_member_enters_the_hash(change: dict[str, object], position: int) -> None:
    changed = list(MEMBERS)
    changed[position] = msgspec.structs.replace(changed[position], **change)
    assert Roster(tuple(changed)).hash != ROSTER.hash


@given(st.permutations(MEMBERS))
@settings(max_examples=24)
def test_order_enters_the_hash(members: list[Member]) -> None:
    assert (Roster(tuple(members)).hash == ROSTER.hash) == (tuple(members) == MEMBERS)


@pytest.mark.parametrize("name", ["a", "0", "-", "a" * 64, "hospital-7"])
def test_valid_names(name: str) -> None:
    check_name(name)


@pytest.mark.parametrize("name", ["", "a" * 65, "A", "a b", "a\n", "ä", "a/b", "..", "a_b", 7])
def test_invalid_names(name: str) -> None:
    with pytest.raises(ValueError, match="use 1 to 64 characters"):
        check_name(name)
    with pytest.raises(ValueError, match="use 1 to 64 characters"):
        member(name, "client", 1)


@pytest.mark.parametrize("role", ["", "Server", "admin", None])
def test_invalid_role(role: Role) -> None:
    with pytest.raises(ValueError, match=r"member 'a': role .* is not one of server, client, dealer"):
        member("a", role, 1)


@pytest.mark.parametrize("key", [b"", bytes(31), bytes(33), "k" * 32, bytearray(32)], ids=repr)
@pytest.mark.parametrize("field", ["curve_public", "signing_public"])
def test_invalid_key(field: str, key: bytes) -> None:
    fields = {"name": "a", "role": "client", "curve_public": bytes(32), "signing_public": bytes(32), field: key}
    with pytest.raises(
        ValueError, match=f"member 'a': the {field.removesuffix('_public')} public key must be 32 bytes"
    ):
        Member(**fields)


def test_name_twice() -> None:
    with pytest.raises(ValueError, match="'a' is in the roster twice"):
        Roster((*MEMBERS, member("a", "client", 5)))


@pytest.mark.parametrize("mine", ["curve_public", "signing_public"])
@pytest.mark.parametrize("theirs", ["curve_public", "signing_public"])
def test_key_twice(mine: str, theirs: str) -> None:
    intruder = msgspec.structs.replace(member("c", "client", 5), **{mine: getattr(MEMBERS[1], theirs)})
    with pytest.raises(ValueError, match="'c' has a public key that 'b' also has"):
        Roster((*MEMBERS, intruder))


@pytest.mark.parametrize(
    "members", [(), MEMBERS[1:], (*MEMBERS, member("second", "server", 5))], ids=["empty", "none", "two"]
)
def test_exactly_one_server(members: tuple[Member, ...]) -> None:
    with pytest.raises(ValueError, match="exactly one member with the role 'server'"):
        Roster(members)
