"""Events of a federation's processes, logged beside the events of their machines."""

from __future__ import annotations

from typing import ClassVar, Final, Literal

import msgspec

from tacit.protocol.core.events import Event, Level
from tacit.protocol.core.roster import Difference, Roster
from tacit.protocol.sum.states import Phase

MOST_NAMED: Final = 5
"""Most clients that a line names."""


class Repeating(Event, frozen=True, kw_only=True):
    """An event that a peer can cause at any rate; it is logged once in ten seconds for each peer."""

    omitted: int = 0
    """Events of the same peer that were not logged before this one."""

    ABOUT: ClassVar[str] = "peer"
    """Field with the peer that causes it."""

    @property
    def about(self) -> str:
        return str(getattr(self, self.ABOUT))


class LinkOpened(Repeating, frozen=True, kw_only=True):
    """The link to a peer was opened."""

    TEXT: ClassVar[str] = "connected to {peer}"

    peer: str


class LinkLost(Repeating, frozen=True, kw_only=True):
    """The link to a peer broke."""

    LEVEL: ClassVar[Level] = "warning"
    TEXT: ClassVar[str] = "lost the link to {peer}"

    peer: str


class SendFailed(Repeating, frozen=True, kw_only=True):
    """A message could not be sent."""

    LEVEL: ClassVar[Level] = "warning"
    TEXT: ClassVar[str] = "could not send to {to}: {reason}"
    ABOUT: ClassVar[str] = "to"

    to: str
    reason: str


class HandshakeRefused(Repeating, frozen=True, kw_only=True):
    """A connection became no link: its key is not in the roster or has too many links, or its handshake failed."""

    LEVEL: ClassVar[Level] = "warning"

    reason: str
    public_key: str | None
    address: str | None

    @property
    def about(self) -> str:
        return str(self.public_key or self.address)

    @property
    def text(self) -> str:
        key = f" with key {self.public_key}" if self.public_key else ""
        return f"refused a handshake from {self.address or 'an unknown address'}{key}: {self.reason}"


class CopyDetected(Event, frozen=True, kw_only=True):
    """Two processes have the key of one party, so a folder was copied or restored. Stays in the status of the party as
    its alert."""

    LEVEL: ClassVar[Level] = "warning"

    peer: str
    """Party whose folder was copied."""
    detail: str
    address: str
    """Host address of the reporting link; empty if unknown."""
    other: str
    """Host address of the other process."""

    @property
    def text(self) -> str:
        places = f" (it is at {self.address or 'an unknown address'}, the other at {self.other})" if self.other else ""
        return f"{self.peer}{places}: {self.detail}"


class InputNoted(Event, frozen=True, kw_only=True):
    """A reader of images or weights skipped something, or found a likely mistake."""

    LEVEL: ClassVar[Level] = "warning"
    TEXT: ClassVar[str] = "{detail}"

    detail: str


class PhaseEnded(Event, frozen=True, kw_only=True):
    """The party entered its next phase."""

    LEVEL: ClassVar[Level] = "debug"

    round: int
    phase: Phase
    seconds: float
    next: Phase


class TrafficCounted(Event, frozen=True, kw_only=True):
    """Payload bytes of a phase since the previous count."""

    LEVEL: ClassVar[Level] = "debug"

    round: int
    phase: Phase
    sent: int
    received: int


class MessagesTimed(Event, frozen=True, kw_only=True):
    """Times of sent and received messages, for clock alignment: peer, session, round, number, time."""

    LEVEL: ClassVar[Level] = "debug"

    sent: list[tuple[str, str, int, int, float]] = msgspec.field(default_factory=list)
    received: list[tuple[str, str, int, int, float]] = msgspec.field(default_factory=list)


class WorkMeasured(Event, frozen=True, kw_only=True):
    """Seconds of protocol computation in this session, by kind of work."""

    LEVEL: ClassVar[Level] = "debug"

    seconds: dict[str, float]


class HeartbeatSent(Event, frozen=True, kw_only=True):
    """The party is alive; never logged."""

    LEVEL: ClassVar[Level] = "debug"

    done: float = 0.0
    """Completed share of its present work, 0 to 1."""


class WaitingChanged(Event, frozen=True, kw_only=True):
    """The server waits for these clients now; never logged."""

    LEVEL: ClassVar[Level] = "debug"

    on: list[str]


class ClientsAwaited(Event, frozen=True, kw_only=True):
    """The server has been waiting for these clients to join, and for nobody else, for some seconds."""

    on: list[str]

    @property
    def text(self) -> str:
        named = ", ".join(self.on[:MOST_NAMED])
        return f"waits for {named}{f' and {len(self.on) - MOST_NAMED} more' if self.on[MOST_NAMED:] else ''} to join"


