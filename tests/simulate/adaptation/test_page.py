"""report.html of an adaptation: what it says, and that it needs nothing else."""

from __future__ import annotations

import re
from html import unescape
from pathlib import Path

import pytest

from tacit.parties.adaptation.events import LearningSessionLost
from tacit.parties.runs.directory import RunDirectoryError
from tacit.parties.runs.reference import experiment_toml
from tacit.parties.runs.reveals import GIVES_AWAY, PROTECTS
from tacit.simulate.adaptation.page import make_report, report_of
from tacit.simulate.adaptation.results import AdaptationSummary
from tacit.simulate.adaptation.summary import keep

with pytest.MonkeyPatch.context() as patch:
    patch.syspath_prepend(Path(__file__).parent)
    from scripted import JUDGED, OWNERS, Script

pytestmark = pytest.mark.usefixtures("undrawn")


def page(script: Script, *, learned: bool = True) -> str:
    summary = script.summary() if learned else script.summary({0: JUDGED[0]})
    return make_report(script.folder, script.experiment, summary)


def text_of(html: str) -> str:
    return " ".join(unescape(re.sub(r"<style.*?</style>|<[^>]*>", " ", html, flags=re.DOTALL)).split())


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


def test_a_run_that_went_well(finished: tuple[Script, AdaptationSummary, str]) -> None:
    text = text_of(finished[2])
    assert "All 2 rounds were learned, no batch was refused, and nobody was lost." in text
    assert f"Final balanced accuracy {JUDGED[2].balanced_accuracy:.3f}" in text
    assert PROTECTS["none"][1:] in text
    assert GIVES_AWAY not in text
    for name in ("Private passes", "Secure sums", "Who together sees more", "tacit adapt --seed 5"):
        assert name in text
    assert "data-owner-4" in text
    # Between both owners 8 batches of 5,000 bytes, 8 passes of 500 and 4 sessions' weights; from the dealer 5,700 bytes
    # for each batch and 570 for each pass.
    assert "Payload moved 98.2 kB" in text
    assert "50.2 kB of correlated randomness" in text
    assert "it, 5 kB to the data owner and 700 bytes to the model owner." in text


def test_it_needs_nothing_else(finished: tuple[Script, AdaptationSummary, str]) -> None:
    html = finished[2]
    assert "default-src 'none'" in html
    assert "<script" not in html
    links = re.findall(r'(?:href|src)="([^"]*)"', html)
    assert links
    assert all(link.startswith("#") for link in links)
    identifiers = re.findall(r'\bid="([^"]*)"', html)
    assert len(identifiers) == len(set(identifiers))
    assert {link[1:] for link in links} <= set(identifiers)


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
    assert "No round was completed." in text_of(report_of(script.folder).read_text(encoding="utf-8"))
    script.round(1)
    keep(script.folder, script.known({number: JUDGED[number] for number in (0, 1)}))
    with script.folder.run.events(OWNERS[0]).open("a") as log:
        log.write('{"time": ')
    text = text_of(report_of(script.folder).read_text(encoding="utf-8"))
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
    assert text_of(notices) == f'reveal = "{reveal}": {GIVES_AWAY}.'
    assert "model is protected from those that follow" not in text_of(html)


def test_what_went_wrong_is_said_first(tmp_path: Path) -> None:
    script = Script(tmp_path / "run")
    script.round(1, dropped=OWNERS[1])
    script.log(OWNERS[2], LearningSessionLost(code="LEFT", detail="the model owner's link was lost"))
    script.round(2, lost="data-owner-3 did not say who survived")
    text = text_of(page(script, learned=False))
    assert "0 of 2 rounds were completed" not in text
    assert "1 of 2 rounds were completed. The sums ended: all rounds are done." in text
    assert "Round 2 was summed, but data owners did not receive the sum: data-owner-3 did not say who survived." in text
    assert "it vanished" in text
    assert "Round 2 lost" in text
    assert "the session with the model owner is lost: the model owner's link was lost" in text
    assert "nobody was lost" not in text


def test_refused_batches_are_said_with_the_last_round(tmp_path: Path) -> None:
    script = Script(tmp_path / "run")
    script.round(1)
    script.round(2, refused=2)
    assert "2 of 8 batches were out of range, and taught nothing." in text_of(page(script))


def test_nothing_at_all_was_learned(tmp_path: Path) -> None:
    text = text_of(page(Script(tmp_path / "run"), learned=False))
    assert "No round was completed." in text
    assert "No batch was gone through." in text


def test_what_parties_wrote_is_escaped(tmp_path: Path) -> None:
    script = Script(tmp_path / "run")
    script.round(1, aborted="<img src=x onerror=alert(1)>")
    html = page(script, learned=False)
    assert "<img" not in html
    assert "&lt;img" in html
