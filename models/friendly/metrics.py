"""Metrics of a distillation. Loads no torch: results of commands have them as they are."""

from __future__ import annotations

from typing import Literal

import msgspec

DistillationStage = Literal["layers", "predictions"]


class DistillationEpoch(msgspec.Struct, frozen=True, kw_only=True):
    """An epoch of distillation."""

    number: int
    """From 1, over both stages."""
    stage: DistillationStage
    losses: dict[str, float]
    """Means over the images, added up over the blocks: "embedding", "attention" and "hidden" in stage 1, "prediction"
    and on request "labels" in stage 2, "range" in both."""
    accuracy: float
    """Share of the test images that the student classifies correctly, its polynomials scaled to each batch."""


class StudentMetrics(msgspec.Struct, frozen=True, kw_only=True):
    """A calibrated student on test images."""

    accuracy: float
    """Share of the images that are classified correctly, 0 to 1; one that is refused is not."""
    agreement: float
    """Share of the images with the same label as by the teacher."""
    refused: int
    """Images with an activation beyond the calibrated intervals."""
