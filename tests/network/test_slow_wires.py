"""Wires as they are between hospitals: delay, jitter, loss, little bandwidth, and one with less."""

from pathlib import Path

from tests.network.federation import federation
from tests.network.wire import Shape

CLIENTS = 8
USUAL = Shape(delay_ms=50.0, jitter_ms=10.0, mbit=20.0, loss=0.005)
SLOWEST = Shape(delay_ms=50.0, jitter_ms=10.0, mbit=1.0, loss=0.005)


def test_eight_clients_on_slow_wires_are_in_every_sum(tmp_path: Path) -> None:
    shapes = {f"client-{number}": USUAL for number in range(1, CLIENTS)} | {f"client-{CLIENTS}": SLOWEST}
    with federation(tmp_path, clients=CLIENTS, shapes=shapes) as hosts:
        rounds = hosts.finish(*hosts.federate(rounds=2, width=96))
        assert len(rounds) == 2
        # Model and vector of the slowest: more than a second, less than a deadline.
        assert all(entry["seconds"] > 1.0 for entry in rounds), [entry["seconds"] for entry in rounds]
