"""What changes while a federation goes on: who takes part, who is there, and where the server is."""

import json
import re
import signal
from pathlib import Path

from tacit.parties.session.events import PhaseEnded, RosterUpdated, RoundEnded
from tacit.protocol.session.events import ClientJoined, ClientLeft, GatheringStarted, RoundStarted
from tacit.protocol.sum.states import Phase
from tests.cli.hosts import Process
from tests.cli.office import Office
from tests.network.federation import PORT, NetworkHosts, federation

ODD_HOST = str(Path(__file__).with_name("odd_host.py"))
ENDLESS = 10_000
"""Rounds: the server is stopped when enough was seen."""


def stop(server: Process) -> None:
    server.signal(signal.SIGTERM)
    assert server.end() == 130, server.everything


def test_who_is_added_trains_from_the_next_round_and_who_refuses_is_left_out(tmp_path: Path) -> None:
    """client-5 is added; the policy of client-4 does not accept what the server proposes."""
    with federation(tmp_path, clients=5) as hosts:
        added = ("add", str(hosts.path / "client-5.card"))
        office = Office(hosts, added, members=hosts.names[:-1])
        with (hosts.path / "client-4" / "party.toml").open("a") as file:
            file.write("[policy]\nlargest_clip = 0.1\n")
        server, clients = hosts.federate(rounds=ENDLESS, epochs=25, some=4)
        events = hosts.events()
        left = events.wait(ClientLeft, member="client-4")
        assert "refuses" in left.detail
        assert clients["client-4"].end() == 1
        assert events.wait(RoundEnded).survivors == ["client-1", "client-2", "client-3"]

        office.give("server", 2)
        events.wait(RosterUpdated, version=2)
        office.give("client-5", 2)
        hosts.start("client-5", "client", "party.toml")
        events.wait(ClientJoined, member="client-5")
        begun = events.wait(RoundStarted)
        assert begun.cohort == ["client-1", "client-2", "client-3", "client-5"]
        ended = events.wait(RoundEnded, round=begun.round)
        assert (ended.status, ended.survivors) == ("completed", begun.cohort)
        stop(server)


def test_three_hospitals_live_through_the_reboot_of_one(tmp_path: Path) -> None:
    """All three are needed, and one is away for longer than the grace: the others wait for it, and nobody fails. Its
    clock is an hour behind afterwards, and what its environment says of proxies is nothing to it."""
    with federation(tmp_path, clients=3, grace=2) as hosts:
        server, clients = hosts.federate(rounds=3)
        events = hosts.events()
        events.wait(RoundEnded, round=1)
        events.wait(PhaseEnded, next=Phase.TRAIN)
        clients["client-2"].signal(signal.SIGKILL)
        assert clients["client-2"].end() == -signal.SIGKILL
        # The grace is over.
        events.wait(GatheringStarted)
        server.until("client-2")
        clients["client-2"] = hosts.start("client-2", "-1", "client", "party.toml", script=ODD_HOST)
        assert [one.end() for one in (server, *clients.values())] == [0] * 4, server.everything
        assert hosts.rounds()[-1]["survivors"] == list(hosts.names[1:])
        assert [one["status"] for one in hosts.rounds()].count("completed") == 3, hosts.rounds()


def test_the_status_names_a_client_that_has_come_to_a_halt(tmp_path: Path) -> None:
    """Its process is stopped as by a debugger, or a machine that swaps; the round waits, and ends with it."""
    with federation(tmp_path, clients=3) as hosts:
        server, clients = hosts.federate(rounds=2)
        events = hosts.events()
        events.wait(PhaseEnded, next=Phase.TRAIN)
        clients["client-3"].signal(signal.SIGSTOP)
        path = hosts.path / "server" / "state" / "status.json"
        while json.loads(path.read_bytes())["waiting_for"] != ["client-3"]:
            assert server.process.poll() is None, server.everything
        assert re.search(r"^waits for +client-3$", hosts.run("server", "status", "party.toml").everything, re.M)
        clients["client-3"].signal(signal.SIGCONT)
        hosts.finish(server, clients)


def test_clients_find_a_server_that_has_another_address(tmp_path: Path) -> None:
    """By its name, which leads elsewhere from then on. The server moves with its folder, and is started there."""
    with federation(tmp_path, clients=3) as hosts:
        bind_anywhere(hosts)
        server, clients = hosts.federate(rounds=3, epochs=25)
        events = hosts.events()
        events.wait(RoundEnded, round=1)
        server.signal(signal.SIGKILL)
        server.end()
        hosts.network.move("server")
        name(hosts)
        again = hosts.start("server", "server", "party.toml")
        assert [one.end() for one in (again, *clients.values())] == [0] * 4, again.everything
        assert {one["status"] for one in hosts.rounds()} == {"completed"}


def bind_anywhere(hosts: NetworkHosts) -> None:
    """Let the server listen at all addresses, and its clients connect by its name."""
    hosts.party("server", f'bind = "tcp://0.0.0.0:{PORT}"\n[data]\nsource = "tests.npz"\n')
    for client in hosts.names[1:]:
        path = hosts.path / client / "party.toml"
        path.write_text(path.read_text().replace(hosts.network.address("server"), "server.test"))
    name(hosts)


def name(hosts: NetworkHosts) -> None:
    """Let all clients know the server's present address."""
    for client in hosts.names[1:]:
        hosts.network.call(client, "server.test", hosts.network.address("server"))
