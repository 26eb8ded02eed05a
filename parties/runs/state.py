"""State of a run or of one party as a fold over events: the one basis of summary, status, report, pages and screens.

The result depends on the events alone. A session begins with the server's ConfigurationProposed. Logs may end anywhere:
a killed party leaves its last phase open, and a killed server a round without a result. Times are in seconds since 1970
unless a field says otherwise.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from statistics import mean
from typing import Final, NamedTuple

import msgspec

import tacit.protocol.group_key.events  # noqa: F401  # An event can be read if its module is imported; here all are.
from tacit.parties.adaptation.events import (
    AdaptersEvaluated,
    AdaptersUpdated,
    BatchEnded,
    ImagesKept,
    LearningRoundLost,
    LearningSessionOpened,
    SumRevealed,
)
from tacit.parties.inference.events import (
    ImagesAnswered,
    InferenceSessionEnded,
    ModelAgreed,
    SessionOpened,
)
from tacit.parties.runs.classes import TestClasses
from tacit.parties.runs.directory import Invocation, Seed
from tacit.parties.runs.events import ClassesEvaluated, ClientCheated, InvocationRecorded, PartyExited, PartyFailed
from tacit.parties.session.event_log import event_decoder
from tacit.parties.session.events import (
    ClientRoundEnded,
    ConfigurationAccepted,
    ConfigurationProposed,
    ConnectionFailed,
    CopyDetected,
    HandshakeRefused,
    HeartbeatSent,
    HeldOut,
    LinkLost,
    LinkOpened,
    ListeningStarted,
    ModelEvaluated,
    PhaseEnded,
    RosterUpdated,
    RoundEnded,
    SessionEnded,
    StatisticsSummed,
    TrafficCounted,
    UpdateComputed,
    WaitingChanged,
    WorkMeasured,
)
from tacit.protocol.core.errors import Code
from tacit.protocol.core.events import Event, Level, MessageRefused
from tacit.protocol.session.events import ClientJoined, ClientLeft, RoundStarted
from tacit.protocol.sum.events import ClientDropped
from tacit.protocol.sum.states import Phase

JUDGED_ON: Final = {"images": "the test images", "sums": "the images that clients train on, by their sum"}
"""Images behind the accuracies and losses after rounds, by the server's means of evaluation."""
JUDGED_BY_CLIENTS: Final = "test images, as clients found it"
"""The same if only clients can read the model."""
SERVER_LOST: Final = (Code.LEFT.name, Code.TIMEOUT.name)
"""End codes of a client that has lost its server."""

MOST_CLIPPED: Final = 0.01
"""Clipped share of all coordinates of a round above which a warning is given."""
CLIPPING_REMEDY: Final = (
    "raise aggregation.clip and policy.largest_clip, or lower training.learning_rate or the noise of the protection"
)


def clipped_part(clipped: int | None, *, survivors: int, parameters: int) -> float:
    """Clipped share of the coordinates of all updates in a sum."""
    return (clipped or 0) / max(1, survivors * parameters)


MOST_STRANGERS: Final = 1000
"""Most strangers that are counted separately: anybody can make up keys."""
MOST_NAMES: Final = 8
"""Most names in a line for clients that miss a round for the same reason."""


def without(absent: Mapping[str, str], most: int | None = None) -> str:
    """ "client-2 and client-3 (why), client-4 (why)"; most: largest number of names per reason."""
    reasons: dict[str, list[str]] = {}
    for name, reason in absent.items():
        reasons.setdefault(reason, []).append(name)
    return ", ".join(f"{_named(names, most or len(names))} ({reason})" for reason, names in reasons.items())


def _named(names: list[str], most: int) -> str:
    if len(names) > most:
        return f"{', '.join(names[:most])} and {len(names) - most} others"
    return " and ".join(filter(None, [", ".join(names[:-1]), names[-1]]))


@dataclass(frozen=True)
class Span:
    """A party in a phase, from `start` to `end` in seconds since 1970; open if its log ends in it."""

    phase: Phase
    start: float
    end: float
    open: bool = False


