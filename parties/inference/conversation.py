"""One session of an owner: its machines, their links, and the program that waits for them; and how to serve.

A machine's outputs are queued for the link, or kept until the program requests them. The program is a coroutine of this
event loop; long computations run in a thread (Worker). No protocol decision is made here: when a machine has ended, the
other machine is informed, and the program's pending wait raises InferenceError.

A party that waits for a waiting party waits longer, so that the right one is blamed: the dealer waits its patience for
an owner, an owner twice as long for the dealer, and three times as long for the other owner.
"""

from __future__ import annotations

import asyncio
import time
import traceback
from collections import defaultdict, deque
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final, Generic, NoReturn, TypeVar

import torch

from tacit.parties.inference.events import InferenceSessionEnded
from tacit.parties.links.client_endpoint import AWAITED, ClientEndpoint
from tacit.parties.links.endpoint import (
    CopyDetected,
    EndpointError,
    HandshakeRefused,
    Limits,
    LinkLost,
    MessageRefused,
    PeerStalledError,
    Received,
)
from tacit.parties.links.keys import PartyKeys
from tacit.parties.links.server_endpoint import ServerEndpoint
from tacit.parties.links.tokens import TokenFile
from tacit.parties.session import events as logged
from tacit.parties.session.event_log import EventLog
from tacit.parties.session.shell import Attention, Hooks
from tacit.protocol.core.codec import Frame
from tacit.protocol.core.errors import Code, RemoteProtocolError
from tacit.protocol.core.machine import Entropy, Output, Transmit
from tacit.protocol.core.messages import CHUNK_BYTES
from tacit.protocol.core.roster import Member, Roster
from tacit.protocol.inference.exchange import ExchangeSide
from tacit.protocol.inference.material import MaterialOwner
from tacit.protocol.inference.quota import Spent
from tacit.protocol.inference.results import Agreed, Charged, InferenceEnded
from tacit.protocol.inference.service import Answers, MachineT, Service
from tacit.protocol.inference.session import InferenceSession

T = TypeVar("T")

FOR_DEALER: Final = 2
"""Factor on an owner's patience with the dealer."""
FOR_OWNER: Final = 3
"""Factor on an owner's patience with the other owner."""
MOST_WAITING: Final = 1 << 14
"""Most queued messages of a link. No layer, correction or round has more than half as many chunks."""


class InferenceError(Exception):
    """A session failed. The text names the party at fault and the reason."""

    def __init__(self, ended: InferenceEnded) -> None:
        super().__init__(f"{ended.culprit or 'session'}: {ended.detail}")
        self.code = ended.code
        self.culprit = ended.culprit


def own_failure(error: BaseException) -> RemoteProtocolError:
    """Report a failure of this side to peers by its type alone: the text might contain a secret."""
    return RemoteProtocolError(Code.LOCAL, f"it cannot go on ({type(error).__name__}); its own log says why")


def place(error: BaseException) -> str:
    """Location where an error of this party was raised, for its own log."""
    innermost = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__} in {Path(innermost.filename).name}, line {innermost.lineno}"


async def ended(*tasks: asyncio.Future[Any]) -> None:
    """Cancel these tasks once and wait until they have cleaned up, even if cancelled meanwhile."""
    for task in tasks:
        task.cancel()
    cancelled: asyncio.CancelledError | None = None
    while pending := [task for task in tasks if not task.done()]:
        try:
            await asyncio.wait(pending)
        except asyncio.CancelledError as error:
            cancelled = error
    await asyncio.gather(*tasks, return_exceptions=True)
    if cancelled is not None:
        raise cancelled


class Courier:
    """Sends messages over one link, in order, without blocking the sender.

    stalled: called with a reason if the peer accepts nothing for too long, or less than this side must send. Queued
    messages are dropped then: messages are numbered, so those behind a gap are of no use."""

    def __init__(self, send: Callable[[Sequence[Frame]], Awaitable[None]], stalled: Callable[[str], None]) -> None:
        self._send = send
        self._stalled = stalled
        self._waiting: asyncio.Queue[Sequence[Frame]] = asyncio.Queue()
        self.running = asyncio.ensure_future(self._run())
        """The sending task."""

    def put(self, frames: Sequence[Frame]) -> None:
        if self._waiting.qsize() == MOST_WAITING:
            self._give_up(f"it has left {MOST_WAITING} messages waiting")
        else:
            self._waiting.put_nowait(frames)

    async def drained(self) -> None:
        await self._waiting.join()

    async def close(self) -> None:
        """Stop, and drop queued messages."""
        await ended(self.running)

    async def _run(self) -> None:
        while True:
            frames = await self._waiting.get()
            try:
                await self._send(frames)
            except PeerStalledError as error:
                self._give_up(str(error))
            except EndpointError:
                pass  # The lost link or the deadline informs the machine.
            finally:
                self._waiting.task_done()

    def _give_up(self, detail: str) -> None:
        # Not at once: the sender's call is still in progress.
        asyncio.get_running_loop().call_soon(self._stalled, detail)
        while not self._waiting.empty():
            self._waiting.get_nowait()
            self._waiting.task_done()


