"""What happened in a run: the material of its report and of the live page, as report/fold.py makes it of events.

A run has sessions: the first, and one for every --resume. Logs may end anywhere: a killed party leaves its last phase
open, and a killed server a round without a result. Times are in seconds since 1970 unless a field says otherwise.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal, NamedTuple

import msgspec

from tacit.parties.runs.classes import TestClasses
from tacit.parties.runs.directory import Invocation, Seed
from tacit.parties.runs.incidents import Incident
from tacit.protocol.core.messages import Phase


class Configured(msgspec.Struct, frozen=True):
    """What the server proposed, at the start of a session."""

    parameters: int
    ring_bits: int
    vector_bytes: int
    step: float
    threshold: int
    neighbours: int
    configuration_hash: str
    evaluates: Literal["images", "sums"] = "images"
    """What the server knows the model's accuracy by."""


JUDGED_ON: Final = {"images": "the test images", "sums": "the images that clients train on, by their sum"}
"""Whose accuracies and losses after rounds are, by what the server has."""
JUDGED_BY_CLIENTS: Final = "test images, as clients found it"
"""The same where only clients can read the model."""


class Drop(msgspec.Struct, frozen=True):
    """A client that was lost or excluded in a round; included_in_sum None where the round has no result."""

    party: str
    phase: Phase
    code: str
    detail: str
    included_in_sum: bool | None = None


class HeldOut(msgspec.Struct, frozen=True):
    """What the clients' held-out images together say of a model: the one after `round`."""

    round: int
    images: int
    accuracy: float
    loss: float


class RoundResult(msgspec.Struct, frozen=True):
    """The server's `round-done`. Rates in [0, 1], losses in nats."""

    status: str
    code: str | None
    detail: str
    survivors: tuple[str, ...]
    dropped: tuple[Drop, ...]
    samples: int
    train_accuracy: float | None
    train_loss: float | None
    clipped: int | None
    accuracy: float | None
    loss: float | None
    culprit: str | None = None
    absent: dict[str, str] = {}
    """Who was not in the cohort, and why, where it takes more."""
    balanced_accuracy: float | None = None
    """Mean over the classes, on test images alone."""
    held_out: HeldOut | None = None
    """Of the model that the round began with, by its sum."""


@dataclass(frozen=True)
class Span:
    """A party in a phase, from `start` to `end` in seconds since 1970; open if its log ends in it."""

    phase: Phase
    start: float
    end: float
    open: bool = False


@dataclass
class RoundHistory:
    """One attempt at a round. An interrupted round that a resumed run repeats is another one of the same number."""

    session: int
    number: int
    began: float
    ended: float
    cohort: tuple[str, ...]
    result: RoundResult | None = None
    drops: tuple[Drop, ...] = ()
    drop_times: dict[str, float] = field(default_factory=dict)
    spans: dict[str, list[Span]] = field(default_factory=dict)
    moved: int = 0
    """Payload bytes that the server sent and received."""

    @property
    def status(self) -> str:
        """completed, aborted or unfinished."""
        return self.result.status if self.result else "unfinished"

    @property
    def seconds(self) -> float:
        """From the selection of the clients to the evaluated model, or to the last event."""
        return self.ended - self.began


@dataclass
class PartyHistory:
    """Seconds and payload bytes of one party, by phase, over all rounds."""

    name: str
    seconds: defaultdict[Phase, float] = field(default_factory=lambda: defaultdict(float))
    sent: Counter[Phase] = field(default_factory=Counter)
    received: Counter[Phase] = field(default_factory=Counter)
    work: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    """Seconds of the protocol by kind of work, if the party lived to tell."""
    trained: float = 0.0
    """Seconds of training."""
    visits: Counter[Phase] = field(default_factory=Counter)
    """How often it was in a phase, the present one left out."""
    phase: Phase | None = None
    """Where it is; None before it has changed its phase in this session."""
    since: float = 0.0
    """When it came there."""
    heard: float | None = None
    """When it said something last in this session; None if it did not."""
    ended: str | None = None
    """How it said that its session ended, or what became of its process; None if it is there, or vanished."""

    @property
    def activities(self) -> dict[str, float]:
        """Its seconds by what it did, as far as it lived to tell: the rest of a round is waiting."""
        known = {"training": self.trained, "computing the protocol": sum(self.work.values())}
        between = self.seconds.get(Phase.SESSION, 0.0)
        return {
            **known,
            "waiting": max(0.0, sum(self.seconds.values()) - between - sum(known.values())),
            "between rounds": between,
        }


