"""A stage for one exchange of a server with its members: a secure sum, or an attempt at a group key."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, ClassVar

from tacit.protocol.core.errors import Code
from tacit.protocol.core.link import Link, Traffic
from tacit.protocol.core.machine import Machine, Output, Send
from tacit.protocol.group_key.member import GroupKeyMember
from tacit.protocol.group_key.relay import GroupKeyRelay
from tacit.protocol.sum.attendance import Attendance
from tacit.protocol.sum.participant import Participant
from tacit.simulate.conformance.notation import Octets, VectorError
from tacit.simulate.conformance.operations import Operations
from tacit.simulate.conformance.stage import Done, Stage
from tacit.simulate.world.exchange import hear, links


class ExchangeStage(Stage):
    """Plays some of the machines of one exchange. Subclasses make them, and describe what they report."""

    member: ClassVar[type[Participant] | type[GroupKeyMember]]
    server: ClassVar[type[Attendance] | type[GroupKeyRelay]]

    def __init__(self) -> None:
        super().__init__()
        self._machines: dict[str, Machine[Any]] = {}
        self._server = ""
        self._round = 0
        self._links: Mapping[tuple[str, str], Link] = {}

    def operations(self) -> Operations:
        """By the names that vectors use."""
        return {"start": self.start, "receive": self.receive, "drop": self.drop, "expire": self.expire}

    def link(self, session: bytes, *, server: str, members: Iterable[str], round: int) -> None:
        """Give every member its link with the server."""
        self._server, self._round = server, round
        self._links = links(session, server, members, Traffic())

    def start(self, *, party: str) -> Done:
        """A member begins."""
        machine = self._machine(party)
        if not isinstance(machine, self.member):
            raise VectorError(f"{party} is no member")
        return self._done(party, machine.start(0.0))

    def receive(
        self, *, party: str, sender: str, message: int | None = None, frames: tuple[Octets, ...] = (), now: float = 0.0
    ) -> Done:
        """A party gets a message over the authenticated link from another."""
        delivered = self.delivered(party, sender, message, frames)
        return self._done(party, hear(self._machine(party), self._links[party, sender], delivered, now))

    def drop(self, *, party: str, now: float = 0.0) -> Done:
        """The server learns that the link to a member is lost for good."""
        server = self._machine(self._server)
        if not isinstance(server, self.server):
            raise VectorError(f"{self._server} is no server")
        return self._done(self._server, server.drop(party, Code.LEFT, "its link was lost", now))

    def expire(self, *, party: str, now: float) -> Done:
        """A party is told the time, in seconds from the beginning of the exchange."""
        return self._done(party, self._machine(party).expire(now))

    def described(self, output: Output) -> list[dict[str, Any]]:
        """The events that an output of a machine, other than a message, is for others."""
        raise NotImplementedError

    def _machine(self, party: str) -> Machine[Any]:
        if party not in self._machines:
            raise VectorError(f"{party} is not played")
        return self._machines[party]

    def _done(self, party: str, outputs: list[Output]) -> Done:
        sends, events = [], []
        for output in outputs:
            if isinstance(output, Send):
                link = self._links[party, output.to]
                frames = link.frames(output.message, round=self._round, payload=output.payload)
                sends.append(self.sent(party, output.to, frames))
            else:
                events += self.described(output)
        machine = self._machine(party)
        return Done(sends=tuple(sends), events=tuple(events), state=machine.state.name, deadline=machine.deadline)
