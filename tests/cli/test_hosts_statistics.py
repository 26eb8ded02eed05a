"""A server without any image, between real processes: statistics of the pixels from a first sum, and accuracy from
images that clients keep from training; both against what the clients' own files say."""

import hashlib
import json
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from safetensors import safe_open

from tacit.models.configuration import ImagesConfiguration
from tacit.models.data import normalise, read, split
from tacit.models.datasets.samples import Source
from tacit.models.moments import moments
from tacit.models.networks import build
from tacit.parties.runs.experiment import load
from tacit.parties.session.event_log import read as events
from tacit.parties.session.events import (
    ClientRoundEnded,
    ConfigurationAccepted,
    ConfigurationProposed,
    RoundEnded,
    SessionEnded,
    StatisticsContributed,
    StatisticsSummed,
)
from tacit.protocol.session.events import RoundStarted

with pytest.MonkeyPatch.context() as patch:
    patch.syspath_prepend(Path(__file__).parent)
    from hosts import CLASSES, Hosts, Process, running_hosts

pytestmark = pytest.mark.end_to_end

CLIENTS = ("client-1", "client-2", "client-3")
RUN = "0001-small"
GIVEN = "mean = [0.35]\nstd = [0.2]\n"
DIES_WITH_THE_SUM = """
import os, signal
from tacit.parties.runs.directory import RunDirectory
keep = RunDirectory.keep_statistics
def keep_and_die(*given):
    keep(*given)
    os.kill(os.getpid(), signal.SIGKILL)
RunDirectory.keep_statistics = keep_and_die
from tacit.cli.main import main
main()
"""
SUMMED = 'statistics = "sum"\nchannels = 1\n'


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[Hosts]:
    with running_hosts(tmp_path) as made:
        made.party("server", f'bind = "tcp://127.0.0.1:{made.port}"\n')
        yield made


def experiment(hosts: Hosts, *, rounds: int, summed: str = SUMMED, epochs: int = 1) -> None:
    path = hosts.experiment(rounds=rounds, epochs=epochs)
    text = path.read_text()
    assert GIVEN in text
    path.write_text(text.replace(GIVEN, summed).replace("[training]", "[training]\nheld_out = 0.25"))


def join(hosts: Hosts, *options: str) -> dict[str, Process]:
    return {name: hosts.start(name, "client", "party.toml", *options) for name in CLIENTS}


def run_of(hosts: Hosts) -> Path:
    return hosts.path / "server" / "state" / "runs" / RUN


def known(hosts: Hosts, name: str) -> Any:
    return json.loads((run_of(hosts) / name).read_bytes())


def source(hosts: Hosts, name: str) -> Source:
    return read(ImagesConfiguration(source=str(hosts.path / name / "own.npz"), classes=CLASSES))


def expected_statistics(hosts: Hosts) -> dict[str, Any]:
    """Of all pixels in one place; the sums are exact, so that these are the same binary digits."""
    parts = [moments(source(hosts, name).train.images, channels=1, image_size=8) for name in CLIENTS]
    together = parts[0] + parts[1] + parts[2]
    everything = np.concatenate([np.load(hosts.path / name / "own.npz")["x_train"].ravel() for name in CLIENTS])
    mean, std = together.normalisation()
    # NumPy's own figures, of float64: some 5,000 summands.
    np.testing.assert_allclose([*mean, *std], [everything.mean() / 255, everything.std() / 255], rtol=1e-12)
    return {"clients": 3, "pixels": everything.size, "mean": list(mean), "std": list(std)}


def expected_held_out(hosts: Hosts, statistics: dict[str, Any]) -> tuple[int, int]:
    """Images that all clients keep, and how many the first model gets right, which follows from the run's seed."""
    ran = load(run_of(hosts) / "experiment.toml")
    with safe_open(run_of(hosts) / "model.safetensors", framework="np") as file:
        seed = msgspec.json.decode(file.metadata()["progress"])["split_seed"]
    model = build(ran.model, classes=3, channels=1, seed=seed)
    model.eval()
    count = right = 0
    for name in CLIENTS:
        data = normalise(source(hosts, name), image_size=8, mean=statistics["mean"], std=statistics["std"])
        kept = split(data.x_train, 0.25, hashlib.sha256(b"%d" % seed).digest())[1]
        assert len(kept) == len(data.x_train) // 4
        count += len(kept)
        for at in kept.tolist():
            with torch.inference_mode():
                right += int(model(data.x_train[at : at + 1]).argmax()) == int(data.y_train[at])
    return count, right


