"""A session of private inference explored: owners that keep the rules never take one thing for another, nor hang."""

import pytest

from tacit.protocol.core.codec import Packet
from tacit.protocol.core.link import Link
from tacit.protocol.inference.model_owner import InferenceModelOwner
from tacit.protocol.inference.session import InferenceSession, PassRounds
from tests.exploration.engine import RuleBroken, explore
from tests.exploration.inference import InferenceWorld


@pytest.mark.parametrize(("passes", "sessions"), [(2, 1), pytest.param(1, 2, marks=pytest.mark.exhaustive)])
def test_no_state_breaks_a_rule(passes: int, sessions: int) -> None:
    outcomes = explore(InferenceWorld(passes=passes, sessions=sessions)).outcomes
    ends = {"CLOSED / CLOSED", "ABORTED / ABORTED", "ABORTED / CLOSED"}
    # Of greetings that are replayed the model owner makes sessions to which nobody comes.
    assert set(outcomes) == ends | ({"CLOSED / ABORTED"} if sessions > 1 else set())


class AnyNumber(Link):
    """Looks at the session of a message, not at its number."""

    def accept(self, packet: Packet) -> Packet:
        self._received = packet.envelope.sequence
        return super().accept(packet)


class OtherSession(Link):
    """Looks at the number of a message, not at its session."""

    def accept(self, packet: Packet) -> Packet:
        session, self.session = self.session, packet.envelope.session
        try:
            return super().accept(packet)
        finally:
            self.session = session


def test_what_is_of_a_former_session_is_found_by_the_session(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("session", "data_owner", "model_owner"):
        monkeypatch.setattr(f"tacit.protocol.inference.{module}.Link", OtherSession)
    with pytest.raises(RuleBroken, match="takes something else for") as broken:
        explore(InferenceWorld())
    assert broken.value.trace


def test_what_is_of_a_former_pass_is_found_by_its_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("session", "data_owner", "model_owner"):
        monkeypatch.setattr(f"tacit.protocol.inference.{module}.Link", AnyNumber)
    monkeypatch.setattr(InferenceSession, "_accept", lambda session, packet: bool(session._link.accept(packet)))
    with pytest.raises(RuleBroken, match="takes something else for"):
        explore(InferenceWorld(passes=2, sessions=1))


def test_who_goes_on_out_of_range_tells_the_result(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PassRounds, "verdict", lambda rounds, step, opened: None)
    with pytest.raises(RuleBroken, match="told the result of a pass that is not in range"):
        explore(InferenceWorld())


def test_who_is_not_patient_waits_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(InferenceModelOwner, "waiting", False)
    with pytest.raises(RuleBroken, match="waits for ever"):
        explore(InferenceWorld())