class Worker:
    def __init__(self) -> None:
        self._executor = ThreadPoolExecutor(1, initializer=torch.set_num_threads, initargs=(1,))

    async def __call__(self, function: Callable[..., T], *arguments: Any) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._executor, function, *arguments)

    def close(self) -> None:
        self._executor.shutdown(wait=False, cancel_futures=True)


@dataclass(frozen=True)
class Exchange:
    """One of the two exchanges of a session: its machine, and the destination of its outputs."""

    machine: ExchangeSide[Any]
    hear: Callable[[Sequence[Output]], None]

    def feed(self, frames: Sequence[Frame]) -> None:
        self.hear(self.machine.feed(frames, Conversation.now()))

    def drop(self, detail: str) -> None:
        """Inform the machine that the link to the peer is lost."""
        self.hear(self.machine.drop(detail, Conversation.now()))

    def expire(self) -> None:
        self.hear(self.machine.expire(Conversation.now()))


class Conversation:
    """An owner's side of one session.

    dealer: its name in the roster; patience: seconds; entropy: randomness of the operating system; charge: persists the
    peer's use of this side's quota."""

    def __init__(
        self,
        machine: InferenceSession,
        roster: Roster,
        *,
        dealer: str,
        to_peer: Courier,
        to_dealer: Courier,
        patience: float,
        entropy: Entropy,
        charge: Callable[[Spent], None],
    ) -> None:
        self.machine = machine
        self.ended: InferenceEnded | None = None
        """How the session ended; None until then."""
        self.failure = ""
        """Location of the error of this side that ended it, if any."""
        self._roster = roster
        self.dealer = dealer
        self._patience = patience
        self.entropy = entropy
        self._charge = charge
        # The dealer itself may pose as a data owner, and needs to receive the reason of the refusal.
        self._couriers = {dealer: to_dealer, machine.peer: to_peer}
        self._material: MaterialOwner | None = None
        self.with_peer = Exchange(machine, self.hear)
        self.with_dealer: tuple[Exchange, ...] = ()
        """One exchange, from the agreement on."""
        self._kept: defaultdict[type, deque[Any]] = defaultdict(deque)
        self._changed = asyncio.Event()
        """Wakes the waiting program: an output was kept, or the session has ended."""

    @property
    def material(self) -> MaterialOwner:
        """The machine for the dealer, which exists from the agreement on."""
        assert self._material is not None
        return self._material

    @staticmethod
    def now() -> float:
        return time.monotonic()

    def hear(self, outputs: Sequence[Output]) -> None:
        """Process the outputs of the machine for the other owner."""
        for output in outputs:
            if isinstance(output, InferenceEnded):
                self._end(output)
            elif isinstance(output, Charged):
                try:
                    self._charge(output.spent)
                except OSError as error:
                    if self.machine.over:
                        continue  # It stays counted.
                    # The remaining outputs are not sent: a pass that is not counted does not begin.
                    self.fail(error)
                    return
            else:
                if isinstance(output, Agreed):
                    self._material = MaterialOwner(
                        self.machine.own,
                        self._roster,
                        dealer=self.dealer,
                        agreed=output,
                        entropy=self.entropy,
                        patience=FOR_DEALER * self._patience,
                    )
                    self.with_dealer = (Exchange(self._material, self.hear_dealer),)
                    self.hear_dealer(self._material.start(self.now()))
                self._keep(output)

    def hear_dealer(self, outputs: Sequence[Output]) -> None:
        """Process the outputs of the machine for the dealer."""
        for output in outputs:
            if not isinstance(output, InferenceEnded):
                self._keep(output)
            elif output.code is not None:
                error = RemoteProtocolError(output.code, output.detail, culprit=output.culprit)
                self.hear(self.machine.give_up(error, self.now()))

    def put(self, something: object) -> None:
        """Keep an object of this side for the program."""
        self._kept[type(something)].append(something)
        self._changed.set()

    def kept(self, kind: type[T]) -> T | None:
        """The next output of this kind, if it has arrived."""
        found: T | None = self._kept[kind].popleft() if self._kept[kind] else None
        return found

    async def next(self, *kinds: type[T]) -> T | None:
        """Wait for the next output of these kinds; None if the session ended regularly, InferenceError if it failed."""
        while not (ready := [kind for kind in kinds if self._kept[kind]]):
            if self.ended is not None:
                if self.ended.code is not None:
                    raise InferenceError(self.ended)
                return None
            self._changed.clear()
            await self._changed.wait()
        found: T = self._kept[ready[0]].popleft()
        return found

    async def expect(self, kind: type[T]) -> T:
        """Wait for the next output of this kind. InferenceError if the session has ended."""
        found = await self.next(kind)
        if found is None:
            raise InferenceError(InferenceEnded(Code.LEFT, "it has closed the session early", self.machine.peer))
        return found

    async def closed(self) -> None:
        """Wait until the session ends regularly. InferenceError if it fails."""
        while await self.next(InferenceEnded) is not None:
            pass

    def refuse(self, detail: str, code: Code = Code.MODEL, *, culprit: str = "") -> NoReturn:
        """End the session because of unusable data of the peer, its model by default. InferenceError.

        culprit: the party at fault, if not the peer."""
        error = RemoteProtocolError(code, detail, culprit=culprit or self.machine.peer)
        self.hear(self.machine.give_up(error, self.now()))
        raise InferenceError(InferenceEnded(error.code, error.detail, error.culprit or ""))

    async def sent(self) -> None:
        """Wait until all messages to the peer are sent."""
        await self._couriers[self.machine.peer].drained()

    def fail(self, error: BaseException) -> None:
        self.failure = place(error)
        self.hear(self.machine.give_up(own_failure(error), self.now()))

    def _keep(self, output: Output) -> None:
        if isinstance(output, Transmit):
            self._couriers[output.to].put(output.frames)
        else:
            self.put(output)

    def _end(self, ended: InferenceEnded) -> None:
        self.ended = ended
        if self._material is not None:
            if ended.code is None:
                self.hear_dealer(self._material.finish(self.now()))
            else:
                error = RemoteProtocolError(ended.code, ended.detail, culprit=ended.culprit or self.machine.own)
                self.hear_dealer(self._material.give_up(error, self.now()))
        self._changed.set()


