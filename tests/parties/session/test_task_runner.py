"""Work of parties: tasks on one thread take turns, dropped work is not begun, and seconds count by kind of work."""

import asyncio
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import numpy as np
import pytest

from tacit.models.interruption import Interrupted, Proceed
from tacit.parties.session.shell import Stopwatch, TaskRunner
from tacit.parties.session.task import ClientTask, Contribution, RoundWork
from tacit.secagg.work import WorkKind, work


@pytest.mark.asyncio
async def test_parties_that_share_a_thread_take_turns() -> None:
    began, order = asyncio.Event(), list[str]()
    loop, gate = asyncio.get_running_loop(), threading.Event()

    def first(proceed: Proceed) -> str:
        loop.call_soon_threadsafe(began.set)
        gate.wait()
        order.append("first")
        return "first"

    def second(proceed: Proceed) -> str:
        order.append("second")
        return "second"

    with ThreadPoolExecutor(1) as thread:
        one, other = TaskRunner(thread), TaskRunner(thread)
        one.begin(first)
        await began.wait()
        other.begin(second)
        assert other.present is not None
        waiting = [one.present, other.present]
        assert other.take() is None
        gate.set()
        assert await asyncio.gather(*filter(None, waiting)) == order == ["first", "second"]
        assert one.take() is waiting[0]
        assert one.take() is None


@pytest.mark.asyncio
async def test_what_is_dropped_before_its_turn_is_not_begun() -> None:
    began, gate, order = asyncio.Event(), threading.Event(), list[str]()
    loop = asyncio.get_running_loop()

    def first(proceed: Proceed) -> None:
        loop.call_soon_threadsafe(began.set)
        gate.wait()

    with ThreadPoolExecutor(1) as thread:
        one, other = TaskRunner(thread), TaskRunner(thread)
        one.begin(first)
        await began.wait()
        other.begin(lambda proceed: order.append("dropped"))
        dropped = other.present
        assert dropped is not None
        other.drop()
        other.begin(lambda proceed: order.append("wanted"))
        gate.set()
        assert other.present is not None
        await other.present
        with pytest.raises(Interrupted):
            dropped.result()
    assert order == ["wanted"]


class Waits(ClientTask):
    """Waits for another party, and takes its time to tidy up when it is cancelled."""

    def __init__(self) -> None:
        self.order: list[str] = []
        self.begun, self.word, self.tidy = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def contribute(self, work: RoundWork | None, proceed: Proceed) -> Contribution:
        self.order.append("begins")
        self.begun.set()
        try:
            await self.word.wait()
        except asyncio.CancelledError:
            await self.tidy.wait()
        self.order.append("ends")
        return Contribution(np.zeros(1, np.uint64))


@pytest.mark.asyncio
async def test_a_contribution_may_be_a_coroutine() -> None:
    runner, task = TaskRunner(), Waits()
    runner.begin(partial(task.contribute, None))
    present = runner.present
    await task.begun.wait()
    assert runner.take() is None
    task.word.set()
    assert present is not None
    assert isinstance(await present, Contribution)
    assert runner.take() is present


@pytest.mark.asyncio
async def test_a_coroutine_that_is_dropped_is_cancelled_once_and_its_result_is_discarded() -> None:
    runner, task = TaskRunner(), Waits()
    runner.begin(partial(task.contribute, None))
    await task.begun.wait()
    runner.drop()
    runner.begin(lambda proceed: task.order.append("never begins"))
    # Neither this nor the work before it disturbs what tidies up.
    runner.begin(lambda proceed: task.order.append("next"))
    wanted = runner.present
    for _ in range(10):
        await asyncio.sleep(0)
    assert (runner.take(), task.order) == (None, ["begins"])
    task.tidy.set()
    assert wanted is not None
    await wanted
    assert task.order == ["begins", "ends", "next"]
    assert runner.take() is wanted
    assert runner.take() is None


@pytest.mark.asyncio
@pytest.mark.parametrize("dropped", [False, True])
async def test_whoever_closes_waits_for_a_coroutine(dropped: bool) -> None:
    runner, task = TaskRunner(), Waits()
    runner.begin(partial(task.contribute, None))
    await task.begun.wait()
    if dropped:
        runner.drop()
    closing: asyncio.Future[Any] = asyncio.ensure_future(runner.close())
    for _ in range(10):
        await asyncio.sleep(0)
    assert not closing.done()
    task.tidy.set()
    await closing
    assert task.order == ["begins", "ends"]


STEP = 0.01


@work(WorkKind.SHARING)
def inner() -> str:
    time.sleep(STEP)
    return "inner"


@work(WorkKind.SERIALISATION)
def outer(*, fails: bool = False) -> str:
    time.sleep(STEP)
    told = inner()
    if fails:
        raise ValueError(told)
    return told


def test_nested_work_counts_for_the_innermost_kind() -> None:
    with Stopwatch() as stopwatch:
        began = time.perf_counter()
        assert outer() == "inner"
        elapsed = time.perf_counter() - began
    assert set(stopwatch.seconds) == {"sharing", "serialisation"}
    assert all(seconds >= STEP for seconds in stopwatch.seconds.values())
    assert sum(stopwatch.seconds.values()) <= elapsed


def test_work_that_fails_counts_too() -> None:
    with Stopwatch() as stopwatch, pytest.raises(ValueError, match="inner"):
        outer(fails=True)
    assert set(stopwatch.seconds) == {"sharing", "serialisation"}


def test_work_that_a_party_hands_to_a_thread_is_its_own() -> None:
    async def party(work: Callable[[], str]) -> set[str]:
        with Stopwatch() as stopwatch:
            await asyncio.gather(asyncio.to_thread(work), asyncio.to_thread(work))
        assert min(stopwatch.seconds.values()) >= 2 * STEP
        return set(stopwatch.seconds)

    async def both() -> list[set[str]]:
        return await asyncio.gather(party(inner), party(outer))

    assert asyncio.run(both()) == [{"sharing"}, {"sharing", "serialisation"}]


def test_nothing_counts_outside_of_the_block() -> None:
    outer()
    with Stopwatch() as stopwatch:
        pass
    outer()
    assert not stopwatch.seconds


def test_a_marked_function_keeps_its_name_and_documentation() -> None:
    assert (outer.__name__, outer.__module__) == ("outer", __name__)
