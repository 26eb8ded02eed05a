"""One session of an owner at work: its machines, the links they speak over, and the program that waits for them.

A machine's outputs are put in a row for the link, or kept until the program asks for them. The program is a coroutine
of this event loop; what computes long runs in a thread (Worker). No decision of the protocol is taken here: when a
machine has ended, the other one is told, and whatever the program waits for raises InferenceError.

Whoever waits for one who may be waiting himself waits longer, so that the right one is named: the dealer waits its
patience for an owner, an owner twice as long for the dealer, and three times as long for the other owner.
"""

from __future__ import annotations

import asyncio
import time
import traceback
from collections import defaultdict, deque
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final, NoReturn, TypeVar

import torch

from tacit.parties.links.endpoint import EndpointError, PeerStalledError
from tacit.protocol.core.codec import Frame
from tacit.protocol.core.errors import Code, RemoteProtocolError
from tacit.protocol.core.machine import Entropy, Output, Transmit
from tacit.protocol.core.roster import Roster
from tacit.protocol.inference.material import MaterialOwner
from tacit.protocol.inference.results import Agreed, Charged, InferenceEnded
from tacit.protocol.inference.session import InferenceSession

T = TypeVar("T")

FOR_DEALER: Final = 2
"""How many times its patience an owner waits for the dealer."""
FOR_OWNER: Final = 3
"""How many times its patience an owner waits for the other owner."""
MOST_WAITING: Final = 1 << 14
"""Messages that may wait for one link. No layer, no correction and no round has more than half as many chunks."""


class InferenceError(Exception):
    """A session ended before its time. The text names the party at fault and the reason."""

    def __init__(self, ended: InferenceEnded) -> None:
        super().__init__(f"{ended.culprit or 'session'}: {ended.detail}")
        self.code = ended.code
        self.culprit = ended.culprit


def own_failure(error: BaseException) -> RemoteProtocolError:
    """What others are told when this side cannot go on: the kind of the error alone, its text might show a secret."""
    return RemoteProtocolError(Code.LOCAL, f"it cannot go on ({type(error).__name__}); its own log says why")


def place(error: BaseException) -> str:
    """Where an error of one's own was raised, for one's own log."""
    innermost = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__} in {Path(innermost.filename).name}, line {innermost.lineno}"


async def ended(*tasks: asyncio.Future[Any]) -> None:
    """Cancel these, and wait for it, also when cancelled meanwhile: they are cancelled once, and may tidy up."""
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
    """Puts messages onto one link, in order, without holding up whoever has something to say.

    stalled: told why, when whoever is at the other end takes nothing for too long, or less than it makes this side say.
    What is waiting for it is dropped then: messages are numbered, so what would follow a gap is of no use.
    """

    def __init__(self, send: Callable[[Sequence[Frame]], Awaitable[None]], stalled: Callable[[str], None]) -> None:
        self._send = send
        self._stalled = stalled
        self._waiting: asyncio.Queue[Sequence[Frame]] = asyncio.Queue()
        self._running = asyncio.ensure_future(self._run())

    def put(self, frames: Sequence[Frame]) -> None:
        """Send this after what was put before."""
        if self._waiting.qsize() == MOST_WAITING:
            self._give_up(f"it has left {MOST_WAITING} messages waiting")
        else:
            self._waiting.put_nowait(frames)

    async def drained(self) -> None:
        """Until all that was put is on its way."""
        await self._waiting.join()

    async def close(self) -> None:
        """Stop; what is still waiting is dropped."""
        await ended(self._running)

    async def _run(self) -> None:
        while True:
            frames = await self._waiting.get()
            try:
                await self._send(frames)
            except PeerStalledError as error:
                self._give_up(str(error))
            except EndpointError:
                pass  # The machine learns of it by the lost link, or by its deadline.
            finally:
                self._waiting.task_done()

    def _give_up(self, detail: str) -> None:
        # Not at once: who puts a message is in the middle of something.
        asyncio.get_running_loop().call_soon(self._stalled, detail)
        while not self._waiting.empty():
            self._waiting.get_nowait()
            self._waiting.task_done()


class Worker:
    """A thread of one's own for what computes long, on one core: sessions run side by side."""

    def __init__(self) -> None:
        self._executor = ThreadPoolExecutor(1, initializer=torch.set_num_threads, initargs=(1,))

    async def __call__(self, function: Callable[..., T], *arguments: Any) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._executor, function, *arguments)

    def close(self) -> None:
        """Let the thread end when its work is done."""
        self._executor.shutdown(wait=False, cancel_futures=True)


