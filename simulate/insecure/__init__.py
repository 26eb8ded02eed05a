"""INSECURE variants that disclose the model, for simulation only.

No host can offer or accept them: neither party files nor the terms on the wire have a field for them.
"""

from __future__ import annotations

from typing import Final, Literal

Input = Literal["known", "shared"]
"""Input of blocks in private inference: known to the data owner, which is INSECURE, or to no party."""

KNOWN_GIVES_AWAY: Final = (
    "INSECURE, in simulation only: five chosen images gave all 294,912 words of ViT-S's embedding bit by bit, about 24 "
    "images determine a block, 40 ordinary images gave a student's head exactly"
)
"""Measured on this code. Each result of a block that a data owner receives is an equation in its weights."""
