"""The tables of an audit, on the page and on a screen."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from tacit.simulate.audit.page import Pictures, write_page
from tacit.simulate.audit.results import NOT_ATTACKED, AuditResult, ModelAttackResult, ModelMetrics

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


def test_the_page_has_all_tables(result: AuditResult, tmp_path: Path) -> None:
    path = tmp_path / "audit.html"
    write_page(result, [Pictures(true=[], reconstructed=[])] * len(result.image_attacks), path)
    page = path.read_text()
    assert page.count("<table>") == 4
    assert "Your configuration: images reconstructed by server+client-2+client-3" in page
    assert page.count("color-mix") > 20
