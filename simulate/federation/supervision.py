"""Watching the processes of a run: who is started when, what their ends mean, and when the rest must go.

The clients are started when the server listens, each in a process of its own or several in one (hosting.py); a process
that dies takes all of them with it. A client that fails is the federation's business and is only shown.
When the server has ended, the clients get time to notice, and to judge a model that only they can read; whoever is
still there then (frozen, say) is ended. So is a server that a client has given up, and that goes on saying nothing.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from tacit.simulate.federation.child import Control
from tacit.simulate.federation.hosting import Hosting
from tacit.simulate.federation.processes import Exit, Processes
from tacit.simulate.federation.relay import Relay
from tacit.simulate.federation.roles import ABORTED, SERVER_LOST, Role

SERVER = "server"
LEAVE_SECONDS = 5.0
"""How long clients may take to end after the server has said that it is over."""
STOP_SECONDS = 1.0
"""How long each step of ending a process may take that had its time before."""
MOST_NAMES = 8
"""Clients that are named where a process takes many with it."""

Show = Callable[[str, str, dict[str, Any]], None]
"""Called with party, event and fields for everything that a party tells. Of a process that ends, the first of its
clients tells; for the others the same is told `again`."""


class SimulationError(Exception):
    """The run failed; the message says who failed and why."""

    summary: dict[str, Any] | None = None
    """That of the run nevertheless, if it came so far that there is one."""


class InputError(SimulationError):
    """The server cannot start with what it is given (data, model, device); the message says what to change."""


class ServerLostError(SimulationError):
    """The server's process died, or froze, in the middle of the run."""


async def serve(control: Control, **arguments: Any) -> dict[str, Any]:
    """The server's process; torch is imported there, not here. See server_role.run_server."""
    from tacit.simulate.federation.server_role import run_server

    return await run_server(control, **arguments)


async def take_part(control: Control, **arguments: Any) -> dict[str, Any]:
    """A process of clients; torch is imported there, not here. See client_role.run_clients."""
    from tacit.simulate.federation.client_role import run_clients

    return await run_clients(control, **arguments)


