"""The event loop of a party: what had come before a deadline was noticed is heard before it counts, a lost link is
reported after the last messages, and peers that never stop hold nothing up."""

import asyncio
from collections import deque
from typing import Any

import pytest

from tacit.parties.links.endpoint import Endpoint, Event, LinkLost, LinkUp, Received
from tacit.parties.session import shell
from tacit.parties.session.shell import Attention, Hooks, Shell
from tacit.protocol.core.machine import Ended, Output


class Clock:
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


class Scripted(Endpoint):
    """Reports what is written here, and then nothing more, or the same message without end."""

    def __init__(self, *script: Event, then: Event | None = None) -> None:
        # No socket: only what receive() gives counts here.
        self._script = deque(script)
        self._then = then

    async def receive(self) -> Event:
        if self._script:
            return self._script.popleft()
        return self._then or await asyncio.Future[Event]()


AGAIN = Received("bob", (memoryview(b"again"),))


def attention(endpoint: Endpoint) -> Attention:
    return Attention(endpoint, Hooks(), lambda: None)


async def events(found: Attention, count: int) -> list[Event]:
    heard: list[Event] = []
    async with asyncio.timeout(60):
        while len(heard) < count:
            if (event := await found.next()) is not None:
                heard.append(event)
    return heard


@pytest.mark.asyncio
async def test_a_lost_link_is_reported_after_the_last_words_and_before_the_next_link() -> None:
    lost, up, again = LinkLost("alice"), LinkUp("alice"), LinkLost("bob")
    last, first, other = (Received("alice", (memoryview(word),)) for word in (b"last", b"first", b"other"))
    async with attention(Scripted(lost, last, up, first, again, other)) as found:
        assert await events(found, 6) == [last, lost, up, first, other, again]


@pytest.mark.asyncio
async def test_peers_that_never_stop_leave_everything_else_its_turn() -> None:
    turns = 0

    async def other() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    task = asyncio.create_task(other())
    async with attention(Scripted(then=AGAIN)) as found:
        own = [await found.next() for _ in range(20)]
    assert own.count(None) >= 9
    assert turns >= 9
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


@pytest.mark.asyncio
async def test_a_lost_link_is_reported_however_much_others_send(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shell, "LAST_WORDS_SECONDS", 0.01)
    async with asyncio.timeout(60), attention(Scripted(LinkLost("alice"), then=AGAIN)) as found:
        while await found.next() != LinkLost("alice"):
            pass


@pytest.mark.asyncio
async def test_a_waiting_party_can_be_woken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shell, "ALIVE_SECONDS", 3600.0)
    woken = asyncio.Event()
    async with asyncio.timeout(60), Attention(Scripted(), Hooks(), lambda: None, woken=woken) as found:
        waiting = asyncio.create_task(found.next())
        await asyncio.sleep(0)
        woken.set()
        assert await waiting is None
