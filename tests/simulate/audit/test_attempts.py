"""What a server that cheats tries with a live client in an audit."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

import tacit.simulate.audit.attempts as module
from tacit.simulate.audit.attempts import attempts, why_not
from tacit.simulate.conformance.peer.training_cases import CLIENT_CASES
from tacit.simulate.federation.processes import ProcessError, serve


@pytest.mark.end_to_end
def test_a_process_of_ours_refuses_what_it_is_to_refuse(tmp_path: Path) -> None:
    # With one that ends the session, after which the client joins again.
    cases = [
        case for case in CLIENT_CASES if case.name in ("honest", "both-kinds", "replayed-round", "split-survivors")
    ]
    told: list[str] = []
    found = asyncio.run(attempts(tmp_path / "live", told.append, cases))
    assert [(one.case, one.expected, one.holds) for one in found] == [
        (case.name, case.expected, True) for case in cases
    ]
    assert [one.seen for one in found] == [case.expected for case in cases]
    assert told == [f"the server {case.does}" for case in cases]


@pytest.mark.end_to_end
def test_a_client_that_ends_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # A process that is given what it does not take.
    monkeypatch.setattr(module, "live_client", serve)
    with pytest.raises(ProcessError, match="client-4, to which a server is to lie, ended: TypeError"):
        asyncio.run(attempts(tmp_path / "live", lambda text: None, CLIENT_CASES[:1]))


@pytest.mark.parametrize(
    ("modes", "said"), [(("none", "active"), ""), (("none",), ""), (("none", "semi-honest"), "in semi-honest mode")]
)
def test_only_active_mode_is_cheated(modes: tuple[str, ...], said: str) -> None:
    assert why_not(modes)[: len(said) or None] == said
