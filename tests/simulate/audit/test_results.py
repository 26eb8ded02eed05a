"""The tables of an audit, on the page and on a screen."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from tacit.parties.runs.results import Table
from tacit.simulate.audit.page import Pictures, write_page
from tacit.simulate.audit.results import NOT_ATTACKED, NOTHING_OBSERVED, AuditResult, ModelAttackResult, ModelMetrics

SECURITY = Path(__file__).parents[3] / "docs" / "security.json"


@pytest.fixture(scope="module")
def result() -> AuditResult:
    """The recorded audit of the bundled protections, one of which is taken for a given one, and attacks on a model."""
    recorded = msgspec.json.decode(SECURITY.read_bytes(), type=AuditResult)
    metrics = ModelMetrics(
        images=180,
        agreement=0.9,
        baseline_agreement=0.5,
        advantage_interval=(0.3, 0.47),
        accuracy=0.9,
        baseline_accuracy=0.97,
        copy_errors=(0.25, 0.125),
        matching_accuracy=1.0,
        reconstructed=True,
    )
    copied = ModelAttackResult(
        attack="copied-blocks",
        arm="reveal-all",
        configuration='reveal = "all"',
        adversary="data-owner-1",
        observation="outputs",
        received_outputs=288,
        verdict=metrics.verdict,
        reason="",
        seconds=1.0,
        metrics=metrics,
    )
    nothing = msgspec.structs.replace(copied, verdict=NOT_ATTACKED, reason="nothing to copy", metrics=None)
    return msgspec.structs.replace(recorded, configured="secure-sum-3", model_attacks=(copied, nothing))


def test_the_best_of_each_adversary_is_one_row_and_a_headline_ends_the_screen(result: AuditResult) -> None:
    summary, *others = result.view()
    assert isinstance(summary, Table)
    assert len(summary.rows) == len(result.places()) < 60
    assert "the closed form reconstructs images up to batch 1, local steps 5, cohort 1" in others
    own = [line for line in others if isinstance(line, str) and line.startswith("your configuration: ")]
    assert own == [
        "your configuration: images re-identified, not reconstructed, by server (closed-form); labels reconstructed",
        "your configuration: images re-identified, not reconstructed, by server+client-3 (closed-form); "
        "labels reconstructed",
        "your configuration: images reconstructed by server+client-2+client-3 (closed-form); labels reconstructed",
        "your configuration: images re-identified, not reconstructed, by client-3 (closed-form); labels reconstructed",
    ]
    without_groups, with_groups = (line for line in others[-2:] if isinstance(line, str))
    assert "no groups, a server that leaves out" in without_groups
    assert "images reconstructed by server (subtraction)" in without_groups
    assert "not reconstructed, by server (subtraction)" in with_groups


def test_model_attacks_show_the_largest_error_and_a_reason(result: AuditResult) -> None:
    copied, nothing = result.model_table().cells()
    assert copied[4:10] == ["reconstructed", "100.0%", "0.250", "90.0%", "50.0%", "+30.0 to +47.0"]
    assert nothing[4:] == ["not attacked: nothing to copy", *[""] * 7]


def test_the_page_has_all_tables(result: AuditResult, tmp_path: Path) -> None:
    path = tmp_path / "audit.html"
    write_page(result, [Pictures(true=[], reconstructed=[])] * len(result.image_attacks), path)
    page = path.read_text()
    assert page.count("<table>") == 4
    assert "Your configuration: images reconstructed by server+client-2+client-3" in page
    assert page.count("color-mix") > 20


def test_configurations_without_observations_are_named_once(result: AuditResult) -> None:
    assert result.not_observed == []
    rows = [msgspec.structs.replace(row, observation=NOTHING_OBSERVED) for row in result.image_attacks[:2]]
    assert msgspec.structs.replace(result, image_attacks=tuple(rows)).not_observed == ["nothing is protected"]
