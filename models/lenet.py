"""The LeNet of Zhu et al. 2019, "Deep Leakage from Gradients": small, smooth, and easy to attack.

Three convolutions of 12 channels with 5 x 5 kernels and strides 2, 2 and 1, each followed by a sigmoid, and one linear
layer. Weights and biases start uniform in [-1/2, 1/2], as in the authors' code: with PyTorch's own start, which is ten
times smaller, the sigmoids hardly pass anything on.
"""

from __future__ import annotations

from typing import Final

from torch import nn

CHANNELS: Final = 12
START: Final = 0.5
"""Bound of the random initial weights."""


class LeNet(nn.Sequential):
    """Maps float32 [batch, channels, size, size] to logits [batch, classes]."""

    def __init__(self, *, channels: int, image_size: int, classes: int) -> None:
        super().__init__()
        for number, (before, stride) in enumerate(((channels, 2), (CHANNELS, 2), (CHANNELS, 1)), start=1):
            self.add_module(f"conv{number}", nn.Conv2d(before, CHANNELS, kernel_size=5, padding=2, stride=stride))
            self.add_module(f"act{number}", nn.Sigmoid())
        side = -(-image_size // 4)  # Two strides of 2, rounded up.
        self.add_module("flatten", nn.Flatten())
        self.add_module("fc", nn.Linear(CHANNELS * side * side, classes))
        for parameter in self.parameters():
            nn.init.uniform_(parameter, -START, START)
