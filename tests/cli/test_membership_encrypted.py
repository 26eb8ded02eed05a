"""Members come and go where only the clients can read the model, between hosts: real processes and sockets."""

import json
import signal
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import load_file

from tacit.parties.session.event_log import EventT, read
from tacit.parties.session.events import ConfigurationAccepted, ListeningStarted
from tacit.protocol.group_key.events import GroupKeyAgreed, GroupKeyReceived, ModelRecovered
from tests.cli.hosts import Hosts, running_hosts
from tests.cli.office import Office

pytestmark = [pytest.mark.end_to_end, pytest.mark.exhaustive]

ROUNDS = 20
FIRST = ["client-1", "client-2", "client-3"]
LAST = ["client-2", "client-3", "client-4"]
EMBEDDING = "patch_embed.proj.weight"


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[Hosts]:
    with running_hosts(tmp_path, clients=4) as made:
        yield made


def events(hosts: Hosts, name: str, kind: type[EventT]) -> list[EventT]:
    """What the log of a party has of this kind."""
    folder = hosts.path / name / "state"
    folder = folder / "runs" / "0001-small" if name == "server" else folder
    return [event for event in read(folder / "events" / f"{name}.jsonl") if isinstance(event, kind)]


def round_of(model: Path) -> int:
    with safe_open(model, framework="np") as opened:
        return int(opened.metadata()["round"])


def remembered(hosts: Hosts, name: str) -> Path:
    return hosts.path / name / "state" / "memory" / f"{name}.safetensors"


def test_the_key_is_renewed_and_who_is_new_goes_on_where_who_is_removed_reads_no_more(hosts: Hosts) -> None:
    """client-4 is added and client-1 removed. Then all are off, and only client-4 still has what it remembers."""
    office = Office(hosts, ("add", str(hosts.path / "client-4.card")), ("remove", "client-1"))
    experiment = hosts.experiment(rounds=ROUNDS, epochs=30)
    experiment.write_text(experiment.read_text() + "[encryption]\n")
    server = hosts.start("server", "server", "party.toml", "experiment.toml")
    clients = {name: hosts.start(name, "client", "party.toml") for name in FIRST}
    server.until(f"round 1 of {ROUNDS} completed")

    office.give("server", 2)
    server.until(r"version 2 of the roster \(added client-4\)")
    # The session that goes by that version begins with whom it has first: client-4 comes when it goes on.
    done = sum("completed" in line for line in server.said)
    server.until(f"round {done + 1} of {ROUNDS} completed")
    office.give("client-4", 2)
    clients["client-4"] = hosts.start("client-4", "client", "party.toml")
    clients["client-4"].until("accepted")
    office.give("server", 3)
    assert clients.pop("client-1").end() == 1
    clients["client-4"].until("round .* completed")
    for process in (server, *clients.values()):
        process.signal(signal.SIGKILL)
        process.end()
    for name in ("client-2", "client-3"):
        remembered(hosts, name).unlink()

    server = hosts.start("server", "server", "party.toml")
    server.until("listens at")
    removed = hosts.run("client-1", "client", "party.toml")
    assert removed.process.returncode == 1
    assert "does not know this key (status 400)" in removed.complained[0]
    again = {name: hosts.start(name, "client", "party.toml") for name in clients}
    assert server.end() == 0, server.everything
    assert [client.end() for client in again.values()] == [0, 0, 0]

    # A key in every session, that of another one held by nobody any more.
    agreed = [event.members for event in events(hosts, "server", GroupKeyAgreed)]
    assert agreed == [FIRST, FIRST, LAST, LAST]
    sessions = [event.session for event in events(hosts, "server", ListeningStarted)]
    assert [event.session for event in events(hosts, "client-1", ConfigurationAccepted)] == sessions[:2]
    assert [event.members for event in events(hosts, "client-1", GroupKeyReceived)] == [FIRST, FIRST]
    sources = [event.member for event in events(hosts, "server", ModelRecovered)]
    assert sources == ["client-1", "client-2", "client-4"]

    # Every round went on from the one before; of what came after it was removed, client-1 has nothing.
    run = hosts.path / "server" / "state" / "runs" / "0001-small"
    rounds = json.loads((run / "summary.json").read_bytes())["rounds"]
    assert {entry["status"] for entry in rounds} == {"completed"}
    assert rounds[0]["survivors"] == FIRST
    assert rounds[-1]["survivors"] == LAST
    last = max(entry["round"] for entry in rounds if "client-1" in entry["cohort"])
    plain = {name: hosts.path / name / "state" / "plain-model.safetensors" for name in ("client-1", "client-2")}
    assert {name: round_of(path) for name, path in plain.items()} == {"client-1": last, "client-2": ROUNDS}
    assert set(load_file(remembered(hosts, "client-1"))) == {"plain"}
    held, read, old = (load_file(path)[EMBEDDING] for path in (run / "model.safetensors", *reversed(plain.values())))
    assert not np.allclose(held, read, atol=0.01)
    assert not np.allclose(held, old, atol=0.01)
