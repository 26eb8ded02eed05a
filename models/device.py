"""The device on which a party computes."""

import torch


def resolve_device(name: str) -> torch.device:
    """The device called "cpu" or "cuda". Raises ValueError for another name, or where there is no CUDA device."""
    if name not in ("cpu", "cuda"):
        raise ValueError(f'unknown device {name!r}; use "cpu" or "cuda"')
    if name == "cuda" and not torch.cuda.is_available():
        raise ValueError("no CUDA device here; use --device cpu")
    return torch.device(name)
