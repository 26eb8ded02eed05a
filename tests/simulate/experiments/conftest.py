"""Results of runs that never took place."""

from collections.abc import Callable, Sequence

import pytest

from tacit.simulate.experiments.study import Arm, ArmResult, RunCost, RunResult

MakeResult = Callable[..., ArmResult]


@pytest.fixture(scope="session")
def make_result() -> MakeResult:
    """make_result(arm, accuracies, moves=): a result with these final accuracies, for seeds 0, 1, ..."""

    def make(arm: Arm, accuracies: Sequence[float], *, moves: Sequence[list[int]] | None = None) -> ArmResult:
        runs = tuple(
            RunResult(
                arm=arm.name,
                seed=seed,
                directory=f"runs/{arm.name}/{seed}",
                test_images=360,
                accuracies=[0.1, accuracy],
                clipped=3,
                seconds=2.0,
                cost=RunCost(sent=100, seconds=2.0, training_seconds=1.0, choosing_seconds=0.05),
                moves=None if moves is None else moves[seed],
            )
            for seed, accuracy in enumerate(accuracies)
        )
        return ArmResult(arm=arm, runs=runs)

    return make
