"""Tables of reports, made from the state of a run."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import Final

from tacit.parties.runs.classes import TestClass, TestClasses
from tacit.parties.runs.results import Column, Table, byte_count, decimals, duration, plain, prose, thousands
from tacit.parties.runs.state import Clock, Line, PartyState, RoundState, RunState, Stranger
from tacit.protocol.sum.events import ClientDropped
from tacit.simulate.report.figures import PHASES
from tacit.simulate.report.reasons import reason

_EVALUATED: Final = {
    "accuracy": "Accuracy",
    "balanced_accuracy": "Balanced accuracy",
    "loss": "Loss",
    "train_accuracy": "Training accuracy",
    "train_loss": "Training loss",
}

Setting = tuple[str, str, bool, str]
"""A key of an experiment: dotted name, value, whether it differs from the default, meaning."""


def is_known(state: RunState, metric: str) -> bool:
    """Whether any completed round has this metric: custom training steps may report no accuracy."""
    return any(getattr(round.result, metric) is not None for round in state.completed)


def round_table(state: RunState, *, cohort: int) -> Table:
    """Table of all rounds, with every metric of any round, and reasons for missing sums; cohort: most clients."""
    known = {key: Column(heading, decimals(3)) for key, heading in _EVALUATED.items() if is_known(state, key)}
    held_out = [Column("Held-out accuracy before it", decimals(3))] if state.held_out else []
    flagged = [number for number, round in enumerate(state.rounds) if round.status != "completed"]
    rows = []
    for round in state.rounds:
        result = round.result
        in_sum = len(result.survivors) if result and round.status == "completed" else 0
        rows.append(
            [
                *(round.number, round.status),
                *(getattr(result, key, None) for key in known),
                *([getattr(result and result.held_out, "accuracy", None)] if held_out else []),
                *((f"{in_sum} of {cohort}", result.samples, result.clipped) if result else (None, None, None)),
                *(round.seconds, round.moved),
                *([_reason(round)] if flagged else []),
            ]
        )
    columns = (
        *(Column("Round", plain), Column("Status")),
        *(*known.values(), *held_out),
        *(Column("In the sum", plain), Column("Samples", thousands), Column("Clipped", thousands)),
        *(Column("Time", duration), Column("Payload", byte_count)),
        *([Column("Reason", prose)] if flagged else []),
    )
    return Table(columns=columns, rows=rows, flagged=flagged)


def _reason(round: RoundState) -> str:
    result = round.result
    if result is None:
        return "the server's log has no result"
    if round.status == "completed":
        return ""
    culprit = f" (at fault: {result.culprit})" if result.culprit else ""
    return " ".join(filter(None, [result.code, f"{result.detail}{culprit}.", reason(result.code)[0]]))


def class_table(found: TestClasses) -> Table:
    """Accuracy by class, the lowest first."""

    def by_accuracy(one: TestClass) -> tuple[float, str]:
        return 1.0 if one.accuracy is None else one.accuracy, one.name

    columns = (Column("Class"), Column("Accuracy", decimals(3)), Column("Images", thousands))
    rows = [(one.name, one.accuracy, one.images) for one in sorted(found.classes, key=by_accuracy)]
    return Table(columns=columns, rows=rows)


def work_table(server: PartyState | None, clients: Sequence[PartyState]) -> Table:
    """Table of the kinds of computing, the costliest first: seconds of the server, and the median of the clients."""
    measured = [client for client in clients if client.work]
    kinds = {kind for party in (*measured, *([server] if server else [])) for kind in party.work}
    rows = [
        (
            kind,
            server.work[kind] if server else 0.0,
            median(client.work[kind] for client in measured) if measured else 0.0,
        )
        for kind in kinds
    ]
    rows.sort(key=lambda row: (-(row[1] + row[2]), row[0]))
    columns = (Column("Work"), Column("Server", duration), Column("Clients, median", duration))
    return Table(columns=columns, rows=[(kind, own or None, theirs or None) for kind, own, theirs in rows])


def phase_table(
    server: PartyState | None, clients: Sequence[PartyState], *, serving: str = "Server", served: str = "Clients"
) -> Table:
    """Table of seconds and bytes by phase, over all rounds; serving and served: words for the parties."""
    rows = []
    for phase in PHASES:
        times = [client.seconds[phase] for client in clients]
        seconds = (server.seconds[phase] if server else None, median(times) if times else None)
        bounds = (min(times, default=None), max(times, default=None))
        own = (server.sent[phase], server.received[phase]) if server else (None, None)
        moved = (
            median(getattr(client, way)[phase] for client in clients) if clients else None
            for way in ("sent", "received")
        )
        rows.append((phase.value, *(one or None for one in (*seconds, *bounds)), *own, *moved))
    times_of = (serving, *(f"{served}, {which}" for which in ("median", "shortest", "longest")))
    bytes_of = (f"{serving} sent", f"{serving} received", f"{served} sent, median", f"{served} received, median")
    columns = (
        Column("Phase"),
        *(Column(heading, duration) for heading in times_of),
        *(Column(heading, byte_count) for heading in bytes_of),
    )
    return Table(columns=columns, rows=rows)


def clock_table(clocks: Sequence[Clock]) -> Table:
    """Table of the clocks on other hosts, compared with the server's."""
    columns = (
        Column("Party"),
        Column("Ahead of the server", plain),
        Column("Uncertain by", plain),
        Column("Messages", thousands),
        Column("Set meanwhile", plain),
    )
    rows = [
        (
            clock.party,
            _ahead(clock),
            "any amount" if clock.uncertainty is None else f"± {duration(clock.uncertainty)}",
            clock.messages,
            f"{clock.jumps} time{'s' * (clock.jumps != 1)}" if clock.jumps else "no",
        )
        for clock in clocks
    ]
    return Table(columns=columns, rows=rows)


def _ahead(clock: Clock) -> str:
    if clock.uncertainty is None:
        return "not known"
    if not clock.ahead:
        return "nothing that messages show"
    return f"{'behind by ' if clock.ahead < 0 else ''}{duration(abs(clock.ahead))}"


def drop_table(drops: Sequence[tuple[RoundState, ClientDropped]], member: str) -> Table:
    columns = (Column("Round", plain), Column(member), Column("Phase"), Column("Reason", prose), Column("In the sum"))
    rows = []
    for round, drop in drops:
        in_sum = "not known"
        if round.result is not None:
            in_sum = "yes" if drop.member in round.result.survivors else "no"
        rows.append((round.number, drop.member, drop.phase, f"{drop.code} {drop.detail}", in_sum))
    return Table(columns=columns, rows=rows)


def warning_table(warnings: Sequence[Line], *, sessions: int) -> Table:
    """Table of all parties' warnings; sessions: number of sessions of the run."""
    columns = (Column("Time", plain), Column("Party"), Column("Warning", prose))
    rows = [
        (f"session {line.session}, " * (sessions > 1) + duration(line.seconds), line.party, line.text)
        for line in warnings
    ]
    return Table(columns=columns, rows=rows)


def stranger_table(strangers: Sequence[Stranger]) -> Table:
    columns = (Column("Address"), Column("Public key", prose), Column("Reason", prose), Column("Times", thousands))
    rows = [(one.address, one.public_key, one.reason, one.count) for one in strangers]
    return Table(columns=columns, rows=rows)


def setting_table(settings: Sequence[Setting]) -> Table:
    columns = (Column("Key"), Column("Value"), Column("Meaning", prose))
    return Table(columns=columns, rows=[(key, value, meaning) for key, value, _, meaning in settings])
