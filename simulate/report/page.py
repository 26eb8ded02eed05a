"""report.html: one page about a run, made from its event logs and its experiment file.

The page is self-contained and loads nothing: figures are inline SVG, the style sheet is in the template
(report.html.j2), there are no scripts, and a content security policy forbids everything else. All text from parties
goes through jinja's escaping. The same logs give the same page. For a round without a sum it explains the code to
operators, with the remedy.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache, partial
from importlib.resources import files
from operator import attrgetter
from pathlib import Path
from typing import Any, Final

import jinja2
from markupsafe import Markup

from tacit.parties.runs.classes import TestClasses
from tacit.parties.runs.directory import RunDirectory
from tacit.parties.runs.experiment import Experiment, holds, keys, literal, load
from tacit.parties.runs.incidents import incidents
from tacit.parties.runs.reading import read_state
from tacit.parties.runs.results import NOTHING, Column, byte_count, decimals, duration, percent
from tacit.parties.runs.state import (
    CLIPPING_REMEDY,
    MOST_CLIPPED,
    MOST_NAMES,
    PartyState,
    RoundState,
    RunState,
    Unread,
    clipped_part,
)
from tacit.parties.runs.summary import SECURE_SUM
from tacit.protocol.sum.states import Phase
from tacit.simulate.report.exposure import cohort_size, exposure, sharers, smallest_sum, taking_part
from tacit.simulate.report.figures import (
    ACTIVITY_COLOURS,
    COLOURS,
    MOST_ROWS,
    PHASES,
    clipped_bars,
    confusion_matrix,
    learning_curve,
    party_bars,
    secure_sum_window,
    timeline,
)
from tacit.simulate.report.reasons import reason
from tacit.simulate.report.tables import (
    Setting,
    class_table,
    clock_table,
    drop_table,
    is_known,
    phase_table,
    round_table,
    setting_table,
    stranger_table,
    warning_table,
    work_table,
)

MOST_TIMELINES = 5
MOST_INCIDENTS = 12
MOST_DRAWN = 40
MOST_MISTAKES = 8
MOST_TROUBLES = 200
"""Rows of a table; the logs hold the rest."""


def write_report(
    run: RunDirectory, *others: Path, out: Path | None = None, on_unread: Callable[[Unread], object] = lambda log: None
) -> Path:
    """Write the page, by default as report.html in the run directory; return its path. Raises as make_report."""
    path = out or run.path / "report.html"
    path.write_text(make_report(run, *others, on_unread=on_unread), encoding="utf-8")
    return path


def make_report(run: RunDirectory, *others: Path, on_unread: Callable[[Unread], object] = lambda log: None) -> str:
    """Return the page; others: logs of other hosts, or their directories. on_unread: called for foreign lines in logs.

    ExperimentError or EventLogError if the directory holds no run, or a broken one.
    """
    experiment = load(run.experiment, numbered=False)
    state = read_state(run.path / "events", *others)
    for log in state.unread:
        on_unread(log)
    aside = sorted(path.name for path in (run.path / "events").glob("*.unread"))
    return rendered("report.html.j2", _page(experiment, state, aside))


def rendered(template: str, values: dict[str, Any], *, package: str = "tacit.simulate.report") -> str:
    """Render a package's template, which may include templates of this one; all values are escaped, except markup."""
    return templates(package).get_template(template).render(values)


_COLUMNS: Final = {
    "seconds": Column("", duration),
    "bytes": Column("", byte_count),
    "decimal": Column("", decimals(3)),
    "percent": Column("", percent(1)),
}
"""Filters of templates for single values, including unknown ones."""


@cache
def templates(package: str) -> jinja2.Environment:
    def source(name: str) -> str:
        own = files(package).joinpath(name)
        found = own if own.is_file() else files("tacit.simulate.report").joinpath(name)
        return found.read_text(encoding="utf-8")

    environment = jinja2.Environment(
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        loader=jinja2.FunctionLoader(source),
    )
    environment.filters.update({name: partial(one.cell, nothing=NOTHING) for name, one in _COLUMNS.items()})
    environment.filters["reason"] = reason
    for table in (drop_table, setting_table, stranger_table, warning_table):
        environment.globals[table.__name__] = table
    return environment


