"""The roster file of a server that runs: what is taken up of it, and what is told once and left."""

from pathlib import Path

import pytest

from tacit.parties.hosting.server import RosterWatch
from tacit.parties.links.keys import generate
from tacit.parties.links.roster import make_roster, with_members, with_other_keys, without_members, write_roster
from tacit.parties.session.events import RosterRefused
from tacit.protocol.core.events import Event
from tacit.protocol.core.roster import Roster

OFFICE = generate("office")
CARDS = [generate(name).member("server" if name == "server" else "client") for name in ("server", "a", "b", "c")]
FIRST = make_roster(CARDS[:3], operator=OFFICE)
SECOND = with_members(FIRST, CARDS[3:], operator=OFFICE)


class Watched:
    """A roster file that is looked at, and what is told of it."""

    def __init__(self, path: Path, *, fewest: int = 0) -> None:
        self.path = path / "roster.toml"
        self.told: list[Event] = []
        self.kept: list[Roster] = []

        def fits(roster: Roster) -> None:
            if len(roster.clients) < fewest:
                raise ValueError("too few")

        self.watch = RosterWatch(self.path, fits, self.kept.append, self.told.append)

    def put(self, roster: Roster, held: Roster = FIRST) -> Roster | None:
        write_roster(roster, self.path, replace=True)
        return self.watch.newer(held)


def test_a_later_version_is_taken_up_once(tmp_path: Path) -> None:
    watched = Watched(tmp_path)
    assert watched.watch.newer(FIRST) is None
    assert watched.put(FIRST) is None
    assert watched.put(SECOND) == SECOND
    assert watched.watch.newer(SECOND) is None
    third = without_members(SECOND, ["a"], operator=OFFICE)
    assert watched.put(third, held=SECOND) == third
    assert (watched.told, watched.kept) == ([], [SECOND, third])


REFUSED = {
    "older": (FIRST, SECOND, "it is the older version 1; this party holds version 2"),
    "of another operator": (make_roster(CARDS, operator=generate("other")), FIRST, "another operator has signed it"),
    "without an operator": (make_roster(CARDS), FIRST, "another operator has signed it"),
    "held without one": (make_roster(CARDS), make_roster(CARDS[:3]), "a roster without an operator"),
    "too small": (without_members(FIRST, ["a"], operator=OFFICE), FIRST, "too few"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_taken_up_is_told_once(tmp_path: Path, case: str) -> None:
    roster, held, reason = REFUSED[case]
    watched = Watched(tmp_path, fewest=2)
    assert watched.put(roster, held) is None
    assert watched.watch.newer(held) is None
    (event,) = watched.told
    assert isinstance(event, RosterRefused)
    assert reason in event.reason


def test_a_file_that_is_not_whole_is_looked_at_again(tmp_path: Path) -> None:
    watched = Watched(tmp_path)
    watched.path.write_text("version = 2\n")
    assert watched.watch.newer(FIRST) is None
    (event,) = watched.told
    assert isinstance(event, RosterRefused)
    assert str(watched.path) in event.reason
    assert watched.put(SECOND) == SECOND


def test_the_server_is_given_other_keys(tmp_path: Path) -> None:
    rotated = with_other_keys(FIRST, generate("server").member("server"), operator=OFFICE)
    assert Watched(tmp_path).put(rotated) == rotated
