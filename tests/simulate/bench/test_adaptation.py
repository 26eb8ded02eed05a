"""`tacit bench adapt`: batches of learning between processes, beside plaintext."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from docs.generate import adaptation_costs
from tacit.models.adapters.configuration import Reveal
from tacit.parties.adaptation.public import learning_terms
from tacit.protocol.adaptation.schedule import adaptation_rounds
from tacit.protocol.inference.schedule import LOGITS, Round
from tacit.simulate.bench import adaptation
from tacit.simulate.bench.adaptation import AdaptationBenchmark
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
    file = tmp_path / "figures.json"
    options = ["--blocks", "2", "--batch", "2", "--repeats", "1"]
    done = invoke("bench", "adapt", *options, "--json", str(file))
    assert done.exit_code == 0, done.output
    figures = check_output(file, "bench-adapt")
    assert figures["cores"] == min(2, len(os.sched_getaffinity(0)))
    assert list(figures["arms"]) == list(adaptation.ARMS)
    for reveal, arm in figures["arms"].items():
        rounds = declared(reveal)
        assert arm["rounds"] == len(rounds)
        sent = [sum(each.model_owner_bytes for each in rounds), sum(each.data_owner_bytes for each in rounds)]
        assert [arm["online_bytes_sent"][owner] for owner in OWNERS] == sent
        assert {name: part["rounds"] for name, part in arm["per_operation"].items()} == {
            name: [each.operation for each in rounds].count(name) for name in {each.operation for each in rounds}
        }
        assert sum(arm["seconds"].values()) == pytest.approx(arm["online_seconds"])
        assert all(seconds > 0 for seconds in (arm["waited_seconds"], arm["sustained_seconds"]))
        assert set(arm["dealer_bytes"]) == set(OWNERS)
        assert set(arm["peak_bytes"]) == {*OWNERS, "dealer"}
        # A process that computes has loaded torch, and no laptop has more.
        assert all(1e8 < peak < 1e11 for peak in arm["peak_bytes"].values())
        for key in ("by_blocks", "by_batch"):
            assert list(arm[key]["seconds"]) == ["1", "2"]
            assert arm[key]["seconds"]["2"] == arm["online_seconds"]
            (more,) = arm[key]["seconds_for_each_more"].items()
            assert more == ("2", pytest.approx(arm["online_seconds"] - arm[key]["seconds"]["1"]))
        assert f"told: {reveal}" in done.stdout
    none, told = (figures["arms"][reveal] for reveal in ("none", "all"))
    assert min(none["seconds"].values()) > 0
    assert none["backward_of_forward"] == pytest.approx(
        none["seconds"]["backwards"] / sum(none["seconds"][part] for part in adaptation.FORWARDS)
    )
    # Where outputs are told the step is in the clear: nothing goes back on shares.
    assert told["backward_of_forward"] is None
    assert [told["seconds"][part] for part in ("adapters", "head", "backwards")] == [0, 0, 0]
    assert sum(told["dealer_bytes"].values()) < sum(none["dealer_bytes"].values())
    assert 0 < figures["plaintext"]["step_seconds"] < figures["plaintext"]["with_backbone_seconds"]
    # The page of costs is made of them.
    page = adaptation_costs.section(figures)
    assert f"| online | `online_seconds` | {none['online_seconds']:.3f} | {told['online_seconds']:.3f} |" in page
    assert len([line for line in page if line.startswith(("| 1 ", "| 2 "))]) == 4


def test_nothing_at_all_cannot_be_measured() -> None:
    for option in ("--blocks", "--batch", "--repeats"):
        done = invoke("bench", "adapt", option, "0")
        assert done.exit_code == 2
        assert option in done.output
