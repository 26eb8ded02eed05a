"""The display of `tacit simulate`: a line for everything that matters, a live table of parties, the figures at the end.

Every process reports each phase that it enters and, once a second, that it is there, and how much of its training is
done; the server reports whom it waits for. Below the table: how many rounds are done, and how long the others may take.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console, ConsoleOptions, RenderResult
from rich.live import Live
from rich.text import Text

from tacit.cli.output import roster_changes, say, table

if TYPE_CHECKING:
    from tacit.parties.runs.experiment import Experiment

MOST_ROWS = 24
"""Rows shown; of more parties, those that have been silent for longest."""
MOST_WAITS = 4
"""Names shown of those who are waited for."""
_JUDGED_BY = 5
"""Rounds by which the next ones are judged."""


@dataclass
class _Row:
    phase: str = "starting"
    since: float = 0.0
    sent: int = 0
    received: int = 0
    heard: float = 0.0
    waits: tuple[str, ...] = ()
    waits_since: float = 0.0
    done: float = 0.0
    """The share of the training that is done."""


class PartyTable:
    """A renderable that is up to date whenever it is drawn. `clock` is in seconds."""

    def __init__(self, rounds: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._rounds = rounds
        self._clock = clock
        self._rows: dict[str, _Row] = {}
        self._round = 0
        """The last that is done."""
        self._ends: deque[float] = deque(maxlen=_JUDGED_BY + 1)
        """When the first round began, and when the last ones were done."""

    def take(self, party: str, event: str, fields: Mapping[str, Any]) -> None:
        """One event of a party."""
        now = self._clock()
        row = self._rows.setdefault(party, _Row(since=now))
        row.heard = now
        row.done = fields.get("done", 0.0)
        if event == "phase":
            row.phase, row.since = fields["next"].lower().replace("_", " "), now
        elif event == "round" and not self._ends:
            self._ends.append(now)
        elif event == "round-done":
            self._round = fields["round"]
            self._ends.append(now)
        elif event == "traffic":
            row.sent += fields["sent"]
            row.received += fields["received"]
        elif event == "waiting":
            row.waits, row.waits_since = tuple(fields["on"]), now
        elif event in ("exited", "failed"):
            row.phase, row.since, row.waits = "ended" if event == "exited" else "failed", now, ()

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        if not self._rows:
            yield Text("loading torch, once for all parties")
            return
        now = self._clock()
        rows = []
        silent = sorted(self._rows, key=lambda name: self._rows[name].heard)[:MOST_ROWS]
        for name, row in self._rows.items():
            if name not in silent:
                continue
            waits = ""
            if row.waits:
                named = ", ".join(row.waits[:MOST_WAITS]) + (", ..." if len(row.waits) > MOST_WAITS else "")
                waits = f"{named} ({now - row.waits_since:.0f} s)"
            moved = (f"{count / 1e6:.1f} MB" for count in (row.sent, row.received))
            phase = f"{row.phase} {row.done:.0%}" if row.done else row.phase
            rows.append((name, phase, f"{now - row.since:.0f} s", *moved, f"{now - row.heard:.0f} s ago", waits))
        headings = ("party", "phase", "for", "sent", "received", "last heard", "waits for")
        least = ("received", "sent", "last heard", "for")
        yield table(headings, rows, left=("phase", "waits for"), least=least)
        if self._round >= self._rounds:
            yield Text("all rounds are done; the summary is made, and the report is drawn")
        elif len(self._ends) > 1:
            each = (self._ends[-1] - self._ends[0]) / (len(self._ends) - 1)
            left = max(0.0, (self._rounds - self._round) * each - (now - self._ends[-1]))
            yield Text(f"{self._round} of {self._rounds} rounds are done; about {_duration(left)} left")


def _duration(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"


UNTIL_TRAINED = ("ADVERTISE_KEYS", "SHARE_KEYS", "TRAIN")
"""The phases beside which a party trains, or waits for others to."""

MOST_NAMES = 8
"""Clients that are named who miss a round for the same reason."""


class Screen:
    """The run as lines; on a terminal, a table of the parties stands below them."""

    def __init__(self, console: Console, experiment: Experiment, place: Path) -> None:
        self._console = console
        self._experiment = experiment
        self._place = place
        self._say = partial(say, console)
        self._bytes = 0
        self._absent: dict[str, str] = {}
        self._parameters = 0
        self._cohort = experiment.cohort
        """Most clients of a round."""
        self._table = PartyTable(experiment.federation.rounds)
        self._live = Live(self._table, console=console, refresh_per_second=4, transient=True)

    def __enter__(self) -> Screen:
        self._say("starting the processes")
        if self._console.is_terminal:
            self._live.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._live.stop()

    def show(self, party: str, event: str, fields: dict[str, Any]) -> None:
        """One event of a party."""
        self._table.take(party, event, fields)
        total = self._experiment.federation.rounds
        if event == "traffic":
            self._bytes += fields["sent"]
        elif event == "listening":
            self._say(f"{party} listens at {fields['address']}; run directory {self._place}")
        elif event == "configuration":
            self._parameters, self._cohort = fields["parameters"], fields["cohort"]
            mode = self._experiment.aggregation.mode
            secured = f"in a {fields['ring_bits']}-bit ring, threshold {fields['threshold']} of {self._cohort}"
            secured += f", {mode} mode"
            secured += self._losses(fields)
            if fields["clients"] > self._cohort:
                secured += f"; each round draws {self._cohort} of {fields['clients']} clients"
            self._say(
                f"{fields['parameters']:,} parameters, vectors of {fields['vector_bytes']:,} bytes "
                f"{'of float32, no secure aggregation' if mode == 'none' else secured}"
            )
        elif event == "statistics":
            self._say(_statistics_line(fields))
        elif event == "round":
            self._tell_absent(fields)
        elif event == "round-done":
            self._say(_round_line(fields, total, self._cohort, self._bytes))
            self._bytes = 0
            self._warn_of_clipping(fields)
        elif event == "evaluated":
            self._say(f"  {party}, after round {fields['round']}:{_judged(fields)}")
        elif event == "agreed":
            self._say(f"  group key {fields['epoch']} of {len(fields['members'])} clients")
        elif event == "key-failed":
            self._say(f"  no group key {fields['epoch']}: {fields['detail']}", style="yellow")
        elif event == "cheat":
            self._say(f"  {party} cheats: {fields['detail']}", style="yellow")
        elif event == "left-out":
            self._say(f"  left out with their groups: {', '.join(fields['members'])}", style="yellow")
        elif event == "roster":
            self._say(f"  {roster_changes(fields)}", style="yellow")
        elif event == "roster-refused":
            self._say(f"  stays with its roster: {fields['reason']}", style="yellow")
        elif event == "gathering":
            self._say(f"  {fields['detail']}", style="yellow")
        elif event in ("dropped", "left", "refused", "stranger", "complaint") and party == "server":
            # Who left is dropped from the round too.
            if event != "dropped" or fields["code"] != "LEFT":
                details = ", ".join(f"{key} {value}" for key, value in fields.items() if value)
                self._say(f"  {event}: {details}", style="yellow")
        elif event == "hosted":
            self._say(_hosted_line(fields))
        elif event == "failed" and not fields.get("again"):
            self._say(f"  {party}: {fields['reason']}", style="red")

    def _tell_absent(self, fields: dict[str, Any]) -> None:
        """Who is not in a round that begins, where that has changed."""
        from tacit.parties.runs.incidents import without

        absent = fields["absent"]
        if absent and absent != self._absent:
            self._say(f"  round {fields['round']} begins without {without(absent, MOST_NAMES)}", style="yellow")
        self._absent = absent

    def _warn_of_clipping(self, fields: dict[str, Any]) -> None:
        from tacit.parties.runs.summary import CLIPPING_REMEDY, MOST_CLIPPED, clipped_part

        survivors = len(fields["survivors"])
        part = clipped_part(fields["clipped"], survivors=survivors, parameters=self._parameters)
        if self._parameters and part > MOST_CLIPPED:
            self._say(f"  {part:.0%} of all coordinates were clipped, and are lost: {CLIPPING_REMEDY}", style="yellow")

    def _losses(self, fields: dict[str, Any]) -> str:
        """Describe the cost of a lost client, "" where it is that client; fields: of the event `configuration`."""
        from msgspec.structs import replace

        from tacit.protocol.core.roster import group_numbers

        numbers = group_numbers(fields["clients"], self._experiment.federation.group_size)
        sizes = sorted({numbers.count(number) for number in numbers if number})
        if sizes:
            return f", groups of {' or '.join(map(str, sizes))}: who is lost takes its group out of that sum"
        terms = replace(self._experiment.terms(), colluders=fields["colluders"])
        needed = max(fields["threshold"], terms.fewest_survivors(self._cohort))
        return ", none may be lost" if needed == self._cohort else ""

    def finish(self, summary: dict[str, Any]) -> None:
        """The figures of the whole run."""
        self._say(f"{summary['name']}: {summary['ended']}")
        rows = []
        for name, party in summary["parties"].items():
            phases = party["phases"]
            sent = sum(phase["bytes_sent"] for phase in phases.values())
            received = sum(phase["bytes_received"] for phase in phases.values())
            # Of clients, MASKED_INPUT is waiting for those who train longer.
            after = ("SESSION",) if party["role"] == "server" else ("SESSION", "MASKED_INPUT")
            training = sum(phase["seconds"] for key, phase in phases.items() if key in UNTIL_TRAINED)
            protocol = sum(phase["seconds"] for key, phase in phases.items() if key not in (*UNTIL_TRAINED, *after))
            rows.append((name, _megabytes(sent), _megabytes(received), f"{training:.1f} s", f"{protocol:.2f} s"))
        self._console.print(table(("party", "sent", "received", "training", "protocol"), rows))
        for entry in summary.get("verified", ()):
            over = f"sum exact over {entry['clients']} clients"
            if entry["bound"]:
                error, bound = f"{entry['largest_error']:.3g}", f"{entry['bound']:.3g}"
                over = f"ring {over}; float sum off by at most {error}, allowed {bound}"
            self._say(f"round {entry['round']}: {over}")
        if privacy := summary.get("privacy"):
            from tacit.parties.runs.summary import MOST_EPSILON

            update, sums = (_epsilon(privacy[key]) for key in ("epsilon_update", "epsilon_sum"))
            self._say(
                f"differential privacy of a client, delta {privacy['delta']:g}: epsilon {update} for one that sees its "
                f"updates, {sums} for one that sees sums alone"
            )
            if privacy["epsilon_sum"] is None or privacy["epsilon_sum"] > MOST_EPSILON:
                self._say(
                    f"  an epsilon above {MOST_EPSILON:g} protects next to nobody: raise protection.dp_noise, "
                    "with more clients, or hold fewer rounds",
                    style="yellow",
                )
        accuracy = summary["final_accuracy"]
        self._say(
            f"test accuracy {'unknown' if accuracy is None else f'{accuracy:.3f}'} after "
            f"{summary['wall_seconds']:.1f} s; "
            f"everything is in {self._place}"
        )


def _hosted_line(fields: dict[str, Any]) -> str:
    where = "1 process" if fields["workers"] == 1 else f"{fields['workers']} processes"
    return (
        f"{fields['clients']} clients share {where} and train in turns, up to {fields['turns']} in each "
        f"({fields['reason']}): they get {fields['train_seconds']:,.0f} s to train, "
        f"and {fields['phase_seconds']:,.0f} s for a phase"
    )


def _round_line(fields: dict[str, Any], total: int, clients: int, moved: int) -> str:
    line = f"round {fields['round']:>3} of {total}  {fields['status']}"
    if fields["status"] == "completed":
        line += _judged(fields) + f"  {len(fields['survivors'])} of {clients} clients"
        if held_out := fields.get("held_out"):
            line += f"  held-out accuracy after round {held_out['round']}: {held_out['accuracy']:.3f}"
    else:
        line += f": {fields['detail']}"
    clipped = f"  {fields['clipped']:,} coordinates clipped" if fields["clipped"] else ""
    return f"{line}  {fields['seconds']:.1f} s  {_megabytes(moved)}{clipped}"


def _statistics_line(fields: dict[str, Any]) -> str:
    if fields["status"] != "completed":
        return f"no sum of pixels: {fields['detail']}"
    mean, std = (", ".join(f"{value:.4f}" for value in fields[key]) for key in ("mean", "std"))
    return f"pixels of {len(fields['survivors'])} clients: mean {mean}, standard deviation {std}"


def _judged(fields: dict[str, Any]) -> str:
    """What is known of the model; a client that evaluates an encrypted one says so later."""
    if fields["accuracy"] is None:
        return ""
    return f"  accuracy {fields['accuracy']:.3f}  loss {fields['loss']:.3f}"


def _epsilon(value: float | None) -> str:
    return "infinite" if value is None else f"{value:.3g}"


def _megabytes(count: float) -> str:
    return f"{count / 1e6:.2f} MB"
