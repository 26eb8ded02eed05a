"""How the fork server and its children end: loaded by the fork server, before anything else.

A supervisor connects to the fork server, which forks, and then writes what the child is to do. One that is interrupted
or killed in between leaves a child that reads the end of a file, and of which multiprocessing would print a traceback.

The fork server itself has nothing to tidy up; taking torch apart would take it seconds, in which whoever reads the
supervisor's output waits, because the fork server has inherited it.
"""

import atexit
import os
import pickle
import sys
from types import TracebackType


def _report(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    # Without arguments, and with half of them. What a child raises later, child.py reports.
    if not issubclass(kind, (EOFError, pickle.UnpicklingError)):
        sys.__excepthook__(kind, error, trace)


sys.excepthook = _report
atexit.register(os._exit, 0)
