"""One operating-system process for every party of a federation, started and watched by one supervisor.

Children are forked from a fork server that has loaded torch already (preload.py). `Processes.messages` yields the
messages of children, and their exits, in order, in the supervisor's event loop. No process outlives the supervisor,
even if it is killed: the children see their control connections close and exit; with the last of them go the fork
server (hand_over.py) and multiprocessing's resource tracker.

A client's failure is left to the federation's protocol, and only shown. When the server has ended, the clients get time
to notice; any remaining one (frozen, say) is then ended. So is a silent server that a client has given up.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import inspect
import os
import pickle
import re
import signal
import threading
import time
from collections.abc import AsyncIterator, Callable, Collection, Coroutine, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from multiprocessing import forkserver, get_context, resource_tracker
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerProcess
from multiprocessing.util import get_temp_dir
from operator import methodcaller
from pathlib import Path
from tempfile import TemporaryDirectory
from types import TracebackType
from typing import Any, Final, Self

import msgspec

from tacit.parties.runs.events import PartyExited, PartyFailed
from tacit.parties.runs.state import parse_event
from tacit.parties.runs.summary import Summary
from tacit.parties.session.events import ListeningStarted, RoundEnded
from tacit.protocol.core.events import Event
from tacit.protocol.session.events import ClientJoined
from tacit.simulate.federation import child
from tacit.simulate.federation.child import Control
from tacit.simulate.federation.hosting import Hosting
from tacit.simulate.federation.relay import Relay
from tacit.simulate.federation.roles import ABORTED, SERVER_LOST, Role

Message = dict[str, Any]

_POLLING = threading.Lock()
"""Held while multiprocessing polls exit statuses. It polls all processes whenever one is started, in a thread here, and
mistakes a status that another thread has read for the death of the fork server (exit code 255)."""


PRELOAD: Final = "tacit.simulate.federation.preload"


class ProcessError(RuntimeError):
    """A party's process could not be started, or has failed; the message names the party."""


@dataclass(frozen=True)
class Exit:
    """End of a process: its exit code, or the name of the signal that killed it, such as "SIGKILL"."""

    code: int | None
    signal: str | None
    reason: str = ""
    """In words, for a process on another machine."""
    replaced: bool = False
    """Whether another process will replace it."""

    def __str__(self) -> str:
        if self.reason:
            return self.reason
        return f"killed by {self.signal}" if self.signal else f"exit code {self.code}"


@dataclass
class Running:
    """A process of a party, which may not be connected yet."""

    connection: Connection | None
    ended: asyncio.Event = field(default_factory=asyncio.Event, kw_only=True)

    def say(self, message: bytes) -> None:
        """Send it a message, if it is still connected."""
        if self.connection is not None:
            with contextlib.suppress(OSError):  # It is about to end by itself.
                self.connection.send_bytes(message)

    def terminate(self) -> None:
        """Terminate it, gracefully if possible."""
        raise NotImplementedError

    def kill(self) -> None:
        self.terminate()


@dataclass
class _PartyProcess(Running):
    connection: Connection
    process: ForkServerProcess

    def terminate(self) -> None:
        self.process.terminate()

    def kill(self) -> None:
        self.process.kill()


