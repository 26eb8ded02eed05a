"""The parties of a secure sum and of an attempt at a group key, each with its conversations."""

from io import BytesIO
from typing import Any

from aggregation import Terms
from aggregation_client import AggregationClient
from aggregation_server import AggregationServer
from constants import NAMES, Refused, require
from conversation import Conversation
from group_key import KeyMember, KeyRelay, KeyTerms
from messages import abort_body, raw_frame, read_body, read_envelope
from parameters import unpack_words
from plain_sum import PlainClient, PlainServer


class Stage:
    """What the party at work has sent and reported since the last step."""

    def __init__(self) -> None:
        self.sends: list[tuple[str, list[bytes]]] = []
        self.events: list[dict[str, Any]] = []

    def transmit(self, receiver: str, frames: list[bytes]) -> None:
        self.sends.append((receiver, frames))

    def outcome(self, party: Any) -> dict[str, Any]:
        sends, events, self.sends, self.events = self.sends, self.events, [], []
        return {"sends": sends, "events": events, "state": party.state, "deadline": party.deadline}


def entropy(data: bytes) -> Any:
    """Draws so many bytes after the other, 32 if nothing else is said."""
    rest = BytesIO(data)
    return lambda length=32: rest.read(length)


class SumClientParty:
    """A client of a secure sum with its one conversation."""

    def __init__(self, stage: Stage, terms: Terms, client: dict[str, Any]) -> None:
        self.stage, self.terms = stage, terms
        self.conversation = Conversation(terms.session, client["name"], terms.server)
        self.vector = unpack_words(client["vector"], terms.ring_bits)
        require(len(self.vector) == terms.length, "INVALID")
        self.machine = (AggregationClient if terms.secure else PlainClient)(
            terms,
            client["name"],
            client["signing_private"],
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
                self.report({"event": "message-refused", "member": sender, "code": reason.code})
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
        self.machine = (AggregationServer if terms.secure else PlainServer)(terms, 0.0, self.send, self.report)

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


class KeyMemberParty:
    """A member of an attempt at a group key with its one conversation."""

    def __init__(self, stage: Stage, terms: KeyTerms, member: dict[str, Any]) -> None:
        self.stage, self.terms = stage, terms
        self.conversation = Conversation(terms.session, member["name"], terms.server)
        draw = entropy(member["entropy"])
        self.machine = KeyMember(terms, member["name"], member["signing_private"], draw, self.send)

    def send(self, kind: str, body: dict[str, Any]) -> None:
        self.stage.transmit(self.terms.server, self.conversation.write(kind, 0, body, None))

    def aborted(self, code: str, culprit: str) -> None:
        self.machine.state, self.machine.deadline = "ABORTED", None
        self.stage.events.append({"event": "aborted", "code": code, "culprit": culprit})

    @property
    def state(self) -> str:
        return self.machine.state

    @property
    def deadline(self) -> float | None:
        return self.machine.deadline

    def receive(self, sender: str, frames: list[bytes], now: float) -> None:
        machine = self.machine
        try:
            envelope = read_envelope(frames)
            self.conversation.check(envelope)
            if not machine.admits(envelope["type"]):
                return
            body = read_body(envelope, frames)
            if envelope["type"] == "abort":
                self.aborted(NAMES[body["code"]], body["culprit"])
                return
            machine.receive(envelope["type"], body, now)
        except Refused as reason:
            if machine.over:
                self.stage.events.append({"event": "message-refused", "member": sender, "code": reason.code})
                return
            self.send("abort", abort_body(reason.code, self.terms.server))
            self.aborted(reason.code, self.terms.server)
            return
        if machine.accused is not None:
            self.aborted(machine.reason, self.terms.members[machine.accused])
        elif machine.state == "ACCEPTED":
            found = {"key": machine.key, "transcript": machine.transcript.digest}
            self.stage.events.append({"event": "group key"} | found)

    def expire(self, now: float) -> None:
        if self.deadline is not None and now >= self.deadline:
            self.aborted("TIMEOUT", self.terms.server)


class KeyRelayParty:
    """The server of an attempt at a group key with a conversation for each member."""

    def __init__(self, stage: Stage, terms: KeyTerms) -> None:
        self.stage, self.terms = stage, terms
        self.conversations = {name: Conversation(terms.session, terms.server, name) for name in terms.members}
        self.machine = KeyRelay(terms, 0.0, self.send)

    def send(self, name: str, kind: str, body: dict[str, Any]) -> None:
        self.stage.transmit(name, self.conversations[name].write(kind, 0, body, None))

    @property
    def state(self) -> str:
        return self.machine.state

    @property
    def deadline(self) -> float | None:
        return self.machine.deadline

    def receive(self, sender: str, frames: list[bytes], now: float) -> None:
        machine, gone = self.machine, False
        if machine.over:
            return
        try:
            envelope = read_envelope(frames)
            self.conversations[sender].check(envelope)
            if not machine.admits(sender, envelope["type"]):
                return
            body = read_body(envelope, frames)
            if envelope["type"] == "abort":
                gone = True
                machine.fail("LEFT", [sender])
            else:
                machine.receive(sender, envelope["type"], body, now)
        except Refused as reason:
            machine.fail(reason.code, [sender])
        self.after(gone)

    def after(self, gone: bool) -> None:
        if self.machine.failure is not None:
            code, culprits = self.machine.failure
            for name in self.machine.remaining if gone else self.terms.members:
                self.send(name, "abort", abort_body(code, culprits[0]))
            named = {"code": code, "culprits": culprits, "remaining": self.machine.remaining}
            self.stage.events.append({"event": "failed"} | named)
        elif self.machine.over:
            self.stage.events.append({"event": "agreed", "transcript": self.machine.transcript.digest})

    def drop(self, sender: str, now: float) -> None:
        if not self.machine.over:
            self.machine.fail("LEFT", [sender])
            self.after(gone=True)

    def expire(self, now: float) -> None:
        if not self.machine.over:
            self.machine.expire(now)
            self.after(gone=False)
