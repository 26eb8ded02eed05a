"""What a run shows: one line for one thing, as it is, whoever reads it."""

import io
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from tacit.cli.screen import Screen
from tacit.parties.runs.experiment import Experiment, parse

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


def test_a_pipe_learns_of_the_start_in_plain_text() -> None:
    made, file = screen()
    with made:
        pass
    assert shown(file) == ["starting the processes"]


def test_lines_are_neither_wrapped_nor_read_as_markup() -> None:
    made, file = screen()
    made.show("server", "listening", {"address": "tcp://127.0.0.1:1"})
    assert shown(file) == [f"server listens at tcp://127.0.0.1:1; run directory {DIRECTORY}"]


@pytest.mark.parametrize(
    ("text", "threshold", "told"),
    [
        ("", 4, "threshold 4 of 5, active mode"),
        ("[federation]\nclients = 3", 3, "threshold 3 of 3, active mode, none may be lost"),
        (
            "[federation]\nclients = 7\ngroup_size = 2\n[aggregation]\ncorrupt = 0.05\ndropout = 0.5",
            5,
            "threshold 5 of 7, active mode, groups of 2 or 3: who is lost takes its group out of that sum",
        ),
    ],
)
def test_the_configuration_says_what_a_lost_client_costs(text: str, threshold: int, told: str) -> None:
    made, file = screen(experiment=parse(text, "small.toml"))
    made.show(
        "server", "configuration", {"parameters": 10, "vector_bytes": 80, "ring_bits": 32, "threshold": threshold}
    )
    assert shown(file) == [f"10 parameters, vectors of 80 bytes in a 32-bit ring, {told}"]


def test_who_is_left_out_with_its_group_is_named() -> None:
    made, file = screen()
    made.show("server", "left-out", {"members": ["client-3", "client-4"]})
    assert shown(file) == ["  left out with their groups: client-3, client-4"]


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


def test_who_is_not_in_a_round_is_told_when_it_changes() -> None:
    made, file = screen()
    killed = dict.fromkeys(["client-2", "client-3"], "killed")
    absences: list[dict[str, str]] = [{}, killed, killed, killed | {"client-4": "lost"}, {}]
    for number, absent in enumerate(absences, start=1):
        made.show("server", "round", {"round": number, "cohort": [], "absent": absent})
    assert shown(file) == [
        "  round 2 begins without client-2 and client-3 (killed)",
        "  round 4 begins without client-2 and client-3 (killed), client-4 (lost)",
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


def test_a_party_that_failed_is_named() -> None:
    made, file = screen()
    made.show("client-1", "failed", {"reason": "the disk is full"})
    made.show("client-2", "exited", {"reason": "the federation is finished"})
    assert shown(file) == ["  client-1: the disk is full"]


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


def test_a_narrow_terminal_cuts_nothing_off_but_leaves_columns_out_and_says_which() -> None:
    made, file = screen(encoding="ascii", width=40)
    made.finish(SUMMARY)
    lines = shown(file)
    row = next(line for line in lines if "server" in line)
    assert [word.strip() for word in row.strip("|").split("|")] == ["server", "3.00 MB", "1.00 MB"]
    assert "on a wider screen: training, protocol" in lines


def test_the_end_says_what_noise_guarantees() -> None:
    made, file = screen()
    made.finish(SUMMARY | {"privacy": {"delta": 1e-5, "epsilon_update": None, "epsilon_sum": 2.71828}})
    assert shown(file)[-2] == (
        "differential privacy of a client, delta 1e-05: epsilon infinite for one that sees its updates, 2.72 for one "
        "that sees sums alone"
    )


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
    fields = {"parameters": 100, "ring_bits": 24, "vector_bytes": 300, "threshold": 4}
    made.show("server", "configuration", fields)
    made.show("server", "round-done", done(clipped=clipped))
    said = [line for line in shown(file) if "of all coordinates were clipped" in line]
    assert [line.startswith("  2% of all") for line in said] == [True] * warned
