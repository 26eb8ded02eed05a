"""Rows of runs that never took place, and a watcher of those that do."""

from collections.abc import Callable, Sequence

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
