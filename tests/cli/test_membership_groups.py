"""Members come and go where clients are in groups, between hosts: real processes and sockets."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tacit.parties.links.roster import read_roster
from tests.cli.hosts import Hosts, Process, running_hosts
from tests.cli.office import Office

pytestmark = [pytest.mark.end_to_end, pytest.mark.exhaustive]

ROUNDS = 14
CLIENTS = tuple(f"client-{number}" for number in range(1, 10))


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[Hosts]:
    with running_hosts(tmp_path, clients=len(CLIENTS)) as made:
        yield made


def test_newcomers_and_retired_groups_wait_and_only_clients_of_changed_groups_ask_their_owners(hosts: Hosts) -> None:
    """client-9 comes, and waits. client-1 is removed: client-2, who was in a group with it, waits too. The two are
    admitted as a group, which client-2's owner is asked about; nobody else is asked, or started again."""
    office = Office(
        hosts,
        ("add", str(hosts.path / "client-9.card")),
        ("remove", "client-1"),
        ("add", "--group-size", "2"),
        members=("server", *CLIENTS[:8]),
        options=("--group-size", "2"),
    )
    experiment = hosts.experiment(rounds=ROUNDS, clients=8, epochs=30)
    text = experiment.read_text().replace("rounds =", "group_size = 2\nrounds =").replace("grace = 1", "grace = 60")
    accepted = "[policy]\nleast_corrupt = 0.05\n"
    experiment.write_text(text.replace("[aggregation]", f"{accepted}[aggregation]\ncorrupt = 0.05\ndropout = 0.34"))
    for name in CLIENTS:
        hosts.client(name, sections=accepted)
    server = hosts.start("server", "server", "party.toml", "experiment.toml")
    clients = {name: hosts.start(name, "client", "party.toml") for name in CLIENTS[:8]}
    server.until(f"round 1 of {ROUNDS} completed")

    office.give("server", 2)
    server.until(r"version 2 of the roster \(added client-9\)")
    office.give("client-9", 2)
    clients["client-9"] = hosts.start("client-9", "client", "party.toml")
    clients["client-9"].until("accepted")
    next_round(server)

    office.give("server", 3)
    assert clients["client-1"].end() == 1
    server.until(r"version 3 of the roster \(removed client-1; regrouped client-2\)")
    next_round(server)

    office.give("server", 4)
    assert clients["client-2"].end() == 1
    fingerprint = read_roster(hosts.path / "office" / "roster.toml").fingerprint
    (asked,) = clients["client-2"].complained
    assert "this client was in another group before, by its journal, than in the roster" in asked
    assert asked.endswith(f'tacit client --accept-groups "{fingerprint}"')
    assert read_roster(hosts.path / "client-2" / "roster.toml").version == 3
    clients["client-2"] = hosts.start("client-2", "client", "party.toml", "--accept-groups", fingerprint)

    assert server.end() == 0, server.everything
    for name in CLIENTS[1:]:
        assert clients[name].end() == 0, clients[name].everything
        assert read_roster(hosts.path / name / "roster.toml").version == 4
    run = hosts.path / "server" / "state" / "runs" / "0001-small"
    rounds = json.loads((run / "summary.json").read_bytes())["rounds"]
    assert {entry["status"] for entry in rounds} == {"completed"}
    cohorts = list(dict.fromkeys(tuple(entry["cohort"]) for entry in rounds))
    assert cohorts == [CLIENTS[:8], CLIENTS[2:8], CLIENTS[1:]]


def next_round(server: Process) -> None:
    """Wait until one more round is held than now."""
    done = sum("completed" in line for line in server.said)
    server.until(f"round {done + 1} of {ROUNDS} completed")