class Supervisor:
    """Starts and follows the processes of one run."""

    def __init__(
        self,
        processes: Processes,
        roles: dict[str, Role],
        hosting: Hosting,
        show: Show,
        relay: Relay | None = None,
    ) -> None:
        """relay: what clients reach the server through, if not at once."""
        self._relay = relay
        self._processes = processes
        self._hosting = hosting
        self._hosted: dict[str, list[str]] = {}
        """By process, the clients that have not ended."""
        self._roles = roles
        self._show = show
        self._last: dict[str, dict[str, Any]] = {}
        self._address = ""
        self._ended = ""
        self._failure: SimulationError | None = None
        self._clearing: asyncio.Task[None] | None = None
        self._words = 0
        """How often the server has said something."""
        self._silence = ""
        """Why the server was ended, if it froze."""
        self._watching: asyncio.Task[None] | None = None
        self._coming: set[str] = set()
        """Clients that have a process, and have not joined."""
        self._missing: dict[str, str] = {}
        """Clients that will not come, and why."""
        self._waiting: asyncio.Task[None] | None = None
        self._experiment = roles[SERVER].plan.experiment

    async def follow(self) -> str:
        """Run until everybody has ended; returns how the server says it ended, or raises SimulationError."""
        await self._processes.start(SERVER, serve, role=self._roles[SERVER])
        try:
            async for name, message in self._processes.messages():
                self._words += name == SERVER
                if isinstance(message, Exit):
                    await self._bury(name, message)
                elif "event" in message:
                    event = message.pop("event")
                    self._show(message.pop("party"), event, message)
                    if event == "joined":
                        self._coming.discard(message["member"])
                    # A second time after a sum of statistics, at the same place.
                    if event == "listening" and not self._address:
                        address = message["address"]
                        self._address = address if self._relay is None else self._relay.address(address)
                        for process, clients in self._hosting.processes.items():
                            await self._start(process, clients)
                    if event == "listening":
                        self._await_clients()
                elif "party" in message:
                    self._part(name, message)
                else:
                    self._last[name] = message
        except asyncio.CancelledError:
            # The server first, while the clients still answer: it may have a sum to finish.
            await self._processes.ask(SERVER, "the run was interrupted", grace_seconds=LEAVE_SECONDS)
            raise
        finally:
            for task in (self._watching, self._clearing, self._waiting):
                if task is not None:
                    task.cancel()
        if self._failure is not None:
            raise self._failure
        return self._ended

    async def _start(self, process: str, clients: Sequence[str]) -> None:
        roles = [self._roles[name] for name in clients]
        self._hosted[process] = list(clients)
        await self._processes.start(process, take_part, roles=roles, address=self._address)

    def _part(self, process: str, last: dict[str, Any]) -> None:
        """A client has ended, in a process that may host others."""
        client = last["party"]
        self._hosted[process].remove(client)
        reason, failed = _ending(last)
        self._show(client, "failed" if failed else "exited", {"reason": reason})
        # The reason of one that has seen its images may hold what only the secure sum may carry.
        self._miss([client], reason if client in self._coming else "")
        lost = last.get("finished", {}).get("status") == SERVER_LOST
        if lost and self._clearing is None and self._watching is None:
            self._watching = asyncio.ensure_future(
                self._end_silent_server(self._experiment.deadlines.grace + LEAVE_SECONDS)
            )

    async def _bury(self, name: str, exit: Exit) -> None:
        last = self._last.pop(name, {})
        reason, failed = _ending(last, exit)
        if name != SERVER:
            clients = self._hosted.pop(name)
            if len(clients) > 1:
                reason += f" ({name}, with {len(clients)} clients: {', '.join(clients[:MOST_NAMES])}"
                reason += ", ...)" if len(clients) > MOST_NAMES else ")"
            for client in clients:
                self._show(client, "failed" if failed else "exited", {"reason": reason, "again": client != clients[0]})
            revived = self._roles[name].after_kill() if clients == [name] and exit.signal is not None else None
            if clients and exit.replaced and self._clearing is None and not self._ended:
                await self._start(name, clients)
            elif revived is not None and self._clearing is None:
                self._roles[name] = revived
                await self._start(name, [name])
            else:
                self._miss(clients, reason)
            return
        if self._watching is not None:
            self._watching.cancel()
        if self._silence:
            self._failure = ServerLostError(f"{name}: {self._silence}")
            return
        if not failed:
            self._ended = reason
            # Where only clients can read the last model, they now evaluate it, which takes as long as it takes.
            evaluating = self._experiment.deadlines.train if self._experiment.evaluated_by_clients else 0.0
            self._clear("the server has ended", max(LEAVE_SECONDS, evaluating))
            return
        if not self._address and "finished" in last:
            raise InputError(f"{name}: {reason}")
        kind = ServerLostError if exit.signal is not None else SimulationError
        self._failure = kind(f"{name}: {reason}")
        # The clients shall notice by themselves, and say so.
        self._clear("the server is gone", self._experiment.deadlines.grace + LEAVE_SECONDS)

    def _await_clients(self) -> None:
        """The server gathers the clients: it waits for all that live, while they come."""

        async def wait() -> None:
            while before := frozenset(self._coming):
                await asyncio.sleep(self._experiment.deadlines.join)
                if before == self._coming:
                    self._miss(before, f"it did not join, nor did another, for {self._experiment.deadlines.join:g} s")

        if self._waiting is not None:
            self._waiting.cancel()
        self._coming = {name for clients in self._hosted.values() for name in clients}
        self._waiting = asyncio.ensure_future(wait())

    def _miss(self, clients: Iterable[str], reason: str) -> None:
        """These will not come: the server need not wait for them. reason: "" for what the server is not to know."""
        self._missing |= dict.fromkeys(clients, reason)
        self._coming -= self._missing.keys()
        self._processes.tell(SERVER, {"missing": self._missing})

    async def _end_silent_server(self, patience: float) -> None:
        """End the run if the server, which says every second that it is alive, says nothing for so many seconds."""
        words = self._words
        await asyncio.sleep(patience)
        self._watching = None
        if self._words == words:
            self._silence = f"it said nothing for {patience:g} s after a client had given it up, and was ended"
            self._clear("the server is silent", 0)

    def _clear(self, reason: str, after_seconds: float) -> None:
        """End, after some time, whoever is still there."""

        async def wait_and_stop() -> None:
            await asyncio.sleep(after_seconds)
            await self._processes.stop(reason, grace_seconds=STOP_SECONDS)

        self._clearing = asyncio.ensure_future(wait_and_stop())


def _ending(last: dict[str, Any], ended: Exit | None = None) -> tuple[str, bool]:
    """How a party or a process ended, in one sentence, and whether that is a failure."""
    if "failed" in last:
        return f"{last['failed']} (details in {os.path.relpath(last['log'])})", True
    result = last.get("finished")
    if result is None:
        return last.get("stopped", f"its process ended unexpectedly: {ended}"), "stopped" not in last
    return str(result["detail"]), result["status"] not in (0, ABORTED)
