"""Parallel work that releases the interpreter lock. The results do not depend on the number of cores."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import TypeVar

T = TypeVar("T")
R = TypeVar("R")


@cache
def _pool() -> ThreadPoolExecutor:
    """Persistent threads: starting one costs as much as ten key agreements."""
    return ThreadPoolExecutor(max(1, (os.cpu_count() or 1) - 1))


os.register_at_fork(after_in_child=_pool.cache_clear)


def threads_for(amount: int, worth: int) -> int:
    """Number of threads that so much work repays, if `worth` of it repays one; from one to the number of cores."""
    # Counting cores takes a system call, which costs more than most of the work in question.
    return min(os.cpu_count() or 1, amount // worth) if amount >= 2 * worth else 1


def in_threads(function: Callable[[T], R], parts: Sequence[T]) -> list[R]:
    """The results for all parts: of the first in this thread, of the rest in others. `function` must not call it."""
    if len(parts) < 2:
        return [function(part) for part in parts]
    others = _pool().map(function, parts[1:])
    return [function(parts[0]), *others]


def map_in_threads(function: Callable[[T], R], items: Sequence[T], *, worth: int) -> list[R]:
    """The results for all items, in order; `worth` of them repay a thread."""
    size = max(1, -(-len(items) // threads_for(len(items), worth)))
    parts = [items[low : low + size] for low in range(0, len(items), size)]
    return [result for part in in_threads(lambda part: [function(item) for item in part], parts) for result in part]
