"""How the fork server and its children end: loaded by the fork server, before anything else.

A supervisor that is killed while it tells a child what to do leaves a child of which multiprocessing would print a
traceback. While the fork server loads what takes seconds it looks every second whether its parent is the one that
started it; if not, it ends at once, and takes its socket with it. Otherwise it has nothing to tidy up: taking torch
apart would take it seconds, in which whoever reads the supervisor's output waits.
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
"""How long a fork server may outlive its supervisor."""


def _report(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    # Without arguments, and with half of them. What a child raises later, child.py reports.
    if not issubclass(kind, (EOFError, pickle.UnpicklingError)):
        sys.__excepthook__(kind, error, trace)


def _watch(listener: int) -> None:
    """End this process when its parent has ended. Whoever is forked from it has no timer."""
    with socket.socket(fileno=os.dup(listener)) as bound:
        scratch = Path(bound.getsockname()).parent
    parent = os.getppid()

    def look(number: int, frame: FrameType | None) -> None:
        if os.getppid() != parent:
            shutil.rmtree(scratch, ignore_errors=True)
            os._exit(1)

    signal.signal(signal.SIGALRM, look)
    # Calls of libraries are taken up again, as if nothing had been.
    signal.siginterrupt(signal.SIGALRM, False)
    signal.setitimer(signal.ITIMER_REAL, LOOK_SECONDS, LOOK_SECONDS)


sys.excepthook = _report
atexit.register(os._exit, 0)
if _found := re.search(r"multiprocessing\.forkserver import main; main\((\d+),", sys.orig_argv[-1]):
    _watch(int(_found[1]))
