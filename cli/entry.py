"""Entry point of the installed command. An interruption before slow modules are loaded shows no traceback."""

from __future__ import annotations

import os
import signal
from types import FrameType
from typing import NoReturn


def main() -> None:
    for number in (signal.SIGINT, signal.SIGTERM):
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _end)
    from tacit.cli.interruption import arm, disarm
    from tacit.cli.main import main as command

    arm()
    try:
        command()
    finally:
        disarm()


def _end(number: int, frame: FrameType | None) -> NoReturn:
    # Nothing has begun that needs cleaning up.
    os._exit(130)
