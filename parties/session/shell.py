"""The shell: the loop that a process runs around its machine. It receives, feeds, acts on outputs, and keeps deadlines.

No protocol decision is made here. Long work (training; applying a sum) runs in a thread, so that the peer is still
served, and work that waits for other parties is a coroutine; its result is one more input of the machine.

New work replaces older work. The older one is interrupted if it supports that (Proceed), or cancelled if it is a
coroutine; its result is discarded, and the new work begins when it has ended. So two never work on the same model.
Parties that share a process may share the thread too: then they take turns.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from contextvars import copy_context
from inspect import iscoroutinefunction
from typing import Any, Generic, Self, TypeVar

import zmq.asyncio

from tacit.models.interruption import Interrupted, Proceed
from tacit.parties.links.endpoint import Endpoint, Event, LinkLost, LinkUp, MessageRefused, Received
from tacit.parties.session.event_log import EventLog
from tacit.parties.session.events import HeartbeatSent, SessionEnded, ShutdownIncomplete
from tacit.protocol.core.events import Event as LoggedEvent
from tacit.protocol.core.machine import Ended, Output, Transmit
from tacit.protocol.session.client import TrainingClient
from tacit.protocol.session.server import TrainingServer
from tacit.protocol.sum.states import Phase
from tacit.secagg.work import WorkKind, observe


class Stopwatch:
    """Times the protocol within its `with` block: nested work counts for the innermost kind, and all work in this
    context counts, including its tasks and threads.

    It costs one or two microseconds a call."""

    def __init__(self) -> None:
        self.seconds: defaultdict[str, float] = defaultdict(float)
        """Seconds so far, by the values of WorkKind."""
        self.nested = threading.local()
        """Seconds of the calls inside the current one of this thread."""

    def __enter__(self) -> Stopwatch:
        observe(lambda kind: _Lap(self, kind))
        return self

    def __exit__(self, *error: object) -> None:
        observe(None)


class _Lap:
    __slots__ = ("_began", "_kind", "_outer", "_stopwatch")

    def __init__(self, stopwatch: Stopwatch, kind: WorkKind) -> None:
        self._stopwatch = stopwatch
        self._kind = kind

    def __enter__(self) -> None:
        nested = self._stopwatch.nested
        self._outer = getattr(nested, "seconds", 0.0)
        nested.seconds = 0.0
        self._began = time.perf_counter()

    def __exit__(self, *error: object) -> None:
        elapsed = time.perf_counter() - self._began
        nested = self._stopwatch.nested
        self._stopwatch.seconds[self._kind.value] += elapsed - nested.seconds
        nested.seconds = self._outer + elapsed


Work = Callable[[Proceed], Any]
"""A job: it calls its argument as often as it can, to stop early. A coroutine function runs in the event loop, any
other function in the thread."""


class _Job:
    def __init__(self, *, in_loop: bool) -> None:
        self.in_loop = in_loop
        self.done = 0.0
        self._dropped = threading.Event()
        self._coroutine: asyncio.Future[Any] | None = None

    async def run(self, work: Work, before: asyncio.Future[Any] | None, executor: Executor | None) -> Any:
        def take_turn() -> Any:
            # It may have waited for others.
            self._proceed()
            return work(self._proceed)

        if before is not None:
            await asyncio.wait([before])
        if not self.in_loop:
            return await asyncio.get_running_loop().run_in_executor(executor, copy_context().run, take_turn)
        self._coroutine = asyncio.ensure_future(take_turn())
        return await self._coroutine

    def drop(self) -> None:
        if not self._dropped.is_set():
            self._dropped.set()
            if self._coroutine is not None:
                self._coroutine.cancel()

    def _proceed(self, done: int = 0, total: int = 0, /) -> None:
        if self._dropped.is_set():
            raise Interrupted
        self.done = done / total if total else 0.0


class TaskRunner:
    """Runs the work of one party, one piece at a time.

    executor: for plain functions; None: the event loop's own; on_done: called when a piece is over."""

    def __init__(self, executor: Executor | None = None, on_done: Callable[[], None] = lambda: None) -> None:
        self._executor = executor
        self._on_done = on_done
        self.present: asyncio.Future[Any] | None = None
        """The current work; None if there is none, or its result was taken."""
        self._job: _Job | None = None
        self._last: asyncio.Future[Any] | None = None
        """The last started work, which may still be running."""
        self._last_coroutine: asyncio.Future[Any] | None = None

    @property
    def done(self) -> float:
        """Completed share of the present work, 0 to 1, as reported by it."""
        return 0.0 if self._job is None else self._job.done

    def begin(self, work: Work) -> None:
        """Start this work in place of any earlier one."""
        self.drop()
        self._job = _Job(in_loop=iscoroutinefunction(work))
        self.present = self._last = asyncio.ensure_future(self._job.run(work, self._last, self._executor))
        self.present.add_done_callback(lambda done: self._on_done())
        if self._job.in_loop:
            self._last_coroutine = self._last

    def take(self) -> asyncio.Future[Any] | None:
        """Return the present work when it is done, once."""
        if self.present is None or not self.present.done():
            return None
        done, self.present, self._job = self.present, None, None
        # It holds its result, and interrupted work may still be in the thread.
        self._last = None if self._last is done else self._last
        return done

    def drop(self) -> None:
        """Interrupt the present work, and discard its result."""
        if self._job is not None:
            self._job.drop()
        if self.present is not None:
            # Its outcome is ignored.
            self.present.add_done_callback(lambda dropped: dropped.cancelled() or dropped.exception())
            self.present = None

    async def close(self) -> None:
        """Drop the present work. A coroutine has ended on return: it might use objects that its party closes next."""
        self.drop()
        if self._last_coroutine is not None:
            await asyncio.wait([self._last_coroutine])


