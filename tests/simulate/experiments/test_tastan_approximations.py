"""Tables 5 and 6: what is measured for each degree, and what the page says of it."""

from dataclasses import replace
from itertools import pairwise

import pytest
import torch

from tacit.models.configuration import ModelConfiguration
from tacit.models.friendly.blocks import Approximation
from tacit.models.friendly.convert import convert
from tacit.models.vision_transformer import build
from tacit.simulate.experiments.tastan_approximations import (
    TABLE5,
    TABLE6,
    Figures,
    judge,
    memory,
    name_of,
)

NOTHING = (0.0, 0.0, 0.0, 0.0, 0.0)


def figures(degree: int | None, accuracies: list[float], loss: float) -> list[Figures]:
    return [
        Figures(degree=degree, seed=seed, attention=loss, hidden=loss, accuracy=value, milliseconds=1.0, megabytes=1.0)
        for seed, value in enumerate(accuracies)
    ]


@pytest.mark.parametrize(
    ("chosen", "exact_loss", "holds"),
    [
        ([0.89, 0.89], 1.0, [True, True, True, True]),
        ([0.88, 0.88], 1.0, [True, True, True, True]),
        ([0.87, 0.87], 1.0, [True, True, True, False]),
        ([0.85, 0.91], 1.0, [True, True, None, None]),
        # Both ends alone would say that it falls.
        ([0.93, 0.93], 1.7, [False, False, False, False]),
        ([0.90, 0.90], 1.5, [None, None, None, True]),
    ],
)
def test_every_step_is_judged(chosen: list[float], exact_loss: float, holds: list[bool | None]) -> None:
    published = dict.fromkeys((2, 6, None), NOTHING)
    found = [*figures(2, [0.5, 0.5], 2.0), *figures(6, chosen, 1.5), *figures(None, [0.9, 0.9], exact_loss)]
    verdicts = judge(replace(TABLE5, published=published), found)
    assert [verdict.holds for verdict in verdicts] == holds
    assert "2 to 6 -0.500" in verdicts[0].detail


def test_more_terms_keep_more_for_the_backward_pass() -> None:
    """A step of Horner's scheme keeps one product of the size of the scores more: 8 images, 4 heads, 17 x 17, 4 bytes,
    in each of 2 blocks."""
    teacher = build(ModelConfiguration(), classes=10, channels=1, seed=0)
    images = torch.randn(8, 1, 32, 32)
    kept = [memory(convert(teacher, Approximation(softmax_degree=degree)).train(), images) for degree in (2, 3, 4)]
    step = 2 * 8 * 4 * 17 * 17 * 4 / 1e6
    assert [after - before for before, after in pairwise(kept)] == pytest.approx([step, step], rel=0.01)


def test_rows_are_the_papers() -> None:
    assert list(map(name_of, TABLE5.published)) == ["2", "4", "6", "8", "10", "16", "exact"]
    assert list(map(name_of, TABLE6.published)) == ["2", "4", "6", "7", "8", "10", "12", "16", "exact"]
    assert TABLE5.approximation(4) == Approximation(softmax_degree=4, inverse_steps=7)
    assert TABLE6.approximation(None) == Approximation(softmax_degree=6, inverse_steps=None)
