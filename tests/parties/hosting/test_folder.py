"""The folder of a party: one process at a time, runs in order, and a status that deceives nobody."""

import logging
from pathlib import Path

import pytest
from msgspec import structs
from msgspec.structs import replace

from tacit.parties.hosting.folder import (
    PartyFolder,
    Status,
    StatusError,
    StatusFile,
    logging_to,
    read_status,
)
from tacit.parties.hosting.party_file import LogConfiguration
from tacit.parties.inference.events import InferenceSessionEnded, SessionOpened
from tacit.parties.links.keys import generate
from tacit.parties.links.roster import make_roster, with_members, with_other_keys
from tacit.parties.runs.directory import RunDirectoryError
from tacit.parties.session.events import (
    ClientRoundEnded,
    ConfigurationAccepted,
    LinkLost,
    LinkOpened,
    ListeningStarted,
    PhaseEnded,
    RosterUpdated,
    SessionEnded,
    TrafficCounted,
    WaitingChanged,
)
from tacit.protocol.core.events import Event, MessageRefused
from tacit.protocol.session.events import ClientJoined, ClientLeft, RoundStarted
from tacit.protocol.sum.states import Phase


@pytest.fixture
def folder(tmp_path: Path) -> PartyFolder:
    made = PartyFolder(tmp_path / "state")
    made.make()
    return made


def status() -> Status:
    return Status(name="client-1", role="client", process=7, since=1.0)


def test_one_process_holds_it(folder: PartyFolder) -> None:
    assert not folder.is_held()
    with folder.held():
        assert folder.is_held()
        with pytest.raises(RunDirectoryError, match="is of a party that is running already"), folder.held():
            pass
    assert not folder.is_held()
    with folder.held():
        pass


def test_it_is_its_owners_alone(folder: PartyFolder) -> None:
    assert folder.path.stat().st_mode & 0o777 == 0o700


def test_every_file_of_a_party_has_a_folder(tmp_path: Path) -> None:
    for folder in (PartyFolder(tmp_path / "own"), PartyFolder(tmp_path / "shared", party="client-1")):
        folder.make()
        places = [folder.events("a"), folder.journal("a"), folder.log("a"), folder.fixed("a"), folder.status]
        assert [place for place in places if place and not place.parent.is_dir()] == []


