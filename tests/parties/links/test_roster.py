"""Roster files, and rosters made from cards and changed later: every fault is named by file, member and key."""

from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec.structs import replace

from tacit.parties.links.keys import PartyKeys, encode_key, generate, load_card, save
from tacit.parties.links.roster import (
    RosterFileError,
    check_card,
    check_own,
    make_roster,
    read_roster,
    signed_again,
    with_members,
    with_other_keys,
    without_members,
    write_roster,
)
from tacit.protocol.core.errors import Code, RemoteProtocolError
from tacit.protocol.core.primitives import SigningKey
from tacit.protocol.core.roster import Member, Role, Roster, check_later, check_rules


def test_roster_is_read_as_it_was_written(tmp_path: Path, roster: Roster) -> None:
    path = tmp_path / "roster.toml"
    write_roster(roster, path)
    assert read_roster(path) == roster
    assert read_roster(path).hash == roster.hash


def test_groups_are_read_as_they_were_written(tmp_path: Path, roster: Roster) -> None:
    grouped = Roster(tuple(replace(m, group=7) if m.role == "client" else m for m in roster.members))
    write_roster(grouped, tmp_path / "grouped.toml")
    assert read_roster(tmp_path / "grouped.toml") == grouped
    write_roster(roster, tmp_path / "alone.toml")
    assert "group" not in (tmp_path / "alone.toml").read_text()


def test_roster_from_cards(tmp_path: Path, keys: dict[str, PartyKeys], roster: Roster) -> None:
    roles = {"server": "server", "alice": "client", "bob": "client"}
    cards = [save(keys[name], tmp_path, role=role)[1] for name, role in roles.items()]
    assert make_roster([load_card(card) for card in cards]) == roster


def test_nothing_is_overwritten(tmp_path: Path, roster: Roster) -> None:
    path = tmp_path / "roster.toml"
    path.write_text("precious")
    with pytest.raises(RosterFileError, match=r"roster\.toml: exists already"):
        write_roster(roster, path)
    assert path.read_text() == "precious"


def test_places_that_cannot_be_used(tmp_path: Path, roster: Roster) -> None:
    with pytest.raises(RosterFileError, match="cannot be written: No such file or directory"):
        write_roster(roster, tmp_path / "missing" / "roster.toml")
    with pytest.raises(RosterFileError, match="no such file; ask the operator of the server"):
        read_roster(tmp_path / "roster.toml")
    with pytest.raises(RosterFileError, match="cannot be read: Is a directory"):
        read_roster(tmp_path)


