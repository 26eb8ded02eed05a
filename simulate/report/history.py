"""The history of a run as a fold over its events: the one basis of the report, the live page and the metrics.

Events are taken one by one in the order of their times, from a file or while they happen; nothing but the events
decides the result, so that a later reader, or one that starts again from the log, sees the same.

A run has sessions, the first and one for every --resume; each begins with the server's `configuration` event. Rounds
are known from the server; phases and bytes are added to them from everybody. Logs may end anywhere: a killed party
leaves its last phase open, and a killed server a round without a result. Times are in seconds since 1970 unless a field
says otherwise.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from statistics import mean
from typing import Any, Final, Literal, NamedTuple

import msgspec

from tacit.parties.runs import classes
from tacit.parties.runs.classes import TestClasses
from tacit.parties.runs.directory import Invocation, Seed, told
from tacit.parties.runs.incidents import Incident
from tacit.protocol.core.errors import Code
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
    clients: int = 0
    """Clients that take part; 0 in runs of an earlier version."""
    cohort: int = 0
    """Most clients of a round; 0 in runs of an earlier version."""
    colluders: int | None = None
    """Clients of the roster that may collude, where the server says so."""


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


class RoundResult(msgspec.Struct, frozen=True, kw_only=True):
    """The server's `round-done`; a sum that trains no model has no figures. Rates in [0, 1], losses in nats."""

    status: str
    code: str | None
    detail: str
    survivors: tuple[str, ...]
    dropped: tuple[Drop, ...]
    samples: int = 0
    train_accuracy: float | None = None
    train_loss: float | None = None
    clipped: int | None = None
    accuracy: float | None = None
    loss: float | None = None
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


TROUBLE = {
    "cheat": "cheated",
    "refused": "refused a message of",
    "left": "saw leave:",
    "complaint": "heard a complaint against",
    "not-sent": "could not send to",
    "not-finished": "was stopped, and could not finish",
    "link-lost": "lost the link to",
    "cannot-train": "could not train",
    "session-lost": "lost its session with the model owner",
    "round-lost": "was not told what a round has taught",
    "session-over": "ended early its session with",
    "round-over": "ended its round early",
    "ended": "ended the session early",
    "failed": "failed",
}
"""Events that tell of trouble, as a verb of their party. `session-over`, `round-over` and `ended` only if they carry a
code."""

Event = Mapping[str, Any]
"""With `time` in seconds since 1970, `party`, `event`, and the fields of that event."""


class _PhaseEnded(msgspec.Struct, frozen=True):
    time: float
    round: int
    phase: Phase
    seconds: float
    next: Phase


class _Moved(msgspec.Struct, frozen=True):
    round: int
    phase: Phase
    sent: int
    received: int


class _Judged(msgspec.Struct, frozen=True):
    """What a client found when it evaluated the model."""

    accuracy: float
    loss: float
    balanced_accuracy: float | None = None
    """None in runs that were begun by an earlier version."""


