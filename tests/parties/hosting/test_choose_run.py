"""Which run a server goes on with, or begins."""

from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace
from safetensors.numpy import save_file

from tacit.parties.hosting.folder import PartyFolder
from tacit.parties.hosting.server import HostedRun, choose_run, without_seed
from tacit.parties.learning.policy import ClientPolicy
from tacit.parties.protections.fedrsm import FedRSM
from tacit.parties.runs.directory import Progress, RunDirectoryError
from tacit.parties.runs.experiment import Deadlines, Experiment, FederationSection
from tacit.parties.runs.reference import experiment_toml

DIGITS = Experiment(federation=FederationSection(clients=3, rounds=4))
LUNGS = replace(DIGITS, name="lungs")


@pytest.fixture
def folder(tmp_path: Path) -> PartyFolder:
    made = PartyFolder(tmp_path)
    made.make()
    return made


def begun(folder: PartyFolder, experiment: Experiment, *, completed: int | None) -> HostedRun:
    """A run with so many rounds; None: killed before there was a model."""
    hosted = choose_run(folder, experiment)
    if completed is not None:
        metadata = Progress(round=completed, split_seed=hosted.weights_seed).metadata()
        save_file({"a": np.zeros(1, np.float32)}, hosted.run.model, metadata=metadata)
    return hosted


def test_the_first_run(folder: PartyFolder) -> None:
    with pytest.raises(RunDirectoryError, match="has no run to go on with: name an experiment file"):
        choose_run(folder, None)
    hosted = choose_run(folder, DIGITS)
    assert (hosted.experiment, hosted.completed) == (DIGITS, 0)
    assert hosted.run.path.name == "0001-digits"
    assert hosted.run.experiment.read_text() == experiment_toml(DIGITS)


@pytest.mark.parametrize("completed", [None, 0, 3, 4])
@pytest.mark.parametrize("again", [DIGITS, None])
def test_the_same_command_goes_on(folder: PartyFolder, completed: int | None, again: Experiment | None) -> None:
    """Also where all rounds are done: there is nothing to do then."""
    before = begun(folder, DIGITS, completed=completed)
    hosted = choose_run(folder, again)
    assert hosted.run.path == before.run.path
    assert hosted.experiment == DIGITS
    assert hosted.completed == (completed or 0)
    assert completed is None or hosted.weights_seed == before.weights_seed


def test_the_next_experiment_comes_when_the_last_is_finished(folder: PartyFolder) -> None:
    begun(folder, DIGITS, completed=3)
    with pytest.raises(
        RunDirectoryError,
        match=r"0001-digits has 3 of 4 rounds.*lungs.*finish it by the",
    ):
        choose_run(folder, LUNGS)
    begun(folder, DIGITS, completed=4)
    assert choose_run(folder, LUNGS).run.path.name == "0002-lungs"


@pytest.mark.parametrize("completed", [2, 4])
def test_length_clients_and_deadlines_may_change_in_a_run(folder: PartyFolder, completed: int) -> None:
    """Also when all rounds are done: more of them go on from the last model."""
    before = begun(folder, DIGITS, completed=completed)
    longer = replace(
        DIGITS,
        federation=replace(DIGITS.federation, rounds=6, clients="all", fraction=0.5),
        deadlines=Deadlines(grace=7),
    )
    hosted = choose_run(folder, longer)
    assert (hosted.run.path, hosted.experiment) == (before.run.path, longer)
    assert (hosted.weights_seed, hosted.left) == (before.weights_seed, 6 - completed)
    assert choose_run(folder, None).experiment == longer


def test_another_model_or_training_is_another_experiment(folder: PartyFolder) -> None:
    begun(folder, DIGITS, completed=2)
    other = replace(DIGITS, training=replace(DIGITS.training, learning_rate=0.5))
    with pytest.raises(RunDirectoryError, match=r"training\.learning_rate = 0\.5, which was"):
        choose_run(folder, other)


def test_a_run_that_never_had_a_model_holds_no_other_up(folder: PartyFolder) -> None:
    begun(folder, DIGITS, completed=None)
    assert choose_run(folder, LUNGS).run.path.name == "0002-lungs"


def test_what_clients_remember_goes_on(folder: PartyFolder) -> None:
    remembering = replace(DIGITS, protection=FedRSM(), policy=ClientPolicy(uncoordinated_weights=True))
    begun(folder, remembering, completed=1)
    assert choose_run(folder, remembering).completed == 1


def test_an_interrupted_beginning_is_nothing(folder: PartyFolder) -> None:
    folder.new_run("digits")
    assert choose_run(folder, DIGITS).run.path.name == "0002-digits"


def test_hosts_have_no_seed() -> None:
    seeded = replace(DIGITS, federation=replace(DIGITS.federation, seed=7))
    assert without_seed(seeded) == DIGITS


def test_weights_differ_from_run_to_run(tmp_path: Path) -> None:
    seeds = set()
    for name in ("a", "b", "c"):
        made = PartyFolder(tmp_path / name)
        made.make()
        seeds.add(choose_run(made, DIGITS).weights_seed)
    assert len(seeds) == 3


@pytest.mark.parametrize(("round", "repeated", "left"), [(4, 0, 0), (4, 1, 1), (6, 2, 0), (0, 0, 4)])
def test_rounds_that_were_held_again_do_not_count(folder: PartyFolder, round: int, repeated: int, left: int) -> None:
    hosted = choose_run(folder, DIGITS)
    metadata = Progress(round=round, split_seed=1, repeated=repeated).metadata()
    save_file({"a": np.zeros(1, np.float32)}, hosted.run.model, metadata=metadata)
    again = choose_run(folder, None)
    assert (again.completed, again.repeated, again.left) == (round, repeated, left)
