"""Watching the processes of a run: who is started when, what their ends mean, and when the rest must go.

The clients are started when the server listens. A client that fails is the federation's business and is only shown.
When the server has ended, the clients get time to notice, and to judge a model that only they can read; whoever is
still there then (frozen, say) is ended. So is a server that a client has given up, and that goes on saying nothing.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from typing import Any

from tacit.simulate.federation.child import Control
from tacit.simulate.federation.processes import Exit, Processes
from tacit.simulate.federation.roles import ABORTED, SERVER_LOST, Role

SERVER = "server"
LEAVE_SECONDS = 5.0
"""How long clients may take to end after the server has said that it is over."""
STOP_SECONDS = 1.0
"""How long each step of ending a process may take that had its time before."""

Show = Callable[[str, str, dict[str, Any]], None]
"""Called with party, event and fields for everything that a party tells."""


class SimulationError(Exception):
    """The run failed; the message says who failed and why."""


class InputError(SimulationError):
    """The server cannot start with what it is given (data, model, device); the message says what to change."""


class ServerLostError(SimulationError):
    """The server's process died, or froze, in the middle of the run."""


async def serve(control: Control, **arguments: Any) -> dict[str, Any]:
    """The server's process; torch is imported there, not here. See server_role.run_server."""
    from tacit.simulate.federation.server_role import run_server

    return await run_server(control, **arguments)


async def take_part(control: Control, **arguments: Any) -> dict[str, Any]:
    """A client's process; torch is imported there, not here. See client_role.run_client."""
    from tacit.simulate.federation.client_role import run_client

    return await run_client(control, **arguments)


class Supervisor:
    """Starts and follows the processes of one run."""

    def __init__(self, processes: Processes, roles: dict[str, Role], show: Show) -> None:
        self._processes = processes
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
                    self._show(name, event, message)
                    # A second time after a sum of statistics, at the same place.
                    if event == "listening" and not self._address:
                        self._address = message["address"]
                        for client in [name for name in self._roles if name != SERVER]:
                            await self._start_client(client)
                else:
                    self._last[name] = message
        except asyncio.CancelledError:
            # The server first, while the clients still answer: it may have a sum to finish.
            await self._processes.ask(SERVER, "the run was interrupted", grace_seconds=LEAVE_SECONDS)
            raise
        finally:
            for task in (self._watching, self._clearing):
                if task is not None:
                    task.cancel()
        if self._failure is not None:
            raise self._failure
        return self._ended

    async def _start_client(self, name: str) -> None:
        await self._processes.start(name, take_part, role=self._roles[name], address=self._address)

    async def _bury(self, name: str, exit: Exit) -> None:
        last = self._last.pop(name, {})
        reason, failed = _ending(last, exit)
        if name != SERVER:
            self._show(name, "failed" if failed else "exited", {"reason": reason})
            if self._clearing is not None:
                return
            revived = self._roles[name].after_kill() if exit.signal is not None else None
            if revived is not None:
                self._roles[name] = revived
                await self._start_client(name)
            elif last.get("finished", {}).get("status") == SERVER_LOST and self._watching is None:
                self._watching = asyncio.ensure_future(
                    self._end_silent_server(self._experiment.deadlines.grace + LEAVE_SECONDS)
                )
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


def _ending(last: dict[str, Any], ended: Exit) -> tuple[str, bool]:
    """How a process ended, in one sentence, and whether that is a failure."""
    if "failed" in last:
        return f"{last['failed']} (details in {os.path.relpath(last['log'])})", True
    result = last.get("finished")
    if result is None:
        return last.get("stopped", f"its process ended unexpectedly: {ended}"), "stopped" not in last
    return str(result["detail"]), result["status"] not in (0, ABORTED)