ALIVE_SECONDS = 1.0
"""Interval of heartbeats, and of polling. Also the longest delay until a deadline is noticed that was not set by an
event; from then on it is met exactly."""

LAST_SECONDS = 2.0
"""Seconds in which a stopped party may finish its current work."""

BACKLOG = 1024
"""Most messages that arrived before a deadline was noticed, and are processed before it counts."""
TURNS = 64
"""Turns of the event loop until an arrived message reaches the shell."""

LEAST_WAIT = 0.001
"""Seconds; delay of a deadline that has just passed, to avoid a busy loop."""
LAST_WORDS_SECONDS = 0.1
"""Seconds to read the messages that a peer sent before its link was lost."""


class Hooks:
    """Resources that a party shares with others of its process, and hooks of simulations and audits: fault injection,
    recording, cheating. The defaults do nothing, and are those of hosts.

    executor: for long work; context: of its sockets."""

    def __init__(self, executor: Executor | None = None, context: zmq.asyncio.Context | None = None) -> None:
        self.executor = executor
        self.context = context

    def entering(self, round: int, phases: set[Phase]) -> None:
        """Called before the party sends messages or does work of these phases of a round of training."""

    async def moved(self, count: int) -> None:
        """Called before so many bytes go over the party's link."""

    def heard(self, sender: str, frames: Sequence[memoryview]) -> None:
        """Called with an arrived message before the machine receives it."""

    def entropy(self, count: int) -> bytes:
        """Random bytes of the operating system: all of the machine's randomness."""
        return os.urandom(count)


MachineT = TypeVar("MachineT", bound=TrainingClient | TrainingServer)
EndpointT = TypeVar("EndpointT", bound=Endpoint)


class Attention:
    """The event loop of a party for one of its endpoints: events, deadlines, and a turn for all other work.

    hooks: of the party, which see a message first; next_deadline: of the machines at this end, in seconds of `now`;
    woken: set for work that must not wait for the next event."""

    def __init__(
        self,
        endpoint: Endpoint,
        hooks: Hooks,
        next_deadline: Callable[[], float | None],
        *,
        now: Callable[[], float] = time.monotonic,
        woken: asyncio.Event | None = None,
    ) -> None:
        self._endpoint = endpoint
        self._hooks = hooks
        self._next_deadline = next_deadline
        self._now = now
        self._woken = woken or asyncio.Event()
        self._lost: list[LinkLost] = []
        """Lost links, held back until `_lost_until`: messages that had arrived over them come first."""
        self._lost_until = 0.0
        self._taken = 0
        """Events since the last turn of all other work."""

    async def __aenter__(self) -> Self:
        self._receive()
        return self

    async def __aexit__(self, *error: object) -> None:
        self._receiving.cancel()
        await asyncio.gather(self._receiving, return_exceptions=True)

    async def next(self) -> Event | None:
        """Wait for the next event, or return None: deadlines count now, and all other work has its turn."""
        if not self._taken and not self._receiving.done():
            await self._wait()
        event = None if self._taken > BACKLOG or (self._taken and not self._due) else await self._take()
        self._taken = 0 if event is None else self._taken + 1
        if isinstance(event, Received):
            self._hooks.heard(event.sender, event.frames)
        return event

    @property
    def _due(self) -> bool:
        deadline = self._next_deadline()
        return deadline is not None and deadline <= self._now()

    def _receive(self) -> None:
        self._receiving = asyncio.ensure_future(self._endpoint.receive())
        self._receiving.add_done_callback(lambda received: self._woken.set())

    async def _wait(self) -> None:
        ends = [self._next_deadline(), self._lost_until if self._lost else None]
        seconds = min([ALIVE_SECONDS, *(end - self._now() for end in ends if end is not None)])
        timer = asyncio.get_running_loop().call_later(max(LEAST_WAIT, seconds), self._woken.set)
        try:
            await self._woken.wait()
        finally:
            timer.cancel()
        self._woken.clear()

    async def _take(self) -> Event | None:
        while not (self._lost and self._now() >= self._lost_until):
            for _ in range(TURNS if self._due else 0):
                if self._receiving.done():
                    break
                await asyncio.sleep(0)
            if not self._receiving.done():
                return None
            event = self._receiving.result()
            if self._lost and isinstance(event, LinkUp):
                break
            self._receive()
            if not isinstance(event, LinkLost):
                return event
            self._lost_until = self._lost_until if self._lost else self._now() + LAST_WORDS_SECONDS
            self._lost.append(event)
        # All of them, and before a new link.
        self._lost_until = 0.0
        return self._lost.pop(0)