def _page(experiment: Experiment, state: RunState, aside: Sequence[str]) -> dict[str, Any]:
    server, classes = state.parties.get(state.server or ""), state.classes
    began = state.sessions[0].began if state.sessions else None
    secure, cohort = experiment.aggregation.mode != "none", cohort_size(state, experiment)
    drops = [(round, drop) for round in state.rounds for drop in round.drops.values()]
    return {
        "title": f"{experiment.name} \N{EN DASH} Tacit report",
        "experiment": experiment,
        "state": state,
        "began": "" if began is None else f"{datetime.fromtimestamp(began, UTC):%d %B %Y, %H:%M} UTC",
        "last": state.completed[-1].result if state.completed else None,
        "moved": sum((server.sent + server.received).values()) if server else None,
        "notices": [
            *(f"{log._replace(path=Path(log.path.name))}." for log in state.unread),
            *(f"{name} has what was no event when the run was resumed: it is not shown here." for name in aside),
            *_notices(experiment, state),
        ],
        "curves": _curves(state),
        "rounds": round_table(state, cohort=cohort),
        "classes": class_table(classes) if classes else None,
        "confusion": confusion_matrix(classes) if classes and _is_drawn(classes) else None,
        "mistakes": _mistakes(classes) if classes else [],
        "clipping": _clipping(state),
        "bars": bars_of(server, state.clients),
        "phases": phase_table(server, state.clients),
        "activity_colours": ACTIVITY_COLOURS,
        "took": _took(server, state.clients, lost=bool(drops)) if server and secure else "",
        "work": work_table(server, state.clients),
        "colours": {phase: COLOURS[phase] for phase in PHASES},
        "most_rows": MOST_ROWS,
        "timelines": timelines(state, secure=secure),
        "clocks": clock_table(state.clocks),
        "drops": drops,
        "warnings": state.warnings[:MOST_TROUBLES],
        "more_warnings": len(state.warnings[MOST_TROUBLES:]),
        "strangers": sorted(state.strangers.values(), key=lambda stranger: -stranger.count)[:MOST_TROUBLES],
        "secure": secure,
        "sharers": sharers(state, experiment),
        "taking_part": taking_part(state, experiment),
        "cohort": cohort,
        "exposures": exposure(state, experiment),
        "settings": settings(experiment),
    }


def _notices(experiment: Experiment, state: RunState) -> list[str]:
    """Return the notices at the top of the page; none if all went well."""
    if state.server is None:
        return ["There is no event log of the server: what is known of the rounds, accuracies and losses is missing."]
    notices = []
    if experiment.aggregation.mode == "none":
        notices.append("Secure aggregation was off: the server saw the update of every client.")
    completed, planned = len(state.completed), experiment.federation.rounds
    if completed < planned:
        ended = state.ended or "the server's log stops without saying how it ended"
        notices.append(f"{completed} of {planned} rounds were completed. Last session: {ended}.")
    lost, found = _lost(state), [(one.session, one.round, one.text) for one in incidents(state)]
    # In order: losses of parties before their consequences.
    happened = sorted([*lost[:MOST_INCIDENTS], *found[:MOST_INCIDENTS]], key=lambda one: one[:2])
    notices += [text for _, _, text in happened]
    if more := len(found[MOST_INCIDENTS:]):
        notices.append(f"{more} more incidents are in summary.json and in the tables below.")
    if clipped := _much_clipped(state):
        worst = max(clipped, key=lambda entry: entry[1])
        rounds = "round" if len(clipped) == 1 else "rounds"
        notices.append(
            f"More than {MOST_CLIPPED:.0%} of all coordinates were clipped in {len(clipped)} {rounds}, {worst[1]:.0%} "
            f"in round {worst[0]}: what was beyond the clip is lost. Remedy: {CLIPPING_REMEDY}."
        )
    if more := len(lost[MOST_INCIDENTS:]):
        notices.append(f"{more} more losses are in the tables below.")
    if smallest_sum(state) == 2:
        notices.append("A sum had only two clients: each of them can work out the update of the other.")
    clients = taking_part(state, experiment)
    if missing := clients - len(state.clients):
        notices.append(f"The event logs of {missing} of {clients} clients are missing.")
    if unknown := [clock.party for clock in state.clocks if clock.uncertainty is None]:
        notices.append(
            f"Too few messages show the clock of {', '.join(unknown)}: times of that log may be wrong by any amount."
        )
    return notices


def _much_clipped(state: RunState) -> list[tuple[int, float]]:
    """Return rounds with enough clipping to impair learning, each with its fraction of the coordinates."""
    parameters = state.configured.parameters if state.configured else 0
    parts = [
        (done.number, clipped_part(done.result.clipped, survivors=len(done.result.survivors), parameters=parameters))
        for done in state.completed
        if done.result and parameters
    ]
    return [(number, part) for number, part in parts if part > MOST_CLIPPED]


def _lost(state: RunState) -> list[tuple[int, int, str]]:
    sentences = []
    for round in state.rounds:
        survivors = round.result.survivors if round.result else ()
        alike: dict[tuple[str, str, bool], list[str]] = {}
        for name, drop in round.drops.items():
            alike.setdefault((drop.phase, drop.detail, name in survivors), []).append(name)
        for (phase, detail, included), names in alike.items():
            shown = ", ".join(names[:MOST_NAMES]) + (f" and {len(names) - MOST_NAMES} more" * (len(names) > MOST_NAMES))
            verb, its = ("was", "Its update is") if len(names) == 1 else ("were", "Their updates are")
            outcome = f" {its} {'in' if included else 'not in'} the sum." if round.status == "completed" else ""
            text = f"{shown} {verb} lost in round {round.number}, in {phase}: {detail}.{outcome}"
            sentences.append((round.session, round.number, text))
    return sentences


