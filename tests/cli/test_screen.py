"""What a run shows: one line for one thing, as it is, whoever reads it."""

import io
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from tacit.cli.screen import Screen
from tacit.parties.runs.experiment import Experiment

DIRECTORY = Path("runs") / ("[bold]" + "x" * 100)


def screen(
    *, encoding: str = "utf-8", width: int = 40, experiment: Experiment | None = None
) -> tuple[Screen, io.TextIOWrapper]:
    file = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    console = Console(file=file, width=width, force_terminal=False, highlight=False)
    return Screen(console, experiment or Experiment(), DIRECTORY), file


def shown(file: io.TextIOWrapper) -> list[str]:
    file.seek(0)
    return file.read().splitlines()


def done(**changes: Any) -> dict[str, Any]:
    fields = {"round": 1, "status": "completed", "accuracy": 0.5, "loss": 1.25, "seconds": 2.0, "clipped": 0}
    return {**fields, "survivors": ["a", "b"], "cohort": ["a", "b", "c"], "detail": "", **changes}


def test_lines_are_neither_wrapped_nor_read_as_markup() -> None:
    made, file = screen()
    made.show("server", "listening", {"address": "tcp://127.0.0.1:1"})
    assert shown(file) == [f"server listens at tcp://127.0.0.1:1; run directory {DIRECTORY}"]


def test_a_round_line_has_the_bytes_since_the_last() -> None:
    made, file = screen()
    made.show("a", "traffic", {"sent": 1_000_000, "received": 0})
    made.show("b", "traffic", {"sent": 500_000, "received": 0})
    made.show("server", "round-done", done())
    made.show("server", "round-done", done(round=2, status="aborted", detail="too few", clipped=None))
    made.show("server", "round-done", done(round=3, clipped=1234))
    assert shown(file) == [
        "round   1 of 10  completed  accuracy 0.500  loss 1.250  2 of 5 clients  2.0 s  1.50 MB",
        "round   2 of 10  aborted: too few  2.0 s  0.00 MB",
        "round   3 of 10  completed  accuracy 0.500  loss 1.250  2 of 5 clients  2.0 s  0.00 MB"
        "  1,234 coordinates clipped",
    ]


def test_a_process_that_takes_several_clients_with_it_is_told_once() -> None:
    made, file = screen()
    for number in range(3):
        made.show(f"client-{number}", "failed", {"reason": "killed", "again": number > 0})
    assert shown(file) == ["  client-0: killed"]


@pytest.mark.parametrize(
    ("event", "fields", "line"),
    [
        ("left", {"member": "a", "detail": "its link was lost"}, "  left: member a, detail its link was lost"),
        ("dropped", {"member": "a", "code": "LEFT", "detail": "its link was lost"}, None),
        ("dropped", {"member": "a", "code": "TIMEOUT", "detail": ""}, "  dropped: member a, code TIMEOUT"),
        ("refused", {"member": "a", "code": "POLICY"}, "  refused: member a, code POLICY"),
        ("stranger", {"reason": "not in the roster", "address": None}, "  stranger: reason not in the roster"),
        ("joined", {"member": "a"}, None),
    ],
)
def test_trouble_is_told_once_and_only_by_the_server(event: str, fields: dict[str, Any], line: str | None) -> None:
    made, file = screen()
    made.show("server", event, fields)
    made.show("client-1", event, fields)
    assert shown(file) == ([line] if line else [])


SUMMARY = {
    "name": "digits",
    "ended": "all rounds are done",
    "parties": {
        "server": {
            "role": "server",
            "phases": {"TRAIN": {"seconds": 2.0, "bytes_sent": 3e6, "bytes_received": 1e6}},
        }
    },
    "verified": [{"round": 1, "clients": 5, "largest_error": 0.001, "bound": 0.004}],
    "final_accuracy": None,
    "wall_seconds": 3.25,
}


@pytest.mark.parametrize("encoding", ["utf-8", "ascii"])
def test_the_end_fits_every_encoding(encoding: str) -> None:
    made, file = screen(encoding=encoding, width=80)
    made.finish(SUMMARY)
    lines = shown(file)
    assert lines[0] == "digits: all rounds are done"
    row = next(line for line in lines if "server" in line)
    words = [word for word in row.split() if word.isascii() and word != "|"]
    assert " ".join(words) == "server 3.00 MB 1.00 MB 2.0 s 0.00 s"
    assert lines[-2:] == [
        "round 1: ring sum exact over 5 clients; float sum off by at most 0.001, allowed 0.004",
        f"test accuracy unknown after 3.2 s; everything is in {DIRECTORY}",
    ]


@pytest.mark.parametrize(("epsilon", "warned"), [(10.0, False), (10.1, True), (None, True)])
def test_a_guarantee_that_is_next_to_none_is_called_so(epsilon: float | None, warned: bool) -> None:
    made, file = screen()
    made.finish(SUMMARY | {"privacy": {"delta": 1e-5, "epsilon_update": 50.0, "epsilon_sum": epsilon}})
    said = [line for line in shown(file) if line.startswith("  an epsilon above 10 protects next to nobody: raise ")]
    assert len(said) == warned


@pytest.mark.parametrize(("clipped", "warned"), [(2, False), (3, True)])
def test_clipping_more_than_a_hundredth_of_all_coordinates_is_a_warning(clipped: int, warned: bool) -> None:
    """Of two survivors with 100 coordinates each."""
    made, file = screen()
    fields = {"parameters": 100, "ring_bits": 24, "vector_bytes": 300, "threshold": 4, "colluders": 1}
    fields |= {"clients": 5, "cohort": 5}
    made.show("server", "configuration", fields)
    made.show("server", "round-done", done(clipped=clipped))
    said = [line for line in shown(file) if "of all coordinates were clipped" in line]
    assert [line.startswith("  2% of all") for line in said] == [True] * warned
