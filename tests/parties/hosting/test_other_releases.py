"""State of release 0.2.0 is refused in one line that names it and says what to do; that of this one is taken."""

from pathlib import Path

import pytest

from tacit.parties.hosting.folder import PartyFolder, StatusError, read_status
from tacit.parties.links.roster import RosterFileError, read_roster
from tacit.parties.runs.directory import RunDirectory, RunDirectoryError
from tacit.parties.runs.distillation import RESULT
from tacit.parties.runs.served import read_served, served_experiment
from tests.cases import cases

WRITTEN = (
    "status.json", "plain-model.safetensors", "salt", "ledger.json", "adapters.safetensors", "learning.msgpack",
    "openings.msgpack", "sum.msgpack", "events/client-1.jsonl", "journal/client-1.jsonl",
    "memory/client-1.safetensors", "answers/digits.jsonl", "runs/0001-digits/experiment.toml",
)  # fmt: skip
"""What release 0.2.0 kept in the folder of a party."""


def put(folder: Path, name: str) -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("{}")
    return folder


def check_refused(refused: pytest.ExceptionInfo[Exception], folder: Path, release: str) -> None:
    (line,) = str(refused.value).splitlines()
    assert str(folder) in line
    assert release in line
    assert "make it anew" in line


@cases("name", WRITTEN)
def test_a_folder_of_a_party(name: str, tmp_path: Path) -> None:
    folder = PartyFolder(put(tmp_path / "state", name))
    with pytest.raises(RunDirectoryError) as refused:
        folder.make()
    check_refused(refused, folder.path, "0.2.0")
    with pytest.raises(StatusError) as unread:
        read_status(folder)
    check_refused(unread, folder.path, "0.2.0")


@cases("read", [RunDirectory.open, RunDirectory.of_a_run, read_served, served_experiment])
def test_a_run(read: object, tmp_path: Path) -> None:
    for name in ("experiment.toml", "model.safetensors"):
        put(tmp_path, name)
    with pytest.raises((RunDirectoryError, ValueError)) as refused:
        read(tmp_path)  # type: ignore[operator]
    check_refused(refused, tmp_path, "0.2.0")


def test_a_distilled_student(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"release 0\.2\.0") as refused:
        served_experiment(put(tmp_path, RESULT))
    check_refused(refused, tmp_path, "0.2.0")


def test_a_roster_with_an_operator(tmp_path: Path) -> None:
    path = tmp_path / "roster.toml"
    member = '[[member]]\nname = "server"\nrole = "server"\ncurve = "rq:rM>}U?@Lns47E1%kR.o@n%FcmmsL/@{H8]yf7"\n'
    signing, operator, signature = "V^L?.aMeQS2N]nfB8YuqK@=g+ek-{4({%[V<@zPj", "0" * 40, "0" * 80
    path.write_text(
        f'version = 1\noperator = "{operator}"\nsignature = "{signature}"\n\n{member}signing = "{signing}"\n'
    )
    with pytest.raises(RosterFileError) as refused:
        read_roster(path)
    check_refused(refused, path, "0.2.0")


def test_folders_of_this_release_and_of_later_ones(tmp_path: Path) -> None:
    RunDirectory.create(tmp_path / "run")
    folder = PartyFolder(tmp_path / "state")
    folder.make()
    put(folder.path, "status.json")
    folder.make()
    for path in (tmp_path / "run", folder.path):
        assert (path / "release").read_text() == "0.3.0\n"
        (path / "release").write_text("0.9.0\n")
    with pytest.raises(RunDirectoryError) as refused:
        folder.make()
    check_refused(refused, folder.path, "0.9.0")


def test_files_of_their_owner_are_no_state(tmp_path: Path) -> None:
    put(tmp_path, "client.toml")
    PartyFolder(tmp_path).make()
