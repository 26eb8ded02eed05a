"""What is measured beside SecAgg+ gives the mean in both, also with clients that are lost, and in several chunks."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.flower.costs import measured, ours, update_of


@pytest.mark.parametrize("lost", [0, 1])
def test_both_give_the_mean(lost: int) -> None:
    rows = measured(nodes=6, length=1000, repeats=1, lost=lost)
    assert all(min(row) > 0 for row in rows.values())


def test_a_large_model_comes_in_several_chunks(folders: Path) -> None:
    """A chunk has 262,144 words of 32 bits, and vectors are fetched from four clients at a time."""
    _, _, mean = ours(folders, 6, 600_000, 1)
    assert np.abs(mean - np.mean([update_of(101 + number, 600_000) for number in range(1, 6)], axis=0)).max() < 2e-6
