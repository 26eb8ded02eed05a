"""Parties of double-blind adaptation that break one rule each: the kit says which."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

import tacit.parties.adaptation.data_owner
import tacit.parties.adaptation.model_owner
from tacit.parties.adaptation.model_owner import Openings
from tacit.parties.adaptation.rounds import contribution
from tacit.protocol.adaptation.data_owner import LearningDataOwner
from tacit.protocol.adaptation.model_owner import LearningModelOwner
from tacit.protocol.adaptation.sums import RoundSums
from tacit.protocol.core.machine import Heard, Output, Step
from tacit.protocol.inference.data_owner import InferenceDataOwner
from tacit.protocol.inference.material import Arrivals
from tacit.protocol.inference.model_owner import InferenceModelOwner
from tacit.secagg.ring import Words
from tacit.simulate.conformance.peer.adaptation_cases import ASKS, NO_SUM, SUM
from tacit.simulate.conformance.peer.inference_cases import COMPLETES
from tacit.simulate.conformance.peer.play import Side
from tests.cases import cases

with pytest.MonkeyPatch.context() as patch:
    patch.syspath_prepend(Path(__file__).parent)
    from adaptation_bench import AdaptationBench

Patch = tuple[Any, str, Any]


class AnyRound(LearningModelOwner):
    def on_start_pass(self, heard: Heard[Any], now: float) -> Step[Any]:
        return InferenceModelOwner.on_start_pass(self, heard, now)


class AnyStatement(LearningModelOwner):
    def on_begin_round(self, heard: Heard[Any], now: float) -> Step[Any]:
        return super().on_begin_round(structs.replace(heard, message=structs.replace(heard.message, count=0)), now)


class AnyCommitment(LearningDataOwner):
    def on_started(self, heard: Heard[Any], now: float) -> Step[Any]:
        agreed = structs.replace(heard.message, weights=self.agreed.terms.weights)
        return super().on_started(structs.replace(heard, message=agreed), now)


class AnyCohort(LearningDataOwner):
    def _check(self, terms: Any) -> None:
        InferenceDataOwner._check(self, terms)


class Alone(LearningDataOwner):
    def ask_sum(self, number: int, survivors: tuple[str, ...], now: float) -> list[Output]:
        return super().ask_sum(number, (self.own,), now)


class Resigned(LearningDataOwner):
    def on_sum_lost(self, heard: Heard[Any], now: float) -> Step[Any]:
        lost = structs.replace(heard.message, number=self.at(Arrivals).next, detail="it is lost")
        return super().on_sum_lost(structs.replace(heard, message=lost), now)


def another_each_time(self: Openings, number: int) -> bytes:
    return os.urandom(len(opened(self, number)))


opened = Openings.opened


def doubled(configuration: Any, share: Any) -> Words:
    words = contribution(configuration, share)
    words[-1] = 2
    return words


def any_parameters(self: RoundSums, owner: str, number: int, based: int, count: int = 0) -> None:
    """Any round, from any parameters."""


def any_survivors(self: RoundSums, owner: str, number: int, survivors: tuple[str, ...]) -> None:
    """However few."""


TEACHER = (tacit.parties.adaptation.model_owner.TeachingParty, "MACHINE")
LEARNER = (tacit.parties.adaptation.data_owner.PrivateLearner, "MACHINE")
MUTANTS: dict[str, tuple[Side, Patch, dict[str, str]]] = {
    "model owner: any round": (
        "adapting-data-owner", (*TEACHER, AnyRound), {"pass-without-round": "ends with POLICY, tells both"},
    ),
    "model owner: any count": (
        "adapting-data-owner", (*TEACHER, AnyStatement), {"other-count": f"{NO_SUM}, {COMPLETES}"},
    ),
    "model owner: any parameters": (
        "adapting-data-owner", (RoundSums, "check_begin", any_parameters),
        {"other-parameters": f"{NO_SUM}, {COMPLETES}"},
    ),
    "model owner: the share of one": (
        "adapting-data-owner", (RoundSums, "_objection", any_survivors), {"alone": f"{SUM}, {COMPLETES}"},
    ),
    "model owner: another sum for each": (
        "adapting-data-owner", (Openings, "opened", another_each_time),
        {"honest": f"tells different sums, {COMPLETES}"},
    ),
    "data owner: any model": (
        "adapting-model-owner", (*LEARNER, AnyCommitment),
        {"other-model": f"{ASKS}, {COMPLETES}", "model-replaced": f"{ASKS}, {COMPLETES}"},
    ),
    "data owner: any cohort": (
        "adapting-model-owner", (*LEARNER, AnyCohort),
        {"terms-cohort": "breaks a rule: POLICY, it agrees to other terms than were offered"},
    ),
    "data owner: other survivors": (
        "adapting-model-owner", (*LEARNER, Alone), {"honest": "names other survivors than the sums have"},
    ),
    "data owner: any loss": (
        "adapting-model-owner", (*LEARNER, Resigned),
        {"sum-lost-other": f"{ASKS}, {COMPLETES}", "sum-lost-silently": f"{ASKS}, {COMPLETES}"},
    ),
    "data owner: counts twice": (
        "adapting-model-owner", (tacit.parties.adaptation.data_owner, "contribution", doubled),
        {"honest": "contributes what is no share (the sum says of itself that it is over 4 data owners, not 3), "
         f"{COMPLETES}"},
    ),
}  # fmt: skip


ALWAYS = ("model owner: any count",)
"""In every run of the tests. All others are exhaustive, because each plays real sessions."""


def check_caught(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mutant: str) -> None:
    side, broken, seen = MUTANTS[mutant]
    folder = tmp_path / mutant
    folder.mkdir()
    with monkeypatch.context() as patch:
        patch.setattr(*broken)
        verdicts = AdaptationBench(folder).play(side, *seen)
    assert {case: verdict.seen for case, verdict in verdicts.items() if not verdict.passed} == seen


@cases("mutant", ALWAYS)
def test_a_broken_party_is_caught(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mutant: str) -> None:
    check_caught(tmp_path, monkeypatch, mutant)


@pytest.mark.exhaustive
@cases("mutant", [mutant for mutant in MUTANTS if mutant not in ALWAYS])
def test_every_broken_party_is_caught(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mutant: str) -> None:
    check_caught(tmp_path, monkeypatch, mutant)


def test_a_data_owner_that_comes_to_the_sums_alone_is_waited_for_with_a_deadline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def useless(*arguments: Any) -> Any:
        raise ValueError("it does not go on")

    monkeypatch.setattr(tacit.parties.adaptation.data_owner, "read_rounds_task", useless)
    live = AdaptationBench(tmp_path, wait=1.0)
    assert live.play("adapting-model-owner", "honest")["honest"].seen == "nothing more comes for 1 s"
    assert live.told == [f"waiting for 'clinic' to say hello at {live.address}: start it if it does not run"]
