"""A first sum of pixels that is impossible is tried again and again, for as long as the experiment says."""

from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from tacit.parties.hosting import server
from tacit.parties.hosting.server import ServerHooks, ServerImages, ServerJob, summed_statistics
from tacit.parties.learning.statistics import Statistics
from tacit.parties.links.keys import generate
from tacit.parties.runs.directory import RunDirectory
from tacit.parties.runs.experiment import Deadlines, Experiment
from tacit.parties.session.events import ListeningStarted
from tacit.protocol.core.errors import Code
from tacit.protocol.core.events import Event
from tacit.protocol.core.machine import Ended
from tacit.protocol.core.roster import Roster
from tacit.protocol.session.events import GatheringStarted

FOUND = Statistics(clients=3, pixels=64, mean=(0.5,), std=(0.2,))
KNOWN = ServerImages(("a", "b"), (0.5,), (0.5,))


@pytest.fixture
def attempts(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The addresses at which the server listened; the third session of three has a sum."""
    addresses: list[str] = []

    class Party:
        def __init__(self, settings: Any, keeper: Any, event_log: Any, **options: Any) -> None:
            self.settings, self.keeper, self.event_log = settings, keeper, event_log

        async def run(self) -> Ended:
            addresses.append(self.settings.address)
            self.event_log.write(ListeningStarted(address="tcp://127.0.0.1:7007"))
            if len(addresses) == 3:
                self.keeper.found = FOUND
            return Ended(None, "all rounds are done")

    monkeypatch.setattr(server, "ServerParty", Party)
    monkeypatch.setattr(server, "STATISTICS_PAUSE", 0.0)
    return addresses


def job(directory: Path, regather: float) -> ServerJob:
    keys = {name: generate(name) for name in ("server", "a", "b", "c")}
    members = (own.member("server" if name == "server" else "client") for name, own in keys.items())
    return ServerJob(
        experiment=replace(Experiment(), deadlines=Deadlines(regather=regather)),
        run=RunDirectory.create(directory / "run"),
        keys=keys["server"],
        roster=Roster(tuple(members)),
        address="tcp://127.0.0.1:*",
        rounds=1,
        completed=0,
        weights_seed=1,
    )


@pytest.mark.asyncio
async def test_it_is_tried_again_at_the_same_address(tmp_path: Path, attempts: list[str]) -> None:
    told: list[type[Event]] = []
    found, _, ended = await summed_statistics(
        job(tmp_path, 0.0), KNOWN, lambda event: told.append(type(event)), ServerHooks()
    )
    assert (found, ended.code) == (FOUND, None)
    assert attempts == ["tcp://127.0.0.1:*", *["tcp://127.0.0.1:7007"] * 2]
    assert told.count(GatheringStarted) == 2


@pytest.mark.asyncio
async def test_it_ends_when_the_time_for_it_is_over(tmp_path: Path, attempts: list[str]) -> None:
    found, _, ended = await summed_statistics(job(tmp_path, 1e-9), KNOWN, lambda event: None, ServerHooks())
    assert (found, ended.code) == (None, Code.THRESHOLD)
    assert len(attempts) == 1
