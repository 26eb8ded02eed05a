"""The upgrade promise: a server and clients go on with the state of every release that says so (docs/runbook.md)."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tacit.parties.hosting.folder import PartyFolder, open_party, read_status
from tacit.parties.hosting.party_file import ClientFile, ServerFile
from tacit.parties.hosting.server import begun_run
from tacit.parties.links.tokens import TokenFile
from tacit.parties.runs.directory import READABLE, OtherReleaseError
from tacit.parties.session.journal import JournalFile
from tacit.protocol.session.rounds import JournalEntry
from tests.upgrade.record import ADDRESS, HERE, PARTIES, passphrases


@pytest.fixture(params=READABLE)
def state(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A copy of the state of a release, with the passphrases of its keys."""
    made = Path(shutil.copytree(HERE / request.param, tmp_path / "state"))
    for name in PARTIES:
        (made / name / f"{name}.key").chmod(0o600)
    monkeypatch.setattr("tacit.parties.links.keys._passphrases", {})
    with passphrases() as credentials:
        monkeypatch.setenv("CREDENTIALS_DIRECTORY", credentials)
        yield made


def test_the_state_of_a_server_is_read(state: Path) -> None:
    opened = open_party(ServerFile, state / "server" / "party.toml")
    assert [one.name for one in opened.roster.members] == list(PARTIES)
    run = begun_run(opened.folder, None)
    assert run is not None
    assert (run.completed, run.left, run.experiment.name) == (2, 1, "wards")
    TokenFile(opened.folder.tokens)
    assert (read_status(opened.folder).round, read_status(opened.folder).running) == (3, False)


def test_the_state_of_a_client_is_read(state: Path) -> None:
    opened = open_party(ClientFile, state / "ward-a" / "party.toml")
    journal = JournalFile(opened.folder.journal(opened.name), tokens=TokenFile(opened.folder.tokens))
    assert [line.round for line in journal.read() if isinstance(line, JournalEntry)] == [1, 2]
    assert read_status(opened.folder).name == "ward-a"


def test_state_of_an_unknown_release_is_refused_by_name(state: Path) -> None:
    (state / "ward-a" / "state" / "release").write_text("9.9.9\n")
    with pytest.raises(OtherReleaseError, match=r"was written by release 9\.9\.9, and this one reads state of 0\.3\.0"):
        PartyFolder(state / "ward-a" / "state").check()


@pytest.mark.end_to_end
def test_a_federation_goes_on_where_a_release_left_it(state: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    for name in PARTIES:
        path = state / name / "party.toml"
        path.write_text(path.read_text().replace(ADDRESS, address))
    words = [sys.executable, "-c", "from tacit.cli.entry import main; main()", "up", *PARTIES]
    done = subprocess.run(words, cwd=state, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    (run,) = (state / "server" / "state" / "runs").iterdir()
    rounds = json.loads((run / "summary.json").read_bytes())["rounds"]
    assert [(one["round"], one["status"]) for one in rounds] == [(number, "completed") for number in (1, 2, 3)]
    for name in PARTIES[1:]:
        journal = JournalFile(state / name / "state" / "journal" / f"{name}.jsonl")
        assert [line.round for line in journal.read() if isinstance(line, JournalEntry)] == [1, 2, 3]
