"""How long work tells how far it is, and is told that nobody wants its result any more."""

from typing import Protocol


class Interrupted(Exception):
    """Nobody wants the result of this work any more."""


class Proceed(Protocol):
    """Called before every batch; raises Interrupted where there shall be none."""

    def __call__(self, done: int = 0, total: int = 0, /) -> None:
        """So many images of that total are done, if the work can say so; an image counts once for every epoch."""


def to_the_end(done: int = 0, total: int = 0, /) -> None:
    """A Proceed of work that is never interrupted."""
