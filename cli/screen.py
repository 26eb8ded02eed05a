"""The display of a run in progress: a line for every relevant event, and a live table of the parties.

Below the table: the number of finished rounds, and the estimated remaining time.
"""

from __future__ import annotations

import statistics
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from msgspec import structs
from rich.console import Console, ConsoleOptions, RenderResult
from rich.live import Live
from rich.text import Text

from tacit.cli.output import say, terminal
from tacit.cli.progress import Progress
from tacit.parties.runs.events import RunOpened
from tacit.parties.runs.results import Column, Table, byte_count, prose
from tacit.parties.runs.state import PartyState, RunState
from tacit.parties.session.events import ConfigurationProposed, ModelEvaluated, Repeating
from tacit.protocol.core.errors import Code
from tacit.protocol.core.events import Event
from tacit.protocol.sum.events import ClientDropped

if TYPE_CHECKING:
    from tacit.parties.runs.experiment import Experiment

MOST_ROWS = 24
"""Rows shown; of more parties, those that have been silent for longest."""
MOST_WAITS = 4
"""Names of stragglers shown."""
_ESTIMATE_ROUNDS = 5
"""Finished rounds on which the estimate is based."""
SERVER = "server"


_COLUMNS: Final = (
    Column("party"),
    Column("phase", prose),
    Column("for", "{:.0f} s".format, minor=1),
    Column("sent", byte_count, minor=3),
    Column("received", byte_count, minor=4),
    Column("last heard", "{:.0f} s ago".format, minor=2),
    Column("waits for", prose),
)


class PartyTable:
    """A renderable that is current whenever it is drawn. `clock` is in seconds since 1970."""

    def __init__(self, state: RunState, rounds: int, clock: Callable[[], float] = time.time) -> None:
        self._state = state
        self._rounds = rounds
        self._clock = clock

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        parties = self._state.parties
        if not parties:
            yield Text("loading torch, once for all parties")
            return
        now = self._clock()
        silent = sorted(parties, key=lambda name: parties[name].heard or 0.0)[:MOST_ROWS]
        rows = [self._row(party, now) for name, party in parties.items() if name in silent]
        yield terminal(Table(columns=_COLUMNS, rows=rows))
        results = [round.result for round in self._state.rounds if round.result]
        if results and results[-1].round >= self._rounds:
            yield Text("all rounds are done; the summary is made, and the report is drawn")
        elif results:
            last = results[-_ESTIMATE_ROUNDS:]
            each = statistics.mean(result.seconds for result in last)
            left = max(0.0, (self._rounds - results[-1].round) * each - (now - results[-1].time))
            yield Text(f"{results[-1].round} of {self._rounds} rounds are done; about {_duration(left)} left")

    def line(self) -> str:
        """The same in one line: finished rounds, and the clients' activity."""
        clients = [party for name, party in list(self._state.parties.items()) if name != self._state.server]
        if not clients:
            return "loading torch, once for all parties"
        phases = Counter(_phase(party) for party in clients)
        at = ", ".join(f"{count} {phase}" for phase, count in phases.most_common(MOST_WAITS))
        over = sum(1 for round in self._state.rounds if round.result)
        return f"{over} of {self._rounds} rounds are over; of {len(clients)} clients {at}"

    def _row(self, party: PartyState, now: float) -> tuple[str | float, ...]:
        heard = party.heard or now
        phase = _phase(party)
        if party.done and party.ended is None:
            phase = f"{phase} {party.done:.0%}"
        waits, waiting = "", self._state.waiting
        if waiting and party.name == self._state.server and party.ended is None:
            named = ", ".join(waiting[:MOST_WAITS]) + (", ..." if len(waiting) > MOST_WAITS else "")
            waits = f"{named} ({now - self._state.waiting_since:.0f} s)"
        moved = (sum(counts.values()) for counts in (party.sent, party.received))
        return (party.name, phase, now - (party.since or heard), *moved, now - heard, waits)


def _phase(party: PartyState) -> str:
    if party.ended is not None:
        return "failed" if party.failed else "ended"
    return "starting" if party.phase is None else party.phase.value.lower().replace("_", " ")


def _duration(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"


class Screen:
    """The run as lines; on a terminal, a table of the parties stands below them."""

    def __init__(self, console: Console, experiment: Experiment, place: Path, server: str = SERVER) -> None:
        self._console = console
        self._experiment = experiment
        self._place = place
        self._say = partial(say, console)
        self._state = RunState(server=server)
        self._configured: ConfigurationProposed | None = None
        """The last proposal shown."""
        self._table = PartyTable(self._state, experiment.federation.rounds)
        self._live = Live(self._table, console=console, refresh_per_second=4, transient=True)
        self._progress = Progress(console, self._table.line)

    def __enter__(self) -> Screen:
        self._say(f"starting the processes; run directory {self._place}")
        (self._live.start if self._console.is_terminal else self._progress.__enter__)()
        return self

    def __exit__(self, *error: object) -> None:
        self._live.stop()
        self._progress.__exit__()

    def show(self, event: Event) -> None:
        """Show one relevant event of a party: of clients only warnings, and models that they evaluate."""
        line = self._state.take(event)
        self._state.warnings.clear()
        by_server = event.party == self._state.server
        if self._state.configured is not None and self._state.configured is not self._configured:
            self._configured = self._state.configured
            self._say(self._proposal(self._configured))
            for one in self._experiment.protection.disclosures(self._configured.cohort):
                self._say(f"  the {one.party} learns {one.what} ({one.condition})", style="yellow")
        elif isinstance(event, ClientDropped) and event.code == Code.LEFT.name:
            # ClientLeft names it too.
            return
        elif isinstance(event, RunOpened):
            # The command has named the directory already.
            return
        elif isinstance(event, Repeating) and not by_server:
            # The server reports the link too, and when it ends its clients may notice first.
            return
        elif line.level == "warning" or (line.level == "info" and (by_server or isinstance(event, ModelEvaluated))):
            whose = "" if by_server else f"{line.party}: "
            self._say(f"{whose}{line.text}", style="yellow" if line.level == "warning" else "")

    def _proposal(self, proposed: ConfigurationProposed) -> str:
        sizes = f"{proposed.parameters:,} parameters, vectors of {proposed.vector_bytes:,} bytes"
        mode = self._experiment.aggregation.mode
        if mode == "none":
            return f"{sizes} of float32, no secure aggregation"
        secured = f"in a {proposed.ring_bits}-bit ring, threshold {proposed.threshold} of {proposed.cohort}"
        clients = proposed.clients or proposed.cohort
        drawn = f"; each round draws {proposed.cohort} of {clients} clients" if clients > proposed.cohort else ""
        return f"{sizes} {secured}, {mode} mode{self._losses(proposed, clients)}{drawn}"

    def _losses(self, proposed: ConfigurationProposed, clients: int) -> str:
        from tacit.protocol.core.roster import group_numbers

        numbers = group_numbers(clients, self._experiment.federation.group_size)
        sizes = sorted({numbers.count(number) for number in numbers if number})
        if sizes:
            return f", groups of {' or '.join(map(str, sizes))}: who is lost takes its group out of that sum"
        terms = structs.replace(self._experiment.terms(), colluders=proposed.colluders)
        needed = max(proposed.threshold, terms.fewest_survivors(proposed.cohort))
        return ", none may be lost" if needed == proposed.cohort else ""
