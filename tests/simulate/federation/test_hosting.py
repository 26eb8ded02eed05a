"""Which process hosts which client, and how long those that take turns are given."""

import os

import msgspec
import numpy as np
import pytest

from tacit.models.configuration import ImagesConfiguration, ModelConfiguration
from tacit.models.data import read
from tacit.parties.runs.events import ProcessesShared
from tacit.parties.runs.experiment import Experiment, parse
from tacit.simulate.federation import hosting
from tacit.simulate.federation.faults import read_faults
from tacit.simulate.federation.hosting import Hosting, choose, shares

CLIENTS = tuple(f"client-{number}" for number in range(1, 8))
OWN = {name: (name,) for name in CLIENTS}


def experiment(more: str = "") -> Experiment:
    return parse(f"[federation]\nclients = {len(CLIENTS)}\n{more}", "test")


@pytest.fixture
def memory(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    monkeypatch.setattr(hosting, "available_memory", lambda: 10**15)
    return monkeypatch


def test_workers_that_are_asked_for_host_the_clients_evenly() -> None:
    given = experiment("[simulate]\nworkers = 2")
    chosen = choose(given, CLIENTS, ())
    assert chosen.processes == {"worker-1": CLIENTS[::2], "worker-2": CLIENTS[1::2]}
    assert chosen.event(given) == ProcessesShared(
        clients=7,
        workers=2,
        turns=4,
        reason="simulate.workers = 2",
        train_seconds=2400.0,
        phase_seconds=63.0,
        neighbours=6,
    )
    deadlines = msgspec.structs.replace(given.deadlines, train=2400.0, phase=63.0)
    assert chosen.patient(given) == msgspec.structs.replace(given, deadlines=deadlines)


def test_a_thousand_clients_that_all_mask_with_each_other_are_warned_of() -> None:
    crowd = [f"client-{number + 1}" for number in range(1000)]
    common = "[federation]\nclients = 1000\n[simulate]\nworkers = 2\n"
    few = '[aggregation]\ngraph = "regular"\ncorrupt = 0.05\ndropout = 0.05\n[policy]\nleast_corrupt = 0.05'
    complete, regular = (
        choose(given, crowd, ()).event(given) for given in (parse(common, "test"), parse(common + few, "test"))
    )
    assert complete.neighbours == 999
    assert "minutes" in complete.text
    assert regular.neighbours < 100
    assert "minutes" not in regular.text


def test_who_is_named_by_a_fault_has_its_own_beside_the_workers() -> None:
    faults = read_faults(
        drop=["client-2@TRAIN"], slow=["client-3:100"], cheat=["client-4@words"], parties=("server", *CLIENTS)
    )
    chosen = choose(experiment("[simulate]\nworkers = 1"), CLIENTS, faults.named)
    shared = ("client-1", "client-5", "client-6", "client-7")
    assert chosen.processes == {"worker-1": shared} | {name: (name,) for name in CLIENTS[1:4]}


@pytest.mark.parametrize("workers", [7, 8, 1000])
def test_workers_enough_for_all_are_processes_of_their_own(workers: int) -> None:
    assert choose(experiment(f"[simulate]\nworkers = {workers}"), CLIENTS, ()) == Hosting(OWN)


def test_without_the_memory_for_that_there_are_as_many_workers_as_cores(memory: pytest.MonkeyPatch) -> None:
    given = experiment()
    needed = hosting.memory(given, len(CLIENTS))
    memory.setattr(os, "sched_getaffinity", lambda process: {0, 1, 2})
    memory.setattr(hosting, "available_memory", lambda: int(needed) + 1)
    assert choose(given, CLIENTS, ()) == Hosting(OWN)
    memory.setattr(hosting, "available_memory", lambda: 500_000_000)
    chosen = choose(given, CLIENTS, ())
    assert chosen.processes == {f"worker-{number + 1}": CLIENTS[number::3] for number in range(3)}
    assert chosen.reason == f"7 processes would take {needed / 1e9:.1f} GB, and there are 0.5 GB"


def test_where_nobody_says_what_is_available_it_is_taken_to_be_enough(memory: pytest.MonkeyPatch) -> None:
    memory.setattr(hosting, "available_memory", lambda: None)
    assert choose(experiment(), CLIENTS, ()) == Hosting(OWN)


def test_a_large_model_needs_more() -> None:
    small = experiment()
    large = msgspec.structs.replace(small, model=ModelConfiguration(width=768, depth=12, heads=12, mlp_ratio=4.0))
    # 12 blocks of 12 * 768 * 768 parameters.
    assert hosting.memory(large, 7) - hosting.memory(small, 7) > 7 * 40 * 12 * 12 * 768 * 768
    other = msgspec.structs.replace(small, model=ModelConfiguration(name="resnet18"))
    assert hosting.memory(other, 7) < hosting.memory(small, 7)


def test_a_limit_leaves_each_client_some_of_its_own_images() -> None:
    source = read(ImagesConfiguration())
    whole = shares(experiment(), source, 3)
    limited = shares(experiment("[data]\nlimit = 40"), source, 3)
    for part, left in zip(whole, limited, strict=True):
        assert len(left) == min(40, len(part))
        assert np.isin(left, part).all()
        # Drawn, not cut off: a folder's images are sorted by class.
        assert len(part) <= 40 or left.max() > part[39]
    assert all(map(np.array_equal, limited, shares(experiment("[data]\nlimit = 40"), source, 3)))
