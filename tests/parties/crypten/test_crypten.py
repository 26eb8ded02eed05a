"""CrypTen on our links, one process per party: every kind of operation against plaintext and, bit for bit, against
CrypTen's own transport; and what the others are told when a party fails."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from tacit.parties.links.keys import PartyKeys
from tacit.protocol.core.roster import Roster
from tacit.simulate.federation.processes import Exit, Processes
from tests.cases import cases

HERE = Path(__file__).parent
with pytest.MonkeyPatch.context() as patch:
    patch.syspath_prepend(HERE)
    import computing_party
    from crypten_cases import CASES, LAST_BIT

PARTIES = ("owner", "alice", "bob")

Said = dict[str, list[Any]]
Run = Callable[..., Said]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, keys: dict[str, PartyKeys], roster: Roster) -> Iterator[Run]:
    """run(target, directory, parties, on_message=..., ...): a process for each party; what they said, by party."""

    def run(
        target: Any,
        directory: Path,
        parties: tuple[str, ...] = PARTIES[:2],
        on_message: Callable[[str, Any], object] = lambda name, message: None,
        **arguments: Any,
    ) -> Said:
        async def supervise() -> Said:
            said: Said = {name: [] for name in parties}
            async with Processes(directory, grace_seconds=5.0) as processes:
                for name in parties:
                    place = computing_party.Place(name, parties, keys[name], roster, directory)
                    await processes.start(name, target, place=place, **arguments)
                async for name, message in processes.messages():
                    said[name].append(message)
                    on_message(name, message)
                    if name == "owner" and isinstance(message, Exit):
                        break
            return said

        return asyncio.run(supervise())

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "path", [str(HERE), *sys.path])  # The children find the targets through it.
        yield run


Results = dict[str, torch.Tensor]


@pytest.fixture(scope="module", params=[2, 3])
def results(request: pytest.FixtureRequest, run: Run, tmp_path_factory: pytest.TempPathFactory) -> list[Results]:
    """Of every party of a computation; of two parties, those of gloo are appended."""
    directory = tmp_path_factory.mktemp("computation")
    parties = PARTIES[: request.param]
    said = run(computing_party.all_cases, directory, parties, gloo=request.param == 2)
    assert "finished" in said["owner"][0], said
    files = [f"{name}.pt" for name in parties] + (["owner.gloo.pt", "alice.gloo.pt"] if request.param == 2 else [])
    return [torch.load(directory / file, weights_only=True) for file in files]


@pytest.mark.end_to_end
@cases("name", CASES)
def test_shares_give_what_plaintext_gives(results: list[Results], name: str) -> None:
    case = CASES[name]
    # Of two parties there are two more results, those of gloo; each party's truncation may slip by a last bit.
    parties = 2 if len(results) == 4 else 3
    x, y = (value.double() for value in case.inputs(list(CASES).index(name)))
    expected, tolerance = case.plain(x, y), torch.as_tensor(case.tolerance(parties * LAST_BIT, x, y))
    assert results[0][name].shape == expected.shape
    assert bool(((results[0][name].double() - expected).abs() <= tolerance).all())
    assert all(torch.equal(other[name], results[0][name]) for other in results[1:])


@pytest.mark.parametrize(
    ("fault", "patience", "reason"),
    [
        ("misses a call", 60.0, r"first layer/all_reduce: it sent second layer/all_reduce \(int64\[1, 3, 4\]"),
        ("is killed", 60.0, "first layer/all_reduce: its link is lost"),
    ],
)
def test_a_party_that_fails_is_named(run: Run, tmp_path: Path, fault: str, patience: float, reason: str) -> None:
    def kill(name: str, message: Any) -> None:
        if fault == "is killed" and isinstance(message, dict) and "pid" in message:
            os.kill(message["pid"], signal.SIGKILL)

    said = run(computing_party.misbehave, tmp_path, on_message=kill, fault=fault, patience=patience)
    assert re.match(f"MpcError: 'alice', {reason}", said["owner"][0]["failed"])