def test_a_server_without_images_knows_statistics_and_accuracy(hosts: Hosts) -> None:
    experiment(hosts, rounds=2)
    server = hosts.start("server", "server", "party.toml", "experiment.toml", "--json", "summary.json")
    clients = join(hosts)
    assert server.end() == 0, server.everything
    for client in clients.values():
        assert client.end() == 0, client.everything
        assert any("accepted statistics, active mode" in line for line in client.said)
        assert any("its sums of pixels are in those of all; training follows" in line for line in client.said)
        assert sum("completed" in line for line in client.said) == 2
        assert client.complained == []
    statistics = known(hosts, "statistics.json")
    assert statistics == expected_statistics(hosts)
    summary = json.loads((hosts.path / "server" / "summary.json").read_bytes())
    assert summary["statistics"] == statistics
    assert [entry["round"] for entry in summary["rounds"]] == [1, 2]

    first, second = (entry["held_out"] for entry in summary["rounds"])
    images, right = expected_held_out(hosts, statistics)
    assert (first["round"], first["images"], first["accuracy"]) == (0, images, right / images)
    assert (second["round"], second["images"]) == (1, images)
    # Trained on the others: 24 + 27 + 24 images less those that are kept.
    assert [entry["samples"] for entry in summary["rounds"]] == [75 - images] * 2
    assert any(f"held-out accuracy after round 1 {second['accuracy']:.3f}" in line for line in server.said)
    shown = f"pixels of 3 clients: mean {statistics['mean'][0]:.4f}, standard deviation {statistics['std'][0]:.4f}"
    assert any(shown in line for line in server.said)

    kinds = [type(event) for event in events(run_of(hosts) / "events" / "server.jsonl")]
    assert kinds.index(StatisticsSummed) < kinds.index(ConfigurationProposed) < kinds.index(RoundStarted)
    assert [kinds.count(kind) for kind in (StatisticsSummed, RoundStarted, RoundEnded, SessionEnded)] == [1, 2, 2, 1]
    for name in CLIENTS:
        state = hosts.path / name / "state"
        told = list(events(state / "events" / f"{name}.jsonl"))
        schemes = [event.scheme for event in told if isinstance(event, ConfigurationAccepted)]
        assert schemes == ["statistics", "fedavg"]
        assert sum(isinstance(event, StatisticsContributed) for event in told) == 1
        assert [event.round for event in told if isinstance(event, ClientRoundEnded)] == [1, 2]
        # One of the first sum, and one for each round.
        assert (state / "journal" / f"{name}.jsonl").read_text().count('"type":"stage"') == 3
        log = (state / "logs" / f"{name}.log").read_text()
        assert "configuration-accepted: accepted statistics, active mode" in log
        assert "statistics-contributed: " in log
    assert (
        "statistics-summed: pixels of 3 clients"
        in (hosts.path / "server" / "state" / "logs" / "server.log").read_text()
    )
    report = (run_of(hosts) / "report.html").read_text()
    assert "how many pixels the images of all clients together have" in report
    assert "Held-out accuracy" in report


def test_a_server_that_dies_before_it_tells_them_proposes_the_training_at_once(hosts: Hosts) -> None:
    """Its clients, who still ask the former session to go on, are welcomed to another one."""
    experiment(hosts, rounds=2)
    for name in CLIENTS:
        path = hosts.path / name / "party.toml"
        path.write_text(path.read_text().replace("grace = 1\n", "grace = 300\n"))
    server = Process.of(
        [sys.executable, "-c", DIES_WITH_THE_SUM, "server", "party.toml", "experiment.toml"], hosts.path / "server"
    )
    clients = join(hosts, "--stay")
    assert server.end() == -signal.SIGKILL, server.everything
    again = check_training_follows(hosts, clients)
    assert not any(" left: " in line for line in again.said), again.said
    for name in CLIENTS:
        told = events(hosts.path / name / "state" / "events" / f"{name}.jsonl")
        assert not any(isinstance(event, StatisticsContributed) for event in told)


def check_training_follows(hosts: Hosts, clients: dict[str, Process]) -> Process:
    before = known(hosts, "statistics.json")
    again = hosts.start("server", "server", "party.toml")
    assert again.end() == 0, again.everything
    for client in clients.values():
        client.signal(signal.SIGTERM)
        assert client.end() == 130, client.everything
    assert known(hosts, "statistics.json") == before == expected_statistics(hosts)
    told = events(run_of(hosts) / "events" / "server.jsonl")
    assert not any(isinstance(event, StatisticsSummed) for event in told)
    summary = known(hosts, "summary.json")
    assert [entry["status"] for entry in summary["rounds"]] == ["completed"] * 2
    assert not any("pixels of" in line for line in again.said)
    return again
