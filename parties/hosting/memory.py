"""How much memory there still is, by Linux and by the limit of a control group."""

from pathlib import Path


def available_memory() -> int | None:
    """Bytes that this process may still take, by Linux and by the limit of its control group; None if unknown."""
    found = []
    try:
        for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines():
            if line.startswith("MemAvailable:"):
                found.append(1024 * int(line.split()[1]))
        group = Path("/sys/fs/cgroup")
        limit, used = (group.joinpath(name).read_text(encoding="ascii") for name in ("memory.max", "memory.current"))
        if limit.strip() != "max":
            found.append(int(limit) - int(used))
    except (OSError, ValueError):
        pass
    return min(found, default=None)
