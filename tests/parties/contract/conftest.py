"""The transports that the contract holds for.

CURVE cannot be switched off in the endpoints; those without it are made here, with ZeroMQ's PLAIN in its place: the
client claims a public key and proves nothing. On inproc ZeroMQ ignores every mechanism, so there is nothing to switch.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any, ClassVar

import pytest
import zmq

from tacit.parties.links.client_endpoint import ClientEndpoint
from tacit.parties.links.endpoint import Limits
from tacit.parties.links.inproc_endpoint import InprocClientEndpoint, InprocServerEndpoint
from tacit.parties.links.keys import PartyKeys
from tacit.parties.links.memory_endpoint import MemoryClientEndpoint, MemoryNetwork, MemoryServerEndpoint
from tacit.parties.links.server_endpoint import ServerEndpoint
from tacit.parties.links.zap import ZapHandler
from tacit.protocol.core.roster import Member, Roster

_NUMBERS = count()


class ClaimedKeys(ZapHandler):
    """Believes whoever claims a key of the roster."""

    def _answer(self, request: Sequence[bytes]) -> list[bytes]:
        assert request[5] == b"PLAIN"
        return super()._answer([*request[:5], b"CURVE", request[6]])


class PlainServerEndpoint(ServerEndpoint):
    def _guard(self, names: Mapping[bytes, str]) -> ZapHandler:
        return ClaimedKeys(self._context, names, self._refuse_key)

    def _protect(self, keys: PartyKeys) -> None:
        self._socket.setsockopt(zmq.PLAIN_SERVER, 1)


class PlainClientEndpoint(ClientEndpoint):
    def _protect(self, keys: PartyKeys, server: Member) -> None:
        self._socket.setsockopt(zmq.PLAIN_USERNAME, keys.curve_public)
        self._socket.setsockopt(zmq.PLAIN_PASSWORD, b"none")


@dataclass
class Transport:
    """Makes both ends of links of one kind."""

    keys: Mapping[str, PartyKeys]
    roster: Roster
    directory: Path
    server: ClassVar[Any] = ServerEndpoint
    client: ClassVar[Any] = ClientEndpoint
    scheme: ClassVar[str] = "tcp"
    refuses: ClassVar[bool] = True
    """Whether a stranger is told at once that it is one."""
    options: dict[str, Any] = field(default_factory=dict)

    def anywhere(self) -> str:
        """An address that nobody uses."""
        return {
            "tcp": "tcp://127.0.0.1:*",
            "ipc": f"ipc://{self.directory}/{next(_NUMBERS)}",
            "inproc": f"inproc://contract-{next(_NUMBERS)}",
            "memory": f"contract-{next(_NUMBERS)}",
        }[self.scheme]

    async def bind(self, address: str = "", limits: Limits | None = None) -> Any:
        """A server endpoint, which a full queue does not stop at once."""
        return await self.server.bind(
            address or self.anywhere(),
            keys=self.keys["server"],
            roster=self.roster,
            limits=limits or Limits(),
            **self.options,
        )

    async def connect(self, server: Any, name: str, limits: Limits | None = None) -> Any:
        """A client endpoint with a link."""
        return await self.client.connect(
            server.address, keys=self.keys[name], server=self.roster.server, limits=limits, **self.options
        )


class PlainTcp(Transport):
    server, client = PlainServerEndpoint, PlainClientEndpoint


class Ipc(Transport):
    scheme = "ipc"


class PlainIpc(PlainTcp):
    scheme = "ipc"


class Inproc(Transport):
    server, client = InprocServerEndpoint, InprocClientEndpoint
    scheme = "inproc"
    refuses = False


@dataclass
class Memory(Transport):
    server, client = MemoryServerEndpoint, MemoryClientEndpoint
    scheme = "memory"
    refuses = False
    options: dict[str, Any] = field(default_factory=lambda: {"network": MemoryNetwork()})


TRANSPORTS = {
    "memory": Memory,
    "inproc": Inproc,
    "ipc, CURVE": Ipc,
    "ipc, no CURVE": PlainIpc,
    "tcp, CURVE": Transport,
    "tcp, no CURVE": PlainTcp,
}


@pytest.fixture(params=TRANSPORTS.values(), ids=TRANSPORTS)
def transport(request: pytest.FixtureRequest, keys: dict[str, PartyKeys], roster: Roster, tmp_path: Path) -> Transport:
    made: Transport = request.param(keys, roster, tmp_path)
    return made
