"""Who the parties are, and how their messages are numbered: docs/spec/session.md, docs/spec/encoding.md."""

import hashlib
from collections.abc import Sequence
from typing import Any

from constants import GROUP, SIGN_ROSTER, Refused, require
from messages import FEDERATION, Family, read_roster, write_message, write_roster
from primitives import digest, ed25519_public, sign, verify


class Roster:
    """`operator` is the private key of who signs this version, or the public one of a roster that was read."""

    def __init__(
        self,
        members: list[dict[str, Any]],
        version: int = 0,
        operator: bytes = b"",
        signature: bytes = b"",
        lineage: bytes = b"",
        standby: bytes = b"",
        former: Sequence[dict[str, Any]] = (),
    ) -> None:
        private, self.operator = (b"", operator) if signature or not operator else (operator, ed25519_public(operator))
        self.members, self.version, self.lineage, self.standby = members, version, lineage, standby
        self.encoded = write_roster(members, version, self.operator, lineage, standby, list(former))
        self.hash = hashlib.sha256(self.encoded).digest()
        self.signature = sign(private, SIGN_ROSTER, self.hash) if private else signature
        (self.server,) = (member["name"] for member in members if member["role"] == "server")
        self.clients = [member["name"] for member in members if member["role"] == "client"]
        self.signing_keys = {member["name"]: member["signing_public"] for member in members}
        self.all_keys = {
            member["name"]: [*member.get("previous", ()), member["signing_public"]] for member in (*members, *former)
        }
        self.group_numbers = {member["name"]: member["group"] for member in members if member["group"]}

    def waits(self, name: str) -> bool:
        return bool(self.group_numbers) and name not in self.group_numbers

    def later(self, encoded: bytes, signature: bytes, name: str) -> "Roster":
        """The version that a client of this name is told: docs/spec/session.md, *Changes of the roster*, 1 to 5."""
        require(self.operator != b"", "ROSTER")
        hashed, signer = hashlib.sha256(encoded).digest(), self.operator
        try:
            verify(signer, signature, SIGN_ROSTER, hashed)
        except Refused:
            signer = self.standby
            require(signer != b"", "SIGNATURE")
            verify(signer, signature, SIGN_ROSTER, hashed)
        members, version, lineage, standby, former = read_roster(encoded, signer)
        found = Roster(members, version, signer, signature, lineage, standby, former)
        before, after = ({member["name"]: member for member in roster.members} for roster in (self, found))
        require(found.lineage == self.lineage, "ROSTER")
        if signer == self.standby:
            require(found.standby != self.operator, "ROSTER")
        else:
            require(self.standby in (b"", found.standby), "ROSTER")
            require(found.version > self.version, "ROSTER")
        require(name in after, "ROSTER")
        require(not rotated(before[name], after[name]), "ROSTER")
        require(found.server == self.server, "MEMBERS")
        require(all(after[other]["role"] == before[other]["role"] for other in before if other in after), "MEMBERS")
        for other, keys in self.all_keys.items():
            heirs = [name for name, later in found.all_keys.items() if keys[-1] in later]
            heirs = [other] if other == self.server else heirs or [name for name in found.all_keys if name == other]
            require(bool(heirs) and all(found.all_keys[heir][: len(keys)] == keys for heir in heirs), "MEMBERS")
        require(not self.clients or bool(self.group_numbers) == bool(found.group_numbers), "MEMBERS")
        for other in self.group_numbers:
            group = self.group_of(other)
            in_groups = all(member in found.group_numbers for member in group)
            require(not in_groups or sorted(found.group_of(other)) == sorted(group), "MEMBERS")
        return found

    def group_of(self, name: str) -> list[str]:
        """Who is in a sum only together with this client, itself included."""
        number = self.group_numbers.get(name)
        same = [other for other in self.clients if number and self.group_numbers.get(other) == number]
        return same or [name]

    def group_hash(self, name: str) -> bytes:
        """What a client writes down of its group: docs/spec/session.md, *Journal*."""
        if name not in self.group_numbers:
            return b""
        return digest(GROUP, *sorted(self.signing_keys[other] for other in self.group_of(name)))

    @property
    def group_sizes(self) -> list[int]:
        return [len(self.group_of(name)) for name in self.group_numbers]

    def gather(self, names: list[str], most: int) -> list[str]:
        """Whole groups of these, in their order, at most so many clients; in the order of the roster."""
        chosen: list[str] = []
        for name in names:
            group = self.group_of(name)
            free = name not in chosen and not self.waits(name)
            if free and set(group) <= set(names) and len(chosen) + len(group) <= most:
                chosen += group
        return [name for name in self.clients if name in chosen]

    def check_whole(self, cohort: list[str]) -> None:
        require(all(set(self.group_of(name)) <= set(cohort) for name in cohort), "MEMBERS")
        require(not any(self.waits(name) for name in cohort), "MEMBERS")