def test_a_place_that_cannot_be_used(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(RunDirectoryError, match=r"cannot be made: .*; name another folder as `directory`"):
        PartyFolder(tmp_path / "file" / "state").make()


def test_runs_are_numbered(folder: PartyFolder) -> None:
    assert folder.last_run() is None
    names = [folder.new_run(name).path.name for name in ("digits", "lungs & hearts", "../x")]
    assert names == ["0001-digits", "0002-lungs-hearts", "0003-..-x"]
    last = folder.last_run()
    assert last is not None
    assert last.path == folder.path / "runs" / "0003-..-x"


def phase(next: Phase) -> PhaseEnded:
    return PhaseEnded(round=1, phase=Phase.SESSION, seconds=1.0, next=next)


def take(file: StatusFile, *events: Event) -> None:
    for number, event in enumerate(events):
        file.take(structs.replace(event, time=float(number), party=file.status.name))


def test_status_follows_the_events_of_a_client(folder: PartyFolder) -> None:
    with pytest.raises(StatusError, match="has never been started"):
        read_status(folder)
    file = StatusFile(folder.status, status())
    take(file, ConfigurationAccepted(session="ab" * 32, scheme="fedavg", mode="active", fixed_part=""))
    take(file, phase(Phase.TRAIN), ClientRoundEnded(round=1, code=None, detail=""))
    found = read_status(folder)
    assert (found.session, found.phase, found.round) == ("ab" * 8, "TRAIN", 1)
    assert (found.running, found.last_error) == (False, None)
    take(file, SessionEnded(code=None, detail="the federation is finished"))
    with folder.held():
        found = read_status(folder)
    assert found.running
    assert found.last_event
    assert found.last_event.event == "session-ended"


def test_status_follows_the_events_of_a_server(folder: PartyFolder) -> None:
    file = StatusFile(folder.status, replace(status(), role="server"))
    take(file, ListeningStarted(address="tcp://10.0.0.1:7007", session="ab" * 32))
    assert read_status(folder).phase == "listening"
    take(file, WaitingChanged(on=["client-2", "client-3"]))
    take(file, MessageRefused(member="client-2", code="ROSTER", detail="it holds another roster"))
    take(file, TrafficCounted(round=1, phase=Phase.TRAIN, sent=1, received=1))
    found = read_status(folder)
    assert (found.address, found.waiting_for) == ("tcp://10.0.0.1:7007", ("client-2", "client-3"))
    assert found.last_error is not None
    assert "it holds another roster" in found.last_error.detail
    take(file, RoundStarted(round=2, cohort=["client-2"], absent={"client-3": "it has not connected"}))
    assert read_status(folder).absent == {"client-3": "it has not connected"}
    take(file, SessionEnded(code=None, detail="all rounds are done"))
    found = read_status(folder)
    assert (found.round, found.waiting_for) == (2, ())
    assert found.last_error is None


def test_a_status_among_a_thousand_is_written_when_it_is_asked_for(folder: PartyFolder) -> None:
    file = StatusFile(folder.status, status(), live=False)
    take(file, phase(Phase.TRAIN))
    assert not folder.status.exists()
    file.write()
    assert read_status(folder).phase == "TRAIN"


OVER = SessionEnded(code=None, detail="")
IN_ORDER: dict[str, tuple[str, list[Event]]] = {
    "who had only a look": ("server", []),
    "who has left": ("server", [ClientJoined(member="x"), ClientLeft(member="x", detail="it gave up")]),
    "whose session is over": ("server", [ClientJoined(member="x"), OVER]),
    "who had its answers": (
        "model-owner",
        [SessionOpened(peers=["x"]), InferenceSessionEnded(peers=["x"], code=None, detail="")],
    ),
    "a server that has finished": ("client", [LinkOpened(peer="x"), OVER]),
}


@pytest.mark.parametrize("case", IN_ORDER)
def test_a_link_that_is_no_longer_needed_is_lost_without_being_an_error(folder: PartyFolder, case: str) -> None:
    role, events = IN_ORDER[case]
    file = StatusFile(folder.status, replace(status(), role=role))
    take(file, *events)
    before = read_status(folder).last_error
    take(file, LinkLost(peer="x"))
    found = read_status(folder)
    assert found.last_event is not None
    assert found.last_event.event == "link-lost"
    assert found.last_error == before


@pytest.mark.parametrize(("role", "there"), [("server", ClientJoined(member="x")), ("client", LinkOpened(peer="x"))])
def test_a_link_that_is_needed_is_an_error_when_it_is_lost(folder: PartyFolder, role: str, there: Event) -> None:
    file = StatusFile(folder.status, replace(status(), role=role))
    take(file, there, LinkLost(peer="x"))
    error = read_status(folder).last_error
    assert error is not None
    assert error.event == "link-lost"
    assert "x" in error.detail


def test_a_session_that_ends_for_a_later_roster_is_no_error(folder: PartyFolder) -> None:
    file = StatusFile(folder.status, status())
    over = SessionEnded(code="ROSTER", detail="it goes on with version 2")
    changed = RosterUpdated(former=1, version=2, fingerprint="", added=["x"], removed=[], rotated=[], regrouped=[])
    take(file, changed)
    before = read_status(folder).last_error
    take(file, phase(Phase.SESSION), over)
    assert read_status(folder).last_error == before
    take(file, over)
    assert read_status(folder).last_error != before


def test_a_status_that_cannot_be_read(folder: PartyFolder) -> None:
    folder.status.write_text("{")
    with pytest.raises(StatusError, match=r"status\.json: cannot be read"):
        read_status(folder)


def test_a_status_that_cannot_be_written_stops_nobody(folder: PartyFolder) -> None:
    file = StatusFile(folder.path / "missing" / "status.json", status())
    take(file, phase(Phase.TRAIN))


def test_the_log_has_the_chosen_level_and_rotates(folder: PartyFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tacit.parties.hosting.folder._MEGABYTE", 200)
    path = folder.log("client-1")
    with logging_to(path, LogConfiguration(level="info", megabytes=1, files=2)) as log:
        for _ in range(20):
            for level, line in ((logging.DEBUG, "a phase"), (logging.INFO, "a round"), (logging.WARNING, "x left")):
                log.log(level, line)
    files = sorted(found.name for found in path.parent.iterdir())
    assert files == ["client-1.log", "client-1.log.1", "client-1.log.2"]
    text = "".join((path.parent / name).read_text() for name in files)
    assert "WARNING x left\n" in text
    assert "INFO a round\n" in text
    assert "phase" not in text


def test_an_older_version_than_was_taken_up_is_refused_for_ever(folder: PartyFolder) -> None:
    """Also from a file that its owner puts there; a roster that was made anew has a lineage of its own."""
    office, other = generate("office"), generate("server")
    cards = [generate(name).member("server" if name == "server" else "client") for name in ("server", "a", "b")]
    first = make_roster(cards, operator=office)
    second = with_other_keys(first, other.member("server"), operator=office)
    folder.check_roster(first)
    folder.keep_roster(first)
    folder.check_roster(second)
    folder.keep_roster(second)
    folder.check_roster(second)
    for older in (first, with_members(first, [generate("c").member("client")], operator=office)):
        with pytest.raises(ValueError, match=f"version {older.version}; this party holds version 2: .*took up is"):
            folder.check_roster(older)
    folder.check_roster(make_roster(cards, operator=office))
    folder.check_roster(make_roster(cards))
