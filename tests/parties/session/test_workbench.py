"""Work in threads: parties that share one take turns, and what nobody wants any more is not begun."""

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from tacit.models.interruption import Interrupted, Proceed
from tacit.parties.session.shell import Workbench


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
        one, other = Workbench(thread), Workbench(thread)
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
        one, other = Workbench(thread), Workbench(thread)
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
