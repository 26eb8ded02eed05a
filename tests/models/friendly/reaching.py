"""What a model reaches on images, by its gauges: the ground truth of bounds and intervals."""

from __future__ import annotations

import copy

import torch

from tacit.models.friendly.calibration import calibrate, intervals
from tacit.models.friendly.polynomials import Interval
from tacit.models.friendly.transformer import FriendlyTransformer


def reach_of(model: FriendlyTransformer, images: torch.Tensor, *, margin: float = 1.0) -> dict[str, Interval]:
    """By name of the gauge, on images [N, C, S, S], computed in float64 on a copy; the model stays as it is.

    margin: as of calibrate(), and it raises the same.
    """
    exact = copy.deepcopy(model).double()
    calibrate(exact, images.double(), margin=margin)
    return intervals(exact)
