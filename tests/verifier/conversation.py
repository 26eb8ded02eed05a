"""Who the parties are, and how their messages are numbered: docs/spec/session.md, docs/spec/encoding.md."""

from typing import Any

from constants import GROUP, require
from messages import FEDERATION, Family, roster_hash, write_message
from primitives import digest


class Roster:
    def __init__(self, members: list[dict[str, Any]]) -> None:
        self.hash = roster_hash(members)
        (self.server,) = (member["name"] for member in members if member["role"] == "server")
        self.clients = [member["name"] for member in members if member["role"] == "client"]
        self.signing_keys = {member["name"]: member["signing_public"] for member in members}
        self.group_numbers = {member["name"]: member["group"] for member in members if member["group"]}

    def group_of(self, name: str) -> list[str]:
        """Who is in a sum only together with this client, itself included."""
        number = self.group_numbers.get(name)
        return [name] if number is None else [other for other in self.clients if self.group_numbers[other] == number]

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
            if name not in chosen and set(group) <= set(names) and len(chosen) + len(group) <= most:
                chosen += group
        return [name for name in self.clients if name in chosen]

    def check_whole(self, cohort: list[str]) -> None:
        require(all(set(self.group_of(name)) <= set(cohort) for name in cohort), "MEMBERS")


class Conversation:
    """Both directions of what two parties say to each other in a session."""

    def __init__(self, session: bytes, name: str, peer: str, sent: int = 0, family: Family = FEDERATION) -> None:
        self.session, self.name, self.peer, self.family = session, name, peer, family
        self.sent, self.received = sent, 0
        self.broken = False

    def write(self, kind: str, round_number: int, body: dict[str, Any], raw: bytes | None) -> list[bytes]:
        frames = write_message(kind, self.session, round_number, self.name, self.sent, body, raw, self.family)
        self.sent += 1
        return frames

    def check(self, envelope: dict[str, Any]) -> None:
        """Steps 6 to 8 of the checks on a received message."""
        require(envelope["sender"] == self.peer, "SENDER")
        require(envelope["session"] == self.session, "SESSION")
        lost = self.broken and envelope["sequence"] > self.received
        require(envelope["sequence"] == self.received, "LEFT" if lost else "SEQUENCE")
        self.received += 1
