"""The world that tests play in, under every schedule: whoever speaks next, the same comes out."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from tacit.protocol.sum.exchange import Summed
from tacit.simulate.world.world import Choice, Link
from tests.world.sums import memory_sum


def every_schedule(play: Callable[[Choice], Any]) -> Iterator[Any]:
    """What comes of a play under every schedule, by depth first."""
    path: list[int] | None = []
    while path is not None:
        taken: list[tuple[int, int]] = []

        def choose(links: list[Link], path: list[int] = path, taken: list[tuple[int, int]] = taken) -> Link:
            choice = path[len(taken)] if len(taken) < len(path) else 0
            taken.append((choice, len(links)))
            return links[choice]

        yield play(choose)
        while taken and taken[-1][0] + 1 == taken[-1][1]:
            taken.pop()
        path = [*(choice for choice, _ in taken[:-1]), taken[-1][0] + 1] if taken else None


@pytest.mark.parametrize("active", [False, pytest.param(True, marks=pytest.mark.exhaustive)])
def test_every_schedule_of_a_sum_leads_to_it(active: bool) -> None:
    def play(choose: Choice) -> Any:
        run = memory_sum(2, active=active, seed=b"schedules")
        run.network.choose = choose
        run.run()
        (summed,) = run.outcome(Summed)
        assert summed.survivors == ("c0", "c1")
        np.testing.assert_array_equal(summed.total, run.plain_sum(summed.survivors))
        return tuple((item.sender, item.receiver, item.kind) for item in run.log)

    schedules = list(every_schedule(play))
    assert len(set(schedules)) == len(schedules) > 200
