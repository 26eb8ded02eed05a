"""What a run shows: one line for one thing, as it is, whoever reads it."""

import io
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from tacit.cli.output import show
from tacit.cli.screen import Screen
from tacit.parties.runs.experiment import Experiment
from tacit.parties.runs.privacy import PrivacyGuarantee
from tacit.parties.runs.summary import PhaseMetrics
from tacit.parties.session.events import (
    ListeningStarted,
    RoundEnded,
    TrafficCounted,
)
from tacit.protocol.session.events import RoundStarted
from tacit.protocol.sum.states import Phase
from tests.simulate.conftest import configured, ended, now, summed_up

DIRECTORY = Path("runs") / ("[bold]" + "x" * 100)


def screen(*, encoding: str = "utf-8", width: int = 40, server: str = "server") -> tuple[Screen, io.TextIOWrapper]:
    file = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    console = Console(file=file, width=width, force_terminal=False, highlight=False)
    return Screen(console, Experiment(), DIRECTORY, server), file


def shown(file: io.TextIOWrapper) -> list[str]:
    file.seek(0)
    return file.read().splitlines()


COHORT = ["a", "b", "c"]


def done(number: int, **changes: Any) -> RoundEnded:
    fields = {"accuracy": 0.5, "loss": 1.25, "seconds": 2.0, "clipped": 0, "survivors": ["a", "b"]}
    return ended(number, COHORT, **{**fields, **changes})


def round_line(made: Screen, file: io.TextIOWrapper, over: RoundEnded, *, sent: int = 0) -> str:
    """What is shown when this round is over, in which the server sent so many bytes."""
    made.show(now("server", RoundStarted(round=over.round, cohort=COHORT)))
    made.show(now("server", TrafficCounted(round=over.round, phase=Phase.TRAIN, sent=sent, received=0)))
    made.show(now("server", over))
    return shown(file)[-1]


def test_lines_are_neither_wrapped_nor_read_as_markup() -> None:
    made, file = screen()
    with made:
        made.show(now("server", ListeningStarted(address=f"tcp://[bold]{'x' * 100}:1")))
    assert shown(file) == [
        f"starting the processes; run directory {DIRECTORY}",
        f"listens at tcp://[bold]{'x' * 100}:1",
    ]


TRAIN = PhaseMetrics(seconds=2.0, bytes_sent=3_000_000, bytes_received=1_000_000)


def of_result(encoding: str = "utf-8", **more: Any) -> list[str]:
    file = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    show(Console(file=file, width=80, force_terminal=False, highlight=False), summed_up(**more))
    return shown(file)


@pytest.mark.parametrize(("epsilon", "warned"), [(10.0, False), (10.1, True), (None, True)])
def test_a_guarantee_that_is_next_to_none_is_called_so(epsilon: float | None, warned: bool) -> None:
    lines = of_result(privacy=PrivacyGuarantee(delta=1e-5, epsilon_update=50.0, epsilon_sum=epsilon))
    said = [line for line in lines if line.startswith("  an epsilon above 10 protects next to nobody: raise ")]
    assert len(said) == warned


@pytest.mark.parametrize(("clipped", "warned"), [(2, False), (3, True)])
def test_clipping_more_than_a_hundredth_of_all_coordinates_is_a_warning(clipped: int, warned: bool) -> None:
    made, file = screen()
    made.show(now("server", configured(5, parameters=100)))
    line = round_line(made, file, done(1, clipped=clipped))
    assert ("; 2% of all coordinates were clipped" in line) == warned
