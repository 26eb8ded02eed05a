"""Lifecycle of one party's process, from the fork to its exit.

A separate thread watches the control connection, because the event loop may be busy: a stop request cancels the
coroutine, and the end of the connection ends the process at once. Its last message is {"finished": result}, {"stopped":
reason}, or {"failed": one line, "log": path of the file with the traceback}. Without a last message it crashed.
"""

import asyncio
import contextlib
import faulthandler
import importlib
import os
import pickle
import select
import shutil
import sys
import threading
import traceback
from collections.abc import Mapping
from dataclasses import dataclass
from multiprocessing.connection import Connection
from operator import attrgetter
from pathlib import Path
from typing import Any, NoReturn

import msgspec

from tacit.parties.hosting.folder import open_many_files

ENDING_SECONDS = 0.5
"""Grace period for a supervisor that closed its connections."""


@dataclass(frozen=True)
class Origin:
    """The supervisor's process, and the temporary folder of multiprocessing's socket."""

    pid: int
    scratch: Path

    def remove_remains(self) -> None:
        """Remove the folder if that process ended without doing so, after a grace period."""
        try:
            descriptor = os.pidfd_open(self.pid)
        except ProcessLookupError:
            pass
        else:
            if not select.select([descriptor], [], [], ENDING_SECONDS)[0]:
                return
        shutil.rmtree(self.scratch, ignore_errors=True)


class Control:
    """The child's end of the connection to its supervisor: the first argument of every party's coroutine."""

    def __init__(self, connection: Connection, origin: Origin | None, log: Path) -> None:
        """origin: None if the supervisor has left nothing on this machine."""
        self._connection = connection
        self._log = log
        self._origin = origin
        self._sending = threading.Lock()
        self.told: Mapping[str, Any] = {}
        """Latest message from the supervisor."""
        self.stopping = False
        """Whether the supervisor has requested its end."""

    def send(self, message: Mapping[str, Any]) -> None:
        """Send one small message of msgpack types, from any thread. Ends the process if the supervisor is gone."""
        encoded = msgspec.msgpack.encode(message)
        try:
            with self._sending:
                self._connection.send_bytes(encoded)
        except OSError:
            self.abandon()

    def failure(self, error: BaseException) -> dict[str, Any]:
        """Return the last message after this error; the traceback goes to the log."""
        traceback.print_exception(error)
        return {"failed": " ".join(_describe(error).split()), "log": str(self._log)}

    def abandon(self) -> NoReturn:
        """Clean up after a supervisor that is gone, and end."""
        if self._origin is not None:
            self._origin.remove_remains()
        os._exit(1)


def run(
    connection: Connection, log: Path, preload: str, target: tuple[str, str], arguments: list[bytes], origin: Origin
) -> NoReturn:
    """Run `target` (module, qualified name) with pickled keyword `arguments`, removed from their list because they may
    hold a whole model. Reports its end, and exits."""
    _end(work(connection, log, preload, target, arguments, origin))


def work(
    connection: Connection,
    log: Path,
    preload: str,
    target: tuple[str, str],
    arguments: list[bytes],
    origin: Origin | None,
) -> int:
    """Do the same without exiting, and return the status. The end of the connection ends the process."""
    _send_output_to(log)
    open_many_files()
    control = Control(connection, origin, log)
    loop = asyncio.new_event_loop()
    party = loop.create_task(_run_target(control, preload, target, arguments.pop()))
    threading.Thread(target=_watch, args=(connection, loop, party, control), daemon=True).start()
    result: object = None
    try:
        result = loop.run_until_complete(party)
        control.send({"finished": result})
    except asyncio.CancelledError as cancelled:
        control.send({"stopped": str(cancelled)})
    except BaseException as error:
        control.send(control.failure(error))
        return 1
    return int(result.get("status", 0)) if isinstance(result, dict) else 0


async def _run_target(control: Control, preload: str, target: tuple[str, str], arguments: bytes) -> object:
    if preload not in sys.modules:
        raise RuntimeError(_explain_missing(preload))
    module, name = target
    given = pickle.loads(arguments)
    del arguments  # As large as what they hold, for as long as the party runs.
    return await attrgetter(name)(importlib.import_module(module))(control, **given)


def _watch(
    connection: Connection, loop: asyncio.AbstractEventLoop, party: asyncio.Task[object], control: Control
) -> None:
    with contextlib.suppress(EOFError, OSError):
        while True:
            request = msgspec.msgpack.decode(connection.recv_bytes(), type=dict[str, Any])
            if "stop" in request:
                control.stopping = True
                loop.call_soon_threadsafe(party.cancel, request["stop"])
            else:
                control.told = request
    control.abandon()


def _end(code: int) -> NoReturn:
    # Not sys.exit: a training thread that is still busy would hold the process until its epoch ends.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _send_output_to(log: Path) -> None:
    try:
        descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    except FileNotFoundError:
        # The run was cancelled while this process started, and its directory is removed.
        os._exit(1)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    os.close(descriptor)
    faulthandler.enable()


def _explain_missing(preload: str) -> str:
    try:
        importlib.import_module(preload)
    except Exception as error:
        return f"the fork server could not load {preload}: {_describe(error)}"
    return (
        f"the fork server does not hold {preload}, because this program started it earlier for something else; "
        "start the party processes first, or in a program of their own"
    )


def _describe(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"
