"""Many clients, each in a namespace of its own, on one machine."""

from pathlib import Path

from tests.network.federation import federation

CLIENTS = 30


def test_thirty_clients_on_one_machine_are_in_every_sum(tmp_path: Path) -> None:
    with federation(tmp_path, clients=CLIENTS) as hosts:
        assert len(hosts.finish(*hosts.federate(rounds=2))) == 2