class Processes:
    """Supervises party processes; an asynchronous context manager, used within one event loop.

    Output and tracebacks of a party go to `<directory>/<name>.log`. `preload` names the module that the fork server
    imports before it forks. There is one fork server in a program: the first preload stays, and a party that needs
    another one fails with a message that says so. `grace_seconds` limits a stop at the end of the block.
    """

    def __init__(self, directory: Path, *, preload: str = PRELOAD, grace_seconds: float = 10.0) -> None:
        self._directory = directory
        self._preload = preload
        self._grace_seconds = grace_seconds
        self._running: dict[str, Running] = {}
        self._children: dict[str, _PartyProcess] = {}
        """Running children of this process."""
        self._news: asyncio.Queue[tuple[str, Message | Exit]] = asyncio.Queue()
        self._all_ended = asyncio.Event()
        self.host = "127.0.0.1"
        """Address of this machine for its processes."""
        self.cores = 0
        """Cores that the processes are spread over, where that is not left to this machine; else 0."""

    async def prepare(self, names: Iterable[str]) -> None:
        """Prepare the environment of processes with these names. ProcessError if that fails."""

    async def start(self, name: str, target: Callable[..., Coroutine[Any, Any, object]], **arguments: object) -> None:
        """Start a process that awaits `target(control, **arguments)`; return when the process exists.

        `target` is a coroutine function at the top level of a module, the arguments can be pickled, and its result is
        made of msgpack types. ValueError otherwise, or for a name in use; ProcessError if no process started.
        """
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.-]*", name):
            raise ValueError(f"{name!r} cannot name a process: use letters, digits, and . _ - after the first")
        if name in self._running:
            raise ValueError(f"a process named {name!r} is running already")
        location = locate(target)
        try:
            pickled = pickle.dumps(arguments)
        except Exception as error:
            raise ValueError(f"the arguments of {name!r} cannot be sent to a process: {error}") from error
        self._directory.mkdir(parents=True, exist_ok=True)
        ours, theirs = get_context("forkserver").Pipe()
        process = get_context("forkserver").Process(
            target=child.run,
            name=name,
            args=(
                theirs,
                self._directory / f"{name}.log",
                self._preload,
                location,
                [pickled],
                child.Origin(os.getpid(), Path(get_temp_dir())),
            ),
            daemon=True,  # The interpreter's exit then ends the children instead of waiting for them.
        )
        try:
            await in_daemon_thread(lambda: _launch(process, theirs, self._preload))
        except (EOFError, OSError) as error:
            ours.close()
            raise ProcessError(
                f"cannot start {name!r}: the fork server ended while it loaded {self._preload} ({error!r}); "
                "its own message stands on standard error"
            ) from error
        except BaseException:
            ours.close()  # If the launch is still under way, its child ends when it sees this.
            raise
        self._running[name] = self._children[name] = _PartyProcess(ours, process)
        self._all_ended.clear()
        loop = asyncio.get_running_loop()
        loop.add_reader(ours.fileno(), self._receive, name)
        loop.add_reader(process.sentinel, self._bury, name)

    async def messages(self) -> AsyncIterator[tuple[str, Message | Exit]]:
        """Yield the parties' messages with their names, each party's Exit last. Ends when no process is left."""
        while self._running or not self._news.empty():
            yield await self._news.get()

    def tell(self, name: str, told: Message) -> None:
        """Send one process the value of `Control.told`, replacing the previous one."""
        if (party := self._running.get(name)) is not None:
            party.say(msgspec.msgpack.encode(told))

    async def ask(self, name: str, reason: str, *, grace_seconds: float) -> None:
        """Ask one process to end, and wait at most `grace_seconds` for it."""
        party = self._running.get(name)
        if party is not None:
            party.say(msgspec.msgpack.encode({"stop": reason}))
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(grace_seconds):
                    await party.ended.wait()

    async def stop(self, reason: str, *, grace_seconds: float) -> None:
        """End all processes: ask them, terminate them after `grace_seconds`, kill them after as long again."""
        request = msgspec.msgpack.encode({"stop": reason})
        for party in self._running.values():
            party.say(request)
        for escalate in (methodcaller("terminate"), methodcaller("kill")):
            if not self._running:
                return
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(grace_seconds):
                    await self._all_ended.wait()
            for party in self._running.values():
                escalate(party)
        if self._running:
            await self._all_ended.wait()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop("the supervisor is leaving", grace_seconds=self._grace_seconds)

    def _receive(self, name: str) -> None:
        connection = self._running[name].connection
        if connection is None:
            return
        try:
            while connection.poll():
                self._news.put_nowait((name, msgspec.msgpack.decode(connection.recv_bytes(), type=Message)))
        except (EOFError, OSError):
            asyncio.get_running_loop().remove_reader(connection.fileno())

    def _bury(self, name: str) -> None:
        self._receive(name)  # Everything that it said comes before its Exit.
        del self._running[name]
        party = self._children.pop(name)
        party.ended.set()
        loop = asyncio.get_running_loop()
        loop.remove_reader(party.connection.fileno())
        loop.remove_reader(party.process.sentinel)
        with _POLLING:
            party.process.join()
        code = party.process.exitcode or 0
        party.process.close()
        party.connection.close()
        self._news.put_nowait((name, Exit(code, None) if code >= 0 else Exit(None, signal.Signals(-code).name)))
        if not self._running:
            self._all_ended.set()


