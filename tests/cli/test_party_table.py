"""The live table of the parties, drawn as text at times of a clock that the test moves."""

import io

import pytest
from rich.console import Console

from tacit.cli.screen import PartyTable
from tacit.parties.runs.events import PartyExited, PartyFailed
from tacit.parties.runs.state import RunState
from tacit.parties.session.events import HeartbeatSent, PhaseEnded, WaitingChanged
from tacit.protocol.core.events import Event
from tacit.protocol.session.events import RoundStarted
from tacit.protocol.sum.states import Phase
from tests.simulate.conftest import at, configured, ended

HEADINGS = ["party", "phase", "for", "sent", "received", "last heard", "waits for"]
SERVER = "server"
COHORT = ["client-1", "client-2"]


class Run:
    """A run that goes on as the test says; `seconds` is the time now."""

    def __init__(self) -> None:
        self.seconds = 1000.0
        self._state = RunState(server=SERVER)
        self.table = PartyTable(self._state, 10, lambda: self.seconds)

    def take(self, party: str, event: Event) -> None:
        self._state.take(at(self.seconds, party, event))

    def round(self, number: int, *, seconds: float) -> None:
        self.take(SERVER, RoundStarted(round=number, cohort=COHORT))
        self.seconds += seconds
        self.take(SERVER, ended(number, COHORT, seconds=seconds))

    def cells(self) -> list[list[str]]:
        """The rows of the table as it is drawn now, without the headings."""
        drawn_lines = self._drawn().replace("┃", "│").splitlines()
        lines = [[cell.strip() for cell in line.strip("│").split("│")] for line in drawn_lines]
        headings, *rows = [line for line in lines if len(line) == len(HEADINGS)]
        assert headings == HEADINGS
        return rows

    def last_line(self) -> str:
        return self._drawn().splitlines()[-1]

    def _drawn(self) -> str:
        console = Console(file=io.StringIO(), width=200)
        with console.capture() as drawn:
            console.print(self.table)
        return drawn.get()


@pytest.fixture
def run() -> Run:
    return Run()


def phase(next: Phase) -> PhaseEnded:
    return PhaseEnded(round=1, phase=Phase.SESSION, seconds=1.0, next=next)


def test_phases_are_timed_apart_from_signs_of_life(run: Run) -> None:
    run.take("client-1", phase(Phase.MASKED_INPUT))
    run.seconds += 4
    run.take("client-1", HeartbeatSent())
    run.seconds += 2
    assert run.cells() == [["client-1", "masked input", "6 s", "0 bytes", "0 bytes", "2 s ago", ""]]
    run.take("client-1", phase(Phase.TRAIN))
    assert run.cells()[0][1:3] == ["train", "0 s"]


@pytest.mark.parametrize(
    ("event", "phase_shown"), [(PartyExited(reason="over"), "ended"), (PartyFailed(reason="killed"), "failed")]
)
def test_a_party_that_is_gone_waits_for_nobody(run: Run, event: Event, phase_shown: str) -> None:
    run.take(SERVER, phase(Phase.UNMASK))
    run.take(SERVER, WaitingChanged(on=["client-1"]))
    run.seconds += 5
    run.take(SERVER, event)
    run.seconds += 1
    assert run.cells() == [[SERVER, phase_shown, "1 s", "0 bytes", "0 bytes", "1 s ago", ""]]


def test_the_time_left_is_judged_by_the_last_rounds(run: Run) -> None:
    run.take(SERVER, configured(2))
    run.take(SERVER, RoundStarted(round=4, cohort=COHORT))
    run.seconds += 30
    assert "left" not in run.last_line()
    run.take(SERVER, ended(4, COHORT, seconds=30.0))
    assert run.last_line() == "4 of 10 rounds are done; about 3 min left"
    run.round(5, seconds=10)
    assert run.last_line() == "5 of 10 rounds are done; about 100 s left"
    run.seconds += 1
    assert run.last_line() == "5 of 10 rounds are done; about 99 s left"
    for number in range(6, 10):
        run.round(number, seconds=2)
    # Rounds 5 to 9 took 18 s.
    assert run.last_line() == "9 of 10 rounds are done; about 4 s left"
    run.seconds += 50
    assert run.last_line() == "9 of 10 rounds are done; about 0 s left"
    run.round(10, seconds=2)
    assert run.last_line() == "all rounds are done; the summary is made, and the report is drawn"
