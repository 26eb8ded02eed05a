"""A cheating server at a real endpoint, under CURVE, and a client of ours in a process of its own, with its journal.

The cases are those of the conformance kit, which after every lie holds an honest round with the client and decodes its
share in the sum. The other cases of the kit, and a client that was started again, are in this folder in memory.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tacit.simulate.conformance.peer.own_client import play_cases
from tacit.simulate.conformance.peer.training_cases import CLIENT_CASES

LIES = (
    "downgrade", "pickled-configuration", "pickled-body", "model-with-nan", "pickled-model", "asks-twice",
)  # fmt: skip


@pytest.mark.threat("server/downgrade", "server/bad-model", "server/pickle", "server/asks-twice")
def test_a_process_of_ours_refuses_what_it_is_told(tmp_path: Path) -> None:
    cases = [case for case in CLIENT_CASES if case.name in LIES]
    found = asyncio.run(play_cases(tmp_path / "live", lambda text: None, cases))
    assert [one.case for one in found.cases] == list(LIES)
    assert found.failed == []
