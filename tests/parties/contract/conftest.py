"""The transports that the contract holds for: all that a party can be given, each under CURVE."""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import count
from pathlib import Path

import pytest

from tacit.parties.links.client_endpoint import ClientEndpoint
from tacit.parties.links.endpoint import Limits
from tacit.parties.links.keys import PartyKeys
from tacit.parties.links.server_endpoint import ServerEndpoint
from tacit.parties.links.tokens import TokenFile
from tacit.protocol.core.roster import Roster

_NUMBERS = count()


@dataclass
class Transport:
    scheme: str
    keys: Mapping[str, PartyKeys]
    roster: Roster
    directory: Path

    def anywhere(self) -> str:
        """An address that nobody uses."""
        return f"ipc://{self.directory}/{next(_NUMBERS)}" if self.scheme == "ipc" else "tcp://127.0.0.1:*"

    def tokens(self, name: str) -> TokenFile | None:
        """As a party keeps them, by which its folder is told from copies."""
        return TokenFile(self.directory / f"{name}.tokens") if self.scheme == "tokens" else None

    async def bind(self, address: str = "", limits: Limits | None = None) -> ServerEndpoint:
        """A server endpoint, which a full queue does not stop at once."""
        return await ServerEndpoint.bind(
            address or self.anywhere(),
            keys=self.keys["server"],
            roster=self.roster,
            limits=limits or Limits(),
            tokens=self.tokens("server"),
        )

    async def connect(self, server: ServerEndpoint, name: str, limits: Limits | None = None) -> ClientEndpoint:
        return await ClientEndpoint.connect(
            server.address,
            keys=self.keys[name],
            server=self.roster.server,
            limits=limits,
            tokens=self.tokens(name),
        )


@pytest.fixture(params=["ipc", "tcp", "tokens"])
def transport(request: pytest.FixtureRequest, keys: dict[str, PartyKeys], roster: Roster, tmp_path: Path) -> Transport:
    return Transport(request.param, keys, roster, tmp_path)
