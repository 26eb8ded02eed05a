"""Paths in files: from the folder of the file, with ~ expanded, whatever folder the command runs in."""

import os
from pathlib import Path

import pytest

from tacit.parties.hosting.party_file import ClientFile, read_party
from tacit.parties.runs.distillation import DistillationExperiment
from tacit.parties.runs.experiment import Experiment, ExperimentError, built, load, load_as, settings_of, with_overrides
from tacit.parties.runs.reference import experiment_toml
from tacit.simulate.federation.run import default_directory

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


def test_settings_of_a_command_line_are_those_of_a_file(folder: Path, tmp_path: Path) -> None:
    given = ["training.epochs=2", "data.source=x.npz", "training.augment=['flip']", 'protection.scheme="dp-gaussian"']
    changed = with_overrides(Experiment(), more=settings_of(given), where="command line")
    assert (changed.training.epochs, changed.training.augment) == (2, ("flip",))
    assert (changed.data.source, changed.protection.scheme) == (str(tmp_path / "x.npz"), "dp-gaussian")
    for wrong, message in {
        "training.epochs": "expected SECTION.KEY=VALUE",
        "epochs=2": "expected SECTION.KEY=VALUE",
        "training.epochs=two": 'training.epochs = "two": expected an integer',
        "training.schedule=cosine": 'training.schedule = "cosine": there is no such key; accepted: ',
        "training.clip=1.0": r"did you mean aggregation.clip\?",
    }.items():
        with pytest.raises(ExperimentError, match=message):
            with_overrides(Experiment(), more=settings_of([wrong]), where="command line")


def test_runs_that_begin_in_one_second_have_folders_of_their_own(folder: Path) -> None:
    taken = []
    for _ in range(3):
        taken.append(default_directory("mine"))
        taken[-1].mkdir(parents=True)
    assert len(set(taken)) == 3