AHEAD: Final = 1
"""Stages prepared while another one is computed."""
CONNECT_SECONDS: Final = 10.0
"""Interval at which an address is resolved again, and waiting is reported."""
RECONNECT_SECONDS: Final = 1.0
"""Delay before the next attempt to connect, or to open a lost session again."""


def limits(patience: float) -> Limits:
    """Limits of private inference links: a message has at most three frames, and at most a chunk of bytes."""
    return Limits(max_frame_bytes=CHUNK_BYTES + 1024, max_frames=3, send_seconds=patience)


@dataclass(frozen=True, kw_only=True)
class ReconnectPolicy:
    """Retry policy while a serving peer is not reachable yet."""

    seconds: float | None = None
    """Seconds to retry; None: a single attempt, for the patience of the connecting party."""
    on_failure: Callable[[str], None] = lambda reason: None
    """Called with the reason of a missing link, whenever it changes."""


async def linked(
    address: str,
    keys: PartyKeys,
    server: Member,
    patience: float,
    reconnect: ReconnectPolicy = ReconnectPolicy(),
    tokens: TokenFile | None = None,
) -> ClientEndpoint:
    """Open a link to a serving peer, which may not be reachable yet.

    tokens: of this party, to detect copied folders. EndpointError if it cannot be reached."""
    at_once = reconnect.seconds is None
    end, said = time.monotonic() + (patience if reconnect.seconds is None else reconnect.seconds), ""
    while True:
        try:
            return await ClientEndpoint.connect(
                address,
                keys=keys,
                server=server,
                limits=limits(patience),
                connect_deadline=patience if at_once else min(max(end - time.monotonic(), 0.0), CONNECT_SECONDS),
                tokens=tokens,
            )
        except AWAITED as error:
            if at_once or time.monotonic() >= end:
                raise
            if str(error) != said:
                said = str(error)
                reconnect.on_failure(said)
        await asyncio.sleep(RECONNECT_SECONDS)