class Shell(Generic[MachineT, EndpointT]):
    """One party at work. Subclasses interpret events, outputs and finished work."""

    def __init__(self, machine: MachineT, event_log: EventLog, hooks: Hooks) -> None:
        self._machine = machine
        self._hooks = hooks
        self._event_log = event_log
        self._woken = asyncio.Event()
        self._runner = TaskRunner(hooks.executor, self._woken.set)
        self._ended: Ended | None = None
        self._last_heartbeat = 0.0
        self._stopping = False

    async def _serve_until_stopped(self, endpoint: EndpointT) -> Ended:
        """Serve; when cancelled, go on until the party may stop."""
        serving = asyncio.ensure_future(self._serve(endpoint))
        try:
            return await asyncio.shield(serving)
        except asyncio.CancelledError:
            self._stopping = True
            self._woken.set()
            await self._let_finish(serving)
            raise

    async def _serve(self, endpoint: EndpointT) -> Ended:
        machine, now = self._machine, self._event_log.now
        async with Attention(
            endpoint, self._hooks, lambda: machine.next_deadline, now=now, woken=self._woken
        ) as attention:
            while self._ended is None or machine.untold:
                if self._stopping and self._may_stop():
                    raise asyncio.CancelledError
                while (event := await attention.next()) is not None:
                    await self._hear(endpoint, event)
                if (finished := self._runner.take()) is not None:
                    await self._perform(endpoint, self._take_work(finished))
                await self._perform(endpoint, machine.expire(now()))
                self._event_log.follow(machine.round, machine.phase, machine.traffic)
                await self._perform(endpoint, self._periodic())
        return self._ended

    async def _hear(self, endpoint: EndpointT, event: Event) -> None:
        if isinstance(event, Received):
            self._event_log.passed("received", event.sender, event.frames)
            await self._hooks.moved(sum(len(frame) for frame in event.frames))
        elif not isinstance(event, MessageRefused):
            self._event_log.link_changed(event)
        await self._perform(endpoint, self._take_event(event))

    async def _perform(self, endpoint: EndpointT, outputs: Sequence[Output]) -> None:
        """Act on all outputs, even if cancelled meanwhile: messages are numbered, and after a missing one the last
        message would be refused."""
        performing = asyncio.ensure_future(self._perform_all(endpoint, outputs))
        try:
            await asyncio.shield(performing)
        except asyncio.CancelledError:
            await self._let_finish(performing, timeout=LAST_SECONDS)
            raise

    async def _let_finish(self, last: asyncio.Future[Any], *, timeout: float | None = None) -> None:
        """Wait at most `timeout` seconds for the last work of a stopped party. Its errors are reported, and do not keep
        the party from stopping."""
        await asyncio.wait([last], timeout=timeout)
        last.cancel()
        came: object = (await asyncio.gather(last, return_exceptions=True))[0]
        if isinstance(came, Exception):
            self._event_log.write(ShutdownIncomplete(detail=" ".join(str(came).split()) or type(came).__name__))

    async def _perform_all(self, endpoint: EndpointT, outputs: Sequence[Output]) -> None:
        # Transfers of the training run beside other phases.
        said = {Phase(output.phase) for output in outputs if isinstance(output, Transmit)} - {Phase.TRAIN}
        if not self._event_log.outside:
            self._hooks.entering(self._machine.round, {self._machine.phase, *said})
        for output in outputs:
            if isinstance(output, Transmit):
                await self._hooks.moved(sum(len(frame) for frame in output.frames))
                self._event_log.passed("sent", output.to, output.frames)
            if isinstance(output, LoggedEvent):
                self._report(output)
            elif isinstance(output, Ended):
                self._ended = output
                self._event_log.write(
                    SessionEnded(code=output.code.name if output.code else None, detail=output.detail)
                )
            else:
                await self._perform_own(endpoint, output)

    def _report(self, event: LoggedEvent) -> None:
        self._event_log.write(event)

    def _periodic(self) -> list[Output]:
        now = self._event_log.now()
        if now - self._last_heartbeat < ALIVE_SECONDS:
            return []
        self._last_heartbeat = now
        self._event_log.mention(HeartbeatSent(done=self._runner.done if self._runner.present else 0.0))
        return self._look_around()

    def _look_around(self) -> list[Output]:
        return []

    def _may_stop(self) -> bool:
        return True

    def _take_event(self, event: Event) -> list[Output]:
        raise NotImplementedError

    def _take_work(self, finished: asyncio.Future[Any]) -> list[Output]:
        raise NotImplementedError

    async def _perform_own(self, endpoint: EndpointT, output: Output) -> None:
        raise NotImplementedError