def locate(target: Callable[..., object]) -> tuple[str, str]:
    """Return module and qualified name of a function that a process can run. ValueError for anything else."""
    module, name = target.__module__, target.__qualname__
    if "<" in name or not inspect.iscoroutinefunction(target):
        raise ValueError(f"{module}.{name} cannot run in a process: it must be a top-level coroutine function")
    return module, name


def warm_up(preload: str = PRELOAD) -> None:
    """Start the fork server, if it is not running yet; return while it loads the parties' imports."""
    with _sigint_blocked(), _one_thread_environment():
        forkserver.set_forkserver_preload(["__main__", "tacit.simulate.federation.hand_over", preload])
        forkserver.ensure_running()


@contextlib.contextmanager
def _sigint_blocked() -> Iterator[None]:
    """Block SIGINT in processes started within: Ctrl-C reaches every process of the terminal, but only the supervisor
    handles it. They inherit the signal mask of this thread, as do their children. The resource tracker comes first,
    because starting it clears the mask."""
    resource_tracker.ensure_running()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _launch(process: ForkServerProcess, theirs: Connection, preload: str) -> None:
    """Start the process, after the fork server if that is not running yet, and close the child's end here."""
    try:
        warm_up(preload)
        with _POLLING:
            process.start()
    finally:
        theirs.close()


@contextlib.contextmanager
def _one_thread_environment() -> Iterator[None]:
    # Read when torch and NumPy are loaded. The parties share the processor as processes: no threads beneath them.
    before = os.environ.get("OMP_NUM_THREADS")
    os.environ["OMP_NUM_THREADS"] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ["OMP_NUM_THREADS"]
        else:
            os.environ["OMP_NUM_THREADS"] = before


async def in_daemon_thread(function: Callable[[], None]) -> None:
    """Await a blocking call. Unlike the loop's executor, its thread does not hold up the interpreter's exit."""
    result: concurrent.futures.Future[None] = concurrent.futures.Future()
    result.set_running_or_notify_cancel()

    def work() -> None:
        try:
            function()
        except BaseException as error:
            result.set_exception(error)
        else:
            result.set_result(None)

    threading.Thread(target=work, daemon=True).start()
    await asyncio.wrap_future(result)


Program = tuple[Callable[..., Coroutine[Any, Any, object]], dict[str, Any]]
"""Coroutine function and arguments of a process; `addresses` of programs that listen before it are added."""

_GRACE_SECONDS: Final = 0.5


