"""The server and the group keys of its clients: docs/spec/group-key.md, *In a session*."""

from typing import Any

from constants import CODES, MODEL, TRANSFER_LIMIT, Refused, require
from encoding import write_members
from group_key import PHASE_OF, KeyRelay, KeyTerms
from messages import read_body
from proposal import configuration_hash
from transfer import Incoming, Outgoing, announcement, state_size

NOTHING = {"digest": bytes(32), "size": 0}
OF_ATTEMPT = (*PHASE_OF, "key-complaint")
FROM_MEMBERS = (*OF_ATTEMPT, "keyed-model", "fetch", "chunk")


class KeyKeeper:
    """`server` is the session's server; it sends and reports, and is told how things end."""

    def __init__(self, server: Any) -> None:
        self.server, self.configuration = server, server.configuration
        self.state = "IDLE"
        self.own_deadline: float | None = None
        self.epoch, self.rounds = -1, 0
        self.members: list[str] = []
        """Of the latest attempt."""
        self.holders: list[str] = []
        """Of the latest agreed key, until one of them leaves."""
        self.transcript = b""
        self.relay: KeyRelay | None = None
        self.readers: list[str] = []
        self.model_epoch: int | None = None
        self.provider = ""
        self.source = ""
        self.to_ask: list[tuple[str, int]] = []
        """Members, and after which round each is to remember the model; the first is asked now."""
        self.outgoing: dict[str, Outgoing] = {}

    @property
    def deadline(self) -> float | None:
        return self.relay.deadline if self.relay else self.own_deadline

    @property
    def patience(self) -> float:
        return float(TRANSFER_LIMIT * self.configuration["phase_seconds"])

    def send(self, name: str, kind: str, body: dict[str, Any], raw: bytes | None = None) -> None:
        if name in self.server.conversations:
            self.server.send(name, kind, 0, body, raw)

    def go_to(self, state: str, deadline: float | None) -> None:
        self.state, self.own_deadline = state, deadline

    def fits(self, cohort: list[str]) -> bool:
        every = self.configuration["rekey_every"]
        return cohort == self.holders and (every == 0 or self.rounds < every)

    def agree(self, members: list[str], now: float) -> None:
        roster = self.server.roster
        self.epoch, self.members, self.holders, self.rounds = self.epoch + 1, members, [], 0
        terms = KeyTerms(
            self.server.session,
            self.epoch,
            roster.server,
            members,
            [roster.signing_keys[name] for name in members],
            roster.hash,
            configuration_hash(self.server.encoded),
            self.configuration["phase_seconds"],
        )
        self.server.report({"event": "agreeing", "epoch": self.epoch, "members": members})
        places = [roster.clients.index(name) for name in members]
        body = {"epoch": self.epoch, "members": write_members(places, len(roster.clients))}
        for name in members:
            self.send(name, "start-key", body)
        self.relay = KeyRelay(terms, now, self.send)
        self.go_to("AGREEING", None)

    def receive(self, name: str, envelope: dict[str, Any], frames: list[bytes], raw: bytes | None, now: float) -> None:
        kind = envelope["type"]
        if kind in OF_ATTEMPT:
            if self.relay is not None and name in self.members:
                self.in_attempt(self.relay, name, envelope, frames, now)
            return
        awaited = {
            ("AWAIT_MODEL", "fetch"): self.on_fetch,
            ("AWAIT_MODEL", "keyed-model"): self.on_keyed_model,
            ("FETCHING_MODEL", "chunk"): self.on_chunk,
            ("DISTRIBUTING", "fetch"): self.on_fetch_last,
        }.get((self.state, kind))
        distributing = self.state == "DISTRIBUTING"
        if awaited is None or not (name in self.outgoing if distributing else name == self.provider):
            return
        try:
            awaited(name, read_body(envelope, frames), raw, now)
        except Refused as reason:
            if distributing:
                raise
            self.fail(reason.code, [name], now)

    def in_attempt(self, relay: KeyRelay, name: str, envelope: dict[str, Any], frames: list[bytes], now: float) -> None:
        try:
            body = read_body(envelope, frames)
            require(body["epoch"] <= self.epoch, "SESSION")
            if body["epoch"] == self.epoch and relay.admits(name, envelope["type"]):
                relay.receive(name, envelope["type"], body, now)
        except Refused as reason:
            relay.fail(reason.code, [name])
        self.after_attempt(now)

    def after_attempt(self, now: float) -> None:
        relay = self.relay
        if relay is None or not relay.over:
            return
        if relay.failure is not None:
            self.fail(*relay.failure, now)
            return
        self.relay = None
        self.server.report({"event": "agreed", "epoch": self.epoch, "members": self.members})
        self.new_transcript = relay.transcript.digest
        if not self.configuration["encrypted"]:
            self.ready(now)
            return
        first = self.model_epoch is None
        readers = [name for name in self.members if first or name in self.readers]
        if not readers:
            self.go_to("IDLE", None)
            self.server.end("KEYS")
            return
        completed = self.server.completed
        self.source = "key" if not first else "remembered" if completed else self.configuration["initial_model"]
        model = self.server.model
        self.to_ask = [(readers[0], 0)]
        if self.source == "remembered":
            self.to_ask = [(name, number) for number in (completed, completed - 1) for name in readers]
        self.outgoing = {readers[0]: Outgoing(model)} if self.source in ("server", "key") else {}
        self.go_to("AWAIT_MODEL", now + self.patience)
        self.ask(announcement(MODEL, model) if self.outgoing else NOTHING)

    def ask(self, model: dict[str, Any]) -> None:
        self.provider, number = self.to_ask[0]
        body = {
            "epoch": self.epoch,
            "source": self.source,
            "former": self.model_epoch or 0,
            "model": model,
            "round": number,
        }
        self.send(self.provider, "reencrypt-model", body)

    def ready(self, now: float, model: bytes | None = None) -> None:
        self.holders, self.transcript = self.members, self.new_transcript
        self.go_to("IDLE", None)
        if model is not None:
            self.model_epoch, self.readers = self.epoch, list(self.members)
        self.server.keyed(self.members, model, now)

    def fail(self, code: str, culprits: list[str], now: float) -> None:
        self.relay, self.outgoing = None, {}
        self.go_to("IDLE", None)
        body = {"epoch": self.epoch, "code": CODES[code], "detail": code.lower(), "culprit": culprits[0]}
        for name in self.members:
            if name not in culprits:
                self.send(name, "end-key", body)
        self.server.report({"event": "key-agreement-failed", "epoch": self.epoch, "code": code, "by": culprits})
        self.server.key_failed(code, culprits, now)

    def on_fetch(self, name: str, body: dict[str, Any], raw: bytes | None, now: float) -> None:
        require(name in self.outgoing, "UNEXPECTED")
        self.send(name, "chunk", {"chunk": body["chunk"]}, self.outgoing[name].give(body["chunk"]))

    def on_keyed_model(self, name: str, body: dict[str, Any], raw: bytes | None, now: float) -> None:
        size = state_size(self.configuration)
        require(body["epoch"] == self.epoch, "MODEL")
        if self.source == "remembered" and body["model"] == NOTHING:
            self.to_ask.pop(0)
            if self.to_ask:
                self.ask(NOTHING)
            else:
                self.go_to("IDLE", None)
                self.server.end("KEYS")
            return
        require(body["model"]["size"] == size, "MODEL")
        self.incoming = Incoming(MODEL, body["model"], self.configuration["state"])
        for chunk in self.incoming.first():
            self.send(name, "fetch", {"chunk": chunk})
        self.state = "FETCHING_MODEL"

    def on_chunk(self, name: str, body: dict[str, Any], raw: bytes | None, now: float) -> None:
        following = self.incoming.take(body["chunk"], raw)
        if following is not None:
            self.send(name, "fetch", {"chunk": following})
        if self.incoming.whole:
            if self.source == "remembered":
                self.server.round = self.to_ask[0][1]
            self.ready(now, self.incoming.data)

    def distribute(self, model: bytes, now: float) -> None:
        self.outgoing = {name: Outgoing(model) for name in self.readers}
        body = {"epoch": self.epoch, "model": announcement(MODEL, model)}
        for name in self.readers:
            self.send(name, "keyed-model", body)
        self.go_to("DISTRIBUTING", now + self.patience)

    def on_fetch_last(self, name: str, body: dict[str, Any], raw: bytes | None, now: float) -> None:
        self.on_fetch(name, body, raw, now)
        if self.outgoing[name].done:
            self.received(name)

    def received(self, name: str) -> None:
        self.outgoing.pop(name, None)
        if not self.outgoing:
            self.go_to("IDLE", None)
            self.server.distributed([])

    def left(self, name: str, code: str, now: float) -> None:
        self.readers = [reader for reader in self.readers if reader != name]
        if name in self.holders:
            self.holders = []
        if self.state == "DISTRIBUTING":
            self.received(name)
        elif self.state != "IDLE" and name in self.members:
            self.fail(code, [name], now)

    def expire(self, now: float) -> None:
        if self.relay is not None:
            self.relay.expire(now)
            self.after_attempt(now)
        elif self.own_deadline is not None and now >= self.own_deadline:
            if self.state == "DISTRIBUTING":
                without, self.outgoing = sorted(self.outgoing), {}
                self.go_to("IDLE", None)
                self.server.distributed(without)
            else:
                self.fail("TIMEOUT", [self.provider], now)
