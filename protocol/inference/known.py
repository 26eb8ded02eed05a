"""What the `known` input costs a model owner, in the words in which it is said wherever it can be chosen."""

from __future__ import annotations

from typing import Final

KNOWN_GIVES_AWAY: Final = (
    "five chosen images gave all 294,912 words of ViT-S's embedding bit by bit, about 24 images determine a block, "
    "40 ordinary images gave a student's head exactly: it gives the model away"
)
"""Measured on the code as it is. Each result of a block that a data owner is told is an equation in its weights."""
