"""The roster file: read back as written, and every fault named by file, member and key."""

from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec.structs import replace

from tacit.parties.links.keys import PartyKeys, encode_key, load_card, save
from tacit.parties.links.roster import RosterFileError, make_roster, read_roster, write_roster
from tacit.protocol.core.roster import Roster


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
