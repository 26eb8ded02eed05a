"""Paths in files: from the folder of the file, with ~ expanded, whatever folder the command runs in."""

import os
from pathlib import Path

import pytest

from tacit.parties.hosting.party_file import ClientFile, read_party
from tacit.parties.runs.distillation import DistillationExperiment
from tacit.parties.runs.experiment import built, load, load_as
from tacit.parties.runs.reference import experiment_toml

GIVEN = {"here": "{folder}/here", "../up": "{folder}/../up", "~/own": "{home}/own", "/abs": "/abs"}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the file, relative to the current one, which is another."""
    (tmp_path / "files").mkdir()
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    return Path("files")


@pytest.mark.parametrize("bom", ["", "\ufeff"])
@pytest.mark.parametrize("given", GIVEN)
def test_paths_of_every_file_are_from_its_folder(folder: Path, given: str, bom: str) -> None:
    expected = Path(GIVEN[given].format(folder=folder.absolute(), home=os.environ["HOME"]))
    for section in (f'source = "folder"\ndirectory = "{given}"', f'source = "{given}.npz"'):
        text = f'{bom}[data]\n{section}\n[model]\ncheckpoint = "{given}"\n'
        (folder / "exp.toml").write_text(text, encoding="utf-8")
        for kind in (load, lambda path: load_as(DistillationExperiment, path)):
            found = kind(folder / "exp.toml")
            where = found.data.directory or found.data.source.removesuffix(".npz")
            assert Path(where).is_absolute()
            assert Path(where) == Path(found.model.checkpoint) == expected
        party = f'{bom}role = "client"\nkey = "a.key"\nconnect = "tcp://h:1"\n[data]\n{section}\n'
        (folder / "party.toml").write_text(party, encoding="utf-8")
        data = read_party(ClientFile, folder / "party.toml").data
        where = data.directory or data.source.removesuffix(".npz")
        assert Path(where).absolute() == expected


def test_the_copy_in_a_run_directory_has_the_same_paths(folder: Path, tmp_path: Path) -> None:
    (folder / "exp.toml").write_text('[data]\nsource = "folder"\ndirectory = "images"\n', encoding="utf-8")
    first = load(folder / "exp.toml")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "experiment.toml").write_text(experiment_toml(first), encoding="utf-8")
    assert load(tmp_path / "run" / "experiment.toml") == first


def test_paths_in_python_are_from_the_current_folder(folder: Path, tmp_path: Path) -> None:
    assert built({"data": {"source": "x.npz"}}, "here").data.source == str(tmp_path / "x.npz")
