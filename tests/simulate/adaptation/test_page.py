"""report.html of an adaptation: what it says, and that it needs nothing else."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tacit.parties.runs.directory import RunDirectoryError
from tacit.parties.runs.reference import experiment_toml
from tacit.parties.runs.reveals import GIVES_AWAY
from tacit.simulate.adaptation.page import make_report, report_of
from tacit.simulate.adaptation.results import AdaptationSummary
from tacit.simulate.adaptation.summary import keep
from tests.simulate.pages import Page

with pytest.MonkeyPatch.context() as patch:
    patch.syspath_prepend(Path(__file__).parent)
    from scripted import JUDGED, OWNERS, Script

pytestmark = pytest.mark.usefixtures("undrawn")


def page(script: Script, *, learned: bool = True) -> str:
    summary = script.summary() if learned else script.summary({0: JUDGED[0]})
    return make_report(script.folder, script.experiment, summary)


def well(path: Path) -> Script:
    script = Script(path)
    script.round(1)
    script.round(2)
    return script


@pytest.fixture
def finished(tmp_path: Path, undrawn: None) -> tuple[Script, AdaptationSummary, str]:
    """A run that went well, as it is kept, its summary, and its page."""
    script = well(tmp_path / "finished")
    script.folder.run.keep_experiment(experiment_toml(script.experiment))
    summary = script.summary()
    summary.write(script.folder.run.summary)
    return script, summary, make_report(script.folder, script.experiment, summary)


def test_of_a_finished_run_it_is_made_again_as_it_was(
    finished: tuple[Script, AdaptationSummary, str], tmp_path: Path
) -> None:
    script, summary, _ = finished
    path = report_of(script.folder, out=tmp_path / "again.html")
    assert path == tmp_path / "again.html"
    assert path.read_text(encoding="utf-8") == make_report(script.folder, script.experiment, summary)


def test_of_a_run_that_goes_on_it_shows_what_is_known_so_far(tmp_path: Path) -> None:
    """Also of one that was killed, while a line of a log was written."""
    script = Script(tmp_path / "run")
    script.folder.run.keep_experiment(experiment_toml(script.experiment))
    with pytest.raises(RunDirectoryError, match="run: the first round has not begun"):
        report_of(script.folder)
    keep(script.folder, script.known({0: JUDGED[0]}))
    assert "No round was completed." in Page(report_of(script.folder).read_text(encoding="utf-8")).text
    script.round(1)
    keep(script.folder, script.known({number: JUDGED[number] for number in (0, 1)}))
    with script.folder.run.events(OWNERS[0]).open("a") as log:
        log.write('{"time": ')
    text = Page(report_of(script.folder).read_text(encoding="utf-8")).text
    assert "1 of 2 rounds were completed. The sums ended: not yet, or the run was killed." in text
    assert f"Final balanced accuracy {JUDGED[1].balanced_accuracy:.3f}" in text
    assert "All 2 rounds were learned" not in text


def test_what_is_known_of_a_run_and_cannot_be_read_is_refused(tmp_path: Path) -> None:
    script = well(tmp_path / "run")
    script.folder.run.keep_experiment(experiment_toml(script.experiment))
    script.folder.judged.write_text("{}")
    with pytest.raises(RunDirectoryError, match=r"judged.json cannot be read \(.*\): restore it"):
        report_of(script.folder)
    script.folder.run.summary.write_text("{}")
    with pytest.raises(RunDirectoryError, match=r"summary.json cannot be read \(.*\): restore it, or remove it"):
        report_of(script.folder)


@pytest.mark.parametrize("reveal", ["sampled", "all"])
def test_that_the_model_is_given_away_is_said_first(tmp_path: Path, reveal: str) -> None:
    script = Script(tmp_path / "run", reveal=reveal)  # type: ignore[arg-type]
    script.round(1)
    script.round(2)
    html = page(script)
    (notices,) = re.findall(r'<ul class="notices">(.*?)</ul>', html, flags=re.DOTALL)
    assert Page(notices).text == f'reveal = "{reveal}": {GIVES_AWAY}.'
    assert "model is protected from those that follow" not in Page(html).text


def test_what_parties_wrote_is_escaped(tmp_path: Path) -> None:
    script = Script(tmp_path / "run")
    script.round(1, aborted="<img src=x onerror=alert(1)>")
    html = page(script, learned=False)
    assert "<img" not in html
    assert "&lt;img" in html
