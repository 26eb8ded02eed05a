"""Somebody between the parties, while keys become cards, and cards a roster."""

from pathlib import Path

import pytest
from msgspec.structs import replace

from tacit.parties.links.keys import KeyFileError, generate, load_card, save
from tacit.parties.links.roster import check_own, make_roster
from tests.cases import cases

CHANGES: dict[str, tuple[str, str]] = {
    "name": ('name = "client-1"', 'name = "client-2"'),
    "role": ('role = "client"', 'role = "server"'),
    "curve": ("curve = ", "curve = "),
    "signing": ("signing = ", "signing = "),
    "signature": ("signature = ", "signature = "),
}


@pytest.mark.threat("stranger/changes-card")
@cases("field", CHANGES)
def test_a_card_that_was_changed(tmp_path: Path, field: str) -> None:
    """Every field is signed: with somebody else's value in its place, the card is refused."""
    mine, others = tmp_path / field, tmp_path / f"other {field}"
    mine.mkdir()
    others.mkdir()
    _, path = save(generate("client-1"), mine, role="client")
    _, other = save(generate("client-1"), others, role="client")
    old, new = CHANGES[field]
    lines = path.read_text().splitlines()
    theirs = next(line for line in other.read_text().splitlines() if line.startswith(f"{field} = "))
    path.write_text("\n".join((theirs if old == new else new) if line.startswith(old) else line for line in lines))
    with pytest.raises(KeyFileError, match=r"client-1\.card: its signature is not that of its own keys.*ask its owner"):
        load_card(path)


@pytest.mark.threat("stranger/changes-card")
def test_an_exchanged_card_is_found_by_its_owner() -> None:
    """The card of an impostor is a card like any other: only who was replaced can tell."""
    server, own, impostor = generate("server"), generate("client-1"), generate("client-1")
    roster = make_roster([server.member("server"), impostor.member("client")])
    with pytest.raises(ValueError, match="it has other public keys for 'client-1'"):
        check_own(roster, own, "client", where="roster.toml")


@pytest.mark.threat("stranger/changes-card")
def test_a_changed_roster_has_another_fingerprint() -> None:
    server, first, second = generate("server").member("server"), generate("a").member("client"), generate("b")
    roster = make_roster([server, first, second.member("client")], group_size=1)
    changed = [
        [server, first],
        [server, second.member("client"), first],
        [server, first, generate("b").member("client")],
        [server, first, replace(second.member("client"), name="c")],
    ]
    others = [make_roster(members, group_size=1) for members in changed]
    others.append(make_roster([server, first, second.member("client")], group_size=2))
    assert len({one.fingerprint for one in (roster, *others)}) == 6
