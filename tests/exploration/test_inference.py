"""A session of private inference explored: owners that keep the rules never take one thing for another, nor hang."""

from typing import Any

import pytest

from tacit.protocol.core.codec import Packet
from tacit.protocol.core.link import Link
from tests.exploration.engine import RuleBroken, explore
from tests.exploration.inference import InferenceWorld


@pytest.mark.parametrize(
    ("passes", "sessions"),
    [(1, 1), *(pytest.param(*each, marks=pytest.mark.exhaustive) for each in ((2, 1), (1, 2)))],
)
def test_no_state_breaks_a_rule(passes: int, sessions: int) -> None:
    outcomes = explore(InferenceWorld(passes=passes, sessions=sessions)).outcomes
    ends = {"CLOSED / CLOSED", "ABORTED / ABORTED", "ABORTED / CLOSED"}
    # Of greetings that are replayed the model owner makes sessions to which nobody comes.
    assert set(outcomes) == ends | ({"CLOSED / ABORTED"} if sessions > 1 else set())


class AnyNumber(Link):
    def accept(self, packet: Packet) -> Packet:
        self._received = packet.envelope.sequence
        return super().accept(packet)


class OtherSession(Link):
    def accept(self, packet: Packet) -> Packet:
        session, self.session = self.session, packet.envelope.session
        try:
            return super().accept(packet)
        finally:
            self.session = session


SESSION = "tacit.protocol.inference.session"
LINKS = [f"tacit.protocol.inference.{module}.Link" for module in ("session", "data_owner", "model_owner")]
MUTANTS: dict[str, tuple[dict[str, Any], int, int, str]] = {
    # What is replaced; passes and sessions; the rule that breaks.
    "any session": (dict.fromkeys(LINKS, OtherSession), 1, 2, "takes something else for"),
    "any number": (
        {
            **dict.fromkeys(LINKS, AnyNumber),
            f"{SESSION}.InferenceSession._accept": lambda session, packet: bool(session._link.accept(packet)),
        },
        2,
        1,
        "takes something else for",
    ),
    "goes on out of range": (
        {f"{SESSION}.PassRounds.verdict": lambda rounds, step, opened: None},
        1,
        2,
        "told the result of a pass that is not in range",
    ),
    "not patient": (
        {"tacit.protocol.inference.model_owner.InferenceModelOwner.waiting": False}, 1, 2, "waits for ever",
    ),
}  # fmt: skip


@pytest.mark.parametrize(
    "mutant",
    [pytest.param(name, marks=[pytest.mark.exhaustive] * (name == "goes on out of range")) for name in MUTANTS],
)
def test_a_missing_check_is_found(mutant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    replaced, passes, sessions, fault = MUTANTS[mutant]
    with monkeypatch.context() as patch:
        for name, replacement in replaced.items():
            patch.setattr(name, replacement)
        with pytest.raises(RuleBroken, match=fault) as broken:
            explore(InferenceWorld(passes=passes, sessions=sessions))
    assert broken.value.trace