async def results(
    programs: Mapping[str, Program],
    told: Callable[[str, Message], object],
    *,
    listening: Mapping[str, Sequence[str]] | None = None,
    reached: Callable[[str, str], str] = lambda service, address: address,
    wanted: Collection[str] = (),
    lost: Callable[[str, str], object] | None = None,
    logs: Path | None = None,
) -> dict[str, Any]:
    """Run programs and return their results by name. They end when those in `wanted` have finished; by default all.

    listening: programs that report a listening address, for which the next ones wait; each with the names of its
    services, the first of which is called "" by itself. reached: maps such a name and address to the one for the
    others. told: receives their messages. lost: makes the result of a program whose process ended without one, from its
    name and its end; otherwise, and for programs that others wait for, that is a failure. logs: folder for the output
    of the processes, None: a temporary one. ProcessError names the failed program, ValueError one that cannot start.
    """
    listening = listening or {}
    waiting, addresses = list(programs), dict[str, str]()
    found: dict[str, Any] = {}
    with TemporaryDirectory() as scratch:
        async with Processes(logs or Path(scratch), grace_seconds=_GRACE_SECONDS) as processes:

            async def start_next() -> None:
                while waiting:
                    name = waiting.pop(0)
                    target, arguments = programs[name]
                    await processes.start(name, target, addresses=dict(addresses), **arguments)
                    if name in listening:
                        return

            await start_next()
            async for name, message in processes.messages():
                if isinstance(message, Exit):
                    if name in found:
                        continue
                    failure = f"its process ended unexpectedly: {message}"
                    if lost is None or name in listening:
                        message = {"failed": failure}
                    else:
                        message = {"finished": lost(name, failure)}
                if "failed" in message:
                    raise ProcessError(f"{name}: {message['failed']}")
                if "finished" in message:
                    found[name] = message["finished"]
                    if found.keys() >= set(wanted or programs):
                        return found
                elif "refused" in message:
                    raise ValueError(f"{name}: {message['refused']}")
                else:
                    event = parse_event(message["event"]) if "event" in message else None
                    if isinstance(event, ListeningStarted):
                        service = event.service or listening[name][0]
                        addresses[service] = reached(service, event.address)
                        if addresses.keys() >= {*listening[name]}:
                            await start_next()
                    told(name, message)
    raise ProcessError(f"{', '.join(programs.keys() - found.keys())}: without a result, and no process is left")


SERVER = "server"
LEAVE_SECONDS = 5.0
"""Time for clients to end after the server has announced the end."""
STOP_SECONDS = 1.0
"""Time for each step of ending a process that was already asked to end."""
MOST_NAMES = 8
"""Clients named when the process of many ends."""

Show = Callable[[Event], None]
"""Receives every event of the parties, and PartyExited or PartyFailed for each client whose process ends."""


class SimulationError(Exception):
    """The run failed; the message names the party and the reason."""

    summary: Summary | None = None
    """Summary of the run, if it got far enough to have one."""


class InputError(SimulationError):
    """The server cannot start with its data, model or device; the message gives the remedy."""


class ServerLostError(SimulationError):
    """The server's process died, or froze, in the middle of the run."""


async def serve(control: Control, **arguments: Any) -> dict[str, Any]:
    """The server's process; torch is imported there, not here."""
    from tacit.simulate.federation.hosted_parties import run_server

    return await run_server(control, **arguments)


async def take_part(control: Control, **arguments: Any) -> dict[str, Any]:
    """A process of clients; torch is imported there, not here."""
    from tacit.simulate.federation.hosted_parties import run_clients

    return await run_clients(control, **arguments)


