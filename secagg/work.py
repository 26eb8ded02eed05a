"""The kinds of costly work, and the observer that measures them.

The library has no clock: a costly function is marked with its kind, and an observer, if one is set in the context
(contextvars), provides a context in which the function then runs.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from contextvars import ContextVar
from enum import StrEnum
from functools import wraps
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")


class WorkKind(StrEnum):
    """Kind of a marked function's work."""

    KEY_AGREEMENT = "key agreement"
    SIGNATURES = "signatures"
    SHARING = "sharing"
    MASKING = "masking"
    RECONSTRUCTION = "reconstruction"
    SUMMING = "summing"
    SERIALISATION = "serialisation"


Observer = Callable[[WorkKind], AbstractContextManager[object]]
"""Makes a context for one call; called from every thread, and again while an outer call runs."""

_observer: ContextVar[Observer | None] = ContextVar("observer", default=None)


def observe(observer: Observer | None) -> None:
    """Make this observer receive all marked work in this context from now on, instead of any other; None: none."""
    _observer.set(observer)


def work(kind: WorkKind) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Mark a function or method as work of this kind."""

    def mark(function: Callable[P, R]) -> Callable[P, R]:
        @wraps(function)
        def marked(*arguments: P.args, **keywords: P.kwargs) -> R:
            observer = _observer.get()
            if observer is None:
                return function(*arguments, **keywords)
            with observer(kind):
                return function(*arguments, **keywords)

        return marked

    return mark
