"""`tacit compare`: several runs on one page and in one file, made from logs written by hand."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tacit.parties.runs.directory import RunDirectory
from tacit.parties.runs.experiment import parse
from tacit.parties.runs.reference import experiment_toml
from tacit.parties.session.event_log import EventFile
from tacit.parties.session.events import Dropout, SessionEnded, TrafficCounted, UpdateComputed
from tacit.protocol.session.events import RoundStarted
from tacit.protocol.sum.events import ClientDropped
from tacit.protocol.sum.states import Phase
from tests.cli.command import Invoke
from tests.cli.outputs import check_output
from tests.simulate.conftest import configured, ended

pytestmark = pytest.mark.usefixtures("undrawn")


def held(path: Path, toml: str, *accuracies: float, lost: str = "") -> Path:
    run = RunDirectory.create(path)
    run.experiment.write_text(experiment_toml(parse(toml, "test")))
    cohort = ["client-1", "client-2"]
    drop = Dropout(party=lost, phase=Phase.TRAIN, code="LEFT", detail="gone", included_in_sum=False)
    with EventFile(run.events("server"), "server") as log:
        log.write(configured(2))
        for number, accuracy in enumerate(accuracies, start=1):
            log.write(RoundStarted(round=number, cohort=cohort))
            log.write(TrafficCounted(round=number, phase=Phase.TRAIN, sent=1000, received=500))
            dropped = [drop] if lost and number == 1 else []
            for gone in dropped:
                log.write(ClientDropped(member=gone.party, phase=gone.phase, code=gone.code, detail=gone.detail))
            figures = {"accuracy": accuracy, "balanced_accuracy": accuracy / 4, "loss": 1.0, "train_accuracy": 0.5}
            log.write(ended(number, cohort, dropped=dropped, samples=5, train_loss=1.0, clipped=0, **figures))
        log.write(SessionEnded(code=None, detail="all rounds are done"))
    with EventFile(run.events("client-1"), "client-1") as log:
        log.write(UpdateComputed(round=1, kept=0, layers=[], training_seconds=1.5, choosing_seconds=0.0, uncounted=0))
    return path


def test_runs_are_compared_and_what_differs_is_named(tacit: Invoke, tmp_path: Path) -> None:
    plain = held(tmp_path / "plain", 'name = "a"', 0.5, 0.75)
    other = held(tmp_path / "wide <b>", 'name = "a"\n[model]\nwidth = 32\n', 0.25, lost="client-2")
    page, figures = tmp_path / "page.html", tmp_path / "figures.json"
    result = tacit("compare", plain, other, "--out", page, "--json", figures)
    assert (result.exit_code, result.stderr) == (0, "")
    assert "model.width" in result.stdout
    assert result.stdout.splitlines()[-1] == str(page)
    found = check_output(figures, "comparison")
    assert found["differences"] == [{"key": "model.width", "values": [128, 32]}]
    first, second = found["runs"]
    assert (first["run"], second["run"]) == ("plain", "wide <b>")
    assert [(at["round"], at["accuracy"]) for at in first["curve"]] == [(1, 0.5), (2, 0.75)]
    assert (first["final_accuracy"], first["payload_bytes"], first["lost_clients"]) == (0.75, 3000, 0)
    assert (first["final_balanced_accuracy"], first["curve"][0]["balanced_accuracy"]) == (0.1875, 0.125)
    assert "0.188" in result.stdout
    assert (second["completed"], second["lost_clients"], second["client_training_seconds"]) == (1, 1, 1.5)
    html = page.read_text()
    assert '<td class="n" data-label="Balanced accuracy">' in html
    assert html.startswith("<!doctype html>")
    assert html.count("<svg") == 2
    assert "<script" not in html
    assert "<b>" not in html
    assert re.search(r"<th>model\.width</th><td [^>]*>128</td><td [^>]*>32</td>", html)


def test_values_are_written_as_in_the_experiment_file_and_runs_without_figures_have_no_line(
    tacit: Invoke, tmp_path: Path
) -> None:
    runs = [held(tmp_path / "a", '[data]\nclasses = ["x"]', 0.5), held(tmp_path / "b", "")]
    page = tmp_path / "page.html"
    result = tacit("compare", *runs, "--out", page)
    assert '["x"]' in result.stdout
    figures = re.findall(r"<svg.*?</svg>", page.read_text(), re.DOTALL)
    assert [re.findall(r">([ab])<", figure) for figure in figures] == [["a"], ["a"]]


def test_seeds_of_one_experiment_are_one_line_with_mean_and_spread(tacit: Invoke, tmp_path: Path) -> None:
    wide = "[model]\nwidth = 32\n"
    runs = [
        held(tmp_path / arm / f"seed-{seed}", f"{toml}[federation]\nseed = {seed}\n", 0.2, final)
        for arm, toml, finals in (("narrow", "", (0.5, 0.7)), ("wide", wide, (0.25, 0.25)))
        for seed, final in enumerate(finals)
    ]
    page, figures, folder = tmp_path / "page.html", tmp_path / "figures.json", tmp_path / "figures"
    result = tacit("compare", *runs, "--out", page, "--json", figures, "--export", folder)
    assert result.exit_code == 0, result.output
    found = check_output(figures, "comparison")
    assert [(group["name"], len(group["runs"])) for group in found["groups"]] == [("narrow", 2), ("wide", 2)]
    narrow = found["groups"][0]["final_accuracy"]
    assert (round(narrow["mean"], 6), round(narrow["deviation"], 6)) == (0.6, round(0.02**0.5, 6))
    assert "0.600 ± 0.141" in result.stdout
    assert [one["key"] for one in found["differences"]] == ["model.width"]
    assert "0.600 ± 0.141" in page.read_text()
    names = {
        "rounds.csv",
        "results.csv",
        *(f"{metric}{kind}" for metric in ("accuracy", "loss") for kind in (".svg", ".png")),
    }
    assert {path.name for path in folder.iterdir()} == names
    rows = (folder / "rounds.csv").read_text().splitlines()
    assert rows[0] == "group,run,seed,round,accuracy,balanced_accuracy,loss"
    assert rows[1].startswith("narrow,")
    assert len(rows) == 1 + 8
    assert (folder / "accuracy.png").read_bytes().startswith(b"\x89PNG")
    assert "<svg" in (folder / "accuracy.svg").read_text()


@pytest.mark.parametrize(
    ("names", "reason"),
    [
        (["run"], "one run is no comparison: name two or more run directories"),
        (["run", "nowhere"], "nowhere is no run directory: experiment.toml is missing"),
        (["run", "run"], "run is named twice; name every run once"),
    ],
)
def test_what_cannot_be_compared_is_refused(
    tacit: Invoke, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, names: list[str], reason: str
) -> None:
    monkeypatch.chdir(tmp_path)
    held(tmp_path / "run", "", 0.5)
    result = tacit("compare", *names)
    assert (result.exit_code, result.stderr) == (2, f"tacit: {reason}\n")
    assert not (tmp_path / "comparison.html").exists()