class ListeningStarted(Event, frozen=True, kw_only=True):
    """A party listens at this address."""

    address: str
    session: str = ""
    """Its session in hexadecimal, if it has one."""
    service: Literal["", "sums"] = ""
    """Service of a party that has several."""

    @property
    def text(self) -> str:
        return f"{'serves the sums' if self.service else 'listens'} at {self.address}"


class ConnectionFailed(Event, frozen=True, kw_only=True):
    """A peer was not reached; the party retries."""

    LEVEL: ClassVar[Level] = "warning"
    TEXT: ClassVar[str] = "{reason}"

    reason: str
    peer: str = ""


class RetryScheduled(Event, frozen=True, kw_only=True):
    """A client with `--stay` joins the next session."""

    TEXT: ClassVar[str] = "stays, and joins the next session (tries again in {seconds:g} s)"

    seconds: float


class ConfigurationProposed(Event, frozen=True, kw_only=True):
    """A session began with this configuration, which the server proposes."""

    parameters: int
    ring_bits: int
    vector_bytes: int
    step: float
    max_weight: int
    colluders: int
    """Clients of the roster that may collude."""
    cohort: int
    """Most clients of a round."""
    rounds: int = 0
    """Number of the last planned round; 0 if unknown."""
    threshold: int
    neighbours: int
    configuration_hash: str
    clients: int | None = None
    """Clients that take part."""
    evaluates: Literal["images", "sums"] = "sums"
    """Source of the model's accuracy: the server's test images, or the clients' sums."""


class SpendingLearned(Event, frozen=True, kw_only=True):
    """This client's journal lacked privacy spending that its owner or other parties stated."""

    LEVEL: ClassVar[Level] = "warning"

    spent: float
    """The sum over all updates of 4 / (noise multiplier)^2."""
    by_owner: bool

    @property
    def text(self) -> str:
        if self.by_owner:
            return f"its owner states what was spent of its privacy budget: updates that cost {self.spent:g}"
        return f"more was spent of its privacy budget than its journal knows: updates that cost {self.spent:g}"


class ConfigurationAccepted(Event, frozen=True, kw_only=True):
    """This client's policy accepted the server's proposal."""

    TEXT: ClassVar[str] = "accepted {scheme}, {mode} mode"

    scheme: str
    mode: str
    session: str
    fixed_part: str
    """Digest of the fixed tensors, in hexadecimal; empty without any."""


class Dropout(msgspec.Struct, frozen=True, kw_only=True):
    """A client that was lost or excluded in a round."""

    party: str
    phase: Phase
    included_in_sum: bool
    code: str
    detail: str


class HeldOut(msgspec.Struct, frozen=True, kw_only=True):
    """Metrics of the model after `round` on the clients' held-out images, by their sum."""

    round: int
    images: int
    accuracy: float
    loss: float


class RoundEnded(Event, frozen=True, kw_only=True):
    """A round ended at the server, and its sum, if any, was applied. Rates in [0, 1], losses in nats."""

    round: int
    status: Literal["completed", "aborted"]
    code: str | None
    detail: str
    culprit: str | None
    cohort: list[str]
    absent: dict[str, str]
    """Clients that could not take part, with the reasons."""
    repeated: bool
    """Whether the round is repeated, and does not count."""
    survivors: list[str]
    dropped: list[Dropout]
    seconds: float
    samples: int = 0
    train_accuracy: float | None = None
    train_loss: float | None = None
    clipped: int | None = None
    """Clipped coordinates of all updates."""
    held_out: HeldOut | None = None
    metrics: dict[str, float] = msgspec.field(default_factory=dict)
    """Means of metrics returned by custom training steps."""
    accuracy: float | None = None
    balanced_accuracy: float | None = None
    loss: float | None = None

    @property
    def text(self) -> str:
        return f"round {self.round} {self.outcome(len(self.cohort))}"

    def outcome(self, clients: int) -> str:
        """Outcome in one phrase; clients: most of a round."""
        if self.status != "completed":
            return f"aborted after {self.seconds:.1f} s: {self.detail}"
        said = f"completed by {len(self.survivors)} of {clients} clients"
        said += "" if self.accuracy is None else f", accuracy {self.accuracy:.3f}"
        said += "" if self.loss is None else f", loss {self.loss:.3f}"
        said += "".join(f", {name} {value:.4g}" for name, value in self.metrics.items())
        if self.held_out is not None:
            said += f", held-out accuracy after round {self.held_out.round} {self.held_out.accuracy:.3f}"
        said += f", {self.clipped:,} coordinates clipped" if self.clipped else ""
        return f"{said}, {self.seconds:.1f} s"


