"""The live table of the parties, drawn as text at times of a clock that the test moves."""

import io
from collections.abc import Iterable

import pytest
from rich.console import Console

from tacit.cli.screen import MOST_ROWS, PartyTable

HEADINGS = ["party", "phase", "for", "sent", "received", "last heard", "waits for"]


class Clock:
    """Seconds that pass when the test says so."""

    def __init__(self) -> None:
        self.seconds = 1000.0

    def __call__(self) -> float:
        return self.seconds


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def table(clock: Clock) -> PartyTable:
    return PartyTable(10, clock)


def cells(table: PartyTable) -> list[list[str]]:
    """The rows of the table as it is drawn now, without the headings."""
    console = Console(file=io.StringIO(), width=200)
    with console.capture() as drawn:
        console.print(table)
    drawn_lines = drawn.get().replace("┃", "│").splitlines()
    lines = [[cell.strip() for cell in line.strip("│").split("│")] for line in drawn_lines]
    headings, *rows = [line for line in lines if len(line) == len(HEADINGS)]
    assert headings == HEADINGS
    return rows


def names(rows: Iterable[list[str]]) -> list[str]:
    return [row[0] for row in rows]


def test_phases_are_timed_apart_from_signs_of_life(table: PartyTable, clock: Clock) -> None:
    table.take("client-1", "phase", {"next": "MASKED_INPUT"})
    clock.seconds += 4
    table.take("client-1", "alive", {})
    clock.seconds += 2
    assert cells(table) == [["client-1", "masked input", "6 s", "0.0 MB", "0.0 MB", "2 s ago", ""]]
    table.take("client-1", "phase", {"next": "TRAIN"})
    assert cells(table)[0][1:3] == ["train", "0 s"]


def test_traffic_adds_up(table: PartyTable) -> None:
    table.take("client-1", "traffic", {"sent": 1_500_000, "received": 200_000})
    table.take("client-1", "traffic", {"sent": 1_000_000, "received": 0})
    table.take("client-2", "traffic", {"sent": 0, "received": 300_000})
    assert [row[3:5] for row in cells(table)] == [["2.5 MB", "0.2 MB"], ["0.0 MB", "0.3 MB"]]


@pytest.mark.parametrize(("event", "phase"), [("exited", "ended"), ("failed", "failed")])
def test_a_party_that_is_gone_waits_for_nobody(table: PartyTable, clock: Clock, event: str, phase: str) -> None:
    table.take("server", "phase", {"next": "UNMASK"})
    table.take("server", "waiting", {"on": ["client-1"]})
    clock.seconds += 5
    table.take("server", event, {"reason": "killed"})
    clock.seconds += 1
    assert cells(table) == [["server", phase, "1 s", "0.0 MB", "0.0 MB", "1 s ago", ""]]


def test_of_many_parties_the_most_silent_are_shown_in_their_order(table: PartyTable, clock: Clock) -> None:
    parties = [f"client-{number}" for number in range(MOST_ROWS + 3)]
    for party in parties:
        table.take(party, "alive", {})
    assert len(cells(table)) == MOST_ROWS
    clock.seconds += 1
    for party in parties[:3]:
        table.take(party, "alive", {})
    assert names(cells(table)) == parties[3:]


def last_line(table: PartyTable) -> str:
    console = Console(file=io.StringIO(), width=200)
    with console.capture() as drawn:
        console.print(table)
    return drawn.get().splitlines()[-1]


def test_the_time_left_is_judged_by_the_last_rounds(table: PartyTable, clock: Clock) -> None:
    table.take("server", "round", {"round": 4})
    clock.seconds += 30
    assert "left" not in last_line(table)
    table.take("server", "round-done", {"round": 4})
    assert last_line(table) == "4 of 10 rounds are done; about 3 min left"
    clock.seconds += 10
    table.take("server", "round", {"round": 5})
    table.take("server", "round-done", {"round": 5})
    assert last_line(table) == "5 of 10 rounds are done; about 100 s left"
    clock.seconds += 1
    assert last_line(table) == "5 of 10 rounds are done; about 99 s left"
    for round in range(6, 10):
        clock.seconds += 2
        table.take("server", "round-done", {"round": round})
    # Rounds 5 to 9 took 19 s.
    assert last_line(table) == "9 of 10 rounds are done; about 4 s left"
    clock.seconds += 50
    assert last_line(table) == "9 of 10 rounds are done; about 0 s left"
    table.take("server", "round-done", {"round": 10})
    assert last_line(table) == "all rounds are done; the summary is made, and the report is drawn"
