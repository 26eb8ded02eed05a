"""The cases of a cheating server against a process of ours."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tacit.simulate.conformance.peer import own_client
from tacit.simulate.conformance.peer.training_cases import CLIENT_CASES
from tacit.simulate.federation.processes import ProcessError, serve


@pytest.mark.end_to_end
def test_a_process_of_ours_refuses_what_it_is_to_refuse(tmp_path: Path) -> None:
    # With one that ends the session, after which the client joins again.
    cases = [
        case for case in CLIENT_CASES if case.name in ("honest", "both-kinds", "replayed-round", "split-survivors")
    ]
    announced: list[str] = []
    found = asyncio.run(own_client.play_cases(tmp_path / "live", announced.append, cases))
    assert [(one.case, one.expected, one.seen, one.passed) for one in found.cases] == [
        (case.name, case.expected, case.expected, True) for case in cases
    ]
    assert announced == [f"the server {case.does}" for case in cases]


@pytest.mark.end_to_end
def test_a_client_that_ends_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # A process that is given what it does not take.
    monkeypatch.setattr(own_client, "live_client", serve)
    with pytest.raises(ProcessError, match="client-4, against which a server cheats, ended: TypeError"):
        asyncio.run(own_client.play_cases(tmp_path / "live", lambda text: None, CLIENT_CASES[:1]))
