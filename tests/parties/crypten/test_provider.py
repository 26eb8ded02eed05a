"""CrypTen in processes of its own, with our provider and dealer: what it computes, what it costs, what it refuses."""

import asyncio
import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from tacit.parties.crypten.link import listen
from tacit.parties.links.keys import PartyKeys
from tacit.protocol.core.roster import Roster
from tacit.simulate.federation.processes import Exit, Processes

HERE = Path(__file__).parent


@pytest.fixture
def run(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    dealt_keys: dict[str, PartyKeys],
    dealt_roster: Roster,
    serve: Callable[..., int],
) -> Callable[..., dict[str, Any]]:
    """run(parties, cases=...): what every party reports, and how many requests the dealer met."""
    monkeypatch.syspath_prepend(HERE)
    import dealt_party

    async def run(parties: Sequence[str], *, cases: bool) -> dict[str, Any]:
        def deal() -> int:
            address = f"ipc://{tmp_path}/{dealt_party.DEALER}"
            common: dict[str, Any] = {"roster": dealt_roster, "session": b"dealt", "patience": 60.0}
            with listen(address, keys=dealt_keys[dealt_party.DEALER], peers=parties, **common) as listener:
                return serve(listener, parties)

        reports: dict[str, Any] = {}
        async with Processes(tmp_path / "logs") as processes:
            for name in parties:
                await processes.start(
                    name,
                    dealt_party.compute,
                    own=name,
                    parties=list(parties),
                    keys=dealt_keys[name],
                    roster=dealt_roster,
                    directory=tmp_path,
                    cases=cases,
                )
            # Not before: the first start waits until the fork server has loaded everything.
            dealing = asyncio.get_running_loop().run_in_executor(None, deal)
            async for name, message in processes.messages():
                if not isinstance(message, Exit):
                    assert set(message) == {"finished"}, message
                    reports[name] = message["finished"]
        return reports | {"requests": await dealing}

    return lambda parties, **options: asyncio.run(run(parties, **options))


@pytest.mark.parametrize(
    ("parties", "cases"),
    [
        (("model", "data"), True),
        pytest.param(("model", "data", "third"), False, marks=pytest.mark.end_to_end),
    ],
)
def test_everything_is_computed_within_its_tolerance(
    run: Callable[..., dict[str, Any]], parties: tuple[str, ...], cases: bool
) -> None:
    results = run(parties, cases=cases)
    assert results["requests"] > 50
    for name in parties:
        wrong = {case: outcome for case, outcome in results[name].items() if isinstance(outcome, str) or outcome[1] > 0}
        assert not wrong
        assert len(results[name]) >= (50 if cases else 25)


def test_the_program_of_the_documentation_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(HERE)
    import dealt_party

    page = (HERE.parents[2] / "docs" / "crypten.md").read_text(encoding="utf-8")
    (source,) = re.findall(r"```python\n(.*?)```", page, flags=re.DOTALL)

    async def run() -> dict[str, Any]:
        said: dict[str, Any] = {}
        async with Processes(tmp_path / "logs") as processes:
            for names in (["prepare"], ["dealer", "model", "data"]):
                for name in names:
                    program = {"source": source, "own": name, "directory": tmp_path}
                    await processes.start(name, dealt_party.run_documented, **program)
                async for name, message in processes.messages():
                    if not isinstance(message, Exit):
                        assert set(message) == {"finished"}, message
                        said[name] = message["finished"]
        return said

    said = asyncio.run(run())
    printed = {name: text.split(maxsplit=1) for name, text in said.items()}
    assert printed["prepare"] == printed["dealer"] == []
    for own in ("model", "data"):
        name, numbers = printed[own]
        result, rounds = numbers.strip().rsplit(" ", 1)
        assert name == own
        assert json.loads(result) == pytest.approx([1.0, 0.0], abs=2 * 2.0**-16)
        assert float(rounds) > 2
