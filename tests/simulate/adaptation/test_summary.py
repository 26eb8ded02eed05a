"""summary.json of an adaptation: what is counted, and what becomes of rounds without a result."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from tacit.parties.runs.directory import Seed
from tacit.parties.runs.reveals import PROTECTS
from tacit.simulate.adaptation.results import AdaptationParty, BatchMetrics, KeptMetrics
from tacit.simulate.adaptation.summary import read_summary

with pytest.MonkeyPatch.context() as patch:
    patch.syspath_prepend(Path(__file__).parent)
    from scripted import JUDGED, OWNERS, Script


def test_figures_are_those_of_the_logs(tmp_path: Path) -> None:
    script = Script(tmp_path / "run")
    script.round(1)
    script.round(2, refused=1)
    script.round(3)  # In which nobody learns: the last sum is told.
    found = script.summary()
    found.write(script.folder.run.summary)
    assert msgspec.json.encode(read_summary(script.folder)) == msgspec.json.encode(found)
    assert [row.round for row in found.rounds] == [1, 2]
    first, last = found.rounds
    assert (first.status, first.images) == (last.status, last.images) == ("completed", 32)
    assert found.batches.refused == 1
    assert (first.train_loss, first.train_accuracy) == (1.5, 0.375)
    assert (last.accuracy, last.loss) == (JUDGED[2].accuracy, JUDGED[2].loss)
    assert found.final_balanced_accuracy == JUDGED[2].balanced_accuracy
    assert found.before.accuracy == JUDGED[0].accuracy
    assert found.protects == PROTECTS["none"]
    assert found.noise is None


def test_passes_and_sums_are_told_by_party(tmp_path: Path) -> None:
    script = Script(tmp_path / "run")
    script.round(1)
    script.round(2)
    found = script.summary()
    assert found.batches == BatchMetrics(
        count=8,
        refused=0,
        online_seconds=2.5,
        preprocessing_wait_seconds=0.5,
        rounds=21,
        data_owner_bytes=2000,
        model_owner_bytes=3000,
        preprocessing_to_data_owner_bytes=5000,
        preprocessing_to_model_owner_bytes=700,
    )
    assert found.kept == KeptMetrics(
        images=64,
        passes=8,
        online_seconds=2.0,
        preprocessing_wait_seconds=1.0,
        rounds=99,
        data_owner_bytes=1600,
        model_owner_bytes=2400,
        preprocessing_to_data_owner_bytes=4000,
        preprocessing_to_model_owner_bytes=560,
    )
    assert found.dealer_bytes == {"model-owner": 8 * 700 + 8 * 70, **dict.fromkeys(OWNERS, 2 * 5000 + 2 * 500)}
    second = found.owners[OWNERS[1]]
    assert (second.round, second.kept_images, second.batches, second.sessions) == (2, 16, 2, 1)
    assert (second.online_seconds, second.preprocessing_wait_seconds) == (4.5, 1.25)
    assert (second.bytes_sent, second.bytes_received, second.weights_bytes) == (4400, 6600, 1000)
    party = found.parties[OWNERS[1]]
    assert party.role == "data-owner"
    assert party.phases["TRAIN"].seconds == 4.0
    assert party.phases["MASKED_INPUT"].bytes_sent == 800
    assert found.parties["dealer"].role == "dealer"
    assert found.parties["model-owner"] == AdaptationParty(role="model-owner", phases={})
    assert found.seed == Seed(value=5, drawn=False, repeats="everything")
    assert [session.command for session in found.sessions] == ["tacit adapt --seed 5"]


def test_rounds_without_a_result_say_why(tmp_path: Path) -> None:
    script = Script(tmp_path / "run")
    script.round(1, aborted="too few are left")
    script.round(2, lost="data-owner-3 did not say who survived", dropped=OWNERS[0])
    found = script.summary({0: JUDGED[0]})
    first, last = found.rounds
    assert (first.status, first.detail, first.accuracy) == ("aborted", "too few are left", None)
    assert (last.status, last.detail) == ("lost", "data-owner-3 did not say who survived")
    assert [drop.party for drop in last.dropped] == [OWNERS[0]]
    assert (found.final_accuracy, found.final_loss) == (None, None)


def test_nothing_at_all_was_learned(tmp_path: Path) -> None:
    found = Script(tmp_path / "run").summary({0: JUDGED[0]})
    assert found.rounds == []
    assert found.batches.count == 0
    assert found.batches.online_seconds is found.batches.data_owner_bytes is None
