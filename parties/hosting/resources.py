"""What this process may take of its machine: memory, and descriptors."""

import resource
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


def open_many_files() -> None:
    """Let this process have as many descriptors as the system allows, which is far more than a shell gives."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
