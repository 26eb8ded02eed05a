"""A stage for one exchange of a server with its members: a secure sum, or an attempt at a group key."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from tacit.protocol.core.errors import Code
from tacit.protocol.core.link import Link, Traffic
from tacit.protocol.core.machine import Output, Send, Trigger
from tacit.protocol.core.outputs import Transmit
from tacit.simulate.conformance.notation import Octets, VectorError
from tacit.simulate.conformance.stage import Done, Stage
from tacit.simulate.world.exchange import hear, links


class ExchangeStage(Stage):
    """Plays some of the machines of one exchange. Subclasses make them, and say what they report."""

    def __init__(self) -> None:
        super().__init__()
        self._server = ""
        self._round = 0
        self._links: Mapping[tuple[str, str], Link] = {}

    def _link(self, session: bytes, *, server: str, members: Iterable[str], round: int) -> None:
        """Give every member its link with the server."""
        self._server, self._round = server, round
        self._links = links(session, server, members, Traffic())

    def start(self, *, party: str) -> Done:
        """A member begins."""
        if party == self._server:
            raise VectorError(f"{party} is no member")
        return self._did(party, lambda machine: machine.trigger(Trigger.START, 0.0))

    def receive(
        self, *, party: str, sender: str, message: int | None = None, frames: tuple[Octets, ...] = (), now: float = 0.0
    ) -> Done:
        """A party gets a message over the authenticated link from another."""
        delivered = self.delivered(party, sender, message, frames)
        return self._did(party, lambda machine: hear(machine, self._links[party, sender], delivered, now))

    def drop(self, *, party: str, now: float = 0.0) -> Done:
        """The server learns that the link to a member is lost for good."""
        return self._did(self._server, lambda server: server.drop(party, Code.LEFT, "its link was lost", now))

    def expire(self, *, party: str, now: float) -> Done:
        """A party is told the time, in seconds from the beginning of the exchange."""
        return self._did(party, lambda machine: machine.expire(now))

    def _transmit(self, party: str, output: Output) -> Output:
        if not isinstance(output, Send):
            return output
        frames = self._links[party, output.to].frames(output.message, round=self._round, payload=output.payload)
        return Transmit(output.to, frames, output.message.PHASE)
