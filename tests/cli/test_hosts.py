"""Parties on hosts of their own: real processes and sockets, folders that share nothing, no simulation."""

import json
import re
import shutil
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from tacit.parties.session.event_log import read
from tacit.parties.session.events import ClientRoundEnded, CopyDetected
from tests.cli.outputs import check_output

with pytest.MonkeyPatch.context() as patch:
    patch.syspath_prepend(Path(__file__).parent)
    from hosts import PATIENCE, Hosts, Process, running_hosts

pytestmark = pytest.mark.end_to_end

CLIENTS = ("client-1", "client-2", "client-3")
DIES_AFTER_ROUND_2 = """
import os, signal
from tacit.parties.session.event_log import EventLog
from tacit.parties.session.events import RoundEnded
write = EventLog.write
def write_and_die(event_log, event):
    write(event_log, event)
    if isinstance(event, RoundEnded) and event.round == 2:
        os.kill(os.getpid(), signal.SIGKILL)
EventLog.write = write_and_die
from tacit.cli.main import main
main()
"""


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[Hosts]:
    with running_hosts(tmp_path) as made:
        yield made


def join(hosts: Hosts, *options: str, names: tuple[str, ...] = CLIENTS) -> dict[str, Process]:
    return {name: hosts.start(name, "client", "party.toml", *options) for name in names}


def summary(hosts: Hosts, run: str = "0001-small") -> dict[str, Any]:
    path = hosts.path / "server" / "state" / "runs" / run / "summary.json"
    found: dict[str, Any] = json.loads(path.read_bytes())
    return found


def status(hosts: Hosts, name: str) -> dict[str, Any]:
    hosts.run(name, "status", "party.toml", "--json", "status.json")
    return check_output(hosts.path / name / "status.json", "status")


def test_a_federation_between_hosts(hosts: Hosts) -> None:
    """Every round is completed by all, the model is evaluated, and everybody's folder has what it did."""
    hosts.experiment(rounds=3)
    server = hosts.start("server", "server", "party.toml", "experiment.toml")
    clients = join(hosts)
    assert server.end() == 0, server.everything
    for client in clients.values():
        assert client.end() == 0, client.everything
        assert sum("completed" in line for line in client.said) == 3
        assert client.complained == []
    found = summary(hosts)
    assert [entry["survivors"] for entry in found["rounds"]] == [list(CLIENTS)] * 3
    # 8, 9 and 8 times three images: the sums are complete.
    assert [entry["samples"] for entry in found["rounds"]] == [75] * 3
    assert found["ended"] == "all rounds are done"
    assert found["final_accuracy"] is not None
    assert any(f"test accuracy {found['final_accuracy']:.3f}" in line for line in server.said)
    run = hosts.path / "server" / "state" / "runs" / "0001-small"
    assert {path.name for path in run.iterdir()} >= {"report.html", "model.safetensors", "events", "experiment.toml"}
    for name in CLIENTS:
        state = hosts.path / name / "state"
        assert (state / "journal" / f"{name}.jsonl").read_text().count('"type":"stage"') == 3
        events = read(state / "events" / f"{name}.jsonl")
        assert [event.round for event in events if isinstance(event, ClientRoundEnded)] == [1, 2, 3]
        assert "client-round-ended: round 3 completed" in (state / "logs" / f"{name}.log").read_text()
        told = status(hosts, name)
        assert (told["running"], told["name"], told["role"], told["round"]) == (False, name, "client", 3)
    told = status(hosts, "server")
    assert (told["running"], told["round"], told["rounds"], told["experiment"]) == (False, 3, 3, "small")
    # What they have trained is asked by whoever has typical images: the server has none of the clients'.
    pictures = hosts.path / "server" / "pictures"
    pictures.mkdir()
    with np.load(hosts.path / "server" / "tests.npz") as tests:
        for number, pixels in enumerate(tests["x_test"]):
            Image.fromarray(pixels).save(pictures / f"{number:02}.png")
    asked = hosts.run(
        "server", "infer", str(run), "--calibration", str(hosts.path / "client-1" / "own.npz"),
        "--images", "pictures", "--json", "answers.json",
    )  # fmt: skip
    assert asked.end() == 0, asked.everything
    answers = check_output(hosts.path / "server" / "answers.json", "inference")
    assert (len(answers["images"]), answers["agreement"]) == (12, 1.0)


def test_the_next_experiment_needs_no_new_clients(hosts: Hosts) -> None:
    """Clients that stay join one session after the other. Their status says so; SIGTERM ends them in order."""
    clients = join(hosts, "--stay")
    hosts.experiment(rounds=1)
    first = hosts.start("server", "server", "party.toml", "experiment.toml")
    assert first.end() == 0, first.everything
    hosts.experiment(rounds=2, epochs=2)
    second = hosts.start("server", "server", "party.toml", "experiment.toml")
    assert second.end() == 0, second.everything
    assert [len(summary(hosts, run)["rounds"]) for run in ("0001-small", "0002-small")] == [1, 2]
    for name, client in clients.items():
        told = status(hosts, name)
        assert (told["running"], told["process"]) == (True, client.process.pid)
        client.signal(signal.SIGTERM)
        assert client.end() == 130
        assert client.complained == ["tacit: interrupted"]