class Fold:
    """Adds events to a history. What is no event of ours raises msgspec.ValidationError, KeyError or TypeError."""

    def __init__(self, history: History | None = None) -> None:
        self.history = history or History(None, {})
        self._rounds: dict[int, RoundHistory] = {}
        """Those of this session."""
        self._spans: defaultdict[int, dict[str, list[Span]]] = defaultdict(dict)
        """By round: a client may tell of a phase before the server's clock says that the round began."""
        self._configured = False
        """Whether this session's configuration has come."""
        self._over = False
        """Whether the server said that it ends: links that are lost after that are no trouble."""
        self._gone: set[str] = set()
        """Parties whose process has ended, as a supervisor tells."""
        self._changing: set[str] = set()
        """Parties that take up a later version of the roster, for which they end the session."""
        self._judged: defaultdict[int, dict[str, _Judged]] = defaultdict(dict)
        """Accuracy and loss by round and client, where clients evaluate what the server cannot read."""
        self._unjudged: dict[int, RoundHistory] = {}
        """Rounds of which the server knows neither."""

    def take(self, event: Event) -> None:
        """Add one event. Those of one time come in the order server, clients."""
        history, time, kind, name = self.history, event["time"], event["event"], event["party"]
        if not history.sessions or (kind == "configuration" and self._configured and name == history.server):
            self._begin_session(time)
        history.sessions[-1] = (history.sessions[-1][0], time)
        if kind == "configuration" and history.server in (None, name):
            history.server = name
            history.configured, self._configured = msgspec.convert(event, Configured), True
            history.judged_on = JUDGED_ON[history.configured.evaluates]
            # What ended before was a first sum that failed, after which the server was started again.
            self._over, history.ended = False, None
            for earlier in history.parties.keys() - self._gone:
                history.parties[earlier].ended = None
        party = history.parties.setdefault(name, PartyHistory(name))
        party.heard = time
        if name in self._gone:
            # Whoever speaks after the end of its process was started again.
            self._gone.discard(name)
            party.ended, party.phase = None, None
        if history.rounds and self._rounds and history.rounds[-1].result is None:
            history.rounds[-1].ended = time
        if name == history.server:
            self._take_of_server(event)
        self._take_of_party(party, event)

    def close(self) -> History:
        """The history of logs that hold no more: whoever said no farewell was in its last phase until the end."""
        for name, party in self.history.parties.items():
            if party.heard is not None and party.ended is None and name not in self._changing:
                self._end_without_farewell(name, party, party.heard)
        self.history.troubles.sort(key=lambda trouble: (trouble.session, trouble.seconds))
        return self.history

    def _begin_session(self, time: float) -> None:
        self.close()
        for party in self.history.parties.values():
            party.phase, party.heard, party.ended = None, None, None
        history = self.history
        history.sessions.append((time, time))
        history.ended, history.waiting = None, ()
        history.links.clear()
        self._rounds, self._spans = {}, defaultdict(dict)
        self._configured = self._over = False

    def _take_of_server(self, event: Event) -> None:
        """What only the server says, and what makes the rounds."""
        history, kind, time = self.history, event["event"], event["time"]
        current = history.rounds[-1] if self._rounds else None
        if kind == "round":
            number, cohort = msgspec.convert((event["round"], event["cohort"]), tuple[int, tuple[str, ...]])
            spans = self._spans[number]
            self._rounds[number] = RoundHistory(len(history.sessions), number, time, time, cohort, spans=spans)
            history.rounds.append(self._rounds[number])
        elif kind == "round-done":
            round = self._rounds[event["round"]]
            round.result, round.ended = msgspec.convert(event, RoundResult), time
            round.drops = round.result.dropped
            if round.result.accuracy is None:
                self._unjudged[round.number] = round
                self._complete(round.number)
        elif kind == "provenance":
            (origin,), history.seed = told([event])
            history.origins.append(origin)
        elif kind == "classes":
            history.classes = classes.told([event])
        elif kind == "dropped" and current is not None:
            drop = msgspec.convert({**event, "party": event["member"]}, Drop)
            current.drop_times[drop.party] = time
            current.drops = (*current.drops, drop)
        elif kind == "stranger":
            who = (str(event["public_key"] or "none shown"), str(event["address"] or "unknown"), str(event["reason"]))
            history.strangers.setdefault(who, Stranger(*who)).count += 1
        elif kind == "refused":
            history.refusals[str(event["code"])] += 1
        elif kind in ("link-up", "link-lost"):
            history.links[str(event["peer"])] = Contact(kind == "link-up", time)
        elif kind == "waiting":
            history.waiting, history.waiting_since = msgspec.convert(event["on"], tuple[str, ...]), time
        elif kind == "ended":
            history.ended, self._over, history.waiting = str(event["detail"]), True, ()

    def _take_of_party(self, party: PartyHistory, event: Event) -> None:
        kind, name = event["event"], party.name
        if kind == "phase":
            ended = msgspec.convert(event, _PhaseEnded)
            party.seconds[ended.phase] += ended.seconds
            party.visits[ended.phase] += 1
            party.phase, party.since = ended.next, ended.time
            if ended.round:
                span = Span(ended.phase, ended.time - ended.seconds, ended.time)
                self._spans[ended.round].setdefault(name, []).append(span)
        elif kind == "traffic":
            moved = msgspec.convert(event, _Moved)
            party.sent[moved.phase] += moved.sent
            party.received[moved.phase] += moved.received
            if name == self.history.server and (round := self._rounds.get(moved.round)):
                round.moved += moved.sent + moved.received
        elif kind == "work":
            for work, seconds in msgspec.convert(event["seconds"], dict[str, float]).items():
                party.work[work] += seconds
        elif kind == "update":
            party.trained += msgspec.convert(event["training_seconds"], float)
        elif kind == "evaluated":
            number = event["round"]
            self._judged[number][name] = msgspec.convert(event, _Judged)
            self._complete(number)
        elif self._is_trouble(event):
            about = next((event[key] for key in ("member", "from", "against", "to", "peer") if key in event), "")
            detail = event.get("detail") or event.get("reason") or (f"by {event['by']}" if "by" in event else "")
            self._trouble(
                event["time"],
                name,
                TROUBLE[kind],
                about=", ".join(about) if isinstance(about, list) else str(about),
                code=str(event.get("code") or ""),
                detail=str(detail),
            )
        elif kind == "roster":
            self._changing.add(name)
        if kind in ("ended", "exited", "failed"):
            party.ended = str(event.get("detail") or event.get("reason") or kind)
            if kind != "ended":
                self._gone.add(name)

    def _complete(self, number: int) -> None:
        """Where the server has no figure of its own stands the mean of what clients found, when they evaluate."""
        if (round := self._unjudged.get(number)) and round.result and (found := self._judged[number]):
            figures = [msgspec.structs.asdict(one) for one in found.values()]
            known = [key for key in _Judged.__struct_fields__ if all(one[key] is not None for one in figures)]
            means = {key: mean(one[key] for one in figures) for key in known}
            round.result = msgspec.structs.replace(round.result, **means)
            self.history.judged_on = JUDGED_BY_CLIENTS

    def _is_trouble(self, event: Event) -> bool:
        match event["event"]:
            case "ended" if event["code"] == Code.ROSTER.name and event["party"] in self._changing:
                self._changing.discard(event["party"])
                return False
            case "session-over" | "round-over" | "ended":
                return event["code"] is not None
            case "link-lost":
                return not self._over
        return event["event"] in TROUBLE

    def _end_without_farewell(self, name: str, party: PartyHistory, last: float) -> None:
        """A log that just stops: its party was in some phase until it was dropped, or the round ended."""
        self._trouble(last, name, "stopped: its log ends here", detail="killed, or still running")
        if party.phase is None:
            return
        rounds = [round for round in self._rounds.values() if round.began <= party.since < round.ended]
        for round in rounds[-1:]:
            end = round.drop_times.get(name, round.ended)
            if end > party.since:
                round.spans.setdefault(name, []).append(Span(party.phase, party.since, end, open=True))

    def _trouble(
        self, time: float, party: str, what: str, *, about: str = "", code: str = "", detail: str = ""
    ) -> None:
        session = len(self.history.sessions)
        began = self.history.sessions[-1][0]
        self.history.troubles.append(Trouble(session, time - began, party, what, about=about, code=code, detail=detail))
