"""Which of its images a client keeps from training, to judge the server's model on.

Nobody is told, and nothing is written down: the choice follows from the images and the run, so that a client that was
killed, whose files are listed in another order, or that goes on at another host, never trains on what it judges by.
"""

from __future__ import annotations

import math
from fractions import Fraction
from hashlib import blake2b

import torch


def split(images: torch.Tensor, part: float, run: bytes) -> tuple[torch.Tensor, torch.Tensor]:
    """Indices int64 of those to train on, and of those that are kept: floor(part * N) of the images float32
    [N, C, S, S], each in their order.

    Kept are those whose digests, with the name of the run as their key, at most 64 bytes, are the lowest; digests of
    other images do not matter but for the number that are kept. Equal images come one after the other.
    """
    count = math.floor(Fraction(str(part)) * len(images))
    if not count:
        return torch.arange(len(images)), torch.arange(0)
    digests = [blake2b(image.numpy().tobytes(), key=run, digest_size=16).digest() for image in images]
    order = torch.tensor(sorted(range(len(images)), key=digests.__getitem__))
    return order[count:].sort().values, order[:count].sort().values
