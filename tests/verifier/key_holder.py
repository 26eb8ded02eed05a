"""A client and group keys: docs/spec/group-key.md, *In a session*. What it refuses ends the session."""

from typing import Any

from constants import MODEL, require
from encoding import read_members
from group_key import TO_MEMBER, KeyMember, KeyTerms
from proposal import configuration_hash
from transfer import Incoming, Outgoing, announcement, state_size

FROM_SERVER = (*TO_MEMBER, "start-key", "end-key", "reencrypt-model", "keyed-model", "fetch")
"""Outside of rounds a chunk as well."""
ADMITTED = {
    "NO_KEY": ("start-key", "end-key"),
    "AGREEING": ("end-key",),
    "KEYED": ("start-key", "end-key", "reencrypt-model", "keyed-model"),
    "FETCHING_MODEL": ("end-key", "chunk"),
    "ENCRYPTING": ("end-key",),
    "PROVIDING": ("end-key", "fetch"),
    "FETCHING_LAST": ("chunk",),
}


class KeyHolder:
    """`client` is the session's client; it sends, draws and reports."""

    def __init__(self, client: Any) -> None:
        self.client = client
        self.state = "NO_KEY"
        self.own_deadline: float | None = None
        self.epoch, self.rounds = -1, 0
        self.attempt: KeyMember | None = None
        self.keys: dict[int, tuple[bytes, bytes]] = {}
        self.members: list[str] = []

    @property
    def deadline(self) -> float | None:
        return self.attempt.deadline if self.attempt else self.own_deadline

    @property
    def phase_seconds(self) -> float:
        seconds: float = self.client.configuration["phase_seconds"]
        return seconds

    def send(self, kind: str, body: dict[str, Any], raw: bytes | None = None) -> None:
        self.client.send(kind, 0, body, raw)

    def go_to(self, state: str, deadline: float | None) -> None:
        self.state, self.own_deadline = state, deadline

    def admits(self, kind: str) -> bool:
        """False for what is ignored."""
        if kind in TO_MEMBER and self.attempt is not None:
            return self.attempt.admits(kind)
        if kind in TO_MEMBER and self.state == "NO_KEY":
            return False
        require(kind in ADMITTED[self.state], "UNEXPECTED")
        return True

    def receive(self, kind: str, body: dict[str, Any], raw: bytes | None, now: float) -> None:
        if kind in TO_MEMBER and self.attempt is not None:
            self.attempt.receive(kind, body, now)
            self.after_attempt()
        elif kind == "start-key":
            self.on_start_key(body, now)
        elif kind == "end-key":
            require(body["epoch"] == self.epoch, "SESSION")
            self.attempt = None
            self.keys.pop(self.epoch, None)
            self.go_to("NO_KEY", None)
        elif kind == "reencrypt-model":
            self.on_reencrypt(body, now)
        elif kind == "keyed-model":
            self.check_encrypted()
            require(body["epoch"] == self.epoch and body["model"]["size"] == self.model_bytes, "MODEL")
            self.fetch("FETCHING_LAST", body["model"], now)
        elif kind == "chunk":
            self.on_chunk(body, raw, now)
        else:
            self.on_fetch(body, now)

    def on_start_key(self, body: dict[str, Any], now: float) -> None:
        client = self.client
        require(body["epoch"] > self.epoch, "SESSION")
        names = client.roster.clients
        members = [names[place] for place in read_members(body["members"], len(names))]
        require(client.name in members, "MEMBERS")
        client.roster.check_whole(members)
        client.policy.check_cohort(client.configuration, len(members))
        terms = KeyTerms(
            client.conversation.session,
            body["epoch"],
            client.roster.server,
            members,
            [client.roster.signing_keys[name] for name in members],
            client.roster.hash,
            configuration_hash(client.encoded),
            self.phase_seconds,
        )
        self.epoch, self.members, self.rounds = body["epoch"], members, 0
        self.attempt = KeyMember(terms, client.name, client.signing_private, client.draw, self.send)
        self.attempt.start(now)
        self.go_to("AGREEING", None)

    def after_attempt(self) -> None:
        attempt = self.attempt
        if attempt is None or not attempt.over:
            return
        self.attempt = None
        if attempt.state == "ABORTED":
            self.go_to("NO_KEY", None)
            return
        self.keys[self.epoch] = (attempt.key, attempt.transcript.digest)
        self.go_to("KEYED", None)
        self.client.report({"event": "group key", "epoch": self.epoch, "members": self.members})

    def for_round(self, cohort: list[str]) -> tuple[bytes, bytes]:
        """Key and transcript for a round that begins."""
        require(self.state == "KEYED", "KEYS")
        require(cohort == self.members, "KEYS")
        every = self.client.configuration["rekey_every"]
        require(every == 0 or self.rounds < every, "KEYS")
        self.rounds += 1
        self.keys = {self.epoch: self.keys[self.epoch]}
        return self.keys[self.epoch]

    def check_encrypted(self) -> None:
        require(self.client.configuration["encrypted"], "UNEXPECTED")

    @property
    def model_bytes(self) -> int:
        return state_size(self.client.configuration)

    def on_reencrypt(self, body: dict[str, Any], now: float) -> None:
        self.check_encrypted()
        source = body["source"]
        made_here = source in ("clients", "remembered")
        length = 0 if made_here else self.model_bytes
        require(body["epoch"] == self.epoch and body["model"]["size"] == length, "MODEL")
        if source == "key":
            require(body["former"] in self.keys, "KEYS")
        elif source != "remembered":
            require(source == self.client.configuration["initial_model"], "MODEL")
        self.order = body
        if made_here:
            self.encrypt(b"")
        else:
            self.fetch("FETCHING_MODEL", body["model"], now)

    def fetch(self, state: str, model: dict[str, Any], now: float) -> None:
        self.incoming = Incoming(MODEL, model, self.client.configuration["state"])
        for chunk in self.incoming.first():
            self.send("fetch", {"chunk": chunk})
        self.go_to(state, now + 2 * self.phase_seconds)

    def on_chunk(self, body: dict[str, Any], raw: bytes | None, now: float) -> None:
        following = self.incoming.take(body["chunk"], raw)
        if following is not None:
            self.send("fetch", {"chunk": following})
        if not self.incoming.whole:
            self.go_to(self.state, now + 2 * self.phase_seconds)
        elif self.state == "FETCHING_MODEL":
            self.encrypt(self.incoming.data)
        else:
            key = self.keys[self.epoch][0]
            self.client.report({"event": "last model", "model": self.incoming.data, "key": key})
            self.go_to("KEYED", None)

    def encrypt(self, model: bytes) -> None:
        former = self.keys[self.order["former"]][0] if self.order["source"] == "key" else None
        event = {"event": "encrypt", "source": self.order["source"], "model": model, "round": self.order["round"]}
        self.client.report(event | {"key": self.keys[self.epoch][0], "former": former})
        self.go_to("ENCRYPTING", None)

    def provide(self, epoch: int, model: bytes, now: float) -> None:
        if self.state != "ENCRYPTING" or epoch != self.epoch:
            return
        if not model and self.order["source"] == "remembered":
            self.send("keyed-model", {"epoch": self.epoch, "model": {"digest": bytes(32), "size": 0}})
            self.go_to("KEYED", None)
        else:
            self.outgoing = Outgoing(model)
            body = {"epoch": self.epoch, "model": announcement(MODEL, model)}
            self.send("keyed-model", body)
            self.go_to("PROVIDING", now + 2 * self.phase_seconds)

    def on_fetch(self, body: dict[str, Any], now: float) -> None:
        raw = self.outgoing.give(body["chunk"])
        self.send("chunk", {"chunk": body["chunk"]}, raw)
        if self.outgoing.done:
            self.go_to("KEYED", None)
        else:
            self.go_to("PROVIDING", now + 2 * self.phase_seconds)
