"""Messages that had come before a deadline was noticed are heard before it counts."""

import asyncio
from collections import deque
from typing import Any

import pytest

from tacit.parties.links.endpoint import Event, LinkUp
from tacit.parties.session import shell
from tacit.parties.session.shell import Hooks, Shell
from tacit.protocol.core.machine import Ended, Output


class Clock:
    """An event log whose clock the test sets."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def now(self) -> float:
        return self.seconds

    def __getattr__(self, name: str) -> Any:
        return lambda *arguments, **named: None


class Expiring:
    """A machine with a deadline, which counts what it hears before."""

    untold, round, phase, traffic, waiting_for = False, 0, None, None, ()

    def __init__(self) -> None:
        self.next_deadline: float | None = 1.0
        self.heard = self.heard_in_time = 0

    def expire(self, now: float) -> list[Output]:
        if self.next_deadline is None or now < self.next_deadline:
            return []
        self.next_deadline, self.heard_in_time = None, self.heard
        return [Ended(None, "")]


class Queue:
    """An endpoint that needs some turns of the loop for each message, as a socket does."""

    def __init__(self, messages: int, *, endless: bool = False) -> None:
        self.events = deque[Event](LinkUp("peer") for _ in range(messages))
        self.endless = endless

    async def receive(self) -> Event:
        for _ in range(8):
            await asyncio.sleep(0)
        if self.endless:
            return LinkUp("peer")
        if self.events:
            return self.events.popleft()
        await asyncio.Event().wait()
        raise AssertionError


class Busy(Shell[Any, Any]):
    """Its first message takes beyond the deadline."""

    def _take_event(self, event: Event) -> list[Output]:
        self._machine.heard += 1
        self._event_log.seconds = 2.0  # type: ignore[attr-defined]
        return []


async def heard_in_time(endpoint: Queue) -> int:
    machine = Expiring()
    party = Busy(machine, Clock(), Hooks())  # type: ignore[arg-type]
    async with asyncio.timeout(60):
        await party._serve(endpoint)
    return machine.heard_in_time


@pytest.mark.asyncio
async def test_what_has_come_is_heard_before_a_deadline_that_is_due() -> None:
    assert await heard_in_time(Queue(50)) == 50


@pytest.mark.asyncio
async def test_a_flood_does_not_put_off_a_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shell, "BACKLOG", 20)
    assert await heard_in_time(Queue(0, endless=True)) == 21
