"""The LeNet of Zhu et al. 2019, "Deep Leakage from Gradients": small, smooth, and easy to attack.

Three convolutions of 12 channels with 5 x 5 kernels and strides 2, 2 and 1, each followed by a sigmoid, and one linear
layer. Weights and biases start uniform in [-1/2, 1/2], as in the authors' code: with PyTorch's own start, which is ten
times smaller, the sigmoids hardly pass anything on.
"""

from __future__ import annotations

from typing import Final

import torch
from torch import nn

CHANNELS: Final = 12
START: Final = 0.5
"""Bound of the random initial weights."""


class LeNet(nn.Module):
    """Maps float32 [batch, channels, size, size] to logits [batch, classes]."""

    def __init__(self, *, channels: int, image_size: int, classes: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, CHANNELS, kernel_size=5, padding=2, stride=2)
        self.act1 = nn.Sigmoid()
        self.conv2 = nn.Conv2d(CHANNELS, CHANNELS, kernel_size=5, padding=2, stride=2)
        self.act2 = nn.Sigmoid()
        self.conv3 = nn.Conv2d(CHANNELS, CHANNELS, kernel_size=5, padding=2, stride=1)
        self.act3 = nn.Sigmoid()
        side = -(-image_size // 4)
        self.fc = nn.Linear(CHANNELS * side * side, classes)
        for parameter in self.parameters():
            nn.init.uniform_(parameter, -START, START)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.act1(self.conv1(x))  # [B, 12, S/2, S/2]
        x = self.act2(self.conv2(x))  # [B, 12, S/4, S/4]
        x = self.act3(self.conv3(x))
        logits: torch.Tensor = self.fc(x.flatten(1))
        return logits
