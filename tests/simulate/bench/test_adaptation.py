"""`tacit bench adapt`: passes and steps of learning between processes, beside plaintext."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
import pytest

from docs.generate import adaptation_costs
from tacit.parties.adaptation.public import learning_terms
from tacit.protocol.adaptation.schedule import adaptation_rounds
from tacit.protocol.inference.schedule import LOGITS, Round
from tacit.simulate.bench import adaptation
from tacit.simulate.bench.adaptation import ARMS, AdaptationBenchmark
from tacit.simulate.bench.results import AdaptationBenchmarkResult
from tests.cli.command import invoke
from tests.cli.outputs import check_output

SMALL = AdaptationBenchmark(model="test_vit", blocks=2, image_size=32, batch=2, repeats=1)
OWNERS = ("model-owner", "data-owner")


def declared(name: str) -> tuple[Round, ...]:
    """The rounds of a step of SMALL, as both machines expect them."""
    task = adaptation._task(SMALL, ARMS[name])
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


@pytest.mark.end_to_end
def test_passes_and_steps_are_measured(tmp_path: Path) -> None:
    file = tmp_path / "steps.json"
    options = ["--model", "test_vit", "--blocks", "2", "--image-size", "32", "--batch", "2", "--repeats", "1"]
    done = invoke("bench", "adapt", *options, "--json", str(file))
    assert done.exit_code == 0, done.output
    check_output(file, "bench-adapt")
    found = msgspec.json.decode(file.read_bytes(), type=AdaptationBenchmarkResult)
    assert found.cores == min(2, len(os.sched_getaffinity(0)))
    assert (found.blocks, found.width) == (2, 64)
    assert found.arms.keys() == ARMS.keys()
    for name, arm in found.arms.items():
        rounds = declared(name)
        assert arm.rounds == len(rounds)
        assert arm.model_owner_bytes == sum(each.model_owner_bytes for each in rounds)
        assert arm.data_owner_bytes == sum(each.data_owner_bytes for each in rounds)
        assert {part: one.rounds for part, one in arm.per_operation.items()} == {
            part: [each.operation for each in rounds].count(part) for part in {each.operation for each in rounds}
        }
        assert sum(msgspec.structs.astuple(arm.seconds)) == pytest.approx(arm.online_seconds)
        assert min(arm.seconds.adapters, arm.seconds.head, arm.seconds.backward, arm.sustained_seconds) > 0
        # A pass is of all blocks, whatever is learned: its rounds and bytes are the same.
        image = arm.image
        assert msgspec.structs.replace(image, online_seconds=0.0, sustained_seconds=0.0) == msgspec.structs.replace(
            found.arms["parallel"].image, online_seconds=0.0, sustained_seconds=0.0
        )
        assert image.sustained_seconds > 0
        assert image.dealer_bytes.keys() == arm.dealer_bytes.keys() == set(OWNERS)
        assert arm.peak_bytes.keys() == {*OWNERS, "dealer"}
        # A process that computes has loaded torch, and no laptop has more.
        assert all(1e8 < peak < 1e11 for peak in arm.peak_bytes.values())
        assert min(arm.plaintext.step_seconds, arm.plaintext.image_seconds) > 0
    probe, parallel = (found.arms[name] for name in ARMS)
    assert probe.data_owner_bytes < parallel.data_owner_bytes
    page = "\n".join(adaptation_costs.section(found))
    assert f"| a step: online | {probe.online_seconds:.3f} | {parallel.online_seconds:.3f} |" in page


def test_nothing_at_all_cannot_be_measured() -> None:
    for option in ("--blocks", "--batch", "--repeats"):
        done = invoke("bench", "adapt", option, "0")
        assert done.exit_code == 2
        assert option in done.output
