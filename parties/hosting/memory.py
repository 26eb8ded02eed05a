"""Allocator settings of a process that computes on large tensors for hours."""

from __future__ import annotations

import ctypes
from contextlib import suppress
from typing import Final

# Parameters of glibc's mallopt(3).
_MMAP_THRESHOLD: Final = -3
_ARENA_MAX: Final = -8
_LARGE: Final = 8 << 20


def return_large_pieces() -> None:
    """Have memory of large tensors go back to the system once they are released, and all threads share one heap.

    An owner holds hundreds of megabytes of correlated randomness at a time, made in one thread and used up in another.
    By default glibc keeps what it once had, in a heap for each thread. Other C libraries are left as they are.
    """
    with suppress(OSError, AttributeError):
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_ARENA_MAX, 1)
        mallopt(_MMAP_THRESHOLD, _LARGE)
