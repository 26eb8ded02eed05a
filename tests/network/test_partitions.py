"""Partitions: a client that is cut off for ten seconds in any phase, and a server that is killed in a round."""

import signal
import threading
from pathlib import Path

from tacit.parties.session.events import PhaseEnded, RoundEnded
from tacit.protocol.session.events import ClientJoined
from tacit.protocol.sum.states import Phase
from tests.network.federation import federation
from tests.network.wire import Shape

AWAY_SECONDS = 10.0
# Of a round in active mode, in order, as the server begins them.
PHASES = (
    Phase.ADVERTISE_KEYS,
    Phase.SHARE_KEYS,
    Phase.TRAIN,
    Phase.MASKED_INPUT,
    Phase.CONSISTENCY_CHECK,
    Phase.UNMASK,
)


def test_a_partition_of_ten_seconds_in_any_phase_costs_nobody_a_round(tmp_path: Path) -> None:
    """In the first round a client is cut off in every phase, and before it when the first has joined. Wires are slow,
    so that a phase lasts, and so that messages are on their way both ways when the wire is cut."""
    slow = {f"client-{number}": Shape(delay_ms=150.0 + 50 * number) for number in (1, 2, 3)}
    with federation(tmp_path, clients=3, shapes=slow) as hosts:

        def cut(name: str) -> None:
            hosts.network.unplug(name)
            threading.Event().wait(AWAY_SECONDS)
            hosts.network.plug(name)

        # Vectors of several chunks, so that there is a time at which all are ready and not all have come.
        server, clients = hosts.federate(rounds=2, width=240)
        events = hosts.events()
        events.wait(ClientJoined, member="client-1")
        cut("client-1")
        for number, phase in enumerate(PHASES):
            events.wait(PhaseEnded, next=phase)
            cut(f"client-{1 + number % 3}")
        first, second = hosts.finish(server, clients)
        # Every partition held the round up.
        assert second["seconds"] < len(PHASES) * AWAY_SECONDS < first["seconds"]


def test_a_server_that_is_killed_in_a_round_goes_on_when_it_is_started_again(tmp_path: Path) -> None:
    """The round is run again, by everybody, and none is counted twice."""
    with federation(tmp_path, clients=3) as hosts:
        server, clients = hosts.federate(rounds=3, stay=True)
        events = hosts.events()
        events.wait(RoundEnded, round=1)
        events.wait(PhaseEnded, next=Phase.CONSISTENCY_CHECK)
        server.signal(signal.SIGKILL)
        assert server.end() == -signal.SIGKILL
        again = hosts.start("server", "server", "party.toml")
        assert again.end() == 0, again.everything
        rounds = hosts.rounds()
        assert [(entry["round"], entry["status"]) for entry in rounds] == [(n, "completed") for n in (1, 2, 3)]
        assert all(entry["survivors"] == list(hosts.names[1:]) for entry in rounds)
        for client in clients.values():
            client.signal(signal.SIGTERM)
            assert client.end() == 130, client.everything
