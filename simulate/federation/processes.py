"""One operating-system process for every party of a federation, under one supervisor.

Children are forked from a fork server that has loaded torch already (preload.py): the first child waits for that, the
others start in milliseconds. Every child has a control connection to the supervisor (child.py describes its end). What
children say, and how they end, comes out of `Processes.messages` in order; all of it runs in the supervisor's event
loop, without threads per child.

No process outlives the supervisor, whatever ends it. `async with Processes(...)` stops the children when its block
ends, also by an exception or by Ctrl-C. If the supervisor itself is killed, the children see their control connections
close and exit; with the last of them go the fork server, also while it loads its modules (hand_over.py), and
multiprocessing's resource tracker.
"""

import asyncio
import concurrent.futures
import contextlib
import inspect
import os
import pickle
import re
import signal
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator
from dataclasses import dataclass, field
from multiprocessing import forkserver, get_context, resource_tracker
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerProcess
from multiprocessing.util import get_temp_dir
from operator import methodcaller
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Protocol, Self

import msgspec

from tacit.simulate.federation import child

Message = dict[str, Any]

_POLLING = threading.Lock()
"""Held while multiprocessing asks how processes ended. It does so for all of them whenever one is started, in a thread
here, and takes an answer that another thread has read for the death of the fork server (exit code 255)."""


PRELOAD: Final = "tacit.simulate.federation.preload"


class ProcessError(RuntimeError):
    """A party's process could not be started, or has failed; the text names the party."""


@dataclass(frozen=True)
class Exit:
    """How a process ended: its exit code, or the name of the signal that killed it, such as "SIGKILL"."""

    code: int | None
    signal: str | None
    reason: str = ""
    """In words, of a process that is not of this machine."""
    replaced: bool = False
    """Whether another one is to be started in its place."""

    def __str__(self) -> str:
        if self.reason:
            return self.reason
        return f"killed by {self.signal}" if self.signal else f"exit code {self.code}"


@dataclass(frozen=True)
class _PartyProcess:
    process: ForkServerProcess
    connection: Connection
    ended: asyncio.Event = field(default_factory=asyncio.Event)

    def say(self, message: bytes) -> None:
        with contextlib.suppress(OSError):  # It is about to end by itself.
            self.connection.send_bytes(message)

    def terminate(self) -> None:
        self.process.terminate()

    def kill(self) -> None:
        self.process.kill()


class Running(Protocol):
    """A process that has not ended, whoever has started it."""

    @property
    def ended(self) -> asyncio.Event:
        """Set when it has ended."""

    def say(self, message: bytes) -> None:
        """Sends it a message, if it can still be sent one."""

    def terminate(self) -> None:
        """Ends it, politely where that is known."""

    def kill(self) -> None:
        """Ends it."""


class Processes:
    """Supervises party processes; an asynchronous context manager, used within one event loop.

    Output and tracebacks of a party go to `<directory>/<name>.log`. `preload` names the module that the fork server
    imports before it forks. There is one fork server in a program: the first preload stays, and a party that needs
    another one fails with a message that says so. `grace_seconds` is what a stop at the end of the block allows.
    """

    def __init__(self, directory: Path, *, preload: str = PRELOAD, grace_seconds: float = 10.0) -> None:
        self._directory = directory
        self._preload = preload
        self._grace_seconds = grace_seconds
        self._running: dict[str, Running] = {}
        self._children: dict[str, _PartyProcess] = {}
        """Those of the running that are children of this process."""
        self._news: asyncio.Queue[tuple[str, Message | Exit]] = asyncio.Queue()
        self._all_ended = asyncio.Event()
        self.host = "127.0.0.1"
        """This machine, as its processes reach it."""
        self.cores = 0
        """Over which processes are spread, where that is not left to this machine; else 0."""

    async def prepare(self, names: Iterable[str]) -> None:
        """Have what processes of these names begin in, and wait for it. ProcessError if it cannot be had."""

    async def start(self, name: str, target: Callable[..., Coroutine[Any, Any, object]], **arguments: object) -> None:
        """Starts a process that awaits `target(control, **arguments)`; returns when the process exists.

        `target` is a coroutine function at the top level of a module, the arguments can be pickled, and its result is
        made of msgpack types. Raises ValueError if not, or for a name in use, and ProcessError if no process came up.
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
                pickled,
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
        self._running[name] = self._children[name] = _PartyProcess(process, ours)
        self._all_ended.clear()
        loop = asyncio.get_running_loop()
        loop.add_reader(ours.fileno(), self._receive, name)
        loop.add_reader(process.sentinel, self._bury, name)

    async def messages(self) -> AsyncIterator[tuple[str, Message | Exit]]:
        """What the parties say, with their names; the last of each party is its Exit. Ends when no process is left."""
        while self._running or not self._news.empty():
            yield await self._news.get()

    def tell(self, name: str, told: Message) -> None:
        """Tells one process this, in the place of what it was told before; it finds it in `Control.told`."""
        if (party := self._running.get(name)) is not None:
            party.say(msgspec.msgpack.encode(told))

    async def ask(self, name: str, reason: str, *, grace_seconds: float) -> None:
        """Asks one process to end, and waits for that at most so long."""
        party = self._running.get(name)
        if party is not None:
            party.say(msgspec.msgpack.encode({"stop": reason}))
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(grace_seconds):
                    await party.ended.wait()

    async def stop(self, reason: str, *, grace_seconds: float) -> None:
        """Ends all processes: asks them, after `grace_seconds` terminates them, after as long again kills them."""
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
        connection = self._children[name].connection
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
    """Module and qualified name of what a process can run. ValueError for anything else."""
    module, name = target.__module__, target.__qualname__
    if "<" in name or not inspect.iscoroutinefunction(target):
        raise ValueError(f"{module}.{name} cannot run in a process: it must be a top-level coroutine function")
    return module, name


def warm_up(preload: str = PRELOAD) -> None:
    """Starts the fork server, if it is not running yet, and returns while it loads what the parties need."""
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
    """Starts the process, after the fork server if that is not running yet, and closes the child's end here."""
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
    """Awaits a blocking call. Unlike the loop's executor, its thread does not hold up the interpreter's exit."""
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
