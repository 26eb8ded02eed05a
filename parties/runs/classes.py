"""Accuracy by class of the server's test images, and their confusion matrix.

The server evaluates the model after every round; it writes the result of the last one when the session ends.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import msgspec

if TYPE_CHECKING:
    import torch

MOST_CONFUSED: Final = 200
"""Largest number of classes with a whole matrix, which beyond it would be the largest part of a log."""


class TestClass(msgspec.Struct, frozen=True, kw_only=True):
    """Metrics of one class."""

    __test__ = False

    name: str
    images: int
    accuracy: float | None
    """Share of its images that are classified correctly; None without any."""


class TestClasses(msgspec.Struct, frozen=True, kw_only=True):
    """Metrics of all classes on the server's test images, for the model after `round`."""

    __test__ = False

    round: int
    classes: tuple[TestClass, ...]
    confusion: tuple[tuple[int, ...], ...] | None
    """Numbers of images by true class, then by predicted class, in the order of `classes`; None for many classes."""


def described(round: int, names: Sequence[str], confusion: torch.Tensor) -> TestClasses:
    """Describe a confusion matrix, int64 [C, C]: the true class by row, the predicted one by column."""
    images, correct = confusion.sum(dim=1).tolist(), confusion.diagonal().tolist()
    return TestClasses(
        round=round,
        classes=tuple(
            TestClass(name=name, images=count, accuracy=right / count if count else None)
            for name, count, right in zip(names, images, correct, strict=True)
        ),
        confusion=tuple(map(tuple, confusion.tolist())) if len(names) <= MOST_CONFUSED else None,
    )
