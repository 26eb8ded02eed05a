"""Small convolutional networks from the literature on attacks.

LeNet is that of Zhu et al. 2019, "Deep Leakage from Gradients": smooth and easy to attack. Three convolutions of 12
channels with 5 x 5 kernels and strides 2, 2 and 1, each followed by a sigmoid, and one linear layer. Weights and biases
start uniform in [-1/2, 1/2], as in the authors' code: with PyTorch's start, ten times smaller, sigmoids pass little on.

ConvNet is that of Geiping et al. 2020, "Inverting Gradients", at width 32: nine convolutions with 3 x 3 kernels, each
followed by batch normalisation and a ReLU, the sixth and the ninth by a 3 x 3 max pooling as well; and a linear layer.
"""

from __future__ import annotations

from typing import Final

from torch import nn

LENET_CHANNELS: Final = 12
LENET_START: Final = 0.5
"""Bound of the random initial weights."""
CONVNET_CHANNELS: Final = (32, 64, 64, 128, 128, 128, 128, 128, 128)
"""Output channels of the convolutions."""
POOLED: Final = (5, 8)
"""Convolutions, counted from 0, after which the image shrinks by POOL."""
POOL: Final = 3


class LeNet(nn.Sequential):
    """Maps float32 [batch, channels, size, size] to logits [batch, classes]."""

    def __init__(self, *, channels: int, image_size: int, classes: int) -> None:
        super().__init__()
        for number, (before, stride) in enumerate(((channels, 2), (LENET_CHANNELS, 2), (LENET_CHANNELS, 1)), start=1):
            self.add_module(f"conv{number}", nn.Conv2d(before, LENET_CHANNELS, kernel_size=5, padding=2, stride=stride))
            self.add_module(f"act{number}", nn.Sigmoid())
        side = -(-image_size // 4)  # Two strides of 2, rounded up.
        self.add_module("flatten", nn.Flatten())
        self.add_module("fc", nn.Linear(LENET_CHANNELS * side * side, classes))
        for parameter in self.parameters():
            nn.init.uniform_(parameter, -LENET_START, LENET_START)


class ConvNet(nn.Sequential):
    """Maps float32 [batch, channels, size, size] to logits [batch, classes]. ValueError for images below 9 pixels."""

    def __init__(self, *, channels: int, image_size: int, classes: int) -> None:
        if image_size < POOL * POOL:
            raise ValueError(f"model.image_size {image_size}: the convnet pools twice by {POOL}; take at least 9")
        super().__init__()
        for number, (before, after) in enumerate(zip((channels, *CONVNET_CHANNELS), CONVNET_CHANNELS, strict=False)):
            self.add_module(f"conv{number}", nn.Conv2d(before, after, kernel_size=3, padding=1))
            self.add_module(f"bn{number}", nn.BatchNorm2d(after))
            self.add_module(f"act{number}", nn.ReLU())
            if number in POOLED:
                self.add_module(f"pool{POOLED.index(number)}", nn.MaxPool2d(POOL))
        side = image_size // POOL // POOL
        self.add_module("flatten", nn.Flatten())
        self.add_module("fc", nn.Linear(CONVNET_CHANNELS[-1] * side * side, classes))
