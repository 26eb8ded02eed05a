"""Strangers who reach the server's port and have no key: they stop no round."""

import signal
import sys
from pathlib import Path

from tacit.parties.session.events import HandshakeRefused
from tacit.protocol.session.events import ClientJoined
from tests.network.federation import PORT, federation

CROWD = str(Path(__file__).with_name("crowd.py"))


def test_scans_half_open_connections_and_a_thousand_more_a_second_stop_no_round(tmp_path: Path) -> None:
    """They go on through all rounds, from a host that is none of the federation's."""
    with federation(tmp_path, clients=3, others=("stranger",)) as hosts:
        server, clients = hosts.federate(rounds=5)
        crowd = hosts.launch("stranger", [sys.executable, CROWD, hosts.network.address("server"), str(PORT)])
        crowd.until("opened 2000 ")
        hosts.events().wait(ClientJoined)
        assert len(hosts.finish(server, clients)) == 5
        hosts.events().wait(HandshakeRefused, public_key=None, address=hosts.network.address("stranger"))
        crowd.signal(signal.SIGKILL)
        assert crowd.end() == -signal.SIGKILL
