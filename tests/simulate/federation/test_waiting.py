"""A simulation waits for its own children: whoever lives is waited for, and whoever has died is not."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest

from tacit.parties.runs.directory import RunDirectory
from tacit.parties.runs.experiment import parse
from tacit.parties.session.events import ListeningStarted
from tacit.protocol.core.events import Event
from tacit.protocol.session.events import ClientJoined
from tacit.simulate.federation.hosting import Hosting
from tacit.simulate.federation.processes import Exit, Processes, Supervisor
from tacit.simulate.federation.roles import Plan, Role

Message = dict[str, Any] | Exit
CLIENTS = ("client-1", "client-2", "client-3")
KILLED = Exit(None, "SIGKILL")
WHY = "its process ended unexpectedly: killed by SIGKILL"


def of_server(event: Event) -> dict[str, Any]:
    return {"event": msgspec.json.encode(msgspec.structs.replace(event, party="server")).decode()}


def joined(client: str) -> dict[str, Any]:
    return of_server(ClientJoined(member=client))


LISTENING = of_server(ListeningStarted(address="tcp://127.0.0.1:1"))


class Scripted:
    """Processes that say what was written down; then the server waits until it is told of somebody, and ends."""

    def __init__(self, *script: tuple[str, Message]) -> None:
        self._script = [("server", LISTENING), *script]
        self._heard = asyncio.Event()
        self.told: dict[str, Any] = {}
        self.started: list[str] = []

    async def start(self, name: str, target: object, **arguments: object) -> None:
        self.started.append(name)

    def tell(self, name: str, told: dict[str, Any]) -> None:
        assert name == "server"
        self.told = {**told["missing"]}
        self._heard.set()

    async def messages(self) -> AsyncIterator[tuple[str, Message]]:
        for name, message in self._script:
            yield name, message if isinstance(message, Exit) else dict(message)
        await self._heard.wait()
        yield "server", {"finished": {"detail": "over", "status": 0}}
        yield "server", Exit(0, None)


async def missing(directory: Path, hosting: dict[str, tuple[str, ...]], *script: tuple[str, Message]) -> dict[str, str]:
    told: dict[str, str] = (await followed(directory, hosting, *script)).told
    return told


async def followed(directory: Path, hosting: dict[str, tuple[str, ...]], *script: tuple[str, Message]) -> Scripted:
    processes = Scripted(*script)
    plan = Plan(parse("[deadlines]\njoin = 0.01", "test"), RunDirectory(directory), 1, 0, 0)
    roles = {name: Role(plan, name, directory) for name in ("server", *CLIENTS)}
    supervisor = Supervisor(cast(Processes, processes), roles, Hosting(hosting), lambda event: None)
    assert await supervisor.follow() == "over"
    return processes


OWN = {name: (name,) for name in CLIENTS}


@pytest.mark.asyncio
async def test_a_client_that_died_is_told_to_the_server(tmp_path: Path) -> None:
    assert await missing(tmp_path, OWN, ("client-2", KILLED)) == {"client-2": WHY}


@pytest.mark.asyncio
async def test_a_client_that_cannot_begin_is_told_with_its_reason(tmp_path: Path) -> None:
    ended = {"party": "client-2", "finished": {"detail": "the disk is full", "status": 1}}
    assert await missing(tmp_path, OWN, ("client-2", ended)) == {"client-2": "the disk is full"}


@pytest.mark.asyncio
async def test_the_server_is_not_told_why_a_client_ended_that_has_seen_its_images(tmp_path: Path) -> None:
    """The reason may hold numbers of samples or losses, which only the secure sum may carry."""
    ended = {"party": "client-2", "finished": {"detail": "this client has 2001 samples", "status": 1}}
    heard = await missing(tmp_path, OWN, ("server", joined("client-2")), ("client-2", ended))
    assert heard == {"client-2": ""}


@pytest.mark.asyncio
async def test_a_worker_that_died_takes_its_clients_with_it(tmp_path: Path) -> None:
    hosting = {"worker-1": ("client-1", "client-3"), "client-2": ("client-2",)}
    why = f"{WHY} (worker-1, with 2 clients: client-1, client-3)"
    assert await missing(tmp_path, hosting, ("worker-1", KILLED)) == {"client-1": why, "client-3": why}


@pytest.mark.asyncio
async def test_who_lives_and_does_not_come_is_not_waited_for_for_ever(tmp_path: Path) -> None:
    heard = await missing(tmp_path, OWN, *(("server", joined(name)) for name in CLIENTS[:2]))
    assert heard == {"client-3": "it did not join, nor did another, for 0.01 s"}


@pytest.mark.asyncio
@pytest.mark.parametrize(("ended", "actors"), [(CLIENTS[:2], 2), (CLIENTS, 1)])
async def test_a_lost_actor_is_replaced_while_it_has_clients(
    tmp_path: Path, ended: tuple[str, ...], actors: int
) -> None:
    over = [("worker-1", {"party": name, "finished": {"detail": "over", "status": 0}}) for name in ended]
    lost = Exit(None, None, reason="its actor was lost", replaced=True)
    found = await followed(tmp_path, {"worker-1": CLIENTS}, *over, ("worker-1", lost))
    assert found.started.count("worker-1") == actors
