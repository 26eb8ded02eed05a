"""Groups on the command line: a run with them, and what the owner of a client accepts."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result

from tacit.parties.session.journal import JournalFile
from tacit.protocol.session.rounds import GroupEntry

Invoke = Callable[..., Result]
WriteExperiment = Callable[..., Path]


@pytest.mark.end_to_end
def test_a_client_that_dies_takes_its_group_out_and_a_resumed_run_goes_on(
    tacit: Invoke, tmp_path: Path, write_experiment: WriteExperiment
) -> None:
    """client-4 dies with its vector on its way: client-3 is left out, and both are missing from the second round."""
    more = "[aggregation]\ncorrupt = 0.05\ndropout = 0.34\n[policy]\nleast_corrupt = 0.05"
    file = write_experiment(tmp_path / "small.toml", clients=6, rounds=2, more=more)
    file.write_text(file.read_text().replace("clients = 6", "clients = 6\ngroup_size = 2"))
    run = tmp_path / "run"
    result = tacit("simulate", file, "--drop", "client-4@MASKED_INPUT", "--verify", "--out", run)
    assert (result.exit_code, result.stderr) == (0, "")
    assert "threshold 5 of 6, active mode, groups of 2: who is lost takes its group out of that sum" in result.stdout
    assert "left out with their groups: client-3" in result.stdout
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
