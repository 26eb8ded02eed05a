"""The parties that a vector plays, and the messages between them: docs/spec/vectors.md, *Machines*."""

from typing import Any

from aggregation import Terms
from aggregation_client import AggregationClient
from aggregation_server import AggregationServer
from constants import NAMES, Refused, require
from conversation import Conversation, Roster
from messages import raw_frame, read_body, read_envelope
from parameters import unpack_words
from session_client import Policy, SessionClient
from session_server import SessionServer


class Stage:
    """All messages of a file, and what the party at work has sent and told since the last operation."""

    def __init__(self) -> None:
        self.messages: list[list[bytes]] = []
        self.parties: dict[str, Any] = {}
        self.sends: list[tuple[str, list[bytes]]] = []
        self.events: list[dict[str, Any]] = []

    def transmit(self, receiver: str, frames: list[bytes]) -> None:
        self.messages.append(frames)
        self.sends.append((receiver, frames))

    def server(self) -> Any:
        (server,) = (party for party in self.parties.values() if isinstance(party, SumServerParty | SessionServer))
        return server

    def outcome(self, party: Any) -> dict[str, Any]:
        sends, events, self.sends, self.events = self.sends, self.events, [], []
        return {"sends": sends, "events": events, "state": party.state, "deadline": party.deadline}


def entropy(data: bytes) -> Any:
    """Draws 32 bytes after the other."""
    pieces = iter([data[at : at + 32] for at in range(0, len(data) - 31, 32)])
    return lambda: next(pieces)


class SumClientParty:
    """A client of a secure sum with its one conversation."""

    def __init__(self, stage: Stage, terms: Terms, client: dict[str, Any]) -> None:
        self.stage, self.terms = stage, terms
        self.conversation = Conversation(terms.session, client["name"], terms.server)
        vector = unpack_words(client["vector"], terms.ring_bits)
        require(len(vector) == terms.length, "INVALID")
        self.machine = AggregationClient(
            terms,
            client["name"],
            client["signing_private"],
            vector,
            entropy(client["entropy"]),
            self.send,
            self.report,
        )

    def report(self, event: dict[str, Any]) -> None:
        self.stage.events.append(event)

    def send(self, kind: str, body: dict[str, Any], raw: bytes | None) -> None:
        self.stage.transmit(self.terms.server, self.conversation.write(kind, self.terms.round, body, raw))

    @property
    def state(self) -> str:
        return self.machine.state

    @property
    def deadline(self) -> float | None:
        return self.machine.deadline

    def receive(self, sender: str, frames: list[bytes], now: float) -> None:
        try:
            envelope = read_envelope(frames)
            self.conversation.check(envelope)
            require(envelope["round"] == self.terms.round, "SESSION")
            require(self.machine.admits(envelope["type"]), "UNEXPECTED")
            body = read_body(envelope, frames)
            if envelope["type"] == "abort":
                self.machine.abort(NAMES[body["code"]], body["culprit"])
            else:
                self.machine.receive(envelope["type"], body, now)
        except Refused as reason:
            if self.machine.over:
                self.report({"event": "refused", "from": sender, "code": reason.code})
            else:
                self.machine.refuse(reason.code)

    def expire(self, now: float) -> None:
        if self.deadline is not None and now >= self.deadline:
            self.machine.abort("TIMEOUT", self.terms.server)


class SumServerParty:
    """The server of a secure sum with a conversation for each client."""

    def __init__(self, stage: Stage, terms: Terms) -> None:
        self.stage, self.terms = stage, terms
        self.conversations = {name: Conversation(terms.session, terms.server, name) for name in terms.cohort}
        self.machine = AggregationServer(terms, 0.0, self.send, self.report)

    def report(self, event: dict[str, Any]) -> None:
        self.stage.events.append(event)

    def send(self, name: str, kind: str, body: dict[str, Any]) -> None:
        self.stage.transmit(name, self.conversations[name].write(kind, self.terms.round, body, None))

    @property
    def state(self) -> str:
        return self.machine.state

    @property
    def deadline(self) -> float | None:
        return self.machine.deadline

    def receive(self, sender: str, frames: list[bytes], now: float) -> None:
        member = self.terms.cohort.index(sender)
        if self.machine.over or member in self.machine.out:
            return
        try:
            envelope = read_envelope(frames)
            self.conversations[sender].check(envelope)
            require(envelope["round"] == self.terms.round, "SESSION")
            if not self.machine.admits(member, envelope["type"]):
                return
            body = read_body(envelope, frames)
            if envelope["type"] == "abort":
                self.machine.exclude(member, "LEFT", tell=False, now=now)
            else:
                self.machine.receive(member, envelope["type"], body, raw_frame(frames), now)
        except Refused as reason:
            self.machine.exclude(member, reason.code, tell=True, now=now)

    def drop(self, sender: str, now: float) -> None:
        self.machine.exclude(self.terms.cohort.index(sender), "LEFT", tell=False, now=now)

    def expire(self, now: float) -> None:
        self.machine.expire(now)


def begin_sum(stage: Stage, terms: Terms, clients: list[dict[str, Any]], server: bool) -> None:
    stage.parties = {client["name"]: SumClientParty(stage, terms, client) for client in clients}
    if server:
        stage.parties[terms.server] = SumServerParty(stage, terms)


def begin_session(stage: Stage, roster: Roster, clients: list[dict[str, Any]], server: dict[str, Any] | None) -> None:
    def report(event: dict[str, Any]) -> None:
        stage.events.append(event)

    stage.parties = {
        client["name"]: SessionClient(
            roster,
            client["name"],
            client["signing_private"],
            entropy(client["entropy"]),
            Policy(**client["policy"]),
            client["journal"],
            client["patience"],
            client["grace"],
            stage.transmit,
            report,
        )
        for client in clients
    }
    if server is not None:
        stage.parties[roster.server] = SessionServer(
            roster,
            server["configuration"],
            server["model"],
            entropy(server["entropy"])(),
            server["smallest_cohort"],
            server["join_seconds"],
            server["grace"],
            stage.transmit,
            report,
        )
