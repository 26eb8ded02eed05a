"""Commands forked from a process that has loaded everything: torch and timm take ten seconds of processor time.

What runs is the entry point of the installed command, or a script around it, in a session, folder and network namespace
of its own. Each has a keeper, its parent, that tells its process number and its exit status.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import gc
import json
import os
import resource
import runpy
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import IO, Final

_LARGEST: Final = 65536
_CLONE_NEWNET: Final = 0x40000000
_CLONE_NEWNS: Final = 0x00020000
_MS_BIND, _MS_PRIVATE_ALL = 0x1000, 0x44000


@dataclass
class WarmProcess:
    """A command that was forked; for its callers like subprocess.Popen."""

    pid: int
    stdout: IO[str]
    stderr: IO[str]
    _status: socket.socket
    returncode: int | None = None

    def poll(self) -> int | None:
        if self.returncode is None:
            try:
                self._hear(socket.MSG_DONTWAIT)
            except BlockingIOError:
                return None
        return self.returncode

    def wait(self, timeout: float) -> int:
        """The exit status, once there is one. TimeoutError after so many seconds."""
        if self.returncode is None:
            self._status.settimeout(timeout)
            self._hear(0)
            assert self.returncode is not None
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def _hear(self, flags: int) -> None:
        self.returncode = int(self._status.recv(_LARGEST, flags))
        self._status.close()


def start(
    arguments: Sequence[str], folder: Path, *, namespace: str = "", open_files: int = 0, script: str = ""
) -> WarmProcess:
    """Run `tacit`, or a script, with these arguments there. open_files: the most descriptors it may have."""
    order = {
        "arguments": [script or "tacit", *arguments],
        "folder": str(folder),
        "namespace": namespace,
        "open_files": open_files or resource.getrlimit(resource.RLIMIT_NOFILE)[0],
    }
    (out, out_end), (errors, errors_end) = os.pipe(), os.pipe()
    status, status_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with status_end:
        socket.send_fds(_starter(), [json.dumps(order).encode()], [out_end, errors_end, status_end.fileno()])
    os.close(out_end)
    os.close(errors_end)
    told = status.recv(_LARGEST)
    if not told:
        raise ChildProcessError("the process that commands are forked from has ended; its complaint is on stderr")
    return WarmProcess(int(told), os.fdopen(out), os.fdopen(errors), status)


@cache
def _starter() -> socket.socket:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "200"}
    with theirs:
        # It ends when this process has: nobody else has the other end.
        subprocess.Popen(
            [sys.executable, __file__, str(theirs.fileno())],
            pass_fds=[theirs.fileno()],
            env=environment,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )
    return ours


def _next(orders: socket.socket) -> None:
    """Fork for every order; returns only in a command's process, and exits in all others."""
    while True:
        order, descriptors, _, _ = socket.recv_fds(orders, _LARGEST, 3)
        if not order:
            sys.exit()
        if os.fork() == 0:
            _keep(orders, descriptors[2])
            os.close(descriptors[2])
            _settle(descriptors[:2], **json.loads(order))
            return
        for descriptor in descriptors:
            os.close(descriptor)


def _keep(orders: socket.socket, status: int) -> None:
    """Fork the command's process, in which this returns, and tell what becomes of it."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    orders.close()
    if (pid := os.fork()) == 0:
        return
    os.write(status, b"%d" % pid)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    with contextlib.suppress(OSError):
        os.write(status, b"%d" % code)
    os._exit(0)


def _settle(outputs: Sequence[int], *, arguments: list[str], folder: str, namespace: str, open_files: int) -> None:
    os.setsid()
    if namespace:
        _enter(namespace)
    resource.setrlimit(resource.RLIMIT_NOFILE, (open_files, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    os.chdir(folder)
    for standard, descriptor in enumerate(outputs, 1):
        os.dup2(descriptor, standard)
        os.close(descriptor)
    sys.argv = arguments


def _enter(namespace: str) -> None:
    """Enter a network namespace as `ip netns exec` does: names of hosts are those of /etc/netns/NAME/hosts."""
    libc, names = ctypes.CDLL(None, use_errno=True), f"/etc/netns/{namespace}/hosts"
    with open(f"/run/netns/{namespace}") as joined:
        failed = libc.setns(joined.fileno(), _CLONE_NEWNET)
    if os.path.exists(names):
        failed = (
            failed
            or libc.unshare(_CLONE_NEWNS)
            or libc.mount(b"none", b"/", None, _MS_PRIVATE_ALL, None)
            or libc.mount(names.encode(), b"/etc/hosts", None, _MS_BIND, None)
        )
    if failed:
        raise OSError(ctypes.get_errno(), "cannot enter the network namespace", namespace)


if __name__ == "__main__":
    import tacit.cli.commands.host
    import tacit.cli.commands.preflight
    import tacit.parties.hosting.client
    import tacit.parties.hosting.server
    import tacit.simulate.federation.preload  # noqa: F401
    from tacit.cli.main import main

    # What was loaded is shared with all that are forked, and none of them looks for garbage there.
    gc.freeze()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    # Shells ignore it in what they start in the background.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    _next(socket.socket(fileno=int(sys.argv[1])))
    try:
        if sys.argv[0] == "tacit":
            main()
        else:
            runpy.run_path(sys.argv[0], run_name="__main__")
    except SystemExit as ended:
        # Taking down all that was loaded would take a second.
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(ended.code if isinstance(ended.code, int) else 0 if ended.code is None else 1)