async def attend(
    endpoint: ClientEndpoint,
    hooks: Hooks,
    exchanges: Callable[[], Sequence[Exchange]],
    event_log: EventLog | None = None,
) -> None:
    """Serve the link to a serving peer until cancelled. exchanges: the present ones over this link. CopyError."""

    def deadline() -> float | None:
        return min((each for exchange in exchanges() for each in exchange.machine.deadlines()), default=None)

    async with Attention(endpoint, hooks, deadline, now=Conversation.now) as attention:
        while True:
            event = await attention.next()
            if isinstance(event, LinkLost) and event_log is not None:
                event_log.link_changed(event)
            for exchange in exchanges():
                if event is None:
                    exchange.expire()
                elif isinstance(event, Received | MessageRefused):
                    exchange.feed(readable(event))
                elif isinstance(event, LinkLost):
                    exchange.drop(f"the link to {event.peer} is lost")


def readable(event: Received | MessageRefused) -> Sequence[Frame]:
    """Frames of a message; none of one beyond the limits, which machines refuse like any unreadable one."""
    return event.frames if isinstance(event, Received) else ()


@dataclass(frozen=True, kw_only=True)
class ServingSettings:
    address: str
    keys: PartyKeys
    roster: Roster
    patience: float = 60.0
    """Seconds from which all timeouts follow (conversation.py)."""
    tokens: TokenFile | None = field(default=None, repr=False, compare=False)
    """Tokens that detect copied folders, of peers or its own; None: no detection."""
    hooks: Hooks = field(default_factory=Hooks, repr=False, compare=False)


class ServingParty(Generic[MachineT]):
    """A party that listens, and has several sessions at the same time; it serves until it is cancelled."""

    def __init__(self, settings: ServingSettings, service: Service[MachineT], event_log: EventLog) -> None:
        self.event_log = event_log
        self._serving = settings
        self._service = service
        self._couriers: dict[str, Courier] = {}

    async def serve(self, *beside: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Listen and serve, with further coroutines beside it. EndpointError if it cannot listen."""
        async with await self._bound() as endpoint:
            self.event_log.write(logged.ListeningStarted(address=endpoint.address))
            tasks = [asyncio.ensure_future(work) for work in (self._listen(endpoint), *(work() for work in beside))]
            try:
                await asyncio.gather(*tasks)
            finally:
                await ended(*tasks)
                await self._leave()
                self.event_log.catch_up(at_once=True)
                for courier in self._couriers.values():
                    await courier.close()

    async def check_address(self) -> None:
        """Check that it can listen, without accepting peers before it is ready. EndpointError if not."""
        await (await self._bound()).close()

    async def _bound(self) -> ServerEndpoint:
        own = self._serving
        return await ServerEndpoint.bind(
            own.address, keys=own.keys, roster=own.roster, limits=limits(own.patience), tokens=own.tokens
        )

    async def _listen(self, endpoint: ServerEndpoint) -> None:
        service, now = self._service, Conversation.now
        async with Attention(endpoint, self._serving.hooks, lambda: service.next_deadline, now=now) as attention:
            while True:
                event = await attention.next()
                if event is None:
                    self._spread(service.expire(now()))
                    self.event_log.catch_up()
                elif isinstance(event, Received | MessageRefused):
                    if event.sender not in self._couriers:
                        send, lose = partial(endpoint.send, event.sender), partial(self._lose, event.sender)
                        self._couriers[event.sender] = Courier(send, lose)
                    self._spread(service.feed(event.sender, readable(event), now()))
                elif isinstance(event, LinkLost | HandshakeRefused | CopyDetected):
                    self.event_log.link_changed(event)
                if isinstance(event, LinkLost):
                    self._lose(event.peer, f"the link to {event.peer} is lost")

    def _lose(self, peer: str, detail: str) -> None:
        self._spread(self._service.drop(peer, detail, Conversation.now()))

    def _spread(self, answers: Answers[MachineT]) -> None:
        raise NotImplementedError

    async def _leave(self) -> None:
        raise NotImplementedError

    def _report_end(self, ended: InferenceEnded, **fields: Any) -> None:
        code = None if ended.code is None else ended.code.name
        self.event_log.write(InferenceSessionEnded(code=code, detail=ended.detail, culprit=ended.culprit, **fields))