def rotated(before: dict[str, Any], after: dict[str, Any]) -> bool:
    return any(before[key] != after[key] for key in ("curve_public", "signing_public"))


class Conversation:
    """Both directions of what two parties say to each other in a session: docs/spec/session.md, *Resumption*."""

    def __init__(
        self, session: bytes, name: str, peer: str, sent: int = 0, family: Family = FEDERATION, link: int = 0
    ) -> None:
        self.session, self.name, self.peer, self.family = session, name, peer, family
        self.sent, self.received = sent, 0
        self.link = self.agreed = link
        self.broken = False
        self.resumes = "resume" in self.family.bodies
        self.kept: list[tuple[int, str, int, dict[str, Any], bytes | None]] = []
        self.due = 0

    @property
    def asking(self) -> bool:
        return self.agreed < self.link

    def frames(self, link: int, number: int, kind: str, round_number: int, body: Any, raw: bytes | None) -> list[bytes]:
        ends = (self.session, round_number, self.name)
        return write_message(kind, *ends, number, body, raw, self.family, link, self.received * self.resumes)

    def write(self, kind: str, round_number: int, body: dict[str, Any], raw: bytes | None) -> list[bytes]:
        said = (self.sent, kind, round_number, body, raw)
        self.kept.append(said)
        self.sent += 1
        return self.frames(self.agreed, *said)

    def late(self, envelope: dict[str, Any]) -> bool:
        """Whether it is passed over: of another link, or after something that was lost."""
        gap = envelope["link"] == self.link and envelope["sequence"] > self.received
        lost = self.broken and not self.asking and gap
        return envelope["session"] == self.session and (envelope["link"] != self.link or lost)

    def check(self, envelope: dict[str, Any]) -> None:
        """Steps 6 to 8 of the checks on a received message."""
        self.check_names(envelope)
        require((envelope["link"], envelope["sequence"]) == (self.link, self.received), "SEQUENCE")
        require(not self.asking or envelope["type"] == "abort", "SEQUENCE")
        self.forget(envelope["received"])
        self.received += 1

    def check_names(self, envelope: dict[str, Any], *sessions: bytes) -> None:
        require(envelope["sender"] == self.peer, "SENDER")
        require(envelope["session"] in (self.session, *sessions), "SESSION")

    def check_round(self, round_number: int) -> None:
        """Who speaks in a round has received what was said in the rounds before."""
        require(not any(0 < said[2] < round_number for said in self.kept), "SEQUENCE")

    def forget(self, received: int) -> None:
        require(received <= self.sent * self.resumes, "SEQUENCE")
        self.kept = [said for said in self.kept if said[0] >= received]

    def resume(self, number: int) -> list[bytes]:
        return self.frames(self.link, number, "resume", 0, {}, None)

    def ask(self) -> list[bytes]:
        self.link += 1
        return self.resume(self.sent)

    def may_be_asked(self, envelope: dict[str, Any]) -> bool:
        from_start = self.received == 0 and len(self.kept) == self.sent and envelope["link"] > self.link
        return envelope["session"] == self.session or (envelope["session"] == bytes(32) and from_start)

    def asked(self, envelope: dict[str, Any]) -> None:
        self.check_names(envelope, bytes(32))
        require(envelope["link"] > self.link and envelope["sequence"] >= self.received, "SEQUENCE")
        self.forget(envelope["received"])
        self.link, self.broken, self.due = envelope["link"], False, envelope["received"]

    def answered(self, envelope: dict[str, Any]) -> None:
        self.check_names(envelope)
        require(self.asking and (envelope["link"], envelope["sequence"]) == (self.link, self.received), "SEQUENCE")
        self.forget(envelope["received"])
        self.agreed, self.broken, self.due = self.link, False, envelope["received"]

    def answer(self) -> list[list[bytes]]:
        self.agreed = self.link
        return [self.resume(self.due), *self.again()]

    def again(self) -> list[list[bytes]]:
        return [self.frames(self.agreed, *said) for said in self.kept]

    def goes_on(self) -> bool:
        """Whether all that the peer lacks is still here."""
        return len(self.kept) == self.sent - self.due
