"""report.html: one page about a run, made from its event logs and its experiment file.

The page is self-contained and loads nothing: figures are inline SVG, the style sheet is in the template
(report.html.j2), there are no scripts, and a content security policy forbids what is left. Everything that parties
wrote goes through jinja's escaping. The same logs give the same page. For a round without a sum it says in words what
the code means to those who run a federation, and what to do.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from functools import cache, partial
from importlib.resources import files
from operator import attrgetter
from pathlib import Path
from statistics import median
from typing import Any, Final

import jinja2
from markupsafe import Markup

from tacit.parties.runs.classes import TestClass, TestClasses
from tacit.parties.runs.directory import RunDirectory
from tacit.parties.runs.experiment import Experiment, holds, keys, literal, load
from tacit.parties.runs.incidents import incidents
from tacit.parties.runs.reading import read_state
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
from tacit.protocol.core.errors import Code
from tacit.protocol.core.messages import Phase
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
from tacit.simulate.report.words import FILTERS

REASONS: Final[dict[Code, tuple[str, str]]] = {
    Code.MALFORMED: (
        "A message could not be read.",
        "Install the same release on both sides; if that is so, distrust its sender.",
    ),
    Code.VERSION: ("A party speaks another version of the protocol.", "Install the same release on all hosts."),
    Code.UNEXPECTED: ("A party said what it may not say at that moment.", "Distrust it, or report a defect."),
    Code.SESSION: ("A message was of another session or round.", "Start that party again."),
    Code.SENDER: ("A party called itself by the name of another one.", "Distrust it."),
    Code.SEQUENCE: (
        "A message was replayed, or came out of order.",
        "Start that party again; if it recurs, distrust it.",
    ),
    Code.ROSTER: (
        "Two parties hold different rosters.",
        "Give all hosts the same roster, and compare its fingerprint; a later version goes around by itself.",
    ),
    Code.POLICY: (
        "A client's policy accepts less than what was proposed.",
        "Compare the experiment with the policy of that client; one of them has to change.",
    ),
    Code.MODEL: ("A model was not the announced one, or cannot be used.", "Look into the server's log."),
    Code.KEYS: ("The list of public keys broke a rule.", "Distrust the server, if it was a client who refused."),
    Code.SIGNATURE: ("A signature does not verify.", "Compare the rosters; if they are the same, distrust the sender."),
    Code.MEMBERS: ("A list of members was not what it must be.", "Distrust the sender."),
    Code.THRESHOLD: (
        "Fewer clients were left than are needed to open the sum.",
        "See below who was lost and why. The model is as it was before the round.",
    ),
    Code.SHARES: ("Shares of secrets were missing, or not those committed to.", "Distrust the sender."),
    Code.VECTOR: (
        "A vector, or the sum, is not one that honest clients can make.",
        "Nobody can tell whose it was: look at the clients that joined last.",
    ),
    Code.SECRET: ("A secret that was put together is not the one that its owner committed to.", "Distrust its owner."),
    Code.TIMEOUT: (
        "The time for a phase was over.",
        "Look after the clients that were waited for, or raise the deadlines of the experiment.",
    ),
    Code.LEFT: ("A party left, or lost its link for too long.", "Look into its log."),
    Code.LOCAL: ("A party could not go on by itself: its disk, data or device.", "Look into its log."),
}
"""By code: what happened, and what to do next."""


def reason(code: str | None) -> tuple[str, str]:
    """What a code of an event means, and what to do; empty for none, and for what is no code of ours."""
    known = Code.__members__.get(code or "")
    return REASONS[known] if known is not None else ("", "")


FIGURES = {
    "accuracy": "Accuracy",
    "balanced_accuracy": "Balanced accuracy",
    "loss": "Loss",
    "train_accuracy": "Training accuracy",
    "train_loss": "Training loss",
}
"""Of a RoundEnded, with the headings of their columns."""
MOST_TIMELINES = 5
MOST_INCIDENTS = 12
MOST_DRAWN = 40
"""Classes of a matrix."""
MOST_MISTAKES = 8
MOST_TROUBLES = 200
"""Rows of a table; the logs hold the rest."""


def write_report(
    run: RunDirectory, *others: Path, out: Path | None = None, on_unread: Callable[[Unread], object] = lambda log: None
) -> Path:
    """Write the page, by default as report.html in the run directory; returns its path. Raises as make_report does."""
    path = out or run.path / "report.html"
    path.write_text(make_report(run, *others, on_unread=on_unread), encoding="utf-8")
    return path


def make_report(run: RunDirectory, *others: Path, on_unread: Callable[[Unread], object] = lambda log: None) -> str:
    """The page; others: logs of other hosts, or directories of such. on_unread: called for logs with a foreign line.

    ExperimentError or EventLogError if the directory holds no run, or a broken one.
    """
    experiment = load(run.experiment, numbered=False)
    state = read_state(run.path / "events", *others)
    for log in state.unread:
        on_unread(log)
    aside = sorted(path.name for path in (run.path / "events").glob("*.unread"))
    return rendered("report.html.j2", _page(experiment, state, aside))


def rendered(template: str, values: dict[str, Any], *, package: str = "tacit.simulate.report") -> str:
    """A page from a template of a package, which may include those of this one; everything in values is escaped, but
    for markup."""
    return _templates(package).get_template(template).render(values)


@cache
def _templates(package: str) -> jinja2.Environment:
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
    environment.filters.update(FILTERS, reason=reason)
    return environment


def _page(experiment: Experiment, state: RunState, aside: Sequence[str]) -> dict[str, Any]:
    server = state.parties.get(state.server) if state.server else None
    began = state.sessions[0].began if state.sessions else None
    last = state.completed[-1].result if state.completed else None
    secure = experiment.aggregation.mode != "none"
    return {
        "title": f"{experiment.name} \N{EN DASH} Tacit report",
        "experiment": experiment,
        "state": state,
        "server": server,
        "began": "" if began is None else f"{datetime.fromtimestamp(began, UTC):%d %B %Y, %H:%M} UTC",
        "last": last,
        "moved": sum((server.sent + server.received).values()) if server else None,
        "notices": [
            *(f"{log._replace(path=Path(log.path.name))}." for log in state.unread),
            *(f"{name} has what was no event when the run was resumed: it is not shown here." for name in aside),
            *_notices(experiment, state),
        ],
        "curves": _curves(state),
        "known": [(label, key) for key, label in FIGURES.items() if _is_known(state, key)],
        "held_out": state.held_out,
        "classes": sorted(state.classes.classes, key=_by_accuracy) if state.classes else [],
        "confusion": confusion_matrix(state.classes) if state.classes and _drawn(state.classes) else None,
        "mistakes": _mistakes(state.classes) if state.classes else [],
        "clipping": _clipping(state),
        "bars": bars_of(server, state.clients),
        "phases": [phase_row(phase, server, state.clients) for phase in PHASES],
        "activity_colours": ACTIVITY_COLOURS,
        "took": _took(server, state.clients) if server and secure else None,
        "work": _work(server, state.clients),
        "colours": {phase: COLOURS[phase] for phase in PHASES},
        "most_rows": MOST_ROWS,
        "timelines": timelines(state, secure=secure),
        "drops": [(round, drop) for round in state.rounds for drop in round.drops.values()],
        "warnings": state.warnings[:MOST_TROUBLES],
        "more_warnings": len(state.warnings[MOST_TROUBLES:]),
        "strangers": sorted(state.strangers.values(), key=lambda stranger: -stranger.count)[:MOST_TROUBLES],
        "secure": secure,
        "sharers": sharers(state, experiment),
        "taking_part": taking_part(state, experiment),
        "cohort": cohort_size(state, experiment),
        "exposures": exposure(state, experiment),
        "settings": settings(experiment),
    }


def _notices(experiment: Experiment, state: RunState) -> list[str]:
    """What a reader must know first; nothing if all went well."""
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
    # In their order; who was lost, before what became of that.
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
            f"Too few messages tell of the clock of {', '.join(unknown)}: times of that log may be wrong by any amount."
        )
    return notices


def _much_clipped(state: RunState) -> list[tuple[int, float]]:
    """Rounds in which so much was clipped that learning suffers, each with its part of the coordinates."""
    parameters = state.configured.parameters if state.configured else 0
    parts = [
        (done.number, clipped_part(done.result.clipped, survivors=len(done.result.survivors), parameters=parameters))
        for done in state.completed
        if done.result and parameters
    ]
    return [(number, part) for number, part in parts if part > MOST_CLIPPED]


def _lost(state: RunState) -> list[tuple[int, int, str]]:
    """Session, round, and who was lost in it, those together that were lost alike; what became of the round."""
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
        if state.held_out or _is_known(state, metric) or _is_known(state, f"train_{metric}")
    ]


def _is_known(state: RunState, figure: str) -> bool:
    """Whether any completed round has it: own training steps may report no accuracy."""
    return any(getattr(round.result, figure) is not None for round in state.completed)


def _by_accuracy(one: TestClass) -> tuple[float, str]:
    return (1.0 if one.accuracy is None else one.accuracy, one.name)


def _drawn(found: TestClasses) -> bool:
    """Whether the matrix can be read at the size of a telephone."""
    return found.confusion is not None and len(found.classes) <= MOST_DRAWN


def _mistakes(found: TestClasses) -> list[tuple[int, str, str]]:
    """The most frequent ones: how many images, of which class, taken for which."""
    names = [one.name for one in found.classes]
    mistakes = [
        (count, names[right], names[taken])
        for right, row in enumerate(found.confusion or ())
        for taken, count in enumerate(row)
        if count and right != taken
    ]
    return sorted(mistakes, key=lambda mistake: -mistake[0])[:MOST_MISTAKES]


def _clipping(state: RunState) -> Markup | None:
    """None if nothing was clipped."""
    clipped = any(round.result and round.result.clipped for round in state.completed)
    return clipped_bars(state.completed, state.configured.parameters) if clipped and state.configured else None


def bars_of(server: PartyState | None, clients: Sequence[PartyState]) -> dict[str, list[Markup]]:
    """Bars of `time`, in activities and in phases, and of `traffic`, sent and received; none without any log."""
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


def _took(server: PartyState, clients: Sequence[PartyState]) -> dict[str, float]:
    """Seconds of the server: in rounds, until the last vector had come, from then to the sum, and computing at all; and
    the longest training of a client."""
    rounds = sum(seconds for phase, seconds in server.seconds.items() if phase is not Phase.SESSION)
    summing = sum(server.seconds[phase] for phase in SECURE_SUM)
    return {
        "rounds": rounds,
        "vectors": rounds - summing,
        "summing": summing,
        "computing": sum(server.work.values()),
        "longest": max((client.trained for client in clients), default=0.0),
    }


def _work(server: PartyState | None, clients: Sequence[PartyState]) -> list[dict[str, Any]]:
    """The kinds of work of the protocol, the costliest first: seconds of the server, and the median of the clients."""
    measured = [client for client in clients if client.work]
    parties = [*measured, server] if server else measured
    kinds = {kind for party in parties for kind in party.work}
    rows = [
        {
            "kind": kind,
            "server": server.work[kind] if server else None,
            "client": median(client.work[kind] for client in measured) if measured else None,
        }
        for kind in kinds
    ]
    return sorted(rows, key=lambda row: (-((row["server"] or 0.0) + (row["client"] or 0.0)), row["kind"]))


def phase_row(phase: Phase, server: PartyState | None, clients: Sequence[PartyState]) -> dict[str, Any]:
    """Seconds and bytes of a phase, over all rounds."""
    times = [client.seconds[phase] for client in clients]
    return {
        "phase": phase,
        "server_seconds": server.seconds[phase] if server else None,
        "server_sent": server.sent[phase] if server else None,
        "server_received": server.received[phase] if server else None,
        "least": min(times, default=None),
        "middle": median(times) if times else None,
        "most": max(times, default=None),
        "sent": median(client.sent[phase] for client in clients) if clients else None,
        "received": median(client.received[phase] for client in clients) if clients else None,
    }


def timelines(state: RunState, *, secure: bool) -> list[dict[str, Any]]:
    """Rounds worth a look: those that lost somebody or have no result, then the last and the slowest; with their
    figures. Those of the first kind are open, or the last if nothing happened."""
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
        shown.append(
            {
                "round": round,
                "reasons": reasons,
                "open": round in eventful or (not eventful and index == 0),
                "figures": [
                    timeline(round, state.server, window=window, title=title, axis=axis, name=f"line{index}{part}")
                    for part, (window, title, axis) in enumerate(windows)
                    if window[1] > window[0]
                ],
            }
        )
    return shown


def settings(experiment: Experiment) -> list[tuple[str, str, bool, str]]:
    """Every key that the experiment has: dotted name, value, whether it differs from the default, meaning."""
    rows, default = [], type(experiment)()
    for key in keys(type(experiment)):
        if key.is_section or not holds(experiment, key):
            continue
        if key.chooses:
            # Which of several sections this is; its keys are not those of another.
            value, differs = key.default, not holds(default, key)
        else:
            value = attrgetter(key.path)(experiment)
            differs = value != (attrgetter(key.path)(default) if holds(default, key) else key.default)
        shown = "none" if value is None else literal(value)
        rows.append((key.path, shown, differs, key.description))
    return rows
