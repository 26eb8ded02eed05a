"""`tacit bench adapt`: batches of learning between processes, beside plaintext."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
import pytest

from docs.generate import adaptation_costs
from tacit.models.adapters.configuration import Reveal
from tacit.parties.adaptation.public import learning_terms
from tacit.protocol.adaptation.schedule import adaptation_rounds
from tacit.protocol.inference.schedule import LOGITS, Round
from tacit.simulate.bench import adaptation
from tacit.simulate.bench.adaptation import AdaptationBenchmark
from tacit.simulate.bench.results import AdaptationBenchmarkResult
from tacit.simulate.insecure.revealed_outputs import revealed_rounds
from tests.cli.command import invoke
from tests.cli.outputs import check_output

SMALL = AdaptationBenchmark(blocks=2, batch=2, repeats=1)
OWNERS = ("model-owner", "data-owner")


def declared(reveal: Reveal) -> tuple[Round, ...]:
    """The rounds of a batch of SMALL, as both machines expect them."""
    task = adaptation._task(SMALL)
    if reveal == "all":
        return revealed_rounds(task.learning.public.sizes, SMALL.batch, (True,) * SMALL.blocks)
    terms = learning_terms(
        task.model,
        task.learning,
        purpose="learning",
        results=LOGITS,
        most_images=4,
        rounds=1,
        smallest_cohort=3,
    )
    return adaptation_rounds(terms, SMALL.batch)


@pytest.mark.exhaustive
@pytest.mark.end_to_end
def test_batches_are_measured(tmp_path: Path) -> None:
    file = tmp_path / "batches.json"
    options = ["--blocks", "2", "--batch", "2", "--repeats", "1"]
    done = invoke("bench", "adapt", *options, "--json", str(file))
    assert done.exit_code == 0, done.output
    check_output(file, "bench-adapt")
    found = msgspec.json.decode(file.read_bytes(), type=AdaptationBenchmarkResult)
    assert found.cores == min(2, len(os.sched_getaffinity(0)))
    assert tuple(found.arms) == adaptation.ARMS
    for reveal in adaptation.ARMS:
        arm, rounds = found.arms[reveal], declared(reveal)
        assert arm.rounds == len(rounds)
        assert arm.model_owner_bytes == sum(each.model_owner_bytes for each in rounds)
        assert arm.data_owner_bytes == sum(each.data_owner_bytes for each in rounds)
        assert {name: part.rounds for name, part in arm.per_operation.items()} == {
            name: [each.operation for each in rounds].count(name) for name in {each.operation for each in rounds}
        }
        parts = arm.seconds
        assert parts.forward + parts.backward + parts.in_the_clear == pytest.approx(arm.online_seconds)
        assert min(arm.preprocessing_wait_seconds, arm.sustained_seconds) > 0
        assert set(arm.dealer_bytes) == set(OWNERS)
        assert set(arm.peak_bytes) == {*OWNERS, "dealer"}
        # A process that computes has loaded torch, and no laptop has more.
        assert all(1e8 < peak < 1e11 for peak in arm.peak_bytes.values())
        for one, two in (arm.by_blocks, arm.by_batch):
            assert (one.size, two.size) == (1, 2)
            assert two.seconds == arm.online_seconds
            assert one.marginal_seconds is None
            assert two.marginal_seconds == pytest.approx(two.seconds - one.seconds)
    none, revealed = (found.arms[reveal] for reveal in adaptation.ARMS)
    assert min(none.seconds.adapters, none.seconds.head, none.seconds.backward) > 0
    assert none.backward_over_forward == pytest.approx(none.seconds.backward / none.seconds.forward)
    # Where outputs are revealed the step is in the clear: there is no backward pass on shares.
    assert revealed.backward_over_forward is None
    assert (revealed.seconds.adapters, revealed.seconds.head, revealed.seconds.backward) == (0, 0, 0)
    assert sum(revealed.dealer_bytes.values()) < sum(none.dealer_bytes.values())
    assert 0 < found.plaintext.step_seconds < found.plaintext.with_backbone_seconds
    page = adaptation_costs.section(found)
    assert f"| online | {none.online_seconds:.3f} | {revealed.online_seconds:.3f} |" in page


def test_nothing_at_all_cannot_be_measured() -> None:
    for option in ("--blocks", "--batch", "--repeats"):
        done = invoke("bench", "adapt", option, "0")
        assert done.exit_code == 2
        assert option in done.output
