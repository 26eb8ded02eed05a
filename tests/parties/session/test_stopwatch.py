"""Seconds by kind of work: what counts, and for which kind."""

import threading
import time

import pytest

from tacit.parties.session.stopwatch import Stopwatch
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


def test_work_of_other_threads_counts() -> None:
    with Stopwatch() as stopwatch:
        thread = threading.Thread(target=inner)
        thread.start()
        thread.join()
    assert stopwatch.seconds["sharing"] >= STEP


def test_nothing_counts_outside_of_the_block() -> None:
    outer()
    with Stopwatch() as stopwatch:
        pass
    outer()
    assert not stopwatch.seconds


def test_a_marked_function_keeps_its_name_and_documentation() -> None:
    assert (outer.__name__, outer.__module__) == ("outer", __name__)
