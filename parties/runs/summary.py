"""summary.json, rounds.csv and clients.csv: the result of a federation, from its event logs alone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final, Literal

import msgspec

from tacit.parties.learning.statistics import Statistics
from tacit.parties.runs.classes import TestClasses
from tacit.parties.runs.directory import Invocation, RunDirectory, Seed
from tacit.parties.runs.experiment import Experiment
from tacit.parties.runs.incidents import Incident, incidents
from tacit.parties.runs.privacy import PrivacyGuarantee, guarantee
from tacit.parties.runs.reading import natural, read_state
from tacit.parties.runs.results import Column, Result, Table, byte_count, duration, write_csv
from tacit.parties.runs.state import PartyState
from tacit.parties.session.events import Dropout, HeldOut, RoundEnded
from tacit.protocol.sum.states import Phase

SECURE_SUM: Final = (Phase.MASKED_INPUT, Phase.ANSWER_COMPLAINTS, Phase.CONSISTENCY_CHECK, Phase.UNMASK)
"""Phases in which the server no longer waits for training."""


class LocalMetrics(msgspec.Struct, frozen=True, kw_only=True):
    """A client's work on its own update."""

    kept: int
    """Coordinates that it kept back."""
    layers: list[str]
    """Layers that it kept back."""
    training_seconds: float
    choosing_seconds: float
    """Seconds spent choosing them."""


class RoundMetrics(msgspec.Struct, frozen=True, kw_only=True):
    """A finished round; rates in [0, 1], losses in nats."""

    round: int
    status: Literal["completed", "aborted"]
    code: str | None
    detail: str
    culprit: str | None
    cohort: list[str]
    absent: dict[str, str]
    """Clients of the roster that are not in the cohort, each with the reason."""
    repeated: bool
    """Whether the round lost its clients and was repeated: it does not count."""
    survivors: list[str]
    dropped: list[Dropout]
    seconds: float
    samples: int
    train_accuracy: float | None
    train_loss: float | None
    clipped: int | None
    """Clipped coordinates of all updates."""
    held_out: HeldOut | None
    metrics: dict[str, float]
    """Means of metrics returned by custom training steps."""
    accuracy: float | None
    balanced_accuracy: float | None
    """Mean accuracy over the classes of the test images; null if the server has none."""
    loss: float | None
    bytes_sent: dict[str, int]
    """Payload bytes by party."""
    local: dict[str, LocalMetrics]
    """Work on local updates, by client."""


