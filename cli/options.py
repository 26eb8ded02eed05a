"""Values of options that several commands have."""

from __future__ import annotations

from enum import StrEnum


class Input(StrEnum):
    """Who knows what goes into a block."""

    KNOWN = "known"
    SHARED = "shared"
