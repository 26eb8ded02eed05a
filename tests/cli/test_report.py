"""`tacit report`: one page for a run, one line for anything else."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
import typer
from click.testing import Result
from typer.testing import CliRunner

from tacit.cli.commands.report import report
from tacit.parties.runs.adaptation import AdaptationExperiment
from tacit.parties.runs.directory import RunDirectory
from tacit.parties.runs.experiment import Experiment
from tacit.parties.runs.reference import experiment_toml
from tacit.parties.session.events import LinkOpened
from tacit.simulate.adaptation.plan import Folder
from tacit.simulate.adaptation.results import AdaptersMetrics
from tacit.simulate.adaptation.summary import Known, keep
from tests.simulate.conftest import BEGAN, at, configured

pytestmark = pytest.mark.usefixtures("undrawn")

app = typer.Typer()
app.command()(report)


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    made = RunDirectory.create(tmp_path / "run")
    made.experiment.write_text(experiment_toml(Experiment()))
    return made


def invoke(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def test_it_writes_the_page_and_says_where(run: RunDirectory) -> None:
    done = invoke(run.path)
    assert (done.exit_code, done.stdout.strip()) == (0, str(run.path / "report.html"))
    assert (run.path / "report.html").read_text().startswith("<!doctype html>")


def test_it_writes_to_another_file(run: RunDirectory, tmp_path: Path) -> None:
    assert invoke(run.path, "--out", tmp_path / "page.html").exit_code == 0
    assert (tmp_path / "page.html").is_file()
    assert not (run.path / "report.html").exists()


def refused(*arguments: object) -> str:
    done = invoke(*arguments)
    assert (done.exit_code, done.stdout) == (2, "")
    (line,) = done.stderr.splitlines()
    return line


def test_a_directory_that_is_no_run_is_refused(tmp_path: Path) -> None:
    assert refused(tmp_path / "none") == f"tacit: {tmp_path}/none is no run directory: experiment.toml is missing"


def test_a_broken_experiment_is_refused(run: RunDirectory) -> None:
    run.experiment.write_text("nonsense")
    assert refused(run.path).startswith(f"tacit: {run.experiment}: is not TOML")


def test_a_broken_log_is_read_as_far_as_it_goes_and_that_is_said(run: RunDirectory) -> None:
    run.events("server").write_text("nonsense\n")
    done = invoke(run.path)
    assert (done.exit_code, done.stdout.strip()) == (0, str(run.path / "report.html"))
    said = f"{run.events('server')} is read up to line 0: line 1 is not of this run ("
    assert done.stderr.startswith(f"tacit: {said}")
    assert "<li>server.jsonl is read up to line 0: line 1 is not of this run" in (run.path / "report.html").read_text()


def test_a_file_that_cannot_be_written_is_refused(run: RunDirectory, tmp_path: Path) -> None:
    out = tmp_path / "missing" / "page.html"
    assert refused(run.path, "--out", out) == f"tacit: {out}: No such file or directory; choose another file with --out"


def test_logs_of_other_hosts_are_merged(run: RunDirectory, tmp_path: Path) -> None:
    log = tmp_path / "client-1.jsonl"
    log.write_bytes(msgspec.json.encode(at(BEGAN, "client-1", LinkOpened(peer="server"))) + b"\n")
    run.events("server").write_bytes(msgspec.json.encode(at(BEGAN, "server", configured())) + b"\n")
    assert invoke(run.path, log).exit_code == 0
    assert "<th>client-1</th><td" in (run.path / "report.html").read_text()
    assert refused(run.path, tmp_path / "none").startswith(f"tacit: {tmp_path}/none: no event logs are there; name a")


def test_a_page_of_an_adaptation(tmp_path: Path) -> None:
    run = RunDirectory.create(tmp_path / "run")
    run.experiment.write_text(experiment_toml(AdaptationExperiment()))
    said = f"{run.path}: the first round has not begun: there is nothing to report yet; wait for it"
    assert refused(run.path) == f"tacit: {said}"
    first = AdaptersMetrics(accuracy=0.25, balanced_accuracy=0.125, loss=1.5)
    keep(Folder(run.path), Known(began=1.0, classes=("a", "b"), parameters=9, judged={0: first}))
    assert refused(run.path, tmp_path) == "tacit: an adaptation has all its logs in its folder: name no others"
    done = invoke(run.path)
    assert (done.exit_code, done.stdout.strip()) == (0, str(run.path / "report.html"))
    assert "before learning 0.125" in (run.path / "report.html").read_text()
    assert refused(run.path, "--out", tmp_path / "missing" / "page.html").endswith("choose another file with --out")