class PhaseMetrics(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds and bytes of a party in a phase, over all rounds."""

    seconds: float
    bytes_sent: int
    bytes_received: int


class PartyMetrics(msgspec.Struct, frozen=True, kw_only=True):
    """A party of a run; seconds are over all rounds and sessions."""

    role: Literal["server", "client"]
    training_seconds: float
    protocol_seconds: float
    """Seconds of protocol computation."""
    waiting_seconds: float
    """Remaining seconds of its rounds."""
    phases: dict[str, PhaseMetrics]

    @property
    def bytes_sent(self) -> int:
        return sum(phase.bytes_sent for phase in self.phases.values())

    @property
    def bytes_received(self) -> int:
        return sum(phase.bytes_received for phase in self.phases.values())


class SumParameters(msgspec.Struct, frozen=True, kw_only=True):
    """Parameters of the secure sum that the server proposed."""

    parameters: int
    ring_bits: int
    vector_bytes: int
    step: float
    max_weight: int
    colluders: int
    """Number of clients that may collude."""
    clients: int | None
    """Clients that take part."""
    cohort: int
    """Most clients of a round."""
    threshold: int
    neighbours: int
    configuration_hash: str
    evaluates: Literal["images", "sums"]


class VerifiedRound(msgspec.Struct, frozen=True, kw_only=True):
    """A secure sum verified by --verify: exact in the ring, and its float sum within the bound of rounding."""

    round: int
    clients: int
    largest_error: float
    """Largest error of a coordinate of the float sum."""
    bound: float
    """The error that stochastic rounding allows; 0 without secure aggregation."""

    def __str__(self) -> str:
        exact = f"sum exact over {self.clients} clients"
        if not self.bound:
            return f"round {self.round}: {exact}"
        return (
            f"round {self.round}: ring {exact}; float sum off by at most {self.largest_error:.3g}, allowed "
            f"{self.bound:.3g}"
        )


class Summary(Result, frozen=True, kw_only=True, tag="tacit.summary.2"):
    """Metrics of a run."""

    name: str
    final_accuracy: float | None
    """Accuracy after the last round, as the next two fields."""
    final_balanced_accuracy: float | None
    final_loss: float | None
    wall_seconds: float
    protocol_share: float | None
    """Fraction of its rounds that the server spent in the secure sum; null without secure aggregation."""
    test_classes: TestClasses | None
    rounds: list[RoundMetrics]
    statistics: Statistics | None
    """Mean and deviation of pixels, if a first sum computed them."""
    incidents: list[Incident]
    parties: dict[str, PartyMetrics]
    privacy: PrivacyGuarantee | None
    """Null without noise."""
    aggregation: SumParameters | None
    """Null before the server proposed it."""
    configuration: dict[str, Any]
    """The experiment."""
    seed: Seed | None
    sessions: list[Invocation]
    ended: str
    """How the last session ended, in words."""
    verified: list[VerifiedRound] = msgspec.field(default_factory=list)
    """Checked rounds; empty without --verify."""

    @property
    def completed(self) -> int:
        """Rounds with a sum."""
        return sum(one.status == "completed" for one in self.rounds)

    @property
    def planned(self) -> int:
        return int(self.configuration["federation"]["rounds"])

    def view(self) -> Iterator[Table | str]:
        """Costs of the parties, verified sums, the guarantee of noise, and the accuracy."""
        # Inapplicable cells are left empty.
        rows = [
            (
                name,
                *(party.bytes_sent, party.bytes_received),
                *(party.training_seconds or None, party.protocol_seconds or None, party.waiting_seconds or None),
            )
            for name, party in self.parties.items()
        ]
        times = (Column(heading, duration) for heading in ("training", "protocol", "waiting"))
        columns = (Column("party"), Column("sent", byte_count), Column("received", byte_count), *times)
        yield Table(columns=columns, rows=rows)
        yield from map(str, self.verified)
        if self.privacy is not None:
            yield from self.privacy.view()
        accuracy = "unknown" if self.final_accuracy is None else f"{self.final_accuracy:.3f}"
        yield f"test accuracy {accuracy} after {duration(self.wall_seconds)}"

    @property
    def round_table(self) -> Table:
        """rounds.csv: a row for each round; bytes of all parties together."""
        names = (
            "round", "status", "code", "culprit", "accuracy", "balanced_accuracy", "loss", "train_accuracy",
            "train_loss", "held_out_round", "held_out_images", "held_out_accuracy", "held_out_loss", "samples",
            "clipped", "cohort", "survivors", "dropped", "seconds", "bytes_sent",
        )  # fmt: skip
        own = list(dict.fromkeys(name for one in self.rounds for name in one.metrics))
        rows = [
            (
                *(one.round, one.status, one.code, one.culprit, one.accuracy, one.balanced_accuracy, one.loss),
                *(one.train_accuracy, one.train_loss),
                *_values(one.held_out, "round", "images", "accuracy", "loss"),
                *(one.samples, one.clipped, len(one.cohort), len(one.survivors), len(one.dropped)),
                *(one.seconds, sum(one.bytes_sent.values())),
                *(one.metrics.get(name) for name in own),
            )
            for one in self.rounds
        ]
        return Table(columns=[Column(name) for name in (*names, *(f"metric_{name}" for name in own))], rows=rows)

    @property
    def client_table(self) -> Table:
        """clients.csv: a row for each client in a round."""
        names = (
            "round", "client", "in_sum", "dropped_phase", "dropped_code", "dropped_detail", "bytes_sent",
            "training_seconds", "choosing_seconds", "kept",
        )  # fmt: skip
        rows = []
        for one in self.rounds:
            dropped = {drop.party: drop for drop in one.dropped}
            rows += [
                (
                    *(one.round, client, client in one.survivors),
                    *_values(dropped.get(client), "phase", "code", "detail"),
                    one.bytes_sent.get(client),
                    *_values(one.local.get(client), "training_seconds", "choosing_seconds", "kept"),
                )
                for client in one.cohort
            ]
        return Table(columns=[Column(name) for name in names], rows=rows)

    def keep(self, run: RunDirectory) -> None:
        """Write summary.json and both tables. OSError, as in `writing`."""
        self.write(run.summary)
        self.keep_tables(run)

    def keep_tables(self, run: RunDirectory) -> None:
        """Write rounds.csv and clients.csv. OSError, as in `writing`."""
        write_csv(self.round_table, run.path / "rounds.csv")
        write_csv(self.client_table, run.path / "clients.csv")


def _values(part: msgspec.Struct | None, *names: str) -> list[Any]:
    """Fields of a struct; None for each where there is none."""
    return [None if part is None else getattr(part, name) for name in names]


def _copied(kind: type[msgspec.Struct], event: msgspec.Struct) -> dict[str, Any]:
    return {name: getattr(event, name) for name in kind.__struct_fields__ if name in event.__struct_fields__}


def summarise(run: RunDirectory, experiment: Experiment, *, ended: str) -> Summary:
    """Make the summary of all sessions of a run; ended: the end of the last one."""
    state = read_state(run.path / "events")
    parties = {name: state.parties[name] for name in sorted(state.parties, key=natural)}
    # A round that a resumed run repeats has the later result.
    found = {round.number: round.result for round in state.rounds if round.result}
    results = [found[number] for number in sorted(found)]
    last, proposed = results[-1] if results else None, state.configured
    secure = experiment.aggregation.mode != "none"
    return Summary(
        name=experiment.name,
        final_accuracy=last.accuracy if last else None,
        final_balanced_accuracy=last.balanced_accuracy if last else None,
        final_loss=last.loss if last else None,
        wall_seconds=state.wall_seconds,
        # Without secure aggregation the vectors arrive while others still train.
        protocol_share=_protocol_share(parties.get(state.server or "")) if secure else None,
        test_classes=state.classes,
        rounds=[_round(result, parties) for result in results],
        statistics=run.kept_statistics(),
        incidents=incidents(state),
        parties={
            name: PartyMetrics(
                role="server" if name == state.server else "client",
                training_seconds=party.activities["training"],
                protocol_seconds=party.activities["computing the protocol"],
                waiting_seconds=party.activities["waiting"],
                phases=phases(party),
            )
            for name, party in parties.items()
        },
        privacy=guarantee(
            experiment,
            results,
            {name: party.updated for name, party in parties.items()},
            colluders=experiment.terms().colluders if proposed is None else proposed.colluders,
        ),
        aggregation=SumParameters(**_copied(SumParameters, proposed)) if proposed else None,
        configuration=msgspec.to_builtins(experiment),
        seed=state.seed,
        sessions=state.origins,
        ended=ended,
    )


def _round(result: RoundEnded, parties: Mapping[str, PartyState]) -> RoundMetrics:
    number = result.round
    return RoundMetrics(
        **_copied(RoundMetrics, result),
        bytes_sent={name: party.sent_in[number] for name, party in parties.items()},
        local={
            name: LocalMetrics(**_copied(LocalMetrics, party.updates[number]))
            for name, party in parties.items()
            if number in party.updates
        },
    )


def _protocol_share(server: PartyState | None) -> float | None:
    seconds = server.seconds if server else {}
    rounds = sum(spent for phase, spent in seconds.items() if phase is not Phase.SESSION)
    return sum(seconds.get(phase, 0.0) for phase in SECURE_SUM) / rounds if rounds else None


def phases(party: PartyState) -> dict[str, PhaseMetrics]:
    """Seconds and bytes of a party in each phase of the sums."""
    return {
        phase.value: PhaseMetrics(
            seconds=party.seconds.get(phase, 0.0),
            bytes_sent=party.sent[phase],
            bytes_received=party.received[phase],
        )
        for phase in Phase
        if phase in party.seconds or phase in party.sent
    }
