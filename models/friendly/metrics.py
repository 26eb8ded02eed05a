"""Metrics of a distillation, as command results contain them. Loads no torch."""

from __future__ import annotations

from typing import Literal

import msgspec

DistillationStage = Literal["layers", "predictions"]


class DistillationEpoch(msgspec.Struct, frozen=True, kw_only=True):
    """One epoch of distillation."""

    number: int
    """Number of the epoch, from 1, over both stages."""
    stage: DistillationStage
    losses: dict[str, float]
    """Means over the images, summed over the blocks: "embedding", "attention" and "hidden" in stage 1, "prediction" and
    on request "labels" in stage 2, "range" in both."""
    accuracy: float
    """Fraction of the test images that the student classifies correctly, its polynomials scaled to each batch."""


class StudentMetrics(msgspec.Struct, frozen=True, kw_only=True):
    """Metrics of a calibrated student on test images."""

    accuracy: float
    """Fraction of correctly classified images, 0 to 1; refused images do not count as correct."""
    agreement: float
    """Fraction of images with the same label as by the teacher."""
    refused: int
    """Images with an activation beyond the calibrated intervals."""