@dataclass
class RoundState:
    """One attempt at a round. A resumed run repeats an interrupted round as another one of the same number."""

    session: int
    number: int
    began: float
    ended: float
    cohort: tuple[str, ...]
    absent: Mapping[str, str] = field(default_factory=dict)
    result: RoundEnded | None = None
    drops: dict[str, ClientDropped] = field(default_factory=dict)
    spans: dict[str, list[Span]] = field(default_factory=dict)
    moved: int = 0
    """Payload bytes that the server sent and received."""
    lost: bool = False
    """Whether the data owners of an adaptation do not receive its sum."""

    @property
    def status(self) -> str:
        return "lost" if self.lost else self.result.status if self.result else "unfinished"

    @property
    def seconds(self) -> float:
        """From the selection of the clients to the evaluated model, or to the last event."""
        return self.ended - self.began


@dataclass
class PartyState:
    """One party: its seconds and payload bytes by phase over all rounds, and its present phase."""

    name: str
    seconds: defaultdict[Phase, float] = field(default_factory=lambda: defaultdict(float))
    sent: Counter[Phase] = field(default_factory=Counter)
    received: Counter[Phase] = field(default_factory=Counter)
    sent_in: Counter[int] = field(default_factory=Counter)
    work: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    """Seconds of the protocol by kind of work, if the party reported them at its end."""
    updates: dict[int, UpdateComputed] = field(default_factory=dict)
    updated: int = 0
    """Number of its updates; one of a repeated round counts again."""
    trained: float = 0.0
    visits: Counter[Phase] = field(default_factory=Counter)
    phase: Phase | None = None
    """Current phase; None before its first phase of this session."""
    since: float = 0.0
    heard: float | None = None
    """Time of its last report in this session; None without one."""
    ended: str | None = None
    """Its report of the session's end, or the fate of its process; None if it is present, or vanished."""
    missed: dict[int, str] = field(default_factory=dict)
    """Rounds that ended for this client with an error, and the reasons."""
    failed: bool = False
    done: float = 0.0
    address: str = ""
    session: str = ""
    round: int = 0
    there: set[str] = field(default_factory=set)
    """Peers that it has joined, or that have joined it: a lost link to one of them matters."""
    serving: set[str] = field(default_factory=set)
    """Peers in a session of private inference with it."""
    connected: bool | None = None
    """Whether it has the session of private inference that it wants; None before the first attempt."""
    kept: list[ImagesKept] = field(default_factory=list)
    """Passes of images through the blocks, whose shares are kept."""
    batches: list[BatchEnded] = field(default_factory=list)
    openings: list[LearningSessionOpened] = field(default_factory=list)
    learned: int = 0
    """Last round of adaptation whose result it has."""
    revealed: set[int] = field(default_factory=set)
    """Rounds whose sums it revealed to any data owner."""

    @property
    def activities(self) -> dict[str, float]:
        known = {"training": self.trained, "computing the protocol": sum(self.work.values())}
        between = self.seconds.get(Phase.SESSION, 0.0)
        return {
            **known,
            "waiting": max(0.0, sum(self.seconds.values()) - between - sum(known.values())),
            "between rounds": between,
        }


@dataclass(frozen=True)
class Line:
    level: Level
    session: int
    seconds: float
    """Seconds since the session began."""
    party: str
    text: str


@dataclass
class SessionState:
    began: float
    last: float
    started: float | None = None
    configured: float | None = None
    """Time of the server's proposal; None without one."""
    ended: bool = False
    """Whether the server reported the end after its proposal."""
    server_lost: bool = False
    """Whether a client ended because the server was gone."""


@dataclass(frozen=True)
class Contact:
    up: bool
    since: float


@dataclass
class Stranger:
    """A peer whose handshakes were refused, once or often."""

    public_key: str
    address: str
    reason: str
    count: int = 0


@dataclass(frozen=True)
class Clock:
    """A party's clock compared with the server's, by the messages that both recorded."""

    party: str
    messages: int
    """Messages that both ends recorded; without any, its times are used unchanged."""
    ahead: float = 0.0
    """Seconds that its clock was ahead of the server's, at its last event; 0 if the messages allow that."""
    uncertainty: float | None = None
    """Largest error of a time of its log, in seconds; None if unknown."""
    jumps: int = 0
    """Number of detected jumps of the clock."""