@dataclass(frozen=True)
class Trouble:
    """A refusal, a lost link or an early end, as `party` told it."""

    session: int
    seconds: float
    """Since the session began."""
    party: str
    what: str
    about: str
    code: str
    detail: str


@dataclass(frozen=True)
class Contact:
    """The link between the server and a client: whether it is there, and since when."""

    up: bool
    since: float


@dataclass
class Stranger:
    """Somebody whose handshake was refused, once or often."""

    public_key: str
    address: str
    reason: str
    count: int = 0


@dataclass(frozen=True)
class Clock:
    """A party's clock held against the server's, by the messages that both noted."""

    party: str
    messages: int
    """Messages that both ends noted; without any, its times are taken as they stand."""
    ahead: float = 0.0
    """Seconds that its clock was ahead of the server's, at its last event; 0 where the messages allow that."""
    uncertainty: float | None = None
    """By how many seconds a time of its log may be wrong at most; None if not known."""
    jumps: int = 0
    """How often the clock was set meanwhile, as far as messages show."""


class Unread(NamedTuple):
    """From where on a log could not be read, and why."""

    path: Path
    line: int
    fault: str

    def __str__(self) -> str:
        return f"{self.path} is read up to line {self.line - 1}: line {self.line} is not of this run ({self.fault})"


@dataclass
class History:
    """A whole run. `server` is None if the server's log is missing."""

    server: str | None
    parties: dict[str, PartyHistory]
    sessions: list[tuple[float, float]] = field(default_factory=list)
    """Times of the first and the last event of each session, in seconds since 1970."""
    configured: Configured | None = None
    origins: list[Invocation] = field(default_factory=list)
    """By which command, versions and machine, where the server tells."""
    seed: Seed | None = None
    classes: TestClasses | None = None
    """Where the server has test images, and its last session came to an end."""
    judged_on: str = JUDGED_ON["images"]
    """What accuracies and losses after rounds are of."""
    rounds: list[RoundHistory] = field(default_factory=list)
    troubles: list[Trouble] = field(default_factory=list)
    strangers: dict[tuple[str, str, str], Stranger] = field(default_factory=dict)
    incidents: list[Incident] = field(default_factory=list)
    ended: str | None = None
    """How the server said that the last session ended; None if it did not."""
    links: dict[str, Contact] = field(default_factory=dict)
    """Links to clients, as the server tells of them."""
    waiting: tuple[str, ...] = ()
    """Whom the server waits for now; known only while it tells."""
    waiting_since: float = 0.0
    clocks: tuple[Clock, ...] = ()
    """Of the clients, if the run is read from the logs of several hosts."""
    one_machine: bool = True
    """Whether all parties are processes of one user."""
    refusals: Counter[str] = field(default_factory=Counter)
    """Messages that the server refused, by code."""
    unread: list[Unread] = field(default_factory=list)
    """Logs that are torn, or that something else has written into."""

    @property
    def judges(self) -> bool:
        """Whether anybody judges the models of rounds; else their accuracies are those of the training."""
        return self.judged_on != JUDGED_ON["sums"]

    @property
    def clients(self) -> list[PartyHistory]:
        """All parties but the server."""
        return [party for name, party in self.parties.items() if name != self.server]

    @property
    def completed(self) -> list[RoundHistory]:
        """Rounds whose sum went into the model, each number once, in order."""
        return [round for _, round in sorted({r.number: r for r in self.rounds if r.status == "completed"}.items())]

    @property
    def held_out(self) -> list[HeldOut]:
        """What is known of the models by the clients' held-out images, in order; never of the last model."""
        return [round.result.held_out for round in self.completed if round.result and round.result.held_out]

    @property
    def wall_seconds(self) -> float:
        """From the first to the last event, summed over the sessions."""
        return sum(last - first for first, last in self.sessions)
