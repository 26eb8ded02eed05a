"""A model, data and training of one's own in the processes of a simulation."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np
import pytest

from tacit.models.layout import Layout
from tacit.parties.runs.directory import RunDirectory
from tacit.parties.runs.experiment import load
from tacit.parties.session.events import UpdateComputed
from tacit.protocol.core.events import Event
from tacit.simulate import Federation, FederationError
from tests.world.own_functions import failing, net, share, step

ROUNDS = 2


def averaged(before: np.ndarray, clients: int) -> np.ndarray:
    """One round of federated averaging by hand, in float64."""
    model = net()
    layout, total, samples = Layout.of(model), np.zeros(before.size), 0
    for client in range(clients):
        layout.load_into(model, before)
        data = share(client, clients)
        step(model, data)
        total += len(data[0]) * layout.flatten(model).astype(np.float64)
        samples += len(data[0])
    return (total / samples).astype(np.float32)


@pytest.mark.end_to_end
def test_ones_own_module_is_trained_by_three_real_parties(tmp_path: Path) -> None:
    events: list[Event] = []
    federation = Federation(model=net, data=share, train=step, clients=3, rounds=ROUNDS, seed=4, directory=tmp_path)
    result = federation.run(events.append)
    assert result.completed == ROUNDS
    run = RunDirectory(result.directory)
    assert load(run.experiment) == federation.experiment
    assert (result.directory / "report.html").is_file()
    assert {event.party for event in events if isinstance(event, UpdateComputed)} == {
        "client-1",
        "client-2",
        "client-3",
    }
    # The first model, which the seed makes, and two rounds by hand from there.
    from tacit.parties.learning.task import Task

    task = Task(
        model=federation.experiment.model.architecture, training=federation.experiment.training, classes=1, channels=1
    )
    model = task.build(seed=4)
    expected = Layout.of(model).flatten(model)
    for _ in range(ROUNDS):
        expected = averaged(expected, clients=3)
    assert np.abs(Layout.of(result.model).flatten(result.model) - expected).max() < 1e-4


@pytest.mark.end_to_end
def test_a_mistake_in_ones_own_step_is_told_with_party_and_place(tmp_path: Path) -> None:
    federation = Federation(model=net, data=share, train=failing, clients=3, rounds=1, directory=tmp_path)
    with pytest.raises(FederationError) as failed:
        federation.run()
    first, second, *_ = str(failed.value).splitlines()
    assert first == f"0 of 1 rounds were completed; what the parties said is in {tmp_path / 'logs'}"
    # Not every client needs to have come so far when the round is over.
    place = r"\(own_functions\.py, line \d+, in failing\)"
    step_failed = rf"the training step tests\.world\.own_functions:failing failed: KeyError: 'head' {place}"
    assert re.fullmatch(rf"  client-\d(, client-\d)*: {step_failed}", second)
    assert failed.value.result is not None
    assert failed.value.result.completed == 0
    name = second.split()[0].rstrip(":,")
    assert "Traceback" in (tmp_path / "logs" / f"{name}.log").read_text()


def test_what_other_processes_cannot_find_is_kept_or_refused() -> None:
    for train in (lambda model, data: None, partial(step)):
        found = Federation(model=net, data=share, train=train).experiment
        assert found.training.factory.startswith("own_functions_")
        assert found.model.factory == "tests.world.own_functions:net"
    number: Any = 5
    with pytest.raises(ValueError, match=r"Federation: train = .*give a function or class that is defined at the top"):
        Federation(model=net, data=share, train=number)
    held = Lock()
    with pytest.raises(ValueError, match="Federation: train cannot be kept for other processes"):
        Federation(model=net, data=share, train=lambda model, data: held.locked())


def test_a_directory_that_is_taken_is_refused(tmp_path: Path) -> None:
    (tmp_path / "results").touch()
    for taken in (tmp_path, tmp_path / "results"):
        with pytest.raises(ValueError, match=r"Federation: directory = .*: there is something already; name another"):
            Federation(model=net, data=share, train=step, directory=taken).run()


def test_where_it_cannot_run_it_says_how(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run: Callable[[], Any] = Federation(model=net, data=share, train=step, directory=tmp_path / "new").run
    # As in a process that imports the script because it was started by it.
    from multiprocessing import current_process

    monkeypatch.setattr(current_process(), "_inheriting", True, raising=False)
    with pytest.raises(RuntimeError, match="call it under `if __name__"):
        run()
    assert not (tmp_path / "new").exists()
