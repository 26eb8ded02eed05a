"""What this process used at most above its size at some moment, in bytes, as Linux accounts it (VmHWM)."""

from __future__ import annotations

from pathlib import Path

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


def _status_bytes(field: str) -> int:
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) * 1024
    raise BenchmarkError(f"this system does not tell {field}; memory is measured on Linux only")
