"""The run as Prometheus reads it: every measure is computed from the history when somebody asks.

Labels are bounded: statuses, phases, directions and codes of the protocol, never names. Counters begin anew with the
process, as Prometheus expects, but for what it read of earlier sessions.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Final, Literal

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric, SummaryMetricFamily
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from prometheus_client.registry import Collector

from tacit.protocol.core.errors import Code
from tacit.protocol.core.messages import Phase
from tacit.simulate.report.history import History, PartyHistory

CONTENT_TYPE: Final = CONTENT_TYPE_LATEST

Labels = tuple[str, ...]
Values = Iterator[tuple[Labels, float]]


@dataclass(frozen=True)
class Measure:
    """One figure of the server, by its labels."""

    name: str
    kind: Literal["counter", "gauge", "summary"]
    about: str
    labels: Labels
    values: Callable[[History], Iterable[tuple[Labels, float]]]
    counts: Callable[[History], Iterable[tuple[Labels, float]]] | None = None
    """Of a summary: how many observations its values are the sums of."""

    def family(self, history: History) -> Metric:
        """As prometheus-client takes it."""
        if self.kind == "summary":
            counts = dict(self.counts(history)) if self.counts else {}
            summary = SummaryMetricFamily(self.name, self.about, labels=self.labels)
            for labels, total in self.values(history):
                summary.add_metric(labels, count_value=int(counts.get(labels, 0)), sum_value=total)
            return summary
        family = (CounterMetricFamily if self.kind == "counter" else GaugeMetricFamily)(
            self.name, self.about, labels=self.labels
        )
        for labels, value in self.values(history):
            family.add_metric(labels, value)
        return family


def _server(history: History) -> PartyHistory:
    return history.parties.get(history.server or "") or PartyHistory("")


def _rounds(history: History) -> Values:
    counts = Counter(round.status for round in history.rounds[:-1])
    if history.rounds and history.rounds[-1].result is not None:
        counts[history.rounds[-1].status] += 1
    for status in ("completed", "aborted", "unfinished"):
        yield (status,), counts[status]


def _traffic(history: History) -> Values:
    server = _server(history)
    for phase in Phase:
        yield ("sent", phase.value), server.sent[phase]
        yield ("received", phase.value), server.received[phase]


def _seconds(history: History) -> Values:
    server = _server(history)
    for phase in Phase:
        yield (phase.value,), server.seconds.get(phase, 0.0)


def _visits(history: History) -> Values:
    server = _server(history)
    for phase in Phase:
        yield (phase.value,), server.visits[phase]


def _refused(history: History) -> Values:
    for code in Code:
        yield (code.name,), history.refusals[code.name]


def _dropped(history: History) -> Values:
    counts = Counter(drop.phase for round in history.rounds for drop in round.drops)
    for phase in Phase:
        yield (phase.value,), counts[phase]


def _accuracy(history: History) -> Values:
    for round in reversed(history.completed):
        if round.result and round.result.accuracy is not None:
            yield (), round.result.accuracy
            return


def _held_out(history: History) -> Values:
    for judged in history.held_out[-1:]:
        yield (), judged.accuracy


def _last_round(history: History) -> Values:
    for round in reversed(history.rounds):
        if round.result is not None:
            yield (), round.seconds
            return


MEASURES: Final = (
    Measure("tacit_rounds", "counter", "Rounds that are over, by how they ended.", ("status",), _rounds),
    Measure(
        "tacit_round_number",
        "gauge",
        "Number of the round that was begun last; 0 before the first.",
        (),
        lambda history: [((), history.rounds[-1].number if history.rounds else 0)],
    ),
    Measure("tacit_last_round_seconds", "gauge", "How long the last round that is over took.", (), _last_round),
    Measure(
        "tacit_accuracy", "gauge", "Test accuracy of the model after the last completed round, 0 to 1.", (), _accuracy
    ),
    Measure(
        "tacit_held_out_accuracy",
        "gauge",
        "Accuracy on images that the clients keep from training, by the secure sum, of the model that the last "
        "completed round began with, 0 to 1.",
        (),
        _held_out,
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
    Measure(
        "tacit_connected_clients",
        "gauge",
        "Clients that have a link to the server now.",
        (),
        lambda history: [((), sum(contact.up for contact in history.links.values()))],
    ),
    Measure(
        "tacit_waited_for_clients",
        "gauge",
        "Clients that the server waits for now.",
        (),
        lambda history: [((), len(history.waiting))],
    ),
    Measure("tacit_dropouts", "counter", "Clients that were lost in a round, by phase.", ("phase",), _dropped),
    Measure("tacit_refused_messages", "counter", "Messages that the server refused, by code.", ("code",), _refused),
    Measure(
        "tacit_refused_handshakes",
        "counter",
        "Kinds of handshakes that the server refused: each key, address and reason once.",
        (),
        lambda history: [((), sum(stranger.count for stranger in history.strangers.values()))],
    ),
)
"""What is shown beside memory, descriptors and processor time of the process."""


class HistoryCollector(Collector):
    """The measures of one history."""

    def __init__(self, history: Callable[[], History]) -> None:
        self._history = history

    def collect(self) -> Iterator[Metric]:
        """Compute all of them."""
        history = self._history()
        return (measure.family(history) for measure in MEASURES)

    def describe(self) -> Iterator[Metric]:
        """The same without values, for the registry."""
        return (measure.family(History(None, {})) for measure in MEASURES)


class Metrics:
    """The text of one server's measures; it has a registry of its own."""

    def __init__(self, history: Callable[[], History]) -> None:
        self._registry = CollectorRegistry()
        self._registry.register(HistoryCollector(history))
        ProcessCollector(namespace="tacit", registry=self._registry)

    def text(self) -> bytes:
        """In the format that Prometheus reads."""
        return generate_latest(self._registry)