class Unread(NamedTuple):
    """First unreadable line of a log, and the reason."""

    path: Path
    line: int
    fault: str

    def __str__(self) -> str:
        return f"{self.path} is read up to line {self.line - 1}: line {self.line} is not of this run ({self.fault})"


_LISTED_ELSEWHERE: Final = (ClientDropped, HandshakeRefused, RoundEnded, RosterUpdated)
"""Warnings with their own tables, besides that of all warnings."""


def parse_event(text: str) -> Event:
    """Read an event that another process of this machine has sent. msgspec.MsgspecError for another text."""
    try:
        return _known_events().decode(text)
    except msgspec.ValidationError:
        # Of a kind that was declared since.
        _known_events.cache_clear()
        return _known_events().decode(text)


_known_events = cache(event_decoder)


@dataclass
class RunState:
    """Everything known of a run, or of one party. `server` is None before its configuration is known."""

    server: str | None = None
    parties: dict[str, PartyState] = field(default_factory=dict)
    sessions: list[SessionState] = field(default_factory=list)
    configured: ConfigurationProposed | None = None
    origins: list[Invocation] = field(default_factory=list)
    """Command, versions and machine of each session, if the server reports them."""
    seed: Seed | None = None
    classes: TestClasses | None = None
    """None without test images, and until its last session ended."""
    statistics: StatisticsSummed | None = None
    judged_on: str = JUDGED_ON["images"]
    rounds: list[RoundState] = field(default_factory=list)
    warnings: list[Line] = field(default_factory=list)
    cheats: list[tuple[int, ClientCheated]] = field(default_factory=list)
    """Cheating clients, with the number of the session."""
    rosters: list[tuple[int, int, RosterUpdated]] = field(default_factory=list)
    """Changes of the roster at the server, with session and the last finished round."""
    strangers: dict[tuple[str, str, str], Stranger] = field(default_factory=dict)
    copies: list[tuple[int, CopyDetected]] = field(default_factory=list)
    """Copied folders that the server detected, with the number of the session."""
    ended: str | None = None
    """The server's report of the last session's end; None without one."""
    links: dict[str, Contact] = field(default_factory=dict)
    waiting: tuple[str, ...] = ()
    """Clients that the server waits for now; known only while it reports them."""
    waiting_since: float = 0.0
    clocks: tuple[Clock, ...] = ()
    """Clocks of the clients, if the run is read from the logs of several hosts."""
    one_machine: bool = True
    """Whether all parties are processes of one user."""
    refusals: Counter[str] = field(default_factory=Counter)
    unread: list[Unread] = field(default_factory=list)
    """Logs that are truncated, or have foreign lines."""
    learned: dict[int, AdaptersUpdated] = field(default_factory=dict)
    """Rounds of adaptation whose result the data owners have."""
    unlearned: dict[int, str] = field(default_factory=dict)
    """Rounds whose result they do not receive, and the reasons."""
    evaluated: dict[int, AdaptersEvaluated] = field(default_factory=dict)
    """Metrics of the common adapters on test images, by the preceding round."""

    _current: dict[int, RoundState] = field(default_factory=dict, repr=False)
    _spans: defaultdict[int, dict[str, list[Span]]] = field(default_factory=lambda: defaultdict(dict), repr=False)
    """By round: a client may report a phase before the server's clock says that the round began."""
    _over: bool = False
    """Whether the server reported its end: links lost after that are no warning."""
    _gone: set[str] = field(default_factory=set, repr=False)
    """Parties whose process has ended, as a supervisor reports."""
    _changing: set[str] = field(default_factory=set, repr=False)
    """Parties that adopt a later version of the roster, for which they end the session."""
    _judged: defaultdict[int, dict[str, ModelEvaluated]] = field(default_factory=lambda: defaultdict(dict), repr=False)
    """Evaluations by round and client, if clients evaluate models that the server cannot read."""
    _unjudged: dict[int, RoundState] = field(default_factory=dict, repr=False)
    """Rounds that the server could not evaluate."""

    @property
    def judges(self) -> bool:
        """Whether any party evaluates the models of rounds; else their accuracies are those of the training."""
        return self.judged_on != JUDGED_ON["sums"]

    @property
    def clients(self) -> list[PartyState]:
        return [party for name, party in self.parties.items() if name != self.server]

    @property
    def completed(self) -> list[RoundState]:
        """Rounds whose sum went into the model, each number once, in order."""
        return [round for _, round in sorted({r.number: r for r in self.rounds if r.status == "completed"}.items())]

    @property
    def held_out(self) -> list[HeldOut]:
        """Metrics of the models on the clients' held-out images, in order; never of the last model."""
        return [round.result.held_out for round in self.completed if round.result and round.result.held_out]

    @property
    def wall_seconds(self) -> float:
        """From the start of the command to the last event, summed over the sessions."""
        return sum(session.last - (session.started or session.began) for session in self.sessions)

    def take(self, event: Event) -> Line:
        """Add one event; those of one time come in the order server, clients. Returns it as a line for a person.

        ValueError for an event that cannot follow those before it."""
        time, name = event.time, event.party
        proposed = isinstance(event, ConfigurationProposed)
        again = proposed and name == self.server and self.sessions and self.sessions[-1].configured is not None
        if not self.sessions or again:
            self._begin_session(time)
        session = self.sessions[-1]
        session.last = time
        if isinstance(event, ConfigurationProposed) and self.server in (None, name):
            self._configure(event)
        party = self.parties.setdefault(name, PartyState(name))
        party.heard = time
        party.done = event.done if isinstance(event, HeartbeatSent) else 0.0
        if name in self._gone:
            # A party that reports after the end of its process was started again.
            self._gone.discard(name)
            party.ended, party.phase, party.failed = None, None, False
        if self.rounds and self._current and self.rounds[-1].result is None:
            self.rounds[-1].ended = time
        level = self._level(event, party)
        if name == self.server:
            self._take_of_server(event)
        self._take_of_party(party, event)
        text, lossy = self._text(event, level)
        line = Line("warning" if lossy else level, len(self.sessions), time - session.began, name, text)
        if line.level == "warning" and not isinstance(event, _LISTED_ELSEWHERE):
            self.warnings.append(line)
        return line

    def close(self) -> RunState:
        """The state of finished logs: a party that did not end was in its last phase until the end."""
        for name, party in self.parties.items():
            if party.heard is not None and party.ended is None and name not in self._changing:
                self._end_without_farewell(name, party, party.heard)
        self.warnings.sort(key=lambda line: (line.session, line.seconds))
        return self

    def forget(self) -> None:
        """Drop all state that the next events do not depend on, for a view that lives as long as its party."""
        del self.rounds[:-1], self.warnings[:], self.cheats[:], self.rosters[:], self.origins[:], self.sessions[:-1]
        self._current = {round.number: round for round in self.rounds}
        for history in (self.strangers, self.learned, self.unlearned, self.evaluated, self._judged, self._unjudged):
            history.clear()
        for number in self._spans.keys() - self._current.keys():
            del self._spans[number]
        for party in self.parties.values():
            for growing in (
                party.sent_in, party.updates, party.missed, party.kept, party.batches, party.openings, party.revealed
            ):  # fmt: skip
                growing.clear()

    def _begin_session(self, time: float) -> None:
        self.close()
        for party in self.parties.values():
            party.phase, party.heard, party.ended = None, None, None
        self.sessions.append(SessionState(time, time))
        self.ended, self.waiting, self._over = None, (), False
        self.links.clear()
        self._current, self._spans = {}, defaultdict(dict)

    def _configure(self, proposed: ConfigurationProposed) -> None:
        self.server, self.configured = proposed.party, proposed
        self.sessions[-1].configured = proposed.time
        self.judged_on = JUDGED_ON[proposed.evaluates]
        # A failed first sum ended before, after which the server was started again.
        self._over, self.ended = False, None
        for earlier in self.parties.keys() - self._gone:
            self.parties[earlier].ended = None

    def _level(self, event: Event, party: PartyState) -> Level:
        """Severity of an event in this state; called before it is taken."""
        match event:
            case LinkLost():
                return "warning" if event.peer in party.there and not self._over else "debug"
            case LinkOpened() if event.party == self.server:
                return "info" if event.peer in self.links and not self.links[event.peer].up else "debug"
            case SessionEnded(code=Code.ROSTER.name) if event.party in self._changing:
                return "info"
            case RoundStarted() if event.absent and event.absent != self._absent_before():
                return "warning"
        return event.level

    def _text(self, event: Event, level: Level) -> tuple[str, bool]:
        """The line of an event, and whether it shows a loss that its owner can fix; called after it is taken."""
        if isinstance(event, RoundStarted) and level == "warning":
            return f"round {event.round} starts without {without(event.absent, MOST_NAMES)}", False
        if not isinstance(event, RoundEnded) or event.party != self.server or self.configured is None:
            return event.text, False
        proposed, moved = self.configured, self._current[event.round].moved
        results = [round.result for round in self._current.values() if round.result]
        planned = proposed.rounds + sum(result.repeated for result in results)
        number = f"round {event.round} of {planned}" if proposed.rounds else f"round {event.round}"
        text = f"{number} {event.outcome(proposed.cohort)}, {moved / 1e6:.2f} MB"
        part = clipped_part(event.clipped, survivors=len(event.survivors), parameters=proposed.parameters)
        if part <= MOST_CLIPPED:
            return text, False
        return f"{text}; {part:.0%} of all coordinates were clipped, and are lost: {CLIPPING_REMEDY}", True

    def _absent_before(self) -> Mapping[str, str]:
        return self.rounds[-1].absent if self.rounds and self._current else {}

    def _take_of_server(self, event: Event) -> None:
        time = event.time
        match event:
            case RoundStarted():
                number = event.round
                round = RoundState(
                    len(self.sessions), number, time, time, tuple(event.cohort), event.absent, spans=self._spans[number]
                )
                self._current[number] = round
                self.rounds.append(round)
            case RoundEnded():
                self._end_round(event)
            case InvocationRecorded():
                began = f"{datetime.fromtimestamp(time, UTC):%Y-%m-%dT%H:%M:%SZ}"
                self.origins.append(
                    Invocation(command=event.command, versions=event.versions, machine=event.machine, began=began)
                )
                self.seed = event.seed
                self.sessions[-1].started = event.started
            case ClassesEvaluated():
                self.classes = event.found
            case ClientDropped() if self._current:
                self.rounds[-1].drops[event.member] = event
            case HandshakeRefused():
                who = event.public_key or "none shown", event.address or "unknown", event.reason
                if len(self.strangers) >= MOST_STRANGERS and who not in self.strangers:
                    who = "others", "several", "further keys and addresses"
                self.strangers.setdefault(who, Stranger(*who)).count += 1
            case CopyDetected():
                self.copies.append((len(self.sessions), event))
            case MessageRefused():
                self.refusals[event.code] += 1
            case LinkOpened() | LinkLost():
                self.links[event.peer] = Contact(isinstance(event, LinkOpened), time)
            case WaitingChanged():
                self.waiting, self.waiting_since = tuple(event.on), time
            case RosterUpdated():
                self.rosters.append((len(self.sessions), self._finished(), event))
            case SessionEnded():
                self.ended, self._over, self.waiting = event.detail, True, ()
                self.sessions[-1].ended = self.sessions[-1].configured is not None

    def _finished(self) -> int:
        return max((round.number for round in self.rounds if round.result), default=0)

    def _end_round(self, ended: RoundEnded) -> None:
        if (round := self._current.get(ended.round)) is None:
            raise ValueError(f"round {ended.round} is over, and did not begin")
        round.result, round.ended = ended, ended.time
        if ended.accuracy is None:
            self._unjudged[round.number] = round
            self._complete(round.number)

    def _take_of_party(self, party: PartyState, event: Event) -> None:
        name = party.name
        match event:
            case PhaseEnded():
                party.seconds[event.phase] += event.seconds
                party.visits[event.phase] += 1
                party.phase, party.since = event.next, event.time
                if event.round:
                    span = Span(event.phase, event.time - event.seconds, event.time)
                    self._spans[event.round].setdefault(name, []).append(span)
            case TrafficCounted():
                party.sent[event.phase] += event.sent
                party.received[event.phase] += event.received
                party.sent_in[event.round] += event.sent
                if name == self.server and (round := self._current.get(event.round)):
                    round.moved += event.sent + event.received
            case WorkMeasured():
                for work, seconds in event.seconds.items():
                    party.work[work] += seconds
            case UpdateComputed():
                party.updates[event.round] = event
                party.updated += 1
                party.trained += event.training_seconds
            case ModelEvaluated():
                self._judged[event.round][name] = event
                self._complete(event.round)
            case ClientCheated():
                self.cheats.append((len(self.sessions), event))
            case RosterUpdated():
                self._changing.add(name)
            case StatisticsSummed():
                self.statistics = event
            case ListeningStarted():
                party.session = event.session or party.session
                if not event.service:
                    party.address = event.address
            case ConfigurationAccepted():
                party.session = event.session
            case ClientJoined():
                party.there.add(event.member)
            case ClientLeft():
                party.there.discard(event.member)
            case LinkOpened() if name != self.server and not party.address:
                # A client has only one peer; a party that listens has other peers when they have joined.
                party.there.add(event.peer)
            case SessionOpened():
                party.serving |= set(event.peers)
            case InferenceSessionEnded():
                party.serving -= set(event.peers)
                party.connected = False
            case ModelAgreed():
                party.connected = True
            case ConnectionFailed():
                party.connected = False
            case ImagesAnswered():
                party.round = event.images
            case ImagesKept():
                party.kept.append(event)
            case BatchEnded():
                party.batches.append(event)
            case LearningSessionOpened():
                party.openings.append(event)
            case SumRevealed() if event.revealed:
                party.revealed.add(event.round)
            case AdaptersUpdated():
                self.learned[event.round] = event
                party.learned = event.round
            case LearningRoundLost():
                self.unlearned[event.round] = event.detail
            case AdaptersEvaluated():
                self.evaluated[event.round] = event
        match event:
            case RoundStarted() | RoundEnded() | ClientRoundEnded() | UpdateComputed() | BatchEnded():
                party.round = event.round
                if isinstance(event, ClientRoundEnded) and event.code is not None:
                    party.missed[event.round] = event.detail
            case SessionEnded():
                self._end_of_party(party, event)
            case PartyExited() | PartyFailed():
                party.ended, party.since, party.failed = event.reason, event.time, isinstance(event, PartyFailed)
                self._gone.add(name)

    def _end_of_party(self, party: PartyState, ended: SessionEnded) -> None:
        party.ended = ended.detail
        party.there.clear()
        if party.name != self.server and ended.code in SERVER_LOST:
            self.sessions[-1].server_lost = True
        if ended.code == Code.ROSTER.name:
            self._changing.discard(party.name)

    def _complete(self, number: int) -> None:
        """Use the means of the clients' evaluations if the server could not evaluate."""
        if (round := self._unjudged.get(number)) and round.result and (found := self._judged[number].values()):
            round.result = msgspec.structs.replace(
                round.result,
                accuracy=mean(one.accuracy for one in found),
                balanced_accuracy=mean(one.balanced_accuracy for one in found),
                loss=mean(one.loss for one in found),
            )
            self.judged_on = JUDGED_BY_CLIENTS

    def _end_without_farewell(self, name: str, party: PartyState, last: float) -> None:
        """End of a log without a report: its party was in some phase until it was dropped, or the round ended."""
        began, text = self.sessions[-1].began, "stopped: its log ends here (killed, or still running)"
        self.warnings.append(Line("warning", len(self.sessions), last - began, name, text))
        if party.phase is None:
            return
        rounds = [round for round in self._current.values() if round.began <= party.since < round.ended]
        for round in rounds[-1:]:
            end = round.drops[name].time if name in round.drops else round.ended
            if end > party.since:
                round.spans.setdefault(name, []).append(Span(party.phase, party.since, end, open=True))
