"""The run so far, for the page and the metrics: a fold over events of limited size, rendered for the template.

Timelines of old rounds and the oldest warnings are dropped; the event logs have all of them. All text from parties goes
through the escaping of the template, dashboard.html.j2.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

import jinja2
from markupsafe import Markup

from tacit.parties.runs.experiment import Experiment
from tacit.parties.runs.state import PartyState, RoundState, RunState
from tacit.parties.session.events import HeartbeatSent
from tacit.protocol.core.events import Event
from tacit.protocol.sum.events import ClientDropped
from tacit.protocol.sum.states import Phase
from tacit.simulate.report.exposure import cohort_size, exposure, taking_part
from tacit.simulate.report.page import templates

MOST_WARNINGS: Final = 200
MOST_TIMELINES: Final = 8
"""Rounds whose timeline is stored."""


class Live:
    """Displayed state of a run. `version` grows with every change of it."""

    def __init__(self, experiment: Experiment, earlier: Iterable[Event] = (), *, one_machine: bool = True) -> None:
        """earlier: logged events of the sessions that the run resumes from."""
        self.experiment = experiment
        self.version = 0
        self.forgotten = 0
        """Number of dropped warnings."""
        self.state = RunState(one_machine=one_machine)
        """State so far; the last round may be open."""
        for event in earlier:
            self.take(event)

    def take(self, event: Event) -> None:
        state = self.state
        state.take(event)
        # A heartbeat changes nothing on the page.
        self.version += not isinstance(event, HeartbeatSent)
        surplus = max(len(state.warnings) - MOST_WARNINGS, 0)
        self.forgotten += surplus
        del state.warnings[:surplus]
        if len(state.rounds) > MOST_TIMELINES:
            state.rounds[-1 - MOST_TIMELINES].spans.clear()


MOST_ROWS: Final = 30
MOST_PARTIES: Final = 100
WIDTH, HEIGHT, MARGIN, ABOVE, BELOW = 480, 170, 46, 10, 32
"""Layout of the drawing, in its own units: its size, and the margins at its sides, above and below the curve."""

LEFT_OUT: Final[dict[str, frozenset[Phase]]] = {
    "active": frozenset({Phase.ANSWER_COMPLAINTS}),
    "semi-honest": frozenset({Phase.ANSWER_COMPLAINTS, Phase.CONSISTENCY_CHECK}),
    "none": frozenset(Phase) - {Phase.TRAIN, Phase.MASKED_INPUT},
}
"""Phases that a round of this mode does not have, or only after a complaint."""


@dataclass(frozen=True)
class PartyCard:
    name: str
    state: str
    since: float | None
    tone: str
    """One of good, busy, bad, quiet; selects the colour."""
    moved: int


def page(live: Live) -> str:
    return _template().render(_context(live))


def sections(live: Live) -> dict[str, str]:
    """Return the content of each section, by the identifier of its element."""
    context = _template().new_context(_context(live))
    return {name: "".join(block(context)) for name, block in _template().blocks.items()}


def since(time: float | None) -> Markup:
    """Return the element in which the page shows the time elapsed since then; nothing for None."""
    return Markup("") if time is None else Markup('<span class="since" data-since="{:.3f}"></span>').format(time)


def more(count: int) -> Markup:
    text = '<p class="quiet">{} more {} in the event logs.</p>'
    return Markup(text).format(count, "is" if count == 1 else "are") if count else Markup("")


@cache
def _template() -> jinja2.Template:
    environment = templates(__package__)
    environment.filters.update(since=since, more=more)
    return environment.get_template("dashboard.html.j2")


def _context(live: Live) -> dict[str, Any]:
    state, experiment = live.state, live.experiment
    server = state.parties.get(state.server or "")
    cards = _cards(state)
    done = state.completed
    curve = _curve(done, planned=experiment.federation.rounds)
    drops = [(round, drop) for round in reversed(state.rounds) for drop in round.drops.values()]
    last = next((round for round in reversed(state.rounds) if round.result), None)
    return {
        "experiment": experiment,
        "taking_part": taking_part(state, experiment),
        "cohort": cohort_size(state, experiment),
        "state": state,
        "server": server,
        "current": state.rounds[-1] if state.rounds and state.rounds[-1].result is None else None,
        "last": last,
        "completed": len(done),
        "accuracy": next(
            (r.result.accuracy for r in reversed(done) if r.result and r.result.accuracy is not None), None
        ),
        "held_out": next(reversed(state.held_out), None),
        "stopped": last if last and last.status == "aborted" else None,
        "secure": experiment.aggregation.mode != "none",
        "phases": _phases(server, mode=experiment.aggregation.mode),
        "sent": sum(server.sent.values()) if server else None,
        "received": sum(server.received.values()) if server else None,
        "connected": sum(contact.up for contact in state.links.values()),
        "cards": cards[:MOST_PARTIES],
        "more_cards": len(cards[MOST_PARTIES:]),
        "curve": curve,
        "rounds": state.rounds[: -MOST_ROWS - 1 : -1],
        "more_rounds": len(state.rounds[:-MOST_ROWS]),
        "drops": drops[:MOST_ROWS],
        "more_drops": len(drops[MOST_ROWS:]),
        "all_drops": len(drops),
        "warnings": state.warnings[: -MOST_ROWS - 1 : -1],
        "more_warnings": live.forgotten + len(state.warnings[:-MOST_ROWS]),
        "strangers": sorted(state.strangers.values(), key=lambda stranger: -stranger.count)[:MOST_ROWS],
        "more_strangers": len(state.strangers) - min(len(state.strangers), MOST_ROWS),
        "refusals": sum(state.refusals.values()),
        "handshakes": sum(stranger.count for stranger in state.strangers.values()),
        "exposures": exposure(state, experiment),
        "size": (WIDTH, HEIGHT, MARGIN),
    }


def _phases(server: PartyState | None, *, mode: str) -> list[tuple[Phase, str]]:
    present = server.phase if server else None
    left_out = {Phase.SESSION, *LEFT_OUT[mode]} - ({present} if present is Phase.ANSWER_COMPLAINTS else set())
    needed = [phase for phase in Phase if phase not in left_out]
    if present not in needed:
        return [(phase, "coming") for phase in needed]
    place = needed.index(present)
    return [
        (phase, "present" if at == place else "past" if at < place else "coming") for at, phase in enumerate(needed)
    ]


def _cards(state: RunState) -> list[PartyCard]:
    """Return the server, then lost and awaited parties, then the others."""
    cohort = state.rounds[-1].cohort if state.rounds else ()
    names = dict.fromkeys([*state.parties, *cohort, *state.links])
    cards = [_card(state, name) for name in names if name != state.server]
    cards.sort(key=lambda card: {"bad": 0, "busy": 1}.get(card.tone, 2))
    return [_card(state, state.server), *cards] if state.server else cards


def _card(state: RunState, name: str) -> PartyCard:
    party = state.parties.get(name) or PartyState(name)
    contact = state.links.get(name)
    moved = sum(party.sent.values()) + sum(party.received.values())
    lost = _lost(state, name)

    def card(state: str, since: float | None, tone: str) -> PartyCard:
        return PartyCard(name, state, since, tone, moved)

    if party.ended is not None:
        return card(f"ended: {party.ended}", None, "quiet")
    if lost is not None:
        return card(f"lost in {_words(lost.phase)}", lost.time, "bad")
    if contact is not None and not contact.up and state.ended is None:
        return card("no link", contact.since, "bad")
    if name in state.waiting:
        return card(f"waited for{_where(party)}", state.waiting_since, "busy")
    if party.phase is not None:
        return card(_words(party.phase), party.since, "good")
    if contact is not None:
        return card("connected", contact.since, "good")
    return card("starting" if party.heard is not None else "not seen yet", None, "quiet")


def _lost(state: RunState, name: str) -> ClientDropped | None:
    if not state.rounds or state.rounds[-1].result is not None:
        return None
    return state.rounds[-1].drops.get(name)


def _where(party: PartyState) -> str:
    return "" if party.phase is None else f", in {_words(party.phase)}"


def _words(phase: Phase) -> str:
    return "between rounds" if phase is Phase.SESSION else phase.value.lower().replace("_", " ")


def _curve(done: list[RoundState], *, planned: int) -> Mapping[str, Any] | None:
    """Return the test accuracy by round as points of the drawing; None without any."""
    known = [(r.number, r.result.accuracy) for r in done if r.result and r.result.accuracy is not None]
    if not known:
        return None
    first, last = min(known[0][0], 1), max(planned, known[-1][0], 2)

    def x(number: int) -> float:
        return MARGIN + (WIDTH - 2 * MARGIN) * (number - first) / (last - first)

    def y(accuracy: float) -> float:
        return HEIGHT - BELOW - (HEIGHT - ABOVE - BELOW) * accuracy

    points = [(round(x(number), 1), round(y(accuracy), 1)) for number, accuracy in known]
    return {
        "points": points,
        "line": " ".join(f"{across},{down}" for across, down in points),
        "levels": [(level, round(y(level), 1)) for level in (0.0, 0.5, 1.0)],
        "first": first,
        "last": last,
        "value": known[-1][1],
    }
