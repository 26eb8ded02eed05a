"""Where a run says that it comes from; and that what must stay unknown is drawn from no seed that a file records."""

from __future__ import annotations

import re
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

from tacit.parties.runs.directory import RunDirectory, Seed, command_line
from tacit.parties.runs.events import InvocationRecorded
from tacit.parties.runs.experiment import parse
from tacit.parties.runs.summary import summarise
from tacit.parties.session.event_log import EventFile
from tacit.parties.session.events import ListeningStarted
from tacit.simulate.federation.roles import Plan

HIDING = {
    "noise": '[protection]\nscheme = "dp-gaussian"\n',
    "binary weights": '[protection]\nscheme = "locked-binary-weights"\n[policy]\nuncoordinated_weights = true\n',
    "encryption": "[encryption]\n",
}


def plan(tmp_path: Path, toml: str) -> Plan:
    return Plan(parse(toml, "test"), RunDirectory(tmp_path), 1, 0, 41)


def test_it_names_command_versions_and_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["/somewhere/bin/tacit", "simulate", "my file.toml"])
    found = InvocationRecorded.now(command_line(), started=1.0, device="cpu")
    assert found.command == "tacit simulate 'my file.toml'"
    assert found.versions["tacit"] == version("tacit")
    assert found.versions["torch"] == version("torch")
    assert "pytest" not in found.versions
    assert found.machine.cores >= 1
    assert found.machine.memory_bytes > 2**20
    assert found.seed is None


def test_an_unseeded_run_seeds_itself_with_what_it_records(tmp_path: Path) -> None:
    drawn = plan(tmp_path, "")
    assert drawn.seed == 41
    assert drawn.recorded_seed == Seed(value=41, drawn=True, repeats="everything")
    chosen = plan(tmp_path, "[federation]\nseed = 41\n")
    assert chosen.seed == drawn.seed
    assert chosen.recorded_seed == Seed(value=41, drawn=False, repeats="everything")


@pytest.mark.parametrize("toml", HIDING.values(), ids=HIDING.keys())
def test_what_must_stay_unknown_is_drawn_from_no_recorded_seed(tmp_path: Path, toml: str) -> None:
    drawn = plan(tmp_path, toml)
    assert drawn.seed is None
    assert drawn.recorded_seed == Seed(value=41, drawn=True, repeats="split and initial weights")
    assert plan(tmp_path, f"[federation]\nseed = 41\n{toml}").seed == 41


def test_keys_are_never_said_to_be_repeated(tmp_path: Path) -> None:
    assert plan(tmp_path, f"[federation]\nseed = 41\n{HIDING['encryption']}").recorded_seed.repeats == (
        "everything but keys"
    )


def test_every_session_stands_in_the_summary(tmp_path: Path) -> None:
    run = RunDirectory.create(tmp_path / "run")
    with EventFile(run.events("server"), "server") as log:
        log.write(ListeningStarted(address="tcp://127.0.0.1:1"))
        for command in ("tacit simulate", "tacit simulate --resume run"):
            seed = Seed(value=41, drawn=True, repeats="everything")
            log.write(InvocationRecorded.now(command, started=1.0, device="cpu", seed=seed))
    summary = summarise(run, parse("", "test"), ended="")
    assert [session.command for session in summary.sessions] == ["tacit simulate", "tacit simulate --resume run"]
    for session in summary.sessions:
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", session.began)
    assert summary.seed == Seed(value=41, drawn=True, repeats="everything")