@pytest.mark.smoke
def test_who_is_killed_and_started_again_goes_on(hosts: Hosts) -> None:
    """kill -9 to the server between rounds, and to a client: the same commands go on with the same model."""
    hosts.experiment(rounds=6)
    clients = join(hosts, "--stay")
    command = [sys.executable, "-c", DIES_AFTER_ROUND_2, "server", "party.toml", "experiment.toml"]
    server = Process.of(command, hosts.path / "server")
    server.process.wait(PATIENCE)
    clients["client-2"].signal(signal.SIGKILL)
    assert server.end() == clients["client-2"].end() == -signal.SIGKILL
    assert status(hosts, "server")["running"] is False
    # The lock of a party that was killed holds nobody up.
    again = hosts.start("client-2", "client", "party.toml", "--stay")
    other = hosts.experiment(epochs=2)
    refused = hosts.run("server", "server", "party.toml", "experiment.toml")
    assert refused.process.returncode == 2
    assert re.fullmatch(
        r"tacit: state/runs/0001-small has 2 of 6 rounds, of another experiment \(.*\): finish it by .*",
        refused.complained[0],
    )
    other.unlink()
    second = hosts.start("server", "server", "party.toml")
    assert second.end() == 0, f"{second.everything}\n{again.everything}"
    rounds = summary(hosts)["rounds"]
    assert [entry["round"] for entry in rounds] == [1, 2, 3, 4, 5, 6]
    assert [entry["status"] for entry in rounds] == ["completed"] * 6
    entries = (hosts.path / "client-2" / "state" / "journal" / "client-2.jsonl").read_text().splitlines()
    stages = [(entry["session"], entry["round"]) for entry in map(json.loads, entries) if entry["type"] == "stage"]
    assert len(stages) == len(set(stages))
    assert len({session for session, _ in stages}) == 2


def test_a_dead_client_does_not_hold_up_a_restarted_server(tmp_path: Path) -> None:
    """Three of four are enough for a round, and `join` is an hour."""
    with running_hosts(tmp_path, clients=4) as hosts:
        hosts.experiment(rounds=4, clients='"all"')
        clients = [hosts.start(name, "client", "party.toml", "--stay") for name in hosts.names[1:]]
        command = [sys.executable, "-c", DIES_AFTER_ROUND_2, "server", "party.toml", "experiment.toml"]
        Process.of(command, hosts.path / "server").process.wait(PATIENCE)
        clients[-1].signal(signal.SIGKILL)
        clients[-1].end()
        server = hosts.start("server", "server", "party.toml")
        assert server.end() == 0, server.everything
        assert [len(entry["survivors"]) for entry in summary(hosts)["rounds"]] == [4, 4, 3, 3]


def test_who_is_stopped_says_so(hosts: Hosts) -> None:
    hosts.experiment(rounds=1, epochs=1000)
    server = hosts.start("server", "server", "party.toml", "experiment.toml")
    clients = join(hosts)
    for name in CLIENTS:
        clients[name].until("accepted")
    server.signal(signal.SIGTERM)
    assert server.end() == 130, server.everything
    assert server.complained == ["tacit: interrupted"]
    assert [clients[name].end() for name in CLIENTS] == [4, 4, 4]

    server = hosts.start("server", "server", "party.toml")
    clients = join(hosts)
    for name in CLIENTS:
        clients[name].until("accepted")
    clients["client-3"].signal(signal.SIGINT)
    assert clients["client-3"].end() == 130
    server.until("client-3 left: it gave up: its owner stopped it")
    server.until("only 2 clients are there")
    server.signal(signal.SIGTERM)
    assert server.end() == 130, server.everything


def test_a_copied_folder_never_takes_a_place_silently(hosts: Hosts) -> None:
    """The copy has the current token, and goes on; the original ends, and is refused when it starts again."""
    hosts.experiment(rounds=10_000)
    server = hosts.start("server", "server", "party.toml", "experiment.toml")
    clients = join(hosts)
    server.until("round 2 of 10000 completed")
    shutil.copytree(hosts.path / "client-1", hosts.path / "copy")
    copy = hosts.start("copy", "client", "party.toml")
    assert clients["client-1"].end() == 1
    (line,) = clients["client-1"].complained
    assert re.search(r"another process of 'client-1' \(127\.0\.0\.1\) took the place of this one", line)
    again = hosts.run("client-1", "client", "party.toml", "--stay")
    assert again.process.returncode == 1
    (line,) = again.complained
    assert "'client-1' started elsewhere since (127.0.0.1), so this folder is a copy or a backup" in line
    preflight = hosts.run("client-1", "preflight", "party.toml")
    assert "started elsewhere since" in preflight.everything
    server.until("client-1 .it is at 127.0.0.1, the other at 127.0.0.1.: its folder is a copy or a backup")
    copy.until("completed")
    for name in ("server", "client-1"):
        assert "copy or a backup" in status(hosts, name)["alert"]["detail"]
    server.signal(signal.SIGTERM)
    server.end()
    logged = read(hosts.path / "server" / "state" / "runs" / "0001-small" / "events" / "server.jsonl")
    assert {event.address for event in logged if isinstance(event, CopyDetected)} == {"127.0.0.1"}
