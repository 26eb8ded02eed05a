"""The loop that a process runs around its machine: receive, feed, do what it says, wake it at its deadline.

No protocol decision is taken here. Work that takes long (training; applying a sum) runs in a thread, so that the other
side is still heard meanwhile; its result is one more input of the machine.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping, Sequence
from concurrent.futures import Executor
from typing import Any, Generic, TypeVar

import zmq.asyncio

from tacit.parties.links.endpoint import Endpoint, Event, Received
from tacit.parties.session.diary import Diary
from tacit.parties.session.workbench import Workbench
from tacit.protocol.core.machine import Ended, Output, Report, Transmit
from tacit.protocol.core.messages import Phase
from tacit.protocol.session.client import TrainingClient
from tacit.protocol.session.server import TrainingServer

ALIVE_SECONDS = 1.0
"""How often a party tells that it is there."""

LAST_SECONDS = 2.0
"""How long a party that is stopped goes on with what it has begun to do."""

LEAST_WAIT = 0.001
"""Seconds; a deadline that has just passed is looked at after this, not in a busy loop."""


class Surroundings:
    """Where a party is: what it shares with others of its process, and what happens around it that is none of its
    doing. Here that is nothing; simulations put faults in its place.

    bench: where it does what takes long; context: of its sockets.
    """

    def __init__(self, bench: Executor | None = None, context: zmq.asyncio.Context | None = None) -> None:
        self.bench = bench
        self.context = context

    def entering(self, round: int, phases: set[Phase]) -> None:
        """The party is about to say or do what belongs to these phases."""

    async def moved(self, count: int) -> None:
        """So many bytes go over the party's link."""

    def heard(self, sender: str, frames: Sequence[memoryview]) -> None:
        """A message has come, of which the machine does not know yet."""

    def entropy(self, count: int) -> bytes:
        """So many bytes of the operating system's randomness: all that the machine draws."""
        return os.urandom(count)


MachineT = TypeVar("MachineT", bound=TrainingClient | TrainingServer)
EndpointT = TypeVar("EndpointT", bound=Endpoint)


class Shell(Generic[MachineT, EndpointT]):
    """One party at work. Subclasses say what events, outputs and finished work mean."""

    def __init__(self, machine: MachineT, diary: Diary, surroundings: Surroundings) -> None:
        self._machine = machine
        self._surroundings = surroundings
        self._diary = diary
        self._bench = Workbench(surroundings.bench)
        self._ended: Ended | None = None
        self._told_alive = 0.0
        self._stopping = False

    async def _serve_until_stopped(self, endpoint: EndpointT) -> Ended:
        """Serve; when cancelled, go on until the party may stop."""
        serving = asyncio.ensure_future(self._serve(endpoint))
        try:
            return await asyncio.shield(serving)
        except asyncio.CancelledError:
            self._stopping = True
            await self._let_finish(serving)
            raise

    async def _serve(self, endpoint: EndpointT) -> Ended:
        receiving = asyncio.ensure_future(endpoint.receive())
        try:
            while self._ended is None or self._machine.untold:
                if self._stopping and self._may_stop():
                    raise asyncio.CancelledError
                await self._wait(receiving)
                if receiving.done():
                    event = receiving.result()
                    if isinstance(event, Received):
                        self._surroundings.heard(event.sender, event.frames)
                        self._diary.passed("received", event.sender, event.frames)
                        await self._surroundings.moved(sum(len(frame) for frame in event.frames))
                    await self._perform(endpoint, self._take_event(event))
                    receiving = asyncio.ensure_future(endpoint.receive())
                if (finished := self._bench.take()) is not None:
                    await self._perform(endpoint, self._take_work(finished))
                await self._perform(endpoint, self._machine.expire(self._diary.now()))
                self._diary.follow(self._machine.round, self._machine.phase, self._machine.traffic)
                await self._perform(endpoint, self._from_time_to_time())
        finally:
            receiving.cancel()
            await asyncio.gather(receiving, return_exceptions=True)
        return self._ended

    async def _wait(self, receiving: asyncio.Future[Event]) -> None:
        deadline = self._machine.next_deadline
        due = ALIVE_SECONDS if deadline is None else deadline - self._diary.now()
        timeout = max(LEAST_WAIT, min(due, ALIVE_SECONDS))
        awaited = [receiving] if self._bench.present is None else [receiving, self._bench.present]
        await asyncio.wait(awaited, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)

    async def _perform(self, endpoint: EndpointT, outputs: Sequence[Output]) -> None:
        """Do what the machine says, and all of it when cancelled meanwhile: its messages are numbered, and where one is
        missing, what is said last is not understood."""
        performing = asyncio.ensure_future(self._perform_all(endpoint, outputs))
        try:
            await asyncio.shield(performing)
        except asyncio.CancelledError:
            await self._let_finish(performing, timeout=LAST_SECONDS)
            raise

    async def _let_finish(self, last: asyncio.Future[Any], *, timeout: float | None = None) -> None:
        """Wait for what a party that is stopped does last, for so many seconds. What goes wrong then is told: it does
        not keep the party from stopping."""
        await asyncio.wait([last], timeout=timeout)
        last.cancel()
        came: object = (await asyncio.gather(last, return_exceptions=True))[0]
        if isinstance(came, Exception):
            self._diary.write("not-finished", detail=" ".join(str(came).split()) or type(came).__name__)

    async def _perform_all(self, endpoint: EndpointT, outputs: Sequence[Output]) -> None:
        # What is fetched and handed out for the training is on its way beside other phases.
        said = {output.phase for output in outputs if isinstance(output, Transmit)} - {Phase.TRAIN}
        self._surroundings.entering(self._machine.round, {self._machine.phase, *said})
        for output in outputs:
            if isinstance(output, Transmit):
                await self._surroundings.moved(sum(len(frame) for frame in output.frames))
                self._diary.passed("sent", output.to, output.frames)
            if isinstance(output, Report):
                self._report(output.event, output.fields)
            elif isinstance(output, Ended):
                self._ended = output
                self._diary.write("ended", code=output.code.name if output.code else None, detail=output.detail)
            else:
                await self._perform_own(endpoint, output)

    def _report(self, event: str, fields: Mapping[str, Any]) -> None:
        """Something that the machine tells."""
        self._diary.write(event, **fields)

    def _from_time_to_time(self) -> list[Output]:
        now = self._diary.now()
        if now - self._told_alive < ALIVE_SECONDS:
            return []
        self._told_alive = now
        self._diary.mention("alive", **({"done": self._bench.done} if self._bench.present else {}))
        return self._look_around()

    def _look_around(self) -> list[Output]:
        """What follows from something outside that nobody tells of."""
        return []

    def _may_stop(self) -> bool:
        """Whether leaving now costs nothing that could not be had again."""
        return True

    def _take_event(self, event: Event) -> list[Output]:
        raise NotImplementedError

    def _take_work(self, finished: asyncio.Future[Any]) -> list[Output]:
        raise NotImplementedError

    async def _perform_own(self, endpoint: EndpointT, output: Output) -> None:
        raise NotImplementedError
