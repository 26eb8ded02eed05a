"""Events of the agreement on a group key, and of its use."""

from __future__ import annotations

from typing import ClassVar

from tacit.protocol.core.events import Event, Level


class KeyPhaseOpened(Event, frozen=True, kw_only=True):
    """The server sent the messages that open a phase of an agreement."""

    LEVEL: ClassVar[Level] = "debug"

    phase: str
    members: int


class KeyAgreementStarted(Event, frozen=True, kw_only=True):
    """The server asked these members to agree on a key."""

    LEVEL: ClassVar[Level] = "debug"

    epoch: int
    members: list[str]


class GroupKeyAgreed(Event, frozen=True, kw_only=True):
    """All members confirmed the key, from the server's point of view."""

    epoch: int
    members: list[str]

    @property
    def text(self) -> str:
        return f"group key {self.epoch} of {len(self.members)} clients"


class GroupKeyReceived(Event, frozen=True, kw_only=True):
    """This client holds the key."""

    LEVEL: ClassVar[Level] = "debug"

    epoch: int
    members: list[str]


class KeyAgreementFailed(Event, frozen=True, kw_only=True):
    """An agreement ended without a key."""

    TEXT: ClassVar[str] = "no group key {epoch}: {detail}"

    epoch: int
    code: str
    detail: str
    by: list[str]


class ModelRecovered(Event, frozen=True, kw_only=True):
    """A client provided the encrypted model that it persisted in this round."""

    TEXT: ClassVar[str] = "{member} provided the model after round {round}"

    member: str
    round: int
