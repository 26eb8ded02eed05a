"""Rounds of learning explored: owners that keep the rules never take one thing for another, nor hang."""

import pytest

from tacit.protocol.adaptation.sums import RoundSums
from tests.exploration.adaptation import BATCH, PLAN, AdaptationWorld, Call
from tests.exploration.engine import RuleBroken, explore
from tests.exploration.test_inference import OtherSession


@pytest.mark.parametrize(
    ("plan", "sessions"),
    [(PLAN, 1), *(pytest.param(*each, marks=pytest.mark.exhaustive) for each in ((PLAN, 2), (BATCH, 1)))],
)
def test_no_state_breaks_a_rule(plan: tuple[Call, ...], sessions: int) -> None:
    outcomes = explore(AdaptationWorld(plan, sessions=sessions)).outcomes
    ends = {"CLOSED / CLOSED", "ABORTED / ABORTED", "ABORTED / CLOSED"}
    # Of greetings that are replayed the model owner makes sessions to which nobody comes.
    assert set(outcomes) == ends | ({"CLOSED / ABORTED"} if sessions > 1 else set())


def test_a_sum_of_a_former_session_is_found_by_the_session(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("session", "data_owner", "model_owner"):
        monkeypatch.setattr(f"tacit.protocol.inference.{module}.Link", OtherSession)
    with pytest.raises(RuleBroken, match="takes something else for") as broken:
        explore(AdaptationWorld())
    assert broken.value.trace


def test_who_opens_what_one_of_two_has_said_tells_too_much(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RoundSums, "verdict", lambda sums, number: "")
    with pytest.raises(RuleBroken, match="is told that round 2 has another end"):
        explore(AdaptationWorld())