FAULTS: dict[str, tuple[Callable[[str, str], str], str]] = {
    "empty": (lambda _text, _key: "", "missing required field `member`"),
    "no TOML": (lambda text, _: text + "]", "roster.toml: "),
    "no text": (lambda text, _: text + "\udcff", "roster.toml: "),
    "no role": (
        lambda text, _: text.replace('role = "client"\n', "", 1),
        r"missing required field `role` .*member\[1\]",
    ),
    "no key": (lambda text, key: text.replace(key, "nonsense"), "member 'alice', curve: a key must be 40 characters"),
    "two of a name": (lambda text, _: text.replace('"bob"', '"alice"'), "'alice' is in the roster twice"),
    "bad name": (lambda text, _: text.replace('"bob"', '"Bob"'), "member name 'Bob': use 1 to 64"),
    "no server": (
        lambda text, _: text.replace('role = "server"', 'role = "dealer"'),
        "exactly one member with the role",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_faults_are_named(tmp_path: Path, roster: Roster, fault: str) -> None:
    change, reason = FAULTS[fault]
    path = tmp_path / "roster.toml"
    write_roster(roster, path)
    changed = change(path.read_text(), encode_key(roster.member("alice").curve_public))
    path.write_bytes(changed.encode(errors="surrogateescape"))
    with pytest.raises(RosterFileError, match=f"roster.toml: .*{reason}" if "roster.toml" not in reason else reason):
        read_roster(path)


NAMES = ("server", *(f"client-{number}" for number in range(1, 10)))


def card(name: str) -> Member:
    return generate(name).member("server" if name == "server" else "client")


CARDS = [card(name) for name in NAMES]


def test_the_order_of_cards_numbers_the_clients() -> None:
    roster = make_roster([CARDS[3], CARDS[0], CARDS[1], CARDS[2]])
    assert roster.clients == ("client-3", "client-1", "client-2")
    assert roster.groups == ()


@pytest.mark.parametrize(("clients", "size", "sizes"), [(6, 2, [2, 2, 2]), (7, 3, [4, 3]), (9, 9, [9])])
def test_as_many_groups_as_there_can_be(clients: int, size: int, sizes: list[int]) -> None:
    roster = make_roster(CARDS[: clients + 1], group_size=size)
    assert [len(group) for group in roster.groups] == sizes


def test_groups_that_cannot_be_filled() -> None:
    with pytest.raises(ValueError, match="--group-size 4: 3 clients make no group of 4"):
        make_roster(CARDS[:4], group_size=4)


def test_newcomers_wait_until_they_fill_a_group() -> None:
    before = make_roster(CARDS[:7], group_size=3)
    waiting = with_members(before, CARDS[7:9])
    assert (waiting.groups, waiting.waiting) == (before.groups, ("client-7", "client-8"))
    assert with_members(waiting, [], group_size=3).waiting == ("client-7", "client-8")
    after = with_members(waiting, CARDS[9:], group_size=3)
    assert after.groups == (*before.groups, ("client-7", "client-8", "client-9"))
    assert (after.members[:7], after.waiting) == (before.members, ())
    with pytest.raises(ValueError, match="in no groups: leave out --group-size"):
        with_members(make_roster(CARDS[:7]), CARDS[7:], group_size=3)


def test_who_is_in_the_roster_already() -> None:
    roster = make_roster(CARDS[:7], group_size=3)
    with pytest.raises(ValueError, match=r"'client-1' is in the roster already$"):
        with_members(roster, [CARDS[1]], group_size=1)
    with pytest.raises(
        ValueError, match=r"'client-1' is in the roster already, with other keys .* `tacit roster rotate`"
    ):
        with_members(roster, [card("client-1")], group_size=1)


def test_a_group_that_loses_a_member_is_retired() -> None:
    roster = make_roster(CARDS[:7], group_size=3)
    retired = without_members(roster, ["client-1"])
    assert (retired.groups, retired.waiting) == (roster.groups[1:], ("client-2", "client-3"))
    admitted = with_members(retired, CARDS[7:8], group_size=3)
    assert admitted.groups == (("client-2", "client-3", "client-7"), ("client-4", "client-5", "client-6"))
    assert without_members(make_roster(CARDS[:4]), ["client-2"]).clients == ("client-1", "client-3")
    with pytest.raises(ValueError, match="clients were in groups, and are in none"):
        without_members(retired, ["client-4"])
    with pytest.raises(LookupError, match="'client-9' is not in the roster"):
        without_members(roster, ["client-9"])


def test_other_keys_take_the_place_of_the_old_ones() -> None:
    roster, new = make_roster(CARDS[:7], group_size=3), card("client-2")
    rotated = with_other_keys(roster, new)
    former = roster.member("client-2").signing_public
    assert rotated.member("client-2") == replace(new, group=1, previous=(former,))
    assert (rotated.groups, rotated.index("client-2")) == (roster.groups, 1)
    again = with_other_keys(rotated, other := card("client-99"), was="client-2")
    assert again.member("client-99") == replace(other, group=1, previous=(former, new.signing_public))
    assert again.clients[1] == "client-99"
    with pytest.raises(LookupError, match="'client-9' is not in the roster"):
        with_other_keys(roster, CARDS[9])
    served = with_other_keys(roster, card("server"))
    assert served.server.previous == (roster.server.signing_public,)
    with pytest.raises(ValueError, match="the server was 'server', and is 'other'"):
        with_other_keys(roster, replace(card("server"), name="other"), was="server")
    with pytest.raises(ValueError, match="'client-2' was a client, and is a dealer"):
        with_other_keys(roster, replace(new, role="dealer"))


def test_who_comes_back_has_all_keys_that_it_ever_had() -> None:
    """What was spent with former keys counts, and the roster that the member kept refuses versions that forget them."""
    office = generate("office")
    first = make_roster(CARDS[:4], operator=office)
    rotated = with_other_keys(first, new := card("client-2"), operator=office)
    removed = without_members(rotated, ["client-2"], operator=office)
    keys = rotated.member("client-2").signing_keys
    assert (removed.former, removed.clients) == ((rotated.member("client-2"),), ("client-1", "client-3"))
    newer = card("client-2")
    renamed = replace(new, name="client-9")
    for back, known in ((new, keys), (renamed, keys), (newer, (*keys, newer.signing_public))):
        added = with_members(removed, [back], operator=office)
        assert (added.member(back.name).signing_keys, added.former) == (known, ())
        for held in (first, rotated, removed):
            check_rules(held, added)
    with pytest.raises(ValueError, match="not all that it had before are named"):
        with_members(removed, [CARDS[2]], operator=office)
    # A version that an operator made otherwise, of rows alone.
    signing = SigningKey(office.signing_secret)
    for members in (removed.members, (*removed.members, new), (*removed.members, newer)):
        forgotten = Roster.signed(members, version=9, operator=signing, lineage=first.lineage)
        for held in (rotated, removed):
            with pytest.raises(RemoteProtocolError) as refused:
                check_rules(held, forgotten)
            assert refused.value.code is Code.MEMBERS


def test_only_its_operator_makes_versions(tmp_path: Path) -> None:
    office, other = generate("office"), generate("other")
    first = make_roster(CARDS[:4], operator=office)
    changes = [
        with_members(first, CARDS[4:5], operator=office),
        without_members(first, ["client-1"], operator=office),
        with_other_keys(first, card("client-1"), operator=office),
    ]
    assert first.version == 1
    assert {(made.version, made.operator) for made in changes} == {(2, office.signing_public)}
    with pytest.raises(ValueError, match="it has an operator: give its operator's key file as --operator"):
        without_members(first, ["client-1"])
    with pytest.raises(ValueError, match="'other' is not its operator: give its operator's key file"):
        without_members(first, ["client-1"], operator=other)
    with pytest.raises(ValueError, match="the roster has no operator: leave out --operator"):
        without_members(make_roster(CARDS[:4]), ["client-1"], operator=office)
    path = tmp_path / "roster.toml"
    for made in reversed(changes):
        write_roster(made, path, replace=True)
        assert read_roster(path) == made
    path.write_text(path.read_text().replace("version = 2", "version = 3"))
    with pytest.raises(RosterFileError, match="signature is not that of its operator, so it was changed"):
        read_roster(path)
    with pytest.raises(ValueError, match="'office' has the operator's key"):
        make_roster([CARDS[0], office.member("client")], operator=office)


def test_versions_of_a_roster_that_was_made_anew_are_none_of_the_new_one() -> None:
    """The operator removed a member and made the roster anew, as groups and roles take: a version with that member."""
    office = generate("office")
    first = make_roster(CARDS[:4], operator=office)
    second = with_members(first, CARDS[4:5], operator=office)
    anew = make_roster(CARDS[:4], operator=office)
    with pytest.raises(RemoteProtocolError) as refused:
        check_later(anew, second, "client-1")
    assert refused.value.code is Code.ROSTER
    assert check_later(anew, with_members(anew, CARDS[4:5], operator=office), "client-1").added == (CARDS[4].name,)
    # Without an operator there are no versions, and everybody makes the same roster of the same cards.
    assert make_roster(CARDS[:4]) == make_roster(CARDS[:4])


def test_a_key_serves_one_member() -> None:
    with pytest.raises(ValueError, match=r"'client-2' has a public key that 'client-1' also has.*generate new keys"):
        make_roster([*CARDS[:2], replace(CARDS[2], signing_public=CARDS[1].signing_public)])


def test_own_keys_are_compared() -> None:
    own = generate("client-1")
    roster = make_roster([CARDS[0], own.member("client"), CARDS[2]], group_size=2)
    assert check_own(roster, own, where="R").group == 1
    assert check_own(roster, own, "client", where="R").name == "client-1"
    with pytest.raises(ValueError, match="R: 'client-1' has the role 'client' in it, not 'server'"):
        check_own(roster, own, "server", where="R")
    with pytest.raises(ValueError, match="R: it has other public keys for 'client-1': it is stale"):
        check_own(roster, generate("client-1"), where="R")
    with pytest.raises(
        ValueError, match=r"R: 'client-7' is not in the roster; .*: ask its operator to add client-7\.card"
    ):
        check_own(roster, generate("client-7"), where="R")
    with pytest.raises(ValueError, match="R: 'client-2' has the role 'client' in it, not 'server'"):
        check_card(roster, replace(CARDS[2], role="server"), where="R")


def test_a_roster_is_replaced_on_request_only(tmp_path: Path) -> None:
    path = tmp_path / "roster.toml"
    write_roster(make_roster(CARDS[:4]), path)
    with pytest.raises(RosterFileError, match="exists already"):
        write_roster(make_roster(CARDS[:5]), path)
    write_roster(make_roster(CARDS[:5]), path, replace=True)
    assert read_roster(path) == make_roster(CARDS[:5])
    assert [file.name for file in tmp_path.iterdir()] == ["roster.toml"]


def test_fingerprints_are_those_of_the_hash() -> None:
    roster = make_roster(CARDS[:4])
    groups = roster.fingerprint.split(" ")
    assert [len(group) for group in groups] == [5] * 8
    assert int("".join(groups)) == int.from_bytes(roster.hash, "big") % 10**40
    assert make_roster([*CARDS[:3], card("client-3")]).fingerprint != roster.fingerprint


@pytest.mark.parametrize("role", ["server", "client", "dealer"])
def test_a_card_has_the_role(tmp_path: Path, role: Role) -> None:
    own = generate("a")
    assert load_card(save(own, tmp_path, role=role)[1]) == own.member(role)


def test_a_standby_key_signs_in_the_operators_place(tmp_path: Path) -> None:
    office, deputy, next_one = generate("office"), generate("deputy"), generate("next")
    first = make_roster(CARDS[:4], operator=office)
    named = signed_again(first, office, deputy.signing_public)
    assert (named.members, named.version, named.standby) == (first.members, 2, deputy.signing_public)
    assert with_members(named, CARDS[4:5], operator=office).standby == deputy.signing_public
    taken = signed_again(named, deputy, next_one.signing_public)
    assert (taken.operator, taken.standby) == (deputy.signing_public, next_one.signing_public)
    assert signed_again(named, deputy).standby == b""
    write_roster(taken, tmp_path / "roster.toml")
    assert read_roster(tmp_path / "roster.toml") == taken
    with pytest.raises(ValueError, match="'office' is not its operator"):
        with_members(taken, CARDS[4:5], operator=office)
    with pytest.raises(ValueError, match="'deputy' is not its operator"):
        with_members(named, CARDS[4:5], operator=deputy)
    with pytest.raises(ValueError, match="only that key itself replaces it"):
        signed_again(named, office, next_one.signing_public)
