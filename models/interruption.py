"""How long work is told that nobody wants its result any more."""

from collections.abc import Callable


class Interrupted(Exception):
    """Nobody wants the result of this work any more."""


Proceed = Callable[[], None]
"""Called before every batch; raises Interrupted where there shall be none."""


def to_the_end() -> None:
    """A Proceed of work that is never interrupted."""