def _curves(state: RunState) -> list[Markup]:
    numbers = {round.number for round in state.completed}
    failed = sorted({round.number for round in state.rounds} - numbers)
    return [
        learning_curve(state.completed, metric=metric, failed=failed, judged=state.judges)
        for metric in ("accuracy", "loss")
        if state.held_out or is_known(state, metric) or is_known(state, f"train_{metric}")
    ]


def _is_drawn(found: TestClasses) -> bool:
    """Whether the confusion matrix is legible at the size of a telephone."""
    return found.confusion is not None and len(found.classes) <= MOST_DRAWN


def _mistakes(found: TestClasses) -> list[str]:
    names = [one.name for one in found.classes]
    mistakes = [
        (count, f"{names[true]} predicted as {names[predicted]} ({count:,})")
        for true, row in enumerate(found.confusion or ())
        for predicted, count in enumerate(row)
        if count and true != predicted
    ]
    return [text for _, text in sorted(mistakes, key=lambda mistake: -mistake[0])[:MOST_MISTAKES]]


def _clipping(state: RunState) -> Markup | None:
    """None if nothing was clipped."""
    clipped = any(round.result and round.result.clipped for round in state.completed)
    return clipped_bars(state.completed, state.configured.parameters) if clipped and state.configured else None


def bars_of(server: PartyState | None, clients: Sequence[PartyState]) -> dict[str, list[Markup]]:
    """Return bars of `time`, in activities and in phases, and of `traffic`, sent and received; none without any log."""
    if not server and not clients:
        return {}
    draw = partial(party_bars, server, clients)
    return {
        "time": [
            draw("activities", title="Working and waiting", axis="time", name="activities"),
            draw("seconds", title="Time in each phase", axis="time", name="time"),
        ],
        "traffic": [
            draw("sent", title="Payload sent", axis="sent", name="sent"),
            draw("received", title="Payload received", axis="received", name="received"),
        ],
    }


def _took(server: PartyState, clients: Sequence[PartyState], *, lost: bool) -> str:
    """Describe how the server's time in rounds divides; lost: whether any client was lost."""
    rounds = sum(seconds for phase, seconds in server.seconds.items() if phase is not Phase.SESSION)
    summing = sum(server.seconds[phase] for phase in SECURE_SUM)
    computing = min(summing, sum(server.work.values()))
    longest = max((client.trained for client in clients), default=0.0)
    trained = f", and no client trained for more than {duration(longest)}" if longest else ""
    return (
        f"Rounds took {duration(rounds)} of the server's time. For {duration(rounds - summing)} of it the server "
        f"waited for the clients' vectors{trained}; from then to the sums it was {duration(summing)} more, of which "
        f"the server computed {duration(computing)} at most. The rest was waiting for answers"
        f"{', and for clients that were lost until they were given up' if lost else ''}."
    )


@dataclass(frozen=True)
class Timeline:
    round: RoundState
    reasons: list[str]
    open: bool
    figures: list[Markup]


def timelines(state: RunState, *, secure: bool) -> list[Timeline]:
    """Return notable rounds: those that lost a party or have no result, then the last and the slowest. Those of the
    first kind are open, or the last if nothing happened."""
    if not state.rounds:
        return []
    finished = state.completed or state.rounds
    slowest = max(finished, key=lambda round: round.seconds)
    eventful = [round for round in state.rounds if round.drops or round.status != "completed"]
    chosen: dict[int, tuple[RoundState, list[str]]] = {}
    first = eventful[: MOST_TIMELINES - 2]
    for round, why in (*((round, "") for round in first), (finished[-1], "the last"), (slowest, "the slowest")):
        if id(round) in chosen or len(chosen) < MOST_TIMELINES:
            chosen.setdefault(id(round), (round, []))[1].extend(filter(None, [why]))
    shown = []
    for index, (round, reasons) in enumerate(chosen.values()):
        windows = [((round.began, round.ended), f"Round {round.number}", "time since the round began")]
        if secure and (window := secure_sum_window(round, state.server)):
            windows.append((window, f"Round {round.number}: the secure sum", "time since all keys were known"))
        figures = [
            timeline(round, state.server, window=window, title=title, axis=axis, name=f"line{index}{part}")
            for part, (window, title, axis) in enumerate(windows)
            if window[1] > window[0]
        ]
        shown.append(Timeline(round, reasons, round in eventful or (not eventful and index == 0), figures))
    return shown


def settings(experiment: Experiment) -> list[Setting]:
    rows, default = [], type(experiment)()
    for key in keys(type(experiment)):
        if key.is_section or not holds(experiment, key):
            continue
        if key.chooses:
            # Selects one of several sections, whose keys differ.
            value, differs = key.default, not holds(default, key)
        else:
            value = attrgetter(key.path)(experiment)
            differs = value != (attrgetter(key.path)(default) if holds(default, key) else key.default)
        shown = "none" if value is None else literal(value)
        rows.append((key.path, shown, differs, key.description))
    return rows
