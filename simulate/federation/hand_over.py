"""The fork server's children that are handed nothing: loaded by the fork server, so that they end without a word.

A supervisor connects to the fork server, which forks, and then writes what the child is to do. One that is interrupted
or killed in between leaves a child that reads the end of a file, and of which multiprocessing would print a traceback.
"""

import pickle
import sys
from types import TracebackType


def _report(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    # Without arguments, and with half of them. What a child raises later, child.py reports.
    if not issubclass(kind, (EOFError, pickle.UnpicklingError)):
        sys.__excepthook__(kind, error, trace)


sys.excepthook = _report
