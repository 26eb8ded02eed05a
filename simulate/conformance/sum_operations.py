"""Operations that play one secure sum: its server, its clients, or one of them alone."""

from __future__ import annotations

from typing import Any

import msgspec

from tacit.protocol.aggregation_client import AggregationClient
from tacit.protocol.aggregation_results import ClientAborted, Journal, ServerAborted, Summed
from tacit.protocol.aggregation_server import AggregationServer
from tacit.protocol.agreement import Agreement
from tacit.protocol.errors import Code, RemoteProtocolError
from tacit.protocol.link import Link, Traffic
from tacit.protocol.machine import Output, Report, Send
from tacit.protocol.primitives import SigningKey
from tacit.protocol.rounds import sum_client, sum_server
from tacit.simulate.conformance.notation import Octets, VectorError
from tacit.simulate.conformance.operations import Operations
from tacit.simulate.conformance.primitive_operations import Terms
from tacit.simulate.conformance.stage import Done, Stage, coded, entropy_of


class SumClient(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A client that is played."""

    name: str
    signing_private: Octets
    vector: Octets
    """Packed ring words."""
    entropy: Octets
    """What it draws, one after the other; docs/spec says in which order."""


class SumStage(Stage):
    """One secure sum."""

    def __init__(self) -> None:
        super().__init__()
        self._agreement: Agreement
        self._machines: dict[str, AggregationClient | AggregationServer] = {}
        self._links: dict[tuple[str, str], Link] = {}

    def operations(self) -> Operations:
        """By the names that vectors use."""
        return {
            "begin sum": self.begin_sum,
            "start": self.start,
            "receive": self.receive,
            "drop": self.drop,
            "expire": self.expire,
        }

    def begin_sum(self, *, terms: Terms, clients: tuple[SumClient, ...], server: bool) -> bytes:
        """Begin a secure sum, of which these parties are played, at time 0. Returns its context."""
        self._agreement = agreement = terms.agreement()
        if server:
            self._machines[agreement.server] = sum_server(agreement, 0.0)
        for client in clients:
            self._machines[client.name] = sum_client(
                agreement,
                client.name,
                signing=SigningKey(client.signing_private),
                vector=agreement.ring.unpack(client.vector),
                entropy=entropy_of(client.entropy),
            )
        traffic = Traffic()
        for name in agreement.cohort:
            for own, peer in ((name, agreement.server), (agreement.server, name)):
                self._links[own, peer] = Link(own, peer, agreement.session, traffic)
        return agreement.context

    def start(self, *, party: str) -> Done:
        """A client begins."""
        machine = self._machine(party)
        if not isinstance(machine, AggregationClient):
            raise VectorError(f"{party} is no client")
        return self._done(party, machine.start(0.0))

    def receive(
        self, *, party: str, sender: str, message: int | None = None, frames: tuple[Octets, ...] = (), now: float = 0.0
    ) -> Done:
        """A party gets a message over the authenticated link from another."""
        machine = self._machine(party)
        try:
            packet = self._links[party, sender].packet(self.delivered(party, sender, message, frames))
        except RemoteProtocolError as error:
            return self._done(party, machine.reject(sender, error, now))
        return self._done(party, machine.receive(sender, packet, now))

    def drop(self, *, party: str, now: float = 0.0) -> Done:
        """The server learns that the link to a client is lost for good."""
        server = self._machine(self._agreement.server)
        if not isinstance(server, AggregationServer):
            raise VectorError("the server is not played")
        return self._done(self._agreement.server, server.drop(party, Code.LEFT, "its link was lost", now))

    def expire(self, *, party: str, now: float) -> Done:
        """A party is told the time, in seconds from the beginning of the sum."""
        return self._done(party, self._machine(party).expire(now))

    def _machine(self, party: str) -> AggregationClient | AggregationServer:
        if party not in self._machines:
            raise VectorError(f"{party} is not played")
        return self._machines[party]

    def _done(self, party: str, outputs: list[Output]) -> Done:
        sends, events = [], []
        for output in outputs:
            if isinstance(output, Send):
                link = self._links[party, output.to]
                frames = link.frames(output.message, round=self._agreement.round, payload=output.payload)
                sends.append(self.sent(party, output.to, frames))
            else:
                events += self._event(output)
        machine = self._machine(party)
        return Done(sends=tuple(sends), events=tuple(events), state=machine.state.name, deadline=machine.deadline)

    def _event(self, output: Output) -> list[dict[str, Any]]:
        match output:
            case Journal(contribution=entry):
                event = {"event": "journal", "sharers": entry.sharers, "unmasked": entry.unmasked}
                return [event]
            case ClientAborted() | ServerAborted():
                return [coded("aborted", output.code, culprit=output.culprit)]
            case Summed():
                words = bytes(self._agreement.ring.pack(output.total))
                return [{"event": "sum", "words": words, "survivors": output.survivors}]
            case Report(event="dropped", fields=fields):
                names = ("member", "phase", "code")
                return [{"event": "dropped"} | {name: fields[name] for name in names}]
            case Report(event="complaint" | "refused", fields=fields):
                return [{"event": output.event} | {name: fields[name] for name in fields if name != "detail"}]
            case Report():
                return []  # Figures for the log.
        raise TypeError(type(output).__name__)