class Supervisor:
    def __init__(
        self,
        processes: Processes,
        roles: dict[str, Role],
        hosting: Hosting,
        show: Show,
        relay: Relay | None = None,
    ) -> None:
        self._relay = relay
        self._processes = processes
        self._hosting = hosting
        self._hosted: dict[str, list[str]] = {}
        """Keyed by process: clients that have not ended."""
        self._roles = roles
        self._show = show
        self._last: dict[str, dict[str, Any]] = {}
        self._address = ""
        self._ended = ""
        self._failure: SimulationError | None = None
        self._clearing: asyncio.Task[None] | None = None
        self._words = 0
        """Number of messages from the server."""
        self._silence = ""
        """Reason for ending a frozen server."""
        self._watching: asyncio.Task[None] | None = None
        self._coming: set[str] = set()
        """Clients with a process that have not joined."""
        self._told: dict[str, Any] = {}
        """Values sent to the server."""
        self._missing: dict[str, str] = {}
        """Clients that will not come, and the reason."""
        self._waiting: asyncio.Task[None] | None = None
        self._experiment = roles[SERVER].plan.experiment

    async def follow(self) -> str:
        """Run until all processes have ended; return how the server says it ended, or raise SimulationError."""
        await self._processes.start(SERVER, serve, role=self._roles[SERVER])
        try:
            async for name, message in self._processes.messages():
                self._words += name == SERVER
                if isinstance(message, Exit):
                    await self._bury(name, message)
                elif "event" in message:
                    event = parse_event(message["event"])
                    self._show(event)
                    if isinstance(event, RoundEnded):
                        self._told["shown"] = event.round
                        self._processes.tell(SERVER, self._told)
                    if isinstance(event, ClientJoined):
                        self._coming.discard(event.member)
                    elif isinstance(event, ListeningStarted):
                        # A second time after a sum of statistics, at the same place.
                        if not self._address:
                            address = event.address
                            self._address = address if self._relay is None else self._relay.address(address)
                            for process, clients in self._hosting.processes.items():
                                await self._start(process, clients)
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
        for role in roles:
            role.write_client(self._address)
        await self._processes.start(process, take_part, roles=roles)

    def _part(self, process: str, last: dict[str, Any]) -> None:
        client = last["party"]
        self._hosted[process].remove(client)
        reason, failed = _ending(last)
        self._show_end(client, reason, failed=failed)
        # The reason may contain data from images that only the secure sum may carry.
        self._miss([client], reason if client in self._coming else "")
        lost = last.get("finished", {}).get("status") == SERVER_LOST
        if lost and self._clearing is None and self._watching is None:
            self._watching = asyncio.ensure_future(
                self._end_silent_server(self._experiment.deadlines.grace + LEAVE_SECONDS)
            )

    def _show_end(self, client: str, reason: str, *, failed: bool, again: bool = False) -> None:
        now = time.time()
        if failed:
            self._show(PartyFailed(time=now, party=client, reason=reason, again=again))
        else:
            self._show(PartyExited(time=now, party=client, reason=reason))

    async def _bury(self, name: str, exit: Exit) -> None:
        last = self._last.pop(name, {})
        reason, failed = _ending(last, exit)
        if name != SERVER:
            clients = self._hosted.pop(name)
            if len(clients) > 1:
                reason += f" ({name}, with {len(clients)} clients: {', '.join(clients[:MOST_NAMES])}"
                reason += ", ...)" if len(clients) > MOST_NAMES else ")"
            for client in clients:
                self._show_end(client, reason, failed=failed, again=client != clients[0])
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
            # Where only clients can read the last model, they now evaluate it, without a deadline.
            evaluating = self._experiment.deadlines.train if self._experiment.evaluated_by_clients else 0.0
            self._clear("the server has ended", max(LEAVE_SECONDS, evaluating))
            return
        if not self._address and "finished" in last:
            raise InputError(f"{name}: {reason}")
        kind = ServerLostError if exit.signal is not None else SimulationError
        self._failure = kind(f"{name}: {reason}")
        # Let the clients notice and report it themselves.
        self._clear("the server is gone", self._experiment.deadlines.grace + LEAVE_SECONDS)

    def _await_clients(self) -> None:
        """Let the server wait for all living clients while some keep joining; then report the missing ones."""

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
        """Tell the server not to wait for these clients. reason: "" to withhold it from the server."""
        self._missing |= dict.fromkeys(clients, reason)
        self._coming -= self._missing.keys()
        self._told["missing"] = self._missing
        self._processes.tell(SERVER, self._told)

    async def _end_silent_server(self, patience: float) -> None:
        """End the run if the server, which reports every second, is silent for so many seconds."""
        words = self._words
        await asyncio.sleep(patience)
        self._watching = None
        if self._words == words:
            self._silence = f"it said nothing for {patience:g} s after a client had given it up, and was ended"
            self._clear("the server is silent", 0)

    def _clear(self, reason: str, after_seconds: float) -> None:
        async def wait_and_stop() -> None:
            await asyncio.sleep(after_seconds)
            await self._processes.stop(reason, grace_seconds=STOP_SECONDS)

        self._clearing = asyncio.ensure_future(wait_and_stop())


def _ending(last: dict[str, Any], ended: Exit | None = None) -> tuple[str, bool]:
    """Describe the end of a party or a process in one sentence; return it and whether it is a failure."""
    if "failed" in last:
        return f"{last['failed']} (details in {os.path.relpath(last['log'])})", True
    result = last.get("finished")
    if result is None:
        return last.get("stopped", f"its process ended unexpectedly: {ended}"), "stopped" not in last
    return str(result["detail"]), result["status"] not in (0, ABORTED)
