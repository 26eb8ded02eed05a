"""Events of private inference: of dealers, model owners and data owners."""

from __future__ import annotations

from typing import ClassVar

import msgspec

from tacit.protocol.core.events import Event, Level


class ModelLoaded(Event, frozen=True, kw_only=True):
    """A model owner serves the model with this commitment."""

    TEXT: ClassVar[str] = "model {weights}"

    weights: str


class SessionOpened(Event, frozen=True, kw_only=True):
    """A dealer or a model owner has a session with these data owners, a dealer with the model owner too."""

    peers: list[str]

    @property
    def text(self) -> str:
        return f"session with {' and '.join(self.peers)}"


class TermsAgreed(Event, frozen=True, kw_only=True):
    """A model owner and a data owner agreed on the terms of a session."""

    TEXT: ClassVar[str] = "{peer} asks about {images} images"

    peer: str
    images: int
    batch: int
    session: str
    """First 16 hexadecimal digits of the session's identifier."""


class ModelAgreed(Event, frozen=True, kw_only=True):
    """A data owner accepted the model with this commitment."""

    TEXT: ClassVar[str] = "model {weights}"

    weights: str


class PassEnded(Event, frozen=True, kw_only=True):
    """A pass ended at the model owner."""

    LEVEL: ClassVar[Level] = "debug"

    peer: str
    number: int
    refused: bool
    """Whether a value was out of range."""


class ImagesRead(Event, frozen=True, kw_only=True):
    """A data owner read its images."""

    images: int
    answered: int = 0
    learned: int = 0
    """Last known round of training, for predictions with adapters."""

    @property
    def text(self) -> str:
        answered = f", {self.answered} of them answered" if self.answered else ""
        learned = f"; the adapters after round {self.learned} are known" if self.learned else ""
        return f"{self.images} images{answered}{learned}"


class ImagesAnswered(Event, frozen=True, kw_only=True):
    """A data owner received results for a pass of its images."""

    images: int
    of: int
    refused: int
    """Images of this pass that were refused because a value was out of range."""

    @property
    def text(self) -> str:
        refused = f", {self.refused} of them refused: out of range" if self.refused else ""
        return f"{self.images} of {self.of} images{refused}"


class PreprocessingFailed(Event, frozen=True, kw_only=True):
    """A dealer could not prepare the requested correlated randomness because of its own error."""

    LEVEL: ClassVar[Level] = "warning"

    owners: list[str]
    failure: str

    @property
    def text(self) -> str:
        return f"could not prepare what {' and '.join(self.owners)} ordered: {self.failure}"


class InferenceSessionEnded(Event, frozen=True, kw_only=True):
    """A session of private inference is over for this party."""

    code: str | None
    detail: str
    culprit: str = ""
    peers: list[str] = msgspec.field(default_factory=list)
    passes: int = 0
    seconds: float = 0.0
    failure: str = ""
    """Location of an error in this party's own program; empty if none."""
    preprocessing_bytes: dict[str, int] = msgspec.field(default_factory=dict)
    """Bytes of correlated randomness sent, by owner."""

    @property
    def text(self) -> str:
        dealt = sum(self.preprocessing_bytes.values())
        sent = f"; {dealt / 1e6:.1f} MB of correlated randomness" if dealt else ""
        peers = f" with {' and '.join(self.peers)}" if self.peers else ""
        return f"session{peers} over: {self.detail}{sent}"
