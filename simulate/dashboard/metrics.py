"""Prometheus metrics of a run, computed from its state on request.

Labels are bounded: statuses, phases, directions and codes of the protocol, never names. Counters restart with the
process, as Prometheus expects, except for earlier sessions that it read.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric, SummaryMetricFamily
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from prometheus_client.registry import Collector

from tacit.parties.hosting.folder import Status
from tacit.parties.runs.state import PartyState, RunState
from tacit.protocol.core.errors import Code
from tacit.protocol.sum.states import Phase

CONTENT_TYPE: Final = CONTENT_TYPE_LATEST

Labels = tuple[str, ...]
Values = Iterator[tuple[Labels, float]]


@dataclass(frozen=True)
class Measure:
    name: str
    kind: Literal["counter", "gauge", "summary"]
    about: str
    labels: Labels
    values: Callable[[Any], Iterable[tuple[Labels, float]]]
    """From a RunState, or from the Status of a party."""
    counts: Callable[[Any], Iterable[tuple[Labels, float]]] | None = None
    """For a summary: number of observations in the sums."""

    def family(self, state: RunState | Status) -> Metric:
        if self.kind == "summary":
            counts = dict(self.counts(state)) if self.counts else {}
            summary = SummaryMetricFamily(self.name, self.about, labels=self.labels)
            for labels, total in self.values(state):
                summary.add_metric(labels, count_value=int(counts.get(labels, 0)), sum_value=total)
            return summary
        family = (CounterMetricFamily if self.kind == "counter" else GaugeMetricFamily)(
            self.name, self.about, labels=self.labels
        )
        for labels, value in self.values(state):
            family.add_metric(labels, value)
        return family


def _server(state: RunState) -> PartyState:
    return state.parties.get(state.server or "") or PartyState("")


def _rounds(state: RunState) -> Values:
    counts = Counter(round.status for round in state.rounds[:-1])
    if state.rounds and state.rounds[-1].result is not None:
        counts[state.rounds[-1].status] += 1
    for status in ("completed", "aborted", "unfinished"):
        yield (status,), counts[status]


def _traffic(state: RunState) -> Values:
    server = _server(state)
    for phase in Phase:
        yield ("sent", phase.value), server.sent[phase]
        yield ("received", phase.value), server.received[phase]


def _seconds(state: RunState) -> Values:
    server = _server(state)
    for phase in Phase:
        yield (phase.value,), server.seconds.get(phase, 0.0)


def _visits(state: RunState) -> Values:
    server = _server(state)
    for phase in Phase:
        yield (phase.value,), server.visits[phase]


def _refused(state: RunState) -> Values:
    for code in Code:
        yield (code.name,), state.refusals[code.name]


def _dropped(state: RunState) -> Values:
    counts = Counter(drop.phase for round in state.rounds for drop in round.drops.values())
    for phase in Phase:
        yield (phase.value,), counts[phase]


def single(name: str, kind: Literal["counter", "gauge"], about: str, value: Callable[[Any], float | None]) -> Measure:
    """Return a measure without labels; it is missing while its value is None."""

    def values(state: Any) -> Values:
        if (found := value(state)) is not None:
            yield (), found

    return Measure(name, kind, about, (), values)


def _accuracy(state: RunState) -> float | None:
    found = (round.result.accuracy for round in reversed(state.completed) if round.result)
    return next((accuracy for accuracy in found if accuracy is not None), None)


def _last_round(state: RunState) -> float | None:
    return next((round.seconds for round in reversed(state.rounds) if round.result is not None), None)


MEASURES: Final = (
    Measure("tacit_rounds", "counter", "Rounds that are over, by how they ended.", ("status",), _rounds),
    single(
        "tacit_round_number",
        "gauge",
        "Number of the round that was begun last; 0 before the first.",
        lambda state: state.rounds[-1].number if state.rounds else 0,
    ),
    single(
        "tacit_copies_detected",
        "counter",
        "Links that show that the folder of a client, or of the server, is in use twice.",
        lambda state: len(state.copies),
    ),
    single("tacit_last_round_seconds", "gauge", "How long the last round that is over took.", _last_round),
    single("tacit_accuracy", "gauge", "Test accuracy of the model after the last completed round, 0 to 1.", _accuracy),
    single(
        "tacit_held_out_accuracy",
        "gauge",
        "Accuracy on images that the clients keep from training, by the secure sum, of the model that the last "
        "completed round began with, 0 to 1.",
        lambda state: state.held_out[-1].accuracy if state.held_out else None,
    ),
    Measure(
        "tacit_phase_seconds", "summary", "Seconds that the server spent in each phase.", ("phase",), _seconds, _visits
    ),
    Measure(
        "tacit_bytes",
        "counter",
        "Payload bytes of the server's messages, without encryption and headers of the transport.",
        ("direction", "phase"),
        _traffic,
    ),
    single(
        "tacit_connected_clients",
        "gauge",
        "Clients that have a link to the server now.",
        lambda state: sum(contact.up for contact in state.links.values()),
    ),
    single(
        "tacit_waited_for_clients", "gauge", "Clients that the server waits for now.", lambda state: len(state.waiting)
    ),
    Measure("tacit_dropouts", "counter", "Clients that were lost in a round, by phase.", ("phase",), _dropped),
    Measure("tacit_refused_messages", "counter", "Messages that the server refused, by code.", ("code",), _refused),
    single(
        "tacit_refused_handshakes",
        "counter",
        "Kinds of handshakes that the server refused: each key, address and reason once.",
        lambda state: sum(stranger.count for stranger in state.strangers.values()),
    ),
)
"""Measures beside memory, descriptors and processor time of the process."""


PARTY_MEASURES: Final = (
    single(
        "tacit_round_number",
        "gauge",
        "The last round; of a data owner that asks: images that are answered.",
        lambda status: status.round,
    ),
    single(
        "tacit_copies_detected",
        "gauge",
        "1 after a copy of a folder was noticed.",
        lambda status: status.alert is not None,
    ),
    single("tacit_served_sessions", "gauge", "Data owners whose sessions go on.", lambda status: len(status.serves)),
    single(
        "tacit_phase_timestamp_seconds",
        "gauge",
        "When it came into its phase, since 1970.",
        lambda status: status.phase_since,
    ),
    single(
        "tacit_last_event_timestamp_seconds",
        "gauge",
        "When the last event of this start was, since 1970.",
        lambda status: status.last_event.time if status.last_event else None,
    ),
    single(
        "tacit_last_error_timestamp_seconds",
        "gauge",
        "When the last error of this start was, since 1970.",
        lambda status: status.last_error.time if status.last_error else None,
    ),
)
"""Measures of a client, a dealer or a model owner, from the data of `tacit status`."""


class Metrics(Collector):
    """Text of one party's measures, with a registry of its own."""

    def __init__(self, state: Callable[[], RunState | Status], measures: Sequence[Measure] = MEASURES) -> None:
        self._state = state
        self._measures = measures
        self._registry = CollectorRegistry()
        self._registry.register(self)
        ProcessCollector(namespace="tacit", registry=self._registry)

    def collect(self) -> Iterator[Metric]:
        state = self._state()
        return (measure.family(state) for measure in self._measures)

    def text(self) -> bytes:
        return generate_latest(self._registry)
