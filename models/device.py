"""The device on which a party computes, and seeds of what it draws there."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import torch

CPU: Final = torch.device("cpu")


def resolve_device(name: str) -> torch.device:
    """The device called "cpu" or "cuda". Raises ValueError for another name, or where there is no CUDA device."""
    if name not in ("cpu", "cuda"):
        raise ValueError(f'unknown device {name!r}; use "cpu" or "cuda"')
    if name == "cuda" and not torch.cuda.is_available():
        raise ValueError("no CUDA device here; use --device cpu")
    return torch.device(name)


@contextmanager
def seeded(seed: int, device: torch.device = CPU) -> Iterator[None]:
    """Within the block, torch draws from this seed, there and on the CPU; afterwards its generators are as before."""
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.default_generator.manual_seed(seed)
        if device.type == "cuda":
            torch.cuda.manual_seed(seed)
        yield
