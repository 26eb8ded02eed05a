"""How a command ends that did not do what it was asked: one line on standard error, and an exit status."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

FAILED, WRONG_INPUT, ABORTED, SERVER_LOST, INTERRUPTED = 1, 2, 3, 4, 130


def complain(errors: Console, complaint: object, status: int) -> int:
    """Print a complaint; returns the exit status that it comes with."""
    errors.print(f"tacit: {complaint}", style="red", markup=False, soft_wrap=True)
    return status
