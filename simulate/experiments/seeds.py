"""The seeds of a study, as the command takes them: "0-4" or "0,2,7"."""

from __future__ import annotations

import re
from itertools import pairwise
from typing import Final

MOST_SEEDS: Final = 1000
LARGEST: Final = 999_999


class SeedsError(ValueError):
    """Text that names no seeds; the message says what would."""


def read_seeds(text: str) -> tuple[int, ...]:
    """Ascending numbers and ranges, separated by commas. Raises SeedsError."""
    seeds: list[int] = []
    for part in text.split(","):
        match = re.fullmatch(r"(\d{1,6})(?:-(\d{1,6}))?", part.strip(), flags=re.ASCII)
        if match is None:
            raise SeedsError(f"--seeds {text}: {part!r} is no seed: give numbers up to {LARGEST}, as in 0-4 or 0,2,7")
        first = int(match[1])
        seeds += range(first, int(match[2] or first) + 1)
        if len(seeds) > MOST_SEEDS:
            raise SeedsError(f"--seeds {text}: at most {MOST_SEEDS} runs of an arm")
        if match[2] and int(match[2]) < first:
            raise SeedsError(f"--seeds {text}: {part!r} goes down; write it as {match[2]}-{match[1]}")
    if any(later <= earlier for earlier, later in pairwise(seeds)):
        raise SeedsError(f"--seeds {text}: every seed once, in ascending order")
    return tuple(seeds)
