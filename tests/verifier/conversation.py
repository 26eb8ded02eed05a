"""Who the parties are, and how their messages are numbered: docs/spec/session.md, docs/spec/encoding.md."""

from typing import Any

from constants import require
from messages import FEDERATION, Family, roster_hash, write_message


class Roster:
    def __init__(self, members: list[dict[str, Any]]) -> None:
        self.hash = roster_hash(members)
        (self.server,) = (member["name"] for member in members if member["role"] == "server")
        self.clients = [member["name"] for member in members if member["role"] == "client"]
        self.signing_keys = {member["name"]: member["signing_public"] for member in members}


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
