"""Addresses: those of IPv6, packets that must be small, and a client that gets another address in a round."""

from pathlib import Path

import pytest

from tacit.parties.session.events import PhaseEnded
from tacit.protocol.session.events import ClientResumed
from tacit.protocol.sum.states import Phase
from tests.network.federation import federation
from tests.network.namespaces import Family

NOTICED_SECONDS = 30


@pytest.mark.parametrize(("family", "mtu"), [pytest.param(4, 576, marks=pytest.mark.smoke), (6, 1_280)])
def test_packets_that_must_be_small_carry_a_federation(tmp_path: Path, family: Family, mtu: int) -> None:
    """The router says so to whoever sends larger ones; nobody else knows."""
    with federation(tmp_path, clients=3, family=family) as hosts:
        for name in hosts.names:
            hosts.network.narrow(name, mtu)
        rounds = hosts.finish(*hosts.federate(rounds=2, width=96))
        assert len(rounds) == 2


def test_a_client_whose_address_changes_in_a_round_is_in_its_sum(tmp_path: Path) -> None:
    """Both ends notice that nothing arrives any more, soon enough for the grace, and go on over a new connection."""
    with federation(tmp_path, clients=3) as hosts:
        server, clients = hosts.federate(rounds=2, phase=2 * NOTICED_SECONDS)
        events = hosts.events()
        moved = events.wait(PhaseEnded, next=Phase.ADVERTISE_KEYS)
        hosts.network.move("client-1")
        resumed = events.wait(ClientResumed, member="client-1")
        # A phase takes so long at most.
        assert resumed.time - moved.time < 2 * NOTICED_SECONDS
        hosts.finish(server, clients)