class StatisticsSummed(Event, frozen=True, kw_only=True):
    """A round of the sum of pixel statistics ended at the server; mean and deviation by channel."""

    status: Literal["completed", "aborted"]
    code: str | None
    detail: str
    culprit: str | None
    cohort: list[str]
    survivors: list[str]
    pixels: int | None = None
    mean: list[float] | None = None
    std: list[float] | None = None

    @property
    def text(self) -> str:
        if self.mean is None or self.std is None:
            return f"no sum of pixels: {self.detail}"
        mean, std = (", ".join(f"{value:.4f}" for value in values) for values in (self.mean, self.std))
        return f"pixels of {len(self.survivors)} clients: mean {mean}, standard deviation {std}"


class StatisticsContributed(Event, frozen=True, kw_only=True):
    """This client's pixel statistics are in the sum."""

    TEXT: ClassVar[str] = "its sums of pixels are in those of all; training follows"


class ClientRoundEnded(Event, frozen=True, kw_only=True):
    """A round ended at this client."""

    round: int
    code: str | None
    detail: str

    @property
    def text(self) -> str:
        return f"round {self.round} " + ("completed" if self.code is None else f"over: {self.detail} ({self.code})")


class SessionEnded(Event, frozen=True, kw_only=True):
    """The session ended for this party."""

    code: str | None
    detail: str

    @property
    def text(self) -> str:
        return f"session over: {self.detail}" + (f" ({self.code})" if self.code else "")


class ShutdownIncomplete(Event, frozen=True, kw_only=True):
    """The party was stopped, and could not finish its last work."""

    LEVEL: ClassVar[Level] = "warning"
    TEXT: ClassVar[str] = "was stopped, and could not finish: {detail}"

    detail: str


class TrainingFailed(Event, frozen=True, kw_only=True):
    """This client cannot train; the reason is not sent to the server."""

    LEVEL: ClassVar[Level] = "warning"
    TEXT: ClassVar[str] = "cannot train: {detail}"

    detail: str


class UpdateComputed(Event, frozen=True, kw_only=True):
    """This client computed its update."""

    LEVEL: ClassVar[Level] = "debug"

    round: int
    kept: int
    """Coordinates that it kept back as whole tensors."""
    layers: list[str]
    """Layers that it kept back."""
    training_seconds: float
    choosing_seconds: float
    """Seconds spent choosing the contributed layers or coordinates."""
    uncounted: int
    """Samples beyond the largest weight."""

    @property
    def text(self) -> str:
        if not self.uncounted:
            return f"round {self.round} trained in {self.training_seconds:.1f} s"
        return f"{self.uncounted} of its samples do not count: aggregation.max_weight is smaller"

    @property
    def level(self) -> Level:
        return "warning" if self.uncounted else "debug"


class ModelEvaluated(Event, frozen=True, kw_only=True):
    """This client evaluated a model that the server cannot read."""

    TEXT: ClassVar[str] = "after round {round}: accuracy {accuracy:.3f}, loss {loss:.3f}"

    round: int
    accuracy: float
    balanced_accuracy: float
    loss: float


class StateRestored(Event, frozen=True, kw_only=True):
    """This client resumes from the state that it persisted after this round."""

    LEVEL: ClassVar[Level] = "debug"

    round: int


class RosterUpdated(Event, frozen=True, kw_only=True):
    """The party adopted a later version of the roster."""

    LEVEL: ClassVar[Level] = "warning"

    former: int
    version: int
    fingerprint: str
    added: list[str]
    removed: list[str]
    rotated: list[str]
    regrouped: list[str]
    operator: str = ""
    """First 16 hexadecimal digits of a key that replaces the operator's, else empty."""

    @classmethod
    def between(cls, former: Roster, roster: Roster, changes: Difference) -> RosterUpdated:
        """Describe the difference between two versions."""
        return cls(
            former=former.version,
            version=roster.version,
            fingerprint=roster.fingerprint,
            added=list(changes.added),
            removed=list(changes.removed),
            rotated=list(changes.rotated),
            regrouped=list(changes.regrouped),
            operator=roster.operator[:8].hex() if roster.operator != former.operator else "",
        )

    @property
    def changes(self) -> str:
        """The kinds of changes with the members, in one phrase."""
        kinds = {
            "added": self.added,
            "removed": self.removed,
            "rotated": self.rotated,
            "regrouped": self.regrouped,
            "now signed by": [self.operator] * bool(self.operator),
        }
        return "; ".join(f"{kind} {', '.join(names)}" for kind, names in kinds.items() if names) or "the same members"

    @property
    def text(self) -> str:
        return f"takes up version {self.version} of the roster ({self.changes})"


class RosterRefused(Event, frozen=True, kw_only=True):
    """The roster file has a later version that the server cannot use."""

    LEVEL: ClassVar[Level] = "warning"
    TEXT: ClassVar[str] = "stays with its roster: {reason}"

    reason: str
