"""Client processes that Ray starts: actors, on this machine or anywhere in a Ray cluster.

An actor connects to the supervisor, which admits only processes that know the secret of the run; a stranger that sends
nothing, or garbage, delays nobody. The server, and clients named by a fault, stay children of the supervisor. When an
actor dies its clients are restarted in another one.

One thread makes all blocking calls, and lives as long as Ray does here: Ray kills its processes on this machine when
the thread that started them ends, so they do not outlive the supervisor.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import logging
import os
import pickle
import secrets
import socket
import struct
import sys
import threading
from collections import Counter
from collections.abc import Callable, Collection, Coroutine, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from importlib.util import find_spec
from multiprocessing.connection import Client, Connection, Listener, answer_challenge, deliver_challenge
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self, TypeVar

from tacit.simulate.federation import child
from tacit.simulate.federation.processes import PRELOAD, Exit, ProcessError, Processes, Running, locate

LONGEST_NAME: Final = 256
_PATIENCE_SECONDS: Final = 10.0


class Door:
    """Listener for processes, open from its creation, within an event loop, until it is closed.

    host: this machine's listening address. welcome: called in the loop with the name that a process sends first, and
    its connection.
    """

    def __init__(self, host: str, welcome: Callable[[str, Connection], None]) -> None:
        self.secret = secrets.token_bytes(32)
        """Authentication key for `Client(address, authkey=secret)` of multiprocessing.connection."""
        self._listener = Listener((host, 0), backlog=128)
        self.address: tuple[str, int] = self._listener.address
        self._welcome = welcome
        self._loop = asyncio.get_running_loop()
        self._closed = False
        self._answering = threading.Thread(target=self._answer, daemon=True)
        self._answering.start()

    def close(self) -> None:
        self._closed = True
        with contextlib.suppress(OSError), socket.create_connection(self.address):
            # Wakes its thread. While that accepts, every caller gets a connection, closed or not.
            self._answering.join()
        self._listener.close()

    def _answer(self) -> None:
        while not self._closed:
            with contextlib.suppress(OSError):
                connection = self._listener.accept()
                threading.Thread(target=self._let_in, args=(connection,), daemon=True).start()

    def _let_in(self, connection: Connection) -> None:
        try:
            _wait_at_most(connection, _PATIENCE_SECONDS)
            deliver_challenge(connection, self.secret)
            answer_challenge(connection, self.secret)
            name = connection.recv_bytes(LONGEST_NAME).decode()
            _wait_at_most(connection, 0)
            self._loop.call_soon_threadsafe(self._welcome, name, connection)
        except Exception:  # Whatever a stranger said, or the loop is over.
            connection.close()


def _wait_at_most(connection: Connection, seconds: float) -> None:
    """Set a read timeout on the connection; 0: none."""
    with socket.socket(fileno=os.dup(connection.fileno())) as shared:
        shared.setsockopt(
            socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", int(seconds), int(seconds % 1 * 1e6))
        )


STORE_BYTES: Final = 100 * 2**20
"""Size of Ray's object store, which holds only the actors' arguments."""
MOST_REPLACEMENTS: Final = 3
"""Largest number of replacements of one client process in a run."""

Result = TypeVar("Result")


class MissingRayError(Exception):
    """Ray is not installed; the message explains the installation."""


def require_ray() -> None:
    if find_spec("ray") is None:
        raise MissingRayError("--engine ray needs ray, which is not installed: pip install 'ray>=2.40'")


class RayHost:
    """The actor: it runs one process of clients, and ends with it."""

    def load(self) -> None:
        os.environ["OMP_NUM_THREADS"] = "1"
        importlib.import_module(PRELOAD)

    def run(
        self, supervisor: tuple[str, int], secret: bytes, name: str, log: Path, target: tuple[str, str], told: bytes
    ) -> int:
        """Connect to the supervisor and run as a child does; return the exit status that a child would have."""
        self.load()
        connection = Client(supervisor, authkey=secret)
        connection.send_bytes(name.encode())
        return child.work(connection, log, PRELOAD, target, [told], None)


@dataclass
class _Actor(Running):
    handle: Any
    early: bool = False
    """Whether it ended before it had connected."""

    def say(self, message: bytes) -> None:
        if self.connection is None:
            self.early = True
            self.terminate()
        else:
            super().say(message)

    def terminate(self) -> None:
        import ray

        ray.kill(self.handle)


class Actors(Processes):
    """Processes whose client processes are Ray actors; used like Processes.

    address: of an existing cluster; "" starts one on this machine, which ends with the block. alone: names of processes
    that stay children. Entering the block raises ProcessError if Ray does not start or cannot be reached.
    """

    def __init__(self, directory: Path, *, address: str, alone: Collection[str], grace_seconds: float) -> None:
        super().__init__(directory, grace_seconds=grace_seconds)
        self._address = address
        self._alone = alone
        self._prepared: dict[str, Any] = {}
        """Idle actors."""
        self._actors: dict[str, _Actor] = {}
        self._replaced: Counter[str] = Counter()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="ray")
        self._door: Door | None = None

    async def __aenter__(self) -> Self:
        try:
            await self._call(self._connect)
            self._door = Door(self.host, self._welcome)
        except BaseException as error:
            await self._leave()
            if isinstance(error, Exception):
                raise ProcessError(f"Ray cannot be used: {' '.join(str(error).split())}") from error
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            await super().__aexit__(kind, error, trace)
        finally:
            await self._leave()

    async def prepare(self, names: Iterable[str]) -> None:
        """As `Processes.prepare`, except for children: actors exist and have finished slow imports."""
        wanted = [name for name in names if name not in self._alone]
        self._prepared = {name: await self._call(_make) for name in wanted}
        loading = [asyncio.wrap_future(handle.load.remote().future()) for handle in self._prepared.values()]
        try:
            await asyncio.gather(*loading)
        except Exception as error:
            raise ProcessError(f"an actor cannot begin: {' '.join(str(error).split())}") from error

    async def start(self, name: str, target: Callable[..., Coroutine[Any, Any, object]], **arguments: object) -> None:
        """As `Processes.start`. An actor starts when Ray has room for it."""
        if name in self._alone:
            await super().start(name, target, **arguments)
            return
        self._directory.mkdir(parents=True, exist_ok=True)
        order = locate(target), pickle.dumps(arguments)
        handle = self._prepared.pop(name, None) or await self._call(_make)
        actor = _Actor(None, handle)
        # Register before sending it work: it may connect before that call returns.
        self._running[name] = self._actors[name] = actor
        self._all_ended.clear()
        loop = asyncio.get_running_loop()

        def over(done: Future[int]) -> None:
            with contextlib.suppress(RuntimeError):  # The loop is closed, without waiting callers.
                loop.call_soon_threadsafe(self._lose, name, actor, done)

        try:
            # If interrupted here, the actor exists and its end is still observed.
            await asyncio.shield(self._call(lambda: self._launch(handle, name, order).add_done_callback(over)))
        except Exception:
            self._forget(name)
            raise

    def _connect(self) -> None:
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        # Ray's default of 15 would delay actors on a busy machine, by minutes.
        os.environ.setdefault("RAY_worker_niceness", "0")
        import ray

        quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
        logging.getLogger("ray").setLevel(logging.ERROR)
        if self._address:
            ray.init(address=self._address, **quiet)
            self.host = str(ray.util.get_node_ip_address())
        else:
            ray.init(include_dashboard=False, object_store_memory=STORE_BYTES, **quiet)
        self.cores = int(ray.cluster_resources().get("CPU", 0))

    def _launch(self, handle: Any, name: str, order: tuple[tuple[str, str], bytes]) -> Future[int]:
        assert self._door is not None
        log = self._directory.resolve() / f"{name}.log"
        running: Future[int] = handle.run.remote(self._door.address, self._door.secret, name, log, *order).future()
        return running

    async def _call(self, function: Callable[[], Result]) -> Result:
        return await asyncio.get_running_loop().run_in_executor(self._thread, function)

    async def _leave(self) -> None:
        def leave() -> None:
            # Unless it could not even be imported.
            if (ray := sys.modules.get("ray")) is not None:
                ray.shutdown()

        if self._door is not None:
            self._door.close()
        await self._call(leave)
        self._thread.shutdown(wait=False)

    def _welcome(self, name: str, connection: Connection) -> None:
        if (actor := self._actors.get(name)) is None:
            connection.close()
            return
        actor.connection = connection
        asyncio.get_running_loop().add_reader(connection.fileno(), self._receive, name)

    def _lose(self, name: str, actor: _Actor, done: Future[int]) -> None:
        self._receive(name)
        self._forget(name)
        actor.ended.set()
        if actor.connection is not None:
            asyncio.get_running_loop().remove_reader(actor.connection.fileno())
            actor.connection.close()
        if actor.early:
            self._news.put_nowait((name, {"stopped": "the run was over before it began"}))
            ended = Exit(0, None)
        elif (error := done.exception()) is None:
            ended = Exit(done.result(), None)
        else:
            self._replaced[name] += 1
            why = f"its actor was lost ({type(error).__name__})"
            ended = Exit(None, None, reason=why, replaced=self._replaced[name] <= MOST_REPLACEMENTS)
        self._news.put_nowait((name, ended))

    def _forget(self, name: str) -> None:
        del self._running[name], self._actors[name]
        if not self._running:
            self._all_ended.set()


def _make() -> Any:
    import ray

    # Reserve no cores: the hosting decided how many processes share them.
    return ray.remote(RayHost).options(num_cpus=0, max_restarts=0, scheduling_strategy="SPREAD").remote()
