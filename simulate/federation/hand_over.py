"""Shutdown of the fork server and its children: loaded by the fork server before anything else.

If a supervisor is killed while it instructs a child, multiprocessing would print a traceback in the child. While the
fork server loads slow modules it checks every second that its parent is still the one that started it; if not, it ends
at once, and removes its socket. Otherwise it has nothing to tidy up: tearing down torch would take seconds, which
delays readers of the supervisor's output.
"""

import atexit
import os
import pickle
import re
import shutil
import signal
import socket
import sys
from pathlib import Path
from types import FrameType, TracebackType
from typing import Final

LOOK_SECONDS: Final = 1.0
"""Longest life of a fork server after its supervisor."""


def _report(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    # Without arguments, or with half of them. child.py reports later errors of a child.
    if not issubclass(kind, (EOFError, pickle.UnpicklingError)):
        sys.__excepthook__(kind, error, trace)


def _watch(listener: int) -> None:
    """End this process when its parent has ended. Processes forked from it have no timer."""
    with socket.socket(fileno=os.dup(listener)) as bound:
        scratch = Path(bound.getsockname()).parent
    parent = os.getppid()

    def look(number: int, frame: FrameType | None) -> None:
        if os.getppid() != parent:
            shutil.rmtree(scratch, ignore_errors=True)
            os._exit(1)

    signal.signal(signal.SIGALRM, look)
    # Restart interrupted system calls of libraries.
    signal.siginterrupt(signal.SIGALRM, False)
    signal.setitimer(signal.ITIMER_REAL, LOOK_SECONDS, LOOK_SECONDS)


sys.excepthook = _report
atexit.register(os._exit, 0)
if _found := re.search(r"multiprocessing\.forkserver import main; main\((\d+),", sys.orig_argv[-1]):
    _watch(int(_found[1]))
