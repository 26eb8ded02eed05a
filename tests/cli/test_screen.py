"""What a run shows: one line for one thing, as it is, whoever reads it."""

import io
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from tacit.cli.output import show
from tacit.cli.screen import Screen
from tacit.parties.runs.events import PartyFailed
from tacit.parties.runs.experiment import Experiment
from tacit.parties.runs.privacy import PrivacyGuarantee
from tacit.parties.runs.summary import PartyMetrics, PhaseMetrics, VerifiedRound
from tacit.parties.session.events import (
    ClientRoundEnded,
    HandshakeRefused,
    HeldOut,
    ListeningStarted,
    ModelEvaluated,
    RoundEnded,
    TrafficCounted,
    TrainingFailed,
)
from tacit.protocol.core.events import Event, MessageRefused
from tacit.protocol.session.events import ClientJoined, ClientLeft, RoundStarted
from tacit.protocol.sum.events import ClientDropped, ComplaintReceived
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
LATE = {"phase": Phase.TRAIN, "detail": "its link was lost"}


def done(number: int, **changes: Any) -> RoundEnded:
    fields = {"accuracy": 0.5, "loss": 1.25, "seconds": 2.0, "clipped": 0, "survivors": ["a", "b"]}
    return ended(number, COHORT, **{**fields, **changes})


def begun(made: Screen) -> None:
    """The server has proposed a configuration, for five of five clients."""
    made.show(now("server", configured(5, rounds=10)))


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


def test_a_configuration_is_shown_in_one_line() -> None:
    made, file = screen()
    begun(made)
    begun(made)
    assert shown(file) == [
        "1,000 parameters, vectors of 3,021 bytes in a 24-bit ring, threshold 4 of 5, active mode"
    ] * 2  # fmt: skip


def test_a_round_line_has_its_figures_and_bytes() -> None:
    made, file = screen()
    begun(made)
    line = round_line(made, file, done(1), sent=1_500_000)
    assert line.startswith("round 1 of 10 completed by 2 of 5 clients, ")
    for figure in ("accuracy 0.500", "loss 1.250", "2.0 s", "1.50 MB"):
        assert figure in line
    aborted = done(2, status="aborted", code="THRESHOLD", detail="too few", clipped=None)
    line = round_line(made, file, aborted)
    assert line.startswith("round 2 of 10 aborted ")
    for part in ("2.0 s", "too few", "0.00 MB"):
        assert part in line
    held_out = HeldOut(round=2, images=40, accuracy=0.625, loss=0.5)
    line = round_line(made, file, done(3, clipped=12, held_out=held_out))
    assert "12 coordinates clipped" in line
    assert "held-out accuracy after round 2 0.625" in line


def test_clients_are_shown_with_their_warnings_and_evaluations_alone() -> None:
    made, file = screen()
    made.show(now("client-1", TrainingFailed(detail="the disk is full")))
    made.show(now("client-1", ModelEvaluated(round=1, accuracy=0.5, balanced_accuracy=0.5, loss=1.25)))
    made.show(now("client-1", ClientRoundEnded(round=1, code=None, detail="")))
    assert shown(file) == [
        "client-1: cannot train: the disk is full",
        "client-1: after round 1: accuracy 0.500, loss 1.250",
    ]


def test_a_process_that_takes_several_clients_with_it_is_told_once() -> None:
    made, file = screen()
    for number in range(3):
        made.show(now(f"client-{number}", PartyFailed(reason="killed", again=number > 0)))
    assert shown(file) == ["client-0: killed"]


@pytest.mark.parametrize(
    ("event", "parts"),
    [
        (ClientLeft(member="a", detail="its link was lost"), ["a", "its link was lost"]),
        (ClientDropped(member="a", code="LEFT", **LATE), None),
        (ClientDropped(member="a", code="TIMEOUT", **LATE), ["a", "TRAIN", "TIMEOUT"]),
        (MessageRefused(member="a", code="POLICY", detail="too large"), ["a", "too large", "POLICY"]),
        (
            HandshakeRefused(reason="not in the roster", public_key="ab" * 32, address="10.0.0.9"),
            ["not in the roster", "ab" * 32, "10.0.0.9"],
        ),
        (HandshakeRefused(reason="not in the roster", public_key=None, address=None), ["not in the roster"]),
        (ComplaintReceived(by="a", against="b"), ["a", "b"]),
        (ClientJoined(member="a"), None),
    ],
)
def test_trouble_of_the_server_is_told_with_who_and_why(event: Event, parts: list[str] | None) -> None:
    """Who left is dropped from the round too, which one line tells."""
    made, file = screen()
    made.show(now("server", event))
    lines = shown(file)
    assert len(lines) == (parts is not None)
    for part in parts or ():
        assert part in lines[0]


def test_a_server_between_hosts_has_a_name_of_its_own() -> None:
    made, file = screen(server="ward")
    made.show(now("ward", ClientLeft(member="a", detail="it gave up")))
    assert shown(file) == ["a left: it gave up"]


TRAIN = PhaseMetrics(seconds=2.0, bytes_sent=3_000_000, bytes_received=1_000_000)
SERVER = PartyMetrics(
    role="server", training_seconds=0.0, protocol_seconds=0.25, waiting_seconds=2.0, phases={"TRAIN": TRAIN}
)


def of_result(encoding: str = "utf-8", **more: Any) -> list[str]:
    """What is shown of a summary with these fields."""
    file = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    show(Console(file=file, width=80, force_terminal=False, highlight=False), summed_up(**more))
    return shown(file)


@pytest.mark.parametrize("encoding", ["utf-8", "ascii"])
def test_the_result_fits_every_encoding(encoding: str) -> None:
    verified = VerifiedRound(round=1, clients=5, largest_error=0.001, bound=0.004)
    lines = of_result(encoding, parties={"server": SERVER}, verified=[verified])
    row = next(line for line in lines if "server" in line)
    words = [word for word in row.split() if word.isascii() and word != "|"]
    assert " ".join(words) == "server 3 MB 1 MB 250 ms 2 s"
    assert lines[-2:] == [
        "round 1: ring sum exact over 5 clients; float sum off by at most 0.001, allowed 0.004",
        "test accuracy unknown after 3.25 s",
    ]


@pytest.mark.parametrize(("epsilon", "warned"), [(10.0, False), (10.1, True), (None, True)])
def test_a_guarantee_that_is_next_to_none_is_called_so(epsilon: float | None, warned: bool) -> None:
    lines = of_result(privacy=PrivacyGuarantee(delta=1e-5, epsilon_update=50.0, epsilon_sum=epsilon))
    said = [line for line in lines if line.startswith("  an epsilon above 10 protects next to nobody: raise ")]
    assert len(said) == warned


@pytest.mark.parametrize(("clipped", "warned"), [(2, False), (3, True)])
def test_clipping_more_than_a_hundredth_of_all_coordinates_is_a_warning(clipped: int, warned: bool) -> None:
    """Of two survivors with 100 coordinates each."""
    made, file = screen()
    made.show(now("server", configured(5, parameters=100)))
    line = round_line(made, file, done(1, clipped=clipped))
    assert ("; 2% of all coordinates were clipped" in line) == warned
