"""Events of double-blind adaptation."""

from __future__ import annotations

from typing import ClassVar

from tacit.protocol.core.events import Event, Level


class LearningOffered(Event, frozen=True, kw_only=True):
    """A model owner offers training to data owners."""

    TEXT: ClassVar[str] = "shares of {words} words: adaptation.words of the dealer"

    words: int
    """Length of a data owner's sum of shares."""
    rounds: int
    classes: int


class NoiseConfigured(Event, frozen=True, kw_only=True):
    """A model owner adds noise to the sums that it reveals."""

    deviation: float
    largest_epsilon: float
    delta: float

    @property
    def text(self) -> str:
        budget = f", epsilon {self.largest_epsilon:g} at most" if self.largest_epsilon else ", no budget"
        return f"noise of {self.deviation:g} on every common parameter{budget}"


class CalibrationStarted(Event, frozen=True, kw_only=True):
    """A model owner calibrates the bounds of training on its own images."""

    TEXT: ClassVar[str] = "finds bounds, by a rehearsal on images of its own"


class MarginReduced(Event, frozen=True, kw_only=True):
    """The bounds that fit the rings leave less margin than requested."""

    LEVEL: ClassVar[Level] = "warning"
    TEXT: ClassVar[str] = (
        "adaptation.margin: bounds with more room than {margin:g} do not fit the rings; batches may be refused"
    )

    margin: float


class SumsResumed(Event, frozen=True, kw_only=True):
    """A dealer resumes the sums after this round."""

    TEXT: ClassVar[str] = "goes on after round {round}"

    round: int


class LearningSessionOpened(Event, frozen=True, kw_only=True):
    """A data owner may train beside a model."""

    LEVEL: ClassVar[Level] = "debug"

    peer: str
    images: int
    weights_bytes: int
    """Bytes of the masked layers, which are sent before the first batch."""


class LearningSessionLost(Event, frozen=True, kw_only=True):
    """A data owner lost its session with the model owner, and reconnects."""

    LEVEL: ClassVar[Level] = "warning"
    TEXT: ClassVar[str] = "the session with the model owner is lost: {detail}"

    code: str | None
    detail: str


class LearningPassOver(Event, frozen=True, kw_only=True):
    """Costs of a pass at the data owner or, with `peer`, at the model owner. Only subclasses are logged."""

    LEVEL: ClassVar[Level] = "debug"

    preprocessing_bytes: int
    """Bytes of correlated randomness received."""
    peer: str = ""
    seconds: float = 0.0
    """Seconds of the online phase."""
    preprocessing_wait_seconds: float = 0.0
    """Seconds spent waiting for correlated randomness."""
    sent: int = 0
    received: int = 0
    openings: int = 0
    """Rounds of communication."""


class ImagesKept(LearningPassOver, frozen=True, kw_only=True):
    """Images passed the blocks, and an owner keeps its shares."""

    TEXT: ClassVar[str] = "{images} of {of} images have passed the blocks"

    images: int
    """Number of images kept so far."""
    of: int


class BatchEnded(LearningPassOver, frozen=True, kw_only=True):
    """A training batch ended. Neither owner learns whether it was in range."""

    round: int
    number: int
    """Batches of this round so far."""


class RoundSaved(Event, frozen=True, kw_only=True):
    """A model owner persisted its shares of a data owner's update of a round."""

    LEVEL: ClassVar[Level] = "debug"

    peer: str
    round: int
    weight: int


class SumRevealed(Event, frozen=True, kw_only=True):
    """A model owner revealed the sum of a round to a data owner, or refused to."""

    peer: str
    round: int
    revealed: bool
    detail: str
    """Reason for a refusal; empty if the sum was revealed."""

    @property
    def text(self) -> str:
        if self.revealed:
            return f"revealed the sum of round {self.round} to {self.peer}"
        return f"{self.peer} gets no sum of round {self.round}: {self.detail}"

    @property
    def level(self) -> Level:
        return "debug" if self.revealed else "warning"


class AdaptersUpdated(Event, frozen=True, kw_only=True):
    """A data owner has the common adapters after this round."""

    round: int
    owners: int
    """Data owners in the sum."""
    images: int
    """Images in the batches of all data owners."""
    train_loss: float
    """Refused batches count as zero, as in the accuracy: nobody learns which were refused."""
    train_accuracy: float
    refused_batches: int | None = None
    """Total over all rounds and data owners, with the last round. None before, and if this data owner missed a sum."""

    @property
    def summary(self) -> str:
        """The training metrics in one phrase."""
        refused = "" if self.refused_batches is None else f"; {self.refused_batches} batches in all were out of range"
        return (
            f"while learning: loss {self.train_loss:.3f}, accuracy {self.train_accuracy:.3f} on "
            f"{self.images} images of {self.owners} data owners{refused}"
        )

    @property
    def text(self) -> str:
        return f"round {self.round}  {self.summary}"


class LearningRoundLost(Event, frozen=True, kw_only=True):
    """A data owner does not receive the sum of a round."""

    LEVEL: ClassVar[Level] = "warning"
    TEXT: ClassVar[str] = "round {round} is lost: {detail}"

    round: int
    detail: str


class PreparationStarted(Event, frozen=True, kw_only=True):
    """A simulation prepares inputs before its parties start."""

    TEXT: ClassVar[str] = "preparing {what}"

    what: str


class AdaptersEvaluated(Event, frozen=True, kw_only=True):
    """Metrics of the common adapters after this round on test images; only a simulation can evaluate them."""

    round: int
    accuracy: float
    balanced_accuracy: float
    loss: float

    @property
    def text(self) -> str:
        when = f"round {self.round}" if self.round else "before learning"
        return f"{when}: test accuracy {self.accuracy:.3f}, balanced {self.balanced_accuracy:.3f}"
