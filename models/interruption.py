"""Progress reports and cancellation of long work."""

from typing import Protocol


class Interrupted(Exception):
    """The result of this work is no longer needed."""


class Proceed(Protocol):
    """Callback before every batch; raises Interrupted to cancel the work."""

    def __call__(self, done: int = 0, total: int = 0, /) -> None:
        """Report that `done` images of `total` are done, if known; an image counts once per epoch."""


def to_the_end(done: int = 0, total: int = 0, /) -> None:
    """A Proceed that never interrupts."""
