"""Cases of a malicious server, played against a client of this installation in its own process.

Its contribution is drawn at random, since no case depends on it. When a session ends, which a refusal may cause, it
joins again, until it is stopped. It accepts only active mode, for which the cases are written.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from tacit.models.interruption import Proceed
from tacit.parties.links.endpoint import EndpointError
from tacit.parties.links.keys import PartyKeys, generate
from tacit.parties.session.client import ClientParty, ClientSettings
from tacit.parties.session.event_log import EventFile, EventLog
from tacit.parties.session.journal import JournalFile
from tacit.parties.session.task import ClientTask, Contribution, RoundWork
from tacit.protocol.core.errors import LocalProtocolError
from tacit.protocol.core.roster import Roster
from tacit.protocol.sum.policy import Policy
from tacit.simulate.conformance.peer.against_client import AgainstClient
from tacit.simulate.conformance.peer.cast import Keyring
from tacit.simulate.conformance.peer.script import FEWEST_CLIENTS, Case, PeerVerdicts, draw_update
from tacit.simulate.federation.child import Control
from tacit.simulate.federation.processes import SERVER, Exit, ProcessError, Processes
from tacit.simulate.federation.run import party_names
from tacit.simulate.world.federation import small_configuration

_MODE: Final = "active"
_PATIENCE: Final = 60.0
_GRACE: Final = 0.2
_GRACE_SECONDS: Final = 5.0


class DrawingTask(ClientTask):
    """A task without training: it draws updates that the configuration admits."""

    def contribute(self, work: RoundWork, proceed: Proceed) -> Contribution:
        return Contribution(draw_update(work.configuration).words)


async def live_client(
    control: Control, *, address: str, keys: PartyKeys, roster: Roster, folder: Path
) -> dict[str, Any]:
    settings = ClientSettings(
        address=address,
        keys=keys,
        roster=roster,
        policy=Policy(modes=(_MODE,)),
        journal=JournalFile(folder / "journal.jsonl"),
        patience=_PATIENCE,
        grace=_GRACE,
    )
    with EventFile(folder / "events.jsonl", keys.name) as log:
        while True:
            with contextlib.suppress(EndpointError, LocalProtocolError):
                await ClientParty(settings, {"fedavg": DrawingTask()}, EventLog(log, lambda event: None)).run()


async def play_cases(folder: Path, progress: Callable[[str], None], cases: Sequence[Case]) -> PeerVerdicts:
    """Play these cases against a client whose journal and log go to this folder. ProcessError if its process ends."""
    folder.mkdir(parents=True)
    keys = {name: generate(name) for name in party_names(FEWEST_CLIENTS)}
    roster = Roster(tuple(own.member("server" if name == SERVER else "client") for name, own in keys.items()))
    live = roster.clients[-1]
    keyring = Keyring(roster, {name: own for name, own in keys.items() if name != live}, folder)
    configuration = small_configuration(FEWEST_CLIENTS, mode=_MODE, graph="complete")
    server = AgainstClient(keyring, live, configuration, "tcp://127.0.0.1:*", wait=_PATIENCE, tell=lambda text: None)

    async def play() -> PeerVerdicts:
        played = []
        for case in cases:
            progress(f"the server {case.does}")
            played.append(await server.play(case))
        return PeerVerdicts(cases=played)

    async with Processes(folder, grace_seconds=_GRACE_SECONDS) as processes:
        try:
            await server.open()
            given = {"address": server.address, "keys": keys[live], "roster": roster, "folder": folder}
            await processes.start(live, live_client, **given)
            playing, ending = asyncio.ensure_future(play()), asyncio.ensure_future(_end(processes))
            try:
                await asyncio.wait({playing, ending}, return_when=asyncio.FIRST_COMPLETED)
                if not playing.done():
                    raise ProcessError(f"{live}, against which a server cheats, ended: {ending.result()}")
                return playing.result()
            except EndpointError as error:
                raise ProcessError(f"the server that cheats {live} has no link: {error}") from error
            finally:
                playing.cancel()
                ending.cancel()
                await asyncio.gather(playing, ending, return_exceptions=True)
        finally:
            await server.close()


async def _end(processes: Processes) -> str:
    last = ""
    async for _, message in processes.messages():
        last = last or (str(message) if isinstance(message, Exit) else str(message.get("failed", "")))
    return last
