"""Tasks that are ended have tidied up, also when whoever ends them is cancelled meanwhile."""

from __future__ import annotations

import asyncio

import pytest

from tacit.parties.inference.conversation import ended


@pytest.mark.asyncio
async def test_who_is_cancelled_while_it_ends_a_task_waits_until_that_has_tidied_up() -> None:
    tidying, may_go, tidied = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            tidying.set()
            await may_go.wait()
            tidied.set()

    task = asyncio.create_task(work())
    await asyncio.sleep(0)
    ending = asyncio.create_task(ended(task))
    await tidying.wait()
    ending.cancel()
    await asyncio.sleep(0)
    may_go.set()
    with pytest.raises(asyncio.CancelledError):
        await ending
    assert tidied.is_set()
    assert task.cancelled()