class Conversation:
    """An owner's side of one session. dealer: its name in the roster; patience: seconds; entropy: randomness of the
    operating system; charge: has a data owner's spending on the disk."""

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
        charge: Callable[[Charged], None] = lambda charged: None,
    ) -> None:
        self.machine = machine
        self.ended: InferenceEnded | None = None
        """How the session ended, once it has."""
        self.failure = ""
        """Which error of this side's own ended it, if one did."""
        self._roster = roster
        self._dealer = dealer
        self._patience = patience
        self._entropy = entropy
        self._charge = charge
        # The dealer itself may come in a data owner's place, and is to hear why it is refused.
        self._couriers = {dealer: to_dealer, machine.peer: to_peer}
        self._material: MaterialOwner | None = None
        self._kept: defaultdict[type, deque[Any]] = defaultdict(deque)
        self._changed = asyncio.Event()
        """For the program that waits: something was kept, or the session has ended."""

    @property
    def material(self) -> MaterialOwner:
        """The machine towards the dealer, which is there from the agreement on."""
        assert self._material is not None
        return self._material

    @staticmethod
    def now() -> float:
        """Seconds of a clock that never goes back."""
        return time.monotonic()

    def hear(self, outputs: Sequence[Output]) -> None:
        """Take in what the machine towards the other owner says."""
        for output in outputs:
            if isinstance(output, InferenceEnded):
                self._end(output)
            elif isinstance(output, Charged):
                try:
                    self._charge(output)
                except OSError as error:
                    # What follows is not said: a pass that is not counted does not begin.
                    self.fail(error)
                    return
            else:
                if isinstance(output, Agreed):
                    self._material = MaterialOwner(
                        self.machine.own,
                        self._roster,
                        dealer=self._dealer,
                        agreed=output,
                        entropy=self._entropy,
                        patience=FOR_DEALER * self._patience,
                    )
                    self.hear_dealer(self._material.start(self.now()))
                self._keep(output)

    def hear_dealer(self, outputs: Sequence[Output]) -> None:
        """Take in what the machine towards the dealer says."""
        for output in outputs:
            if not isinstance(output, InferenceEnded):
                self._keep(output)
            elif output.code is not None:
                error = RemoteProtocolError(output.code, output.detail, culprit=output.culprit)
                self.hear(self.machine.give_up(error, self.now()))

    def from_peer(self, frames: Sequence[Frame]) -> None:
        """A message of the other owner."""
        self.hear(self.machine.feed(frames, self.now()))

    def from_dealer(self, frames: Sequence[Frame]) -> None:
        """A message of the dealer that belongs to this session."""
        if self._material is not None:
            self.hear_dealer(self._material.feed(frames, self.now()))

    def peer_lost(self, detail: str) -> None:
        """The link to the other owner is gone."""
        self.hear(self.machine.drop(detail, self.now()))

    def dealer_lost(self, detail: str) -> None:
        """The link to the dealer is gone."""
        if self._material is not None:
            self.hear_dealer(self._material.drop(detail, self.now()))

    def expire(self) -> None:
        """Look at the deadlines."""
        now = self.now()
        self.hear(self.machine.expire(now))
        if self._material is not None:
            self.hear_dealer(self._material.expire(now))

    def put(self, something: object) -> None:
        """Keep something of this side's own for the program."""
        self._kept[type(something)].append(something)
        self._changed.set()

    def kept(self, kind: type[T]) -> T | None:
        """The next output of this kind, if it is here already."""
        found: T | None = self._kept[kind].popleft() if self._kept[kind] else None
        return found

    async def next(self, *kinds: type[T]) -> T | None:
        """The next output of these kinds; None when the session has come to its regular end. InferenceError when it
        ended otherwise."""
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
        """The next output of this kind. InferenceError when the session has ended."""
        found = await self.next(kind)
        if found is None:
            raise InferenceError(InferenceEnded(Code.LEFT, "it has closed the session early", self.machine.peer))
        return found

    async def closed(self) -> None:
        """Until the session has come to its regular end. InferenceError when it ends otherwise."""
        while await self.next(InferenceEnded) is not None:
            pass

    def refuse(self, detail: str, code: Code = Code.MODEL) -> NoReturn:
        """What the peer said is not usable, its model if nothing else is named: end the session. InferenceError."""
        error = RemoteProtocolError(code, detail, culprit=self.machine.peer)
        self.hear(self.machine.give_up(error, self.now()))
        raise InferenceError(InferenceEnded(error.code, error.detail, self.machine.peer))

    async def sent(self) -> None:
        """Until everything for the peer is on its way."""
        await self._couriers[self.machine.peer].drained()

    def fail(self, error: BaseException) -> None:
        """This side cannot go on."""
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
