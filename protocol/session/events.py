"""Events of a session, as its machines report them."""

from __future__ import annotations

from typing import ClassVar

import msgspec

from tacit.protocol.core.events import Event, Level


class ClientJoined(Event, frozen=True, kw_only=True):
    """A client was welcomed to the session."""

    LEVEL: ClassVar[Level] = "debug"
    TEXT: ClassVar[str] = "{member} joined"

    member: str


class ClientLeft(Event, frozen=True, kw_only=True):
    """A client left the session; it may rejoin."""

    LEVEL: ClassVar[Level] = "warning"
    TEXT: ClassVar[str] = "{member} left: {detail}"

    member: str
    detail: str


class ClientResumed(Event, frozen=True, kw_only=True):
    """A client reconnected after its link broke, and received the messages that it missed."""

    TEXT: ClassVar[str] = "{member} resumed; {messages} messages sent again"

    member: str
    messages: int


class GatheringStarted(Event, frozen=True, kw_only=True):
    """Too few clients are left for a round, and the server waits for others."""

    LEVEL: ClassVar[Level] = "warning"
    TEXT: ClassVar[str] = "{detail}"

    detail: str


class RoundStarted(Event, frozen=True, kw_only=True, omit_defaults=True):
    """A round began with this cohort. The machine reports `skipped` and `undrawn`; the server's process logs `absent`
    instead."""

    LEVEL: ClassVar[Level] = "debug"

    round: int
    cohort: list[str]
    skipped: dict[str, str] = msgspec.field(default_factory=dict)
    """Stragglers excluded from this round, with the reasons."""
    undrawn: list[str] = msgspec.field(default_factory=list)
    """Ready clients that client sampling did not select."""
    absent: dict[str, str] = msgspec.field(default_factory=dict)
    """Clients that could not take part, with the reasons, if the round takes more."""

    @property
    def text(self) -> str:
        return f"round {self.round} started with {len(self.cohort)} clients"


class ModelNotReceived(Event, frozen=True, kw_only=True):
    """Clients that did not fetch the last model before the session ended."""

    LEVEL: ClassVar[Level] = "warning"

    members: list[str]

    @property
    def text(self) -> str:
        return f"the last model did not reach {', '.join(self.members)}"
