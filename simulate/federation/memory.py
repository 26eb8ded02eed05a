"""Memory of processes, as Linux accounts it."""

from __future__ import annotations

from pathlib import Path
from typing import Literal


def status_bytes(field: str, process: int | Literal["self"] = "self") -> int | None:
    """Read a process's field, such as VmHWM; None if the system does not report it or the process ended. OSError."""
    for line in Path(f"/proc/{process}/status").read_text(encoding="ascii").splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) * 1024
    return None
