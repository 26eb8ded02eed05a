"""Seconds by kind of work: what counts, and for which kind."""

import asyncio
import time
from collections.abc import Callable

import pytest

from tacit.parties.session.shell import Stopwatch
from tacit.secagg.work import WorkKind, work

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
