"""The ConvNet of Geiping et al. 2020, "Inverting Gradients", at width 32: nine convolutions and a linear layer.

Every convolution has 3 x 3 kernels and is followed by batch normalisation and a ReLU; a 3 x 3 max pooling follows the
sixth and the ninth.
"""

from __future__ import annotations

from typing import Final

from torch import nn

WIDTH: Final = 32
CHANNELS: Final = tuple(WIDTH * factor for factor in (1, 2, 2, 4, 4, 4, 4, 4, 4))
"""Output channels of the convolutions."""
POOLED: Final = (5, 8)
"""Convolutions, counted from 0, after which the image shrinks by POOL."""
POOL: Final = 3


class ConvNet(nn.Sequential):
    """Maps float32 [batch, channels, size, size] to logits [batch, classes]. ValueError for images below 9 pixels."""

    def __init__(self, *, channels: int, image_size: int, classes: int) -> None:
        if image_size < POOL * POOL:
            raise ValueError(f"model.image_size {image_size}: the convnet pools twice by {POOL}; take at least 9")
        super().__init__()
        for number, (before, after) in enumerate(zip((channels, *CHANNELS), CHANNELS, strict=False)):
            self.add_module(f"conv{number}", nn.Conv2d(before, after, kernel_size=3, padding=1))
            self.add_module(f"bn{number}", nn.BatchNorm2d(after))
            self.add_module(f"act{number}", nn.ReLU())
            if number in POOLED:
                self.add_module(f"pool{POOLED.index(number)}", nn.MaxPool2d(POOL))
        side = image_size // POOL // POOL
        self.add_module("flatten", nn.Flatten())
        self.add_module("fc", nn.Linear(CHANNELS[-1] * side * side, classes))
