"""Attempts of a cheating server on a client, and their outcome: an audit plays cases of the conformance kit.

The client is one of ours in a process of its own, with fresh keys, over a link with CURVE; server and other clients are
the kit's (tacit.simulate.conformance.peer), which reports after every case. Link, keys, machine and journal are those
of any client; its contribution is drawn at random, since no cheat of a secure sum depends on it. When a session ends,
which a refusal may do, it joins again, until it is stopped.

The scripts are written for active mode, in which a client does not trust the server in anything. In semi-honest mode it
trusts that the server keeps to the protocol, and without a secure sum there is nothing to cheat for.
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
from tacit.protocol.sum.configuration import Mode
from tacit.protocol.sum.policy import Policy
from tacit.simulate.audit.figures import ServerAttempt
from tacit.simulate.conformance.peer.against_client import AgainstClient
from tacit.simulate.conformance.peer.cast import Keyring
from tacit.simulate.conformance.peer.script import FEWEST_CLIENTS, Case, draw_update
from tacit.simulate.conformance.peer.training_cases import CLIENT_CASES
from tacit.simulate.federation.child import Control
from tacit.simulate.federation.processes import SERVER, Exit, ProcessError, Processes
from tacit.simulate.federation.run import party_names
from tacit.simulate.world.federation import small_configuration

_PATIENCE: Final = 60.0
_GRACE: Final = 0.2


class DrawingTask(ClientTask):
    """Learns nothing: it draws updates that the configuration admits."""

    def contribute(self, work: RoundWork, proceed: Proceed) -> Contribution:
        return Contribution(draw_update(work.configuration).words)


async def live_client(
    control: Control, *, address: str, keys: PartyKeys, roster: Roster, mode: Mode, folder: Path
) -> dict[str, Any]:
    """The client's process: it accepts this mode alone."""
    settings = ClientSettings(
        address=address,
        keys=keys,
        roster=roster,
        policy=Policy(modes=(mode,)),
        journal=JournalFile(folder / "journal.jsonl"),
        patience=_PATIENCE,
        grace=_GRACE,
    )
    with EventFile(folder / "events.jsonl", keys.name) as log:
        while True:
            with contextlib.suppress(EndpointError, LocalProtocolError):
                await ClientParty(settings, {"fedavg": DrawingTask()}, EventLog(log, lambda event: None)).run()


PLAYED: Final = "active"
"""The mode of the scripts."""
_WAIT: Final = 60.0
_GRACE_SECONDS: Final = 5.0


def why_not(modes: Sequence[str]) -> str:
    """Why nothing is tried with clients of configurations in these modes; "" if it is."""
    if PLAYED in modes:
        return ""
    return (
        "in semi-honest mode a client believes that the server keeps to the protocol" if "semi-honest" in modes else ""
    )


async def attempts(
    folder: Path, tell: Callable[[str], None], cases: Sequence[Case] = CLIENT_CASES
) -> list[ServerAttempt]:
    """Play these cases against a client whose journal and log go to the folder. ProcessError if its process ends."""
    folder.mkdir(parents=True)
    keys = {name: generate(name) for name in party_names(FEWEST_CLIENTS)}
    roster = Roster(tuple(own.member("server" if name == SERVER else "client") for name, own in keys.items()))
    live = roster.clients[-1]
    keyring = Keyring(roster, {name: own for name, own in keys.items() if name != live}, folder)
    configuration = small_configuration(FEWEST_CLIENTS, mode=PLAYED, graph="complete")
    server = AgainstClient(keyring, live, configuration, "tcp://127.0.0.1:*", wait=_WAIT, tell=lambda text: None)

    async def play() -> list[ServerAttempt]:
        played = []
        for case in cases:
            tell(f"the server {case.does}")
            seen = await server.play(case)
            played.append(
                ServerAttempt(case=case.name, does=case.does, expected=seen.expected, seen=seen.seen, holds=seen.holds)
            )
        return played

    async with Processes(folder, grace_seconds=_GRACE_SECONDS) as processes:
        try:
            await server.open()
            given = {"address": server.address, "keys": keys[live], "roster": roster, "mode": PLAYED, "folder": folder}
            await processes.start(live, live_client, **given)
            playing, ending = asyncio.ensure_future(play()), asyncio.ensure_future(_end(processes))
            try:
                await asyncio.wait({playing, ending}, return_when=asyncio.FIRST_COMPLETED)
                if not playing.done():
                    raise ProcessError(f"{live}, to which a server is to lie, ended: {ending.result()}")
                return playing.result()
            except EndpointError as error:
                raise ProcessError(f"the server that is to lie to {live} has no link: {error}") from error
            finally:
                playing.cancel()
                ending.cancel()
                await asyncio.gather(playing, ending, return_exceptions=True)
        finally:
            await server.close()


async def _end(processes: Processes) -> str:
    """How the client's process ended, when it has."""
    last = ""
    async for _, message in processes.messages():
        last = last or (str(message) if isinstance(message, Exit) else str(message.get("failed", "")))
    return last
