"""The parties of a simulation as files, and what those in one process share."""

import resource
from pathlib import Path

import pytest

from tacit.models.configuration import DataConfiguration
from tacit.models.data import load, normalise
from tacit.parties.links.keys import load as load_keys
from tacit.parties.links.roster import read_roster
from tacit.parties.runs.directory import RunDirectory, RunDirectoryError
from tacit.parties.runs.experiment import parse
from tacit.simulate.federation.hosted_parties import Workplace
from tacit.simulate.federation.roles import Plan, enrol

NAMES = ("server", "client-1", "client-2", "client-3")


def plan(path: Path) -> Plan:
    experiment = parse("[federation]\nclients = 3\nrounds = 1", "test")
    return Plan(experiment, RunDirectory(path), rounds=1, completed=0, split_seed=1)


def test_an_enrolment_that_was_cut_short_is_begun_anew(tmp_path: Path) -> None:
    made = plan(tmp_path)
    enrol(made, NAMES)
    made.parties.roster.unlink()
    enrol(made, NAMES)
    roster = read_roster(made.parties.roster)
    for name in NAMES:
        keys = load_keys(made.parties.folder(name) / f"{name}.key")
        assert keys.curve_public == roster.member(name).curve_public


def test_keys_that_cannot_be_written_are_no_bug(tmp_path: Path) -> None:
    least, most = resource.getrlimit(resource.RLIMIT_FSIZE)
    # As a full disk does, and for root too: no file may grow.
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, most))
    try:
        with pytest.raises(RunDirectoryError, match="make room there"):
            enrol(plan(tmp_path), NAMES)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (least, most))
    enrol(plan(tmp_path), NAMES)


def test_clients_of_one_process_share_the_test_images(tmp_path: Path) -> None:
    source = load(DataConfiguration(), image_size=8).source
    place = Workplace(tmp_path, 2)
    try:
        one, other, larger = (normalise(source, image_size=size, mean=(0.5,), std=(0.5,)) for size in (8, 8, 16))
        assert place.test_images(one)[0] is place.test_images(other)[0]
        assert place.test_images(larger)[0].shape[-1] == 16
    finally:
        place.thread.shutdown()
        place.context.term()
