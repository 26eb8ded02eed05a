"""`tacit simulate --engine ray`: the same model as without it, bit for bit, and an actor that is killed."""

import json
import os
import signal
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import pytest

from tacit.protocol.core.events import Event
from tacit.protocol.session.events import RoundStarted
from tests.cli.command import Invoke, WriteExperiment

Show = Callable[[Event], None]

with_ray = pytest.mark.skipif(find_spec("ray") is None, reason="ray is not installed (extra ray)")


def actors() -> list[int]:
    """Processes in which a client host of Ray is at work, or waits for what to do."""
    found = []
    for place in Path("/proc").glob("[0-9]*"):
        try:
            if b"ray::RayHost" in (place / "cmdline").read_bytes():
                found.append(int(place.name))
        except (FileNotFoundError, ProcessLookupError):
            continue
    return found


@pytest.mark.end_to_end
@with_ray
def test_ray_trains_the_model_that_processes_train_and_leaves_nobody_behind(
    tacit: Invoke, tmp_path: Path, write_experiment: WriteExperiment
) -> None:
    experiment = write_experiment(tmp_path / "small.toml")
    models = {}
    for engine in ("processes", "ray"):
        run = tmp_path / engine
        options = ("--seed", 7, "--workers", 2, "--engine", engine, "--verify", "--out", run)
        held = tacit("simulate", experiment, *options)
        assert (held.exit_code, held.stderr) == (0, "")
        assert held.stdout.count("4 of 4 clients") == 2
        updates = [path.read_bytes() for path in sorted((run / "verify").glob("*/client-*.npz"))]
        assert len(updates) == 8
        models[engine] = (run / "model.safetensors").read_bytes(), updates
    assert models["processes"] == models["ray"]
    assert actors() == []


@pytest.mark.exhaustive
@with_ray
def test_an_actor_that_is_killed_is_replaced_and_its_clients_miss_that_round(
    tacit: Invoke, tmp_path: Path, write_experiment: WriteExperiment, watch: Callable[[Show], None]
) -> None:
    more = "[aggregation]\nmode = 'semi-honest'\n[policy]\nmodes = ['semi-honest']\n"
    experiment = write_experiment(tmp_path / "small.toml", clients=8, rounds=25, more=more)
    killed: list[int] = []

    def kill(event: Event) -> None:
        if isinstance(event, RoundStarted) and event.round == 2:
            killed.append(min(actors()))
            os.kill(killed[0], signal.SIGKILL)

    watch(kill)
    run = tmp_path / "run"
    # Rounds of seconds: another actor loads torch meanwhile.
    options = ("--workers", 3, "--slow", "client-8:20", "--out", run)
    held = tacit("simulate", experiment, "--engine", "ray", *options)
    assert held.exit_code == 0, held.stderr
    assert len(killed) == 1
    assert held.stdout.count("its actor was lost (ActorDiedError)") == 1
    survivors = [len(entry["survivors"]) for entry in json.loads((run / "summary.json").read_bytes())["rounds"]]
    assert survivors[0] == 8
    assert survivors[1] in (5, 6)
    assert 8 in survivors[2:]
    assert actors() == []


def test_without_ray_its_engine_says_what_to_install(
    tacit: Invoke, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    refused = tacit("simulate", "--engine", "ray", "--out", tmp_path / "run")
    told = "tacit: --engine ray needs ray, which is not installed: pip install 'ray>=2.40'\n"
    assert (refused.exit_code, refused.stdout, refused.stderr) == (2, "", told)


def test_an_address_is_of_a_cluster_of_ray(tacit: Invoke, tmp_path: Path) -> None:
    refused = tacit("simulate", "--address", "10.0.0.1:6379", "--out", tmp_path / "run")
    told = "tacit: --address is of a cluster of Ray: add --engine ray\n"
    assert (refused.exit_code, refused.stdout, refused.stderr) == (2, "", told)
