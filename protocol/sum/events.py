"""Events of one secure sum."""

from __future__ import annotations

from typing import ClassVar

from tacit.protocol.core.events import Event, Level
from tacit.protocol.sum.states import Phase


class PhaseOpened(Event, frozen=True, kw_only=True):
    """The server sent the messages that open a phase."""

    LEVEL: ClassVar[Level] = "debug"

    phase: Phase
    members: int


class ClientDropped(Event, frozen=True, kw_only=True):
    """The server continues the sum without this client."""

    member: str
    phase: Phase
    code: str
    detail: str

    @property
    def text(self) -> str:
        return f"{self.member} dropped in {self.phase.value}: {self.detail} ({self.code})"


class ComplaintReceived(Event, frozen=True, kw_only=True):
    """A holder reported to the server that it cannot open a share."""

    LEVEL: ClassVar[Level] = "warning"

    by: str
    against: str

    @property
    def text(self) -> str:
        return f"{self.by} complained about the share of {self.against}"


class ComplaintSent(Event, frozen=True, kw_only=True):
    """This client complained about shares that it cannot open."""

    LEVEL: ClassVar[Level] = "warning"

    against: list[str]

    @property
    def text(self) -> str:
        return f"complained about the shares of {', '.join(self.against)}"


class GroupsExcluded(Event, frozen=True, kw_only=True):
    """Clients whose groups are incomplete, so that their vectors are not in the sum."""

    LEVEL: ClassVar[Level] = "warning"

    members: list[str]

    @property
    def text(self) -> str:
        return f"left out with their groups: {', '.join(self.members)}"
