"""What a process has used at most, in bytes, as Linux accounts it (VmHWM): in all, or above its size at some moment."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from tacit.simulate.bench.ends import BenchmarkError


class Peak:
    """Counts from its making on."""

    def __init__(self) -> None:
        self._baseline = resident_bytes()
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")

    def bytes(self) -> int:
        """The peak so far."""
        return _status_bytes("VmHWM") - self._baseline


def resident_bytes() -> int:
    """What this process has in memory now."""
    return _status_bytes("VmRSS")


def highest_bytes(process: int | Literal["self"] = "self") -> int:
    """The most that this process, or that of this number, has had in memory. OSError or BenchmarkError if it has
    ended."""
    return _status_bytes("VmHWM", process)


def _status_bytes(field: str, process: int | Literal["self"] = "self") -> int:
    for line in Path(f"/proc/{process}/status").read_text(encoding="ascii").splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) * 1024
    raise BenchmarkError(f"this system does not tell {field}; memory is measured on Linux only")
