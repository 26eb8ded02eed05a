"""Rows of runs that never took place, and a watcher of those that do."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest

from tacit.simulate.experiments.federations import Arm, accuracy_of
from tacit.simulate.experiments.results import FederatedRun, Run, RunCost, StudyRow
from tacit.simulate.federation.processes import Show

MakeRow = Callable[..., StudyRow]
COST = RunCost(sent=100, seconds=2.0, training_seconds=1.0, choosing_seconds=0.05)


class Nobody:
    def __init__(self) -> None:
        self.titles: list[str] = []

    def began(self, title: str) -> Show:
        return lambda event: None

    def ended(self, title: str, run: Run) -> None:
        self.titles.append(title)


@pytest.fixture(scope="module")
def one_thread() -> Iterator[None]:
    """For sums in a fixed order."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def write_random(path: Path, *, train: int, test: int) -> Path:
    """Images of CIFAR-10's shape, of ten classes in turn; as an .npz file."""
    generator, arrays = np.random.default_rng(0), {}
    for part, count in (("train", train), ("test", test)):
        arrays[f"x_{part}"] = generator.integers(0, 256, (count, 32, 32, 3), dtype=np.uint8)
        arrays[f"y_{part}"] = np.arange(count) % 10
    np.savez(path, **arrays)
    return path


@pytest.fixture(scope="session")
def make_row() -> MakeRow:
    """make_row(arm, accuracies, moves=, cost=, values=): a row with these final accuracies, for seeds 0, 1, ..."""

    def make(
        arm: Arm,
        accuracies: Sequence[float],
        *,
        moves: Sequence[list[int]] | None = None,
        cost: RunCost = COST,
        values: Callable[..., object] = accuracy_of,
    ) -> StudyRow:
        runs = []
        for seed, accuracy in enumerate(accuracies):
            federation = FederatedRun(
                directory=f"runs/{arm.name}/{seed}",
                test_images=360,
                accuracies=[0.1, accuracy],
                clipped=3,
                cost=cost,
                moves=None if moves is None else moves[seed],
            )
            runs.append(Run(seed=seed, values=dict(values(arm, federation)), seconds=2.0, federation=federation))
        return StudyRow.of(arm.name, runs, dict(arm.published))

    return make
