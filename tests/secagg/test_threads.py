"""Work divided among cores: the same results in the same order, whatever their number, also after a fork."""

import os
from multiprocessing import get_context

import pytest

from tacit.secagg.threads import map_in_threads
from tests.cases import cases


def squares() -> list[int]:
    return map_in_threads(lambda number: number * number, range(100), worth=1)


def check_squares() -> None:
    assert squares() == [number * number for number in range(100)]


@cases("cores", [1, 2, 7])
def test_results_are_in_order_and_errors_reach_the_caller(monkeypatch: pytest.MonkeyPatch, cores: int) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: cores)
    check_squares()
    assert map_in_threads(len, [], worth=1) == []
    for broken in (0, 99):
        with pytest.raises(ZeroDivisionError):
            map_in_threads((1).__floordiv__, range(-broken, 100 - broken), worth=1)


def test_a_forked_process_starts_threads_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    check_squares()
    child = get_context("fork").Process(target=check_squares)
    child.start()
    child.join(60)
    assert child.exitcode == 0
