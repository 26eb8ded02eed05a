"""One attempt at a group key: docs/spec/group-key.md, *The attempt*."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from constants import (
    CONTRIBUTION,
    CONTRIBUTION_CHANNEL,
    GROUP_KEY,
    KEY_AGREEMENT,
    KEY_CONFIRMATION,
    KEY_TRANSCRIPT,
    SIGN_CONFIRMATION,
    SIGN_CONTRIBUTION,
    SIGN_KEY_COMMIT,
    VERSION,
    Refused,
    require,
)
from primitives import (
    check_public_key,
    derive,
    digest,
    seal,
    sign,
    u8,
    u16,
    u32,
    unseal,
    verify,
    x25519,
    x25519_public,
)

COMMIT, PACKET, CONFIRMATION = 128, 112, 96
TO_MEMBER = ("peer-key-commits", "peer-key-contributions", "peer-key-confirmations")
PHASE_OF = {
    "key-commit": "KEY_COMMIT",
    "key-contribution": "KEY_CONTRIBUTE",
    "confirm-key": "KEY_CONFIRM",
    "key-accepted": "KEY_ACCEPT",
}
PHASES = [*PHASE_OF.values(), "COMPLETED", "ABORTED"]


@dataclass(frozen=True)
class KeyTerms:
    session: bytes
    epoch: int
    server: str
    members: list[str]
    signing_keys: list[bytes]
    roster: bytes
    configuration: bytes
    phase_seconds: float

    @property
    def size(self) -> int:
        return len(self.members)

    def others(self, member: int) -> list[int]:
        return [other for other in range(self.size) if other != member]

    @property
    def context(self) -> bytes:
        names = "\n".join(self.members).encode("ascii")
        parts = (self.session, u32(self.epoch), self.roster, self.configuration, names)
        return digest(KEY_AGREEMENT, u8(VERSION), *parts)


def cut(records: bytes, size: int, count: int) -> list[bytes]:
    require(len(records) == size * count, "SHARES")
    return [records[size * place : size * (place + 1)] for place in range(count)]


def commit_record(terms: KeyTerms, member: int, signing_private: bytes, channel: bytes, contribution: bytes) -> bytes:
    signed = x25519_public(channel) + digest(CONTRIBUTION, terms.context, u16(member), contribution)
    return signed + sign(signing_private, SIGN_KEY_COMMIT, terms.context, u16(member), signed)


def check_commit(terms: KeyTerms, member: int, record: bytes) -> None:
    check_public_key(record[:32])
    verify(terms.signing_keys[member], record[64:], SIGN_KEY_COMMIT, terms.context, u16(member), record[:64])


class Transcript:
    """The attempt, once all have committed."""

    def __init__(self, terms: KeyTerms, commits: list[bytes]) -> None:
        self.terms, self.commits = terms, commits
        self.digest = digest(KEY_TRANSCRIPT, terms.context, b"".join(commits))

    def channel(self, private: bytes, end: int, owner: int, holder: int) -> bytes:
        """`end` is the member at the other end."""
        secret = x25519(private, self.commits[end][:32])
        return derive(secret, CONTRIBUTION_CHANNEL, self.digest, u16(owner) + u16(holder))

    def packet(self, private: bytes, signing_private: bytes, contribution: bytes, owner: int, holder: int) -> bytes:
        sealed = seal(self.channel(private, holder, owner, holder), contribution, self.digest)
        return sealed + sign(signing_private, SIGN_CONTRIBUTION, self.digest, u16(owner), u16(holder), sealed)

    def check_packet(self, packet: bytes, owner: int, holder: int) -> None:
        parts = (self.digest, u16(owner), u16(holder), packet[:48])
        verify(self.terms.signing_keys[owner], packet[48:], SIGN_CONTRIBUTION, *parts)

    def open(self, packet: bytes, private: bytes, end: int, owner: int, holder: int) -> bytes:
        contribution = unseal(self.channel(private, end, owner, holder), packet[:48], self.digest)
        committed = digest(CONTRIBUTION, self.terms.context, u16(owner), contribution)
        require(committed == self.commits[owner][32:64], "SECRET")
        return contribution

    def key(self, contributions: dict[int, bytes]) -> bytes:
        return derive(b"".join(contributions[member] for member in range(self.terms.size)), GROUP_KEY, self.digest, b"")

    def tag(self, key: bytes, member: int) -> bytes:
        return derive(key, KEY_CONFIRMATION, self.digest, u16(member))

    def confirmation(self, key: bytes, signing_private: bytes, member: int) -> bytes:
        tag = self.tag(key, member)
        return tag + sign(signing_private, SIGN_CONFIRMATION, self.digest, u16(member), tag)

    def check_confirmation(self, record: bytes, member: int) -> None:
        parts = (self.digest, u16(member), record[:32])
        verify(self.terms.signing_keys[member], record[32:], SIGN_CONFIRMATION, *parts)


class KeyMember:
    """What it refuses it raises; `accused` is the member that it complained of."""

    def __init__(
        self,
        terms: KeyTerms,
        name: str,
        signing_private: bytes,
        draw: Callable[[], bytes],
        send: Callable[[str, dict[str, Any]], None],
    ) -> None:
        self.terms, self.me, self.signing_private = terms, terms.members.index(name), signing_private
        self.draw, self.send = draw, send
        self.state, self.deadline = "READY", None
        self.accused: int | None = None
        self.reason = ""

    @property
    def over(self) -> bool:
        return self.state in ("ACCEPTED", "ABORTED")

    def go_to(self, state: str, now: float) -> None:
        self.state = state
        self.deadline: float | None = None if self.over else now + 2 * self.terms.phase_seconds

    def start(self, now: float) -> None:
        self.private, self.contribution = self.draw(), self.draw()
        self.own = commit_record(self.terms, self.me, self.signing_private, self.private, self.contribution)
        fields = {"channel_key": self.own[:32], "commitment": self.own[32:64], "signature": self.own[64:]}
        self.send("key-commit", {"epoch": self.terms.epoch, **fields})
        self.go_to("AWAIT_PEER_COMMITS", now)

    def admits(self, kind: str) -> bool:
        """False for what is ignored."""
        if self.state == "ABORTED":
            return False
        if kind == "abort":
            return not self.over
        awaited = dict(zip(("AWAIT_PEER_COMMITS", "AWAIT_PEER_CONTRIBUTIONS"), TO_MEMBER, strict=False))
        awaited["AWAIT_PEER_CONFIRMATIONS"] = TO_MEMBER[2]
        require(awaited.get(self.state) == kind, "UNEXPECTED")
        return True

    def receive(self, kind: str, body: dict[str, Any], now: float) -> None:
        handlers = (self.on_commits, self.on_contributions, self.on_confirmations)
        handlers[TO_MEMBER.index(kind)](body, now)

    def on_commits(self, body: dict[str, Any], now: float) -> None:
        terms = self.terms
        commits = cut(body["commits"], COMMIT, terms.size)
        require(commits[self.me] == self.own, "KEYS")
        for member, record in enumerate(commits):
            check_commit(terms, member, record)
        require(len({record[:32] for record in commits}) == terms.size, "KEYS")
        self.transcript = Transcript(terms, commits)
        packets = b"".join(
            self.transcript.packet(self.private, self.signing_private, self.contribution, self.me, other)
            for other in terms.others(self.me)
        )
        self.send("key-contribution", {"epoch": terms.epoch, "packets": packets})
        self.go_to("AWAIT_PEER_CONTRIBUTIONS", now)

    def on_contributions(self, body: dict[str, Any], now: float) -> None:
        terms, me = self.terms, self.me
        others = terms.others(me)
        packets = dict(zip(others, cut(body["packets"], PACKET, len(others)), strict=True))
        contributions = {me: self.contribution}
        for owner, packet in packets.items():
            self.transcript.check_packet(packet, owner, me)
            try:
                contributions[owner] = self.transcript.open(packet, self.private, owner, owner, me)
            except Refused as reason:
                self.complain(owner, reason.code, now)
                return
        self.key = self.transcript.key(contributions)
        self.confirmed = self.transcript.confirmation(self.key, self.signing_private, me)
        self.send("confirm-key", {"epoch": terms.epoch, "tag": self.confirmed[:32], "signature": self.confirmed[32:]})
        self.go_to("AWAIT_PEER_CONFIRMATIONS", now)

    def on_confirmations(self, body: dict[str, Any], now: float) -> None:
        terms = self.terms
        records = cut(body["confirmations"], CONFIRMATION, terms.size)
        require(records[self.me] == self.confirmed, "SECRET")
        for member, record in enumerate(records):
            self.transcript.check_confirmation(record, member)
            if record[:32] != self.transcript.tag(self.key, member):
                self.complain(member, "SECRET", now)
                return
        self.send("key-accepted", {"epoch": terms.epoch})
        self.go_to("ACCEPTED", now)

    def complain(self, accused: int, code: str, now: float) -> None:
        body = {"epoch": self.terms.epoch, "accused": accused, "channel_private": self.private}
        self.send("key-complaint", body)
        self.accused, self.reason = accused, code
        self.go_to("ABORTED", now)


class KeyRelay:
    """`send(name, type, body)` is the way out; `failure` says how the attempt failed: code and culprits."""

    def __init__(self, terms: KeyTerms, now: float, send: Callable[[str, str, dict[str, Any]], None]) -> None:
        self.terms, self.send = terms, send
        self.commits: dict[int, bytes] = {}
        self.packets: dict[int, dict[int, bytes]] = {}
        self.confirmations: dict[int, bytes] = {}
        self.failure: tuple[str, list[str]] | None = None
        self.open("KEY_COMMIT", now)

    @property
    def over(self) -> bool:
        return self.state in ("COMPLETED", "ABORTED")

    def open(self, state: str, now: float) -> None:
        self.state = state
        self.waited = set(range(self.terms.size))
        self.deadline: float | None = now + self.terms.phase_seconds

    def close(self, state: str) -> None:
        self.state, self.deadline, self.waited = state, None, set()

    def fail(self, code: str, culprits: list[str]) -> None:
        self.failure = (code, culprits)
        self.close("ABORTED")

    @property
    def remaining(self) -> list[str]:
        assert self.failure is not None
        return [name for name in self.terms.members if name not in self.failure[1]]

    def expire(self, now: float) -> None:
        if self.deadline is not None and now >= self.deadline:
            self.fail("TIMEOUT", [self.terms.members[member] for member in sorted(self.waited)])

    def admits(self, name: str, kind: str) -> bool:
        if self.over:
            return False
        if kind == "abort":
            return True
        if kind == "key-complaint":
            require(self.state in ("KEY_CONFIRM", "KEY_ACCEPT"), "UNEXPECTED")
            return True
        require(kind in PHASE_OF and PHASES.index(PHASE_OF[kind]) <= PHASES.index(self.state), "UNEXPECTED")
        return PHASE_OF[kind] == self.state and self.terms.members.index(name) in self.waited

    def receive(self, name: str, kind: str, body: dict[str, Any], now: float) -> None:
        handlers = {
            "key-commit": self.on_commit,
            "key-contribution": self.on_contribution,
            "confirm-key": self.on_confirmation,
            "key-accepted": lambda member, body: None,
        }
        member = self.terms.members.index(name)
        if kind == "key-complaint":
            self.on_complaint(member, body)
            return
        handlers[kind](member, body)
        self.waited.discard(member)
        if not self.waited:
            self.next_phase(now)

    def on_commit(self, member: int, body: dict[str, Any]) -> None:
        record = body["channel_key"] + body["commitment"] + body["signature"]
        check_commit(self.terms, member, record)
        require(all(record[:32] != other[:32] for other in self.commits.values()), "KEYS")
        self.commits[member] = record

    def on_contribution(self, member: int, body: dict[str, Any]) -> None:
        others = self.terms.others(member)
        packets = dict(zip(others, cut(body["packets"], PACKET, len(others)), strict=True))
        for holder, packet in packets.items():
            self.transcript.check_packet(packet, member, holder)
        self.packets[member] = packets

    def on_confirmation(self, member: int, body: dict[str, Any]) -> None:
        record = body["tag"] + body["signature"]
        self.transcript.check_confirmation(record, member)
        self.confirmations[member] = record

    def next_phase(self, now: float) -> None:
        everybody = range(self.terms.size)
        if self.state == "KEY_COMMIT":
            self.transcript = Transcript(self.terms, [self.commits[member] for member in everybody])
            for name in self.terms.members:
                self.send(name, "peer-key-commits", {"commits": b"".join(self.transcript.commits)})
            self.open("KEY_CONTRIBUTE", now)
        elif self.state == "KEY_CONTRIBUTE":
            for holder, name in enumerate(self.terms.members):
                packets = b"".join(self.packets[owner][holder] for owner in self.terms.others(holder))
                self.send(name, "peer-key-contributions", {"packets": packets})
            self.open("KEY_CONFIRM", now)
        elif self.state == "KEY_CONFIRM":
            records = b"".join(self.confirmations[member] for member in everybody)
            for name in self.terms.members:
                self.send(name, "peer-key-confirmations", {"confirmations": records})
            self.open("KEY_ACCEPT", now)
        else:
            self.close("COMPLETED")

    def on_complaint(self, member: int, body: dict[str, Any]) -> None:
        accused, private = body["accused"], body["channel_private"]
        require(accused in self.terms.others(member), "MEMBERS")
        require(x25519_public(private) == self.commits[member][:32], "KEYS")
        transcript = self.transcript
        names = self.terms.members
        try:
            packet = self.packets[accused][member]
            contributions = {accused: transcript.open(packet, private, accused, accused, member)}
        except Refused as reason:
            self.fail(reason.code, [names[accused]])
            return
        require(self.state == "KEY_ACCEPT", "SHARES")
        for owner in self.terms.others(member):
            contributions[owner] = transcript.open(self.packets[owner][member], private, owner, owner, member)
        own = self.packets[member][accused]
        contributions[member] = transcript.open(own, private, accused, member, accused)
        if self.confirmations[accused][:32] != transcript.tag(transcript.key(contributions), accused):
            self.fail("SECRET", [names[accused]])
            return
        raise Refused("SHARES")
