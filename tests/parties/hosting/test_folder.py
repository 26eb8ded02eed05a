"""The folder of a party: one process at a time, runs in order, and a status that deceives nobody."""

import logging
from pathlib import Path

import pytest
from msgspec.structs import replace

from tacit.parties.hosting.folder import (
    PartyFolder,
    Status,
    StatusError,
    StatusFile,
    line,
    logging_to,
    read_status,
    weight,
)
from tacit.parties.hosting.party_file import LogConfiguration
from tacit.parties.runs.directory import RunDirectoryError


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


def test_status_follows_the_events(folder: PartyFolder) -> None:
    with pytest.raises(StatusError, match="has never been started"):
        read_status(folder)
    file = StatusFile(folder.status, status())
    file.take("accepted", {"session": "ab" * 32, "scheme": "fedavg"})
    file.take("phase", {"round": 1, "next": "TRAIN"})
    file.take("waiting", {"on": ("client-2", "client-3")})
    file.take("round-over", {"round": 1, "code": None, "detail": ""})
    found, running = read_status(folder)
    assert (found.session, found.phase, found.round) == ("ab" * 8, "TRAIN", 1)
    assert found.waiting_for == ("client-2", "client-3")
    assert (running, found.last_error) == (False, None)
    file.take("refused", {"member": "client-2", "code": "ROSTER", "detail": "it holds another roster"})
    file.take("traffic", {"round": 1, "sent": 1})
    assert read_status(folder)[0].waiting_for == ("client-2", "client-3")
    file.take("ended", {"code": None, "detail": "the federation is finished"})
    with folder.held():
        found, running = read_status(folder)
    assert running
    assert (found.last_event and found.last_event.event, found.waiting_for) == ("ended", ())
    assert found.last_error is not None
    assert found.last_error.detail == "client-2: it holds another roster"


IN_ORDER: dict[str, tuple[str, list[tuple[str, dict[str, object]]]]] = {
    "who had only a look": ("server", []),
    "who has left": ("server", [("joined", {"member": "x"}), ("left", {"member": "x", "detail": "it gave up"})]),
    "whose session is over": ("server", [("joined", {"member": "x"}), ("ended", {"code": None, "detail": ""})]),
    "who had its answers": ("model-owner", [("session", {"peer": "x"}), ("session-over", {"peer": "x", "code": None})]),
    "a server that has finished": ("client", [("link-up", {"peer": "x"}), ("ended", {"code": None, "detail": ""})]),
}


@pytest.mark.parametrize("case", IN_ORDER)
def test_a_link_that_is_no_longer_needed_is_lost_without_being_an_error(folder: PartyFolder, case: str) -> None:
    role, events = IN_ORDER[case]
    file = StatusFile(folder.status, replace(status(), role=role))
    for event, fields in events:
        file.take(event, dict(fields))
    before = read_status(folder)[0].last_error
    file.take("link-lost", {"peer": "x"})
    found, _ = read_status(folder)
    assert found.last_event is not None
    assert found.last_event.event == "link-lost"
    assert found.last_error == before


@pytest.mark.parametrize(("role", "there"), [("server", ("joined", "member")), ("client", ("link-up", "peer"))])
def test_a_link_that_is_needed_is_an_error_when_it_is_lost(
    folder: PartyFolder, role: str, there: tuple[str, str]
) -> None:
    event, who = there
    file = StatusFile(folder.status, replace(status(), role=role))
    file.take(event, {who: "x"})
    file.take("link-lost", {"peer": "x"})
    error = read_status(folder)[0].last_error
    assert error is not None
    assert (error.event, error.detail) == ("link-lost", "x")


def test_a_session_that_ends_for_a_later_roster_is_no_error(folder: PartyFolder) -> None:
    file, over = StatusFile(folder.status, status()), {"code": "ROSTER", "detail": "it goes on with version 2"}
    file.take("roster", {"version": 2})
    file.take("phase", {"round": 1, "next": "SESSION"})
    file.take("ended", dict(over))
    assert read_status(folder)[0].last_error is None
    file.take("ended", dict(over))
    assert read_status(folder)[0].last_error is not None


def test_a_status_that_cannot_be_read(folder: PartyFolder) -> None:
    folder.status.write_text("{")
    with pytest.raises(StatusError, match=r"status\.json: cannot be read"):
        read_status(folder)


def test_a_status_that_cannot_be_written_stops_nobody(folder: PartyFolder) -> None:
    file = StatusFile(folder.path / "missing" / "status.json", status())
    file.take("phase", {"round": 1, "next": "TRAIN"})


def test_the_log_weighs_and_rotates(folder: PartyFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tacit.parties.hosting.folder._MEGABYTE", 200)
    path = folder.log("client-1")
    events = [("phase", {"next": "TRAIN"}), ("round-over", {"round": 1, "code": None}), ("left", {"member": "x\ny"})]
    with logging_to(path, LogConfiguration(level="info", megabytes=1, files=2)) as log:
        for _ in range(20):
            for event, fields in events:
                log.log(weight(event, fields), "%s", line(event, fields))
    files = sorted(found.name for found in path.parent.iterdir())
    assert files == ["client-1.log", "client-1.log.1", "client-1.log.2"]
    text = "".join((path.parent / name).read_text() for name in files)
    assert "WARNING left: member x y\n" in text
    assert "INFO round-over: round 1\n" in text
    assert "phase" not in text


@pytest.mark.parametrize(
    ("event", "fields", "level"),
    [
        ("traffic", {}, logging.DEBUG),
        ("ended", {"code": None}, logging.INFO),
        ("ended", {"code": "LEFT"}, logging.WARNING),
        ("stranger", {}, logging.WARNING),
    ],
)
def test_weights(event: str, fields: dict[str, object], level: int) -> None:
    assert weight(event, fields) == level
