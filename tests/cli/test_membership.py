"""Members come, go and change their keys while a federation between hosts goes on: real processes and sockets."""

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tacit.parties.links.roster import read_roster
from tacit.parties.session.event_log import read
from tacit.parties.session.events import ListeningStarted, RosterUpdated, RoundEnded
from tests.cli.hosts import Hosts, Process, running_hosts
from tests.cli.office import Office

pytestmark = pytest.mark.end_to_end

ROUNDS = 20


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[Hosts]:
    with running_hosts(tmp_path, clients=4) as made:
        yield made


def test_a_server_gets_other_keys_while_its_clients_stay(hosts: Hosts) -> None:
    """The former server hands the next version out and ends; the one with the new keys goes on in the same folder. Then
    the operator's key is lost, and its standby key makes the next version."""
    (hosts.path / "new").mkdir()
    hosts.command("new", "keys", "new", "server", "--role", "server")
    hosts.command("new", "keys", "new", "deputy", "--role", "operator")
    deputy = str(hosts.path / "new" / "deputy.key")
    office = Office(hosts, ("rotate", str(hosts.path / "new" / "server.card")), options=("--standby", deputy))
    hosts.command("office", "roster", "sign", "roster.toml", "--operator", deputy)
    office.versions[3] = (hosts.path / "office" / "roster.toml").read_bytes()
    hosts.experiment(rounds=8, clients='"all"', epochs=30)
    former = hosts.start("server", "server", "party.toml", "experiment.toml")
    clients = [takes_part(hosts, f"client-{number}") for number in (1, 2, 3)]
    former.until("round 2 of 8 completed")
    office.give("server", 2)
    assert former.end() == 3, former.everything
    assert "version 2 of the roster has other keys of this server" in former.complained[-1]

    os.replace(hosts.path / "new" / "server.key", hosts.path / "server" / "server.key")
    server = hosts.start("server", "server", "party.toml")
    server.until("round 5 of 8 completed")
    office.give("server", 3)
    assert server.end() == 0, server.everything
    signer = read_roster(hosts.path / "office" / "roster.toml").operator[:8].hex()
    for client in clients:
        assert client.end() == 0, client.everything
        assert "takes up version 2 of the roster (rotated server)" in client.said
        assert f"takes up version 3 of the roster (now signed by {signer})" in client.said
    events = read(hosts.path / "server" / "state" / "runs" / "0001-small" / "events" / "server.jsonl")
    rounds = [event for event in events if isinstance(event, RoundEnded)]
    assert [event.round for event in rounds if event.status == "completed"] == list(range(1, 9))
    # Nobody is led back to the keys before, not even by a file.
    for version in (1, 2):
        office.give("client-1", version)
        back = takes_part(hosts, "client-1")
        assert back.end() == 2
        assert "another operator has signed it" in back.complained[0]


def takes_part(hosts: Hosts, name: str, *options: str) -> Process:
    return hosts.start(name, "client", "party.toml", *options)


