"""Groups on the command line: a run with them, and what the owner of a client confirms."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result

from tacit.parties.session.journal import JournalFile
from tacit.protocol.session.rounds import GroupEntry, JournalEntry

Invoke = Callable[..., Result]
WriteExperiment = Callable[..., Path]


@pytest.mark.end_to_end
def test_a_client_that_dies_takes_its_group_out_and_a_resumed_run_goes_on(
    tacit: Invoke, tmp_path: Path, write_experiment: WriteExperiment
) -> None:
    """client-4 dies with its vector on its way: client-3 is left out, and both are missing from the second round."""
    more = "[aggregation]\ncorrupt = 0.05\ndropout = 0.34"
    file = write_experiment(tmp_path / "small.toml", clients=6, rounds=2, more=more)
    file.write_text(file.read_text().replace("clients = 6", "clients = 6\ngroup_size = 2"))
    run = tmp_path / "run"
    result = tacit("simulate", file, "--drop", "client-4@MASKED_INPUT", "--verify", "--out", run)
    assert (result.exit_code, result.stderr) == (0, "")
    assert "threshold 5 of 6, active mode, groups of 2: who is lost takes its group out of that sum" in result.stdout
    assert "  left out with their groups: client-3" in result.stdout
    first, second = json.loads((run / "summary.json").read_bytes())["rounds"]
    others = ["client-1", "client-2", "client-5", "client-6"]
    assert (len(first["cohort"]), first["survivors"]) == (6, others)
    assert [gone["party"] for gone in first["dropped"]] == ["client-4"]
    assert (second["cohort"], second["survivors"]) == (others, others)
    assert isinstance(JournalFile(run / "journal" / "client-3.jsonl").read()[0], GroupEntry)
    resumed = tacit("simulate", "--resume", run, "--rounds", 3)
    assert (resumed.exit_code, resumed.stderr) == (0, "")
    third = json.loads((run / "summary.json").read_bytes())["rounds"][-1]
    assert (third["round"], len(third["survivors"])) == (3, 6)


def test_an_owner_confirms_another_group_once(tacit: Invoke, tmp_path: Path) -> None:
    paths = [tmp_path / f"client-{number}.jsonl" for number in (1, 2)]
    before = [GroupEntry(group=b"group"), JournalEntry(session=bytes(32), round=1, stage=1)]
    for path in paths:
        for line in before:
            JournalFile(path).write(line)
    result = tacit("groups", "confirm", *paths)
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout.splitlines() == [
        f"{path}: the group of the next session is accepted, whichever it is" for path in paths
    ]
    for path in paths:
        assert JournalFile(path).read() == [*before, GroupEntry(group=None)]


def test_what_is_no_journal_is_not_confirmed(tacit: Invoke, tmp_path: Path) -> None:
    journal = tmp_path / "client-1.jsonl"
    JournalFile(journal).write(GroupEntry(group=b"group"))
    missing = tacit("groups", "confirm", journal, tmp_path / "client-9.jsonl")
    assert (missing.exit_code, missing.stderr) == (2, f"tacit: {tmp_path / 'client-9.jsonl'}: no such journal\n")
    assert JournalFile(journal).read() == [GroupEntry(group=b"group")]
    other = tmp_path / "events.jsonl"
    other.write_text('{"event": "joined"}\n')
    result = tacit("groups", "confirm", other)
    assert result.exit_code == 2
    assert "cannot be read" in result.stderr
    assert other.read_text() == '{"event": "joined"}\n'


def test_the_journal_of_a_client_that_runs_is_not_touched(tacit: Invoke, tmp_path: Path) -> None:
    journal = JournalFile(tmp_path / "client-1.jsonl")
    journal.write(GroupEntry(group=b"group"))
    journal.open("client-1")
    try:
        result = tacit("groups", "confirm", tmp_path / "client-1.jsonl")
    finally:
        journal.close()
    assert result.exit_code == 2
    assert "'client-1' is running already" in result.stderr
    assert journal.read() == [GroupEntry(group=b"group")]