def test_members_come_and_go_and_change_keys_while_the_others_train(hosts: Hosts) -> None:
    """client-4 is added, client-1 removed, client-3 and client-4 get other keys; client-2 is never touched."""
    (hosts.path / "new").mkdir()
    for name in ("client-3", "client-4"):
        hosts.command("new", "keys", "new", name, "--role", "client")
    rotated = [("rotate", str(hosts.path / "new" / f"{name}.card")) for name in ("client-3", "client-4")]
    office = Office(hosts, ("add", str(hosts.path / "client-4.card")), ("remove", "client-1"), *rotated)
    hosts.experiment(rounds=ROUNDS, clients='"all"', epochs=30)
    server = hosts.start("server", "server", "party.toml", "experiment.toml")
    # One of those that stay ends, too, when it is removed, or its keys are out.
    stays = {"client-1": ["--stay"], "client-2": [], "client-3": ["--stay"]}
    clients = {name: takes_part(hosts, name, *options) for name, options in stays.items()}
    server.until(f"round 2 of {ROUNDS} completed")

    office.give("server", 2)
    server.until(r"version 2 of the roster \(added client-4\)")
    # All three are in the session that goes by that version, so that client-1 is told that it is removed.
    done = sum("completed" in line for line in server.said)
    server.until(f"round {done + 1} of {ROUNDS} completed")
    office.give("client-4", 2)
    clients["client-4"] = takes_part(hosts, "client-4")
    clients["client-4"].until("accepted")
    # With all the others: client-1 is still there.
    clients["client-4"].until("round .* completed")

    office.give("server", 3)
    assert clients["client-1"].end() == 1
    assert clients["client-1"].complained == [
        "tacit: server: a roster that cannot be taken up: version 3 is without 'client-1': its operator has removed it"
    ]

    # Who is in a session hears of the next version; who is not yet only finds that its key is not known any more.
    clients["client-3"].until("round .* completed", after="takes up version 3")
    office.give("server", 4)
    assert clients["client-3"].end() == 1, (clients["client-3"].everything, server.everything)
    assert "version 4 has other keys of 'client-3' than this party" in clients["client-3"].complained[0]
    os.replace(hosts.path / "new" / "client-3.key", hosts.path / "client-3" / "client-3.key")
    office.give("client-3", 4)
    clients["client-3"] = takes_part(hosts, "client-3")

    # Who comes with other keys before the server has taken them up waits for it.
    clients["client-4"].signal(signal.SIGTERM)
    assert clients["client-4"].end() == 130
    os.replace(hosts.path / "new" / "client-4.key", hosts.path / "client-4" / "client-4.key")
    office.give("client-4", 5)
    clients["client-4"] = takes_part(hosts, "client-4", "--stay")
    clients["client-4"].until("does not know this key")
    office.give("server", 5)

    assert server.end() == 0, server.everything
    for name in ("client-2", "client-3"):
        assert clients[name].end() == 0, clients[name].everything
    clients["client-4"].until("round .* completed", after="does not know this key")
    clients["client-4"].signal(signal.SIGTERM)
    assert clients["client-4"].end() == 130
    said = clients["client-2"].said
    for number, change in (
        (2, "added client-4"),
        (3, "removed client-1"),
        (4, "rotated client-3"),
        (5, "rotated client-4"),
    ):
        assert f"takes up version {number} of the roster ({change})" in said
    assert {read_roster(hosts.path / name / "roster.toml").version for name in ("client-2", "client-4")} == {5}
    assert read_roster(hosts.path / "client-1" / "roster.toml").version == 2
    run = hosts.path / "server" / "state" / "runs" / "0001-small"
    summary = json.loads((run / "summary.json").read_bytes())
    rounds = summary["rounds"]
    assert [entry["round"] for entry in rounds] == list(range(1, ROUNDS + 1))
    assert {entry["status"] for entry in rounds} == {"completed"}
    assert list(clients) in [entry["survivors"] for entry in rounds]
    assert rounds[0]["survivors"] == ["client-1", "client-2", "client-3"]
    assert rounds[-1]["survivors"] == ["client-2", "client-3", "client-4"]
    events = list(read(run / "events" / "server.jsonl"))
    assert [event.version for event in events if isinstance(event, RosterUpdated)] == [2, 3, 4, 5]
    assert len({event.session for event in events if isinstance(event, ListeningStarted)}) == 5
    changed = [incident["text"] for incident in summary["incidents"] if incident["what"] == "members"]
    assert [text.partition(": ")[2] for text in changed] == [
        "from version 1 to 2 of the roster (added client-4).",
        "from version 2 to 3 of the roster (removed client-1).",
        "from version 3 to 4 of the roster (rotated client-3).",
        "from version 4 to 5 of the roster (rotated client-4).",
    ]
    # Rounds went on without client-4 until it came, and said so.
    assert any("client-4" in incident["text"] for incident in summary["incidents"] if incident["what"] == "absent")
    report = (run / "report.html").read_text()
    assert "from version 3 to 4 of the roster" in report
    assert "ended the session early" not in report
    for name in clients:
        lines = (hosts.path / name / "state" / "journal" / f"{name}.jsonl").read_text().splitlines()
        stages = [(entry["session"], entry["round"]) for entry in map(json.loads, lines)]
        assert len(stages) == len(set(stages))
