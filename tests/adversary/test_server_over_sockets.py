"""A cheating server at a real endpoint, under CURVE, and real clients with their journals on disk.

The cheat is the server's machine with somebody in between: everything that it says goes through `lie`, and leaves over
links of the cheat's own, so that lies are numbered as if they were true.
"""

import asyncio
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from os import urandom
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from msgspec import structs

from tacit.parties.learning.learner import Update
from tacit.parties.links.endpoint import NotConnectedError, Received
from tacit.parties.links.server_endpoint import ServerEndpoint
from tacit.parties.session.event_log import EventLog
from tacit.parties.session.events import TrainingFailed
from tacit.parties.session.journal import JournalFile
from tacit.protocol.core.blob import announce
from tacit.protocol.core.codec import Frame, decode, encode_structure
from tacit.protocol.core.errors import Code
from tacit.protocol.core.link import Link, Traffic
from tacit.protocol.core.machine import Ended, Output, Transmit
from tacit.protocol.core.messages import Abort, Chunk, Message
from tacit.protocol.core.roster import encode_members
from tacit.protocol.session.messages import MESSAGES, Hello, StartRound, Welcome
from tacit.protocol.session.rounds import RoundDone
from tacit.protocol.session.server import TrainingServer
from tacit.protocol.session.states import SessionState
from tacit.protocol.sum.messages import MaskedInput, UnmaskRequest, UnmaskShares
from tacit.protocol.sum.states import SumLabel

VICTIM = "client-4"


@dataclass(frozen=True)
class Saying:
    to: str
    message: Message
    round: int
    payload: Frame | None = None
    body: bytes | None = None
    """Bytes that go out in the place of the encoded message."""

    def changed(self, **fields: Any) -> "Saying":
        return replace(self, message=structs.replace(self.message, **fields))


Lie = Callable[[Saying], Sequence[Saying]]


def honest(said: Saying) -> Sequence[Saying]:
    return [said]


@dataclass
class CheatingServer:
    """`rounds` are those that its machine finished; `heard` is what came, by sender and type."""

    federation: Any
    endpoint: ServerEndpoint
    model: bytes
    lie: Lie = honest
    rounds: list[RoundDone] = field(default_factory=list)
    heard: dict[tuple[str, type[Message]], list[Any]] = field(default_factory=lambda: defaultdict(list))
    clients: dict[str, asyncio.Task[Ended]] = field(default_factory=dict)
    words: dict[tuple[str, int], npt.NDArray[Any]] = field(default_factory=dict)
    """What the clients trained, by name and round."""

    def __post_init__(self) -> None:
        self._links: dict[str, Link] = {}
        self._beside: Counter[str] = Counter()
        self.machine = TrainingServer(
            self.federation.roster,
            self.federation.configuration,
            self.model,
            entropy=urandom,
            smallest_cohort=3,
            join_seconds=self.federation.seconds,
            grace=self.federation.grace,
            now=EventLog.now(),
        )

    def join(self, *names: str) -> None:
        for name in names:

            def note(round: int, update: Update, name: str = name) -> None:
                self.words[name, round] = update.words

            self.clients[name] = self.federation.join(name, on_update=note)

    async def listen(self, until: Callable[[], bool]) -> None:
        async with asyncio.timeout(self.federation.seconds):
            while not until():
                event = await self.endpoint.receive()
                if isinstance(event, Received):
                    packet = decode(event.frames, MESSAGES)
                    self.heard[event.sender, packet.kind].append(packet.parse())
                    # Its machine does not know of messages that it said beside it.
                    received = max(0, packet.envelope.received - self._beside[event.sender])
                    envelope = encode_structure(structs.replace(packet.envelope, received=received))
                    frames = [envelope, *event.frames[1:]]
                    await self.say(self.machine.feed(event.sender, frames, EventLog.now()))

    async def say(self, outputs: Sequence[Output]) -> None:
        """Send what the machine says, or what the lie makes of it."""
        for output in outputs:
            if isinstance(output, RoundDone):
                self.rounds.append(output)
            elif isinstance(output, Transmit):
                packet = decode(output.frames, MESSAGES)
                if packet.kind is Welcome:
                    session, number = self.machine.session, packet.envelope.link
                    self._links[output.to] = Link("server", output.to, session, Traffic(), MESSAGES, number=number)
                    self._beside[output.to] = 0
                self._beside[output.to] -= 1
                for said in self.lie(Saying(output.to, packet.parse(), packet.envelope.round, packet.payload)):
                    link = self._links[said.to]
                    self._beside[said.to] += 1
                    envelope, body, *rest = link.frames(said.message, round=said.round, payload=said.payload)
                    with suppress(NotConnectedError):  # Who has ended hears nothing more.
                        await self.endpoint.send(said.to, [envelope, body if said.body is None else said.body, *rest])

    def check_sum(self, survivors: Sequence[str]) -> None:
        """The last round is the exact sum of these clients' updates."""
        done = self.rounds[-1]
        ring = self.federation.configuration.packing().ring
        total = np.zeros_like(self.words[survivors[0], done.round])
        for name in survivors:
            ring.add_into(total, self.words[name, done.round])
        assert done.survivors == tuple(survivors)
        np.testing.assert_array_equal(done.total, total)

    async def check_honest_round(self, *, lost: Sequence[str] = ()) -> None:
        """Stop lying, restart the clients that left, and run a round with everybody. The others may have begun a round
        without them before.

        lost: whose keys were for the sum that they were told of, so that the server's own machine took them for cheats.
        """
        self.lie = honest
        everybody = tuple(name for name in self.federation.clients if name not in lost)
        for name in everybody:
            if name not in self.clients or self.clients[name].done():
                hellos = len(self.heard[name, Hello])
                self.join(name)
                await self.listen(lambda name=name, hellos=hellos: len(self.heard[name, Hello]) > hellos)
        model = np.frombuffer(self.model, "<f4") / np.float32(2)
        whole = False
        while not whole:
            held = len(self.rounds)
            if self.machine.state is SessionState.BETWEEN_ROUNDS:
                await self.say(self.machine.next_round(model.tobytes(), EventLog.now()))
            await self.listen(lambda held=held: len(self.rounds) > held)
            whole = set(everybody) <= set(self.rounds[-1].cohort)
        self.check_sum(everybody)
        await self.say(self.machine.finish(self.model, EventLog.now()))
        ended = await self.federation.all_of(*(self.clients[name] for name in everybody))
        assert ended == [Ended(None, "the federation is finished")] * len(everybody)


@asynccontextmanager
async def cheating(federation: Any) -> AsyncIterator[CheatingServer]:
    """A server at a new address, with the model of the federation; the clients are still to join."""
    async with await ServerEndpoint.bind(
        "tcp://127.0.0.1:*", keys=federation.keys["server"], roster=federation.roster
    ) as endpoint:
        federation.address = endpoint.address
        yield CheatingServer(federation, endpoint, federation.keeper.bytes)


def to_victim(kind: type[Message], change: Callable[[Saying], Sequence[Saying]]) -> Lie:
    """Says something else to the victim where this kind of message is due."""
    return lambda said: change(said) if said.to == VICTIM and isinstance(said.message, kind) else [said]


UNREFUSED = to_victim(Abort, lambda said: [] if said.round else [said])
"""The victim was told of another sum, for which its keys are no good; it does not hear of that."""


def all_of(*lies: Lie) -> Lie:
    def lie(said: Saying) -> Sequence[Saying]:
        sayings: Sequence[Saying] = [said]
        for each in lies:
            sayings = [last for first in sayings for last in each(first)]
        return sayings

    return lie


def configured(federation: Any, **changes: Any) -> Lie:
    encoded = encode_structure(structs.replace(federation.configuration, **changes))
    return to_victim(Welcome, lambda said: [said.changed(configuration=encoded)])


async def refused(server: CheatingServer, lie: Lie) -> Abort:
    """What the victim answers to the lie. If it was one of a round, the others complete the round."""
    server.lie = lie
    server.join(*server.federation.clients)
    await server.listen(lambda: bool(server.heard[VICTIM, Abort]))
    if server.machine.round:
        await server.listen(lambda: bool(server.rounds))
        server.check_sum(server.federation.clients[:3])
    (abort,) = server.heard[VICTIM, Abort]
    assert not server.heard[VICTIM, MaskedInput]
    if abort.code in (Code.POLICY, Code.LOCAL) or not server.machine.round:
        (ended,) = await server.federation.all_of(server.clients[VICTIM])
        assert ended.code is abort.code
    return abort  # type: ignore[no-any-return]


@pytest.mark.asyncio
@pytest.mark.threat("server/downgrade")
async def test_a_downgrade_is_refused(federation: Any) -> None:
    async with cheating(federation) as server:
        abort = await refused(server, configured(federation, mode="semi-honest"))
        assert (abort.code, abort.culprit) == (Code.POLICY, "server")
        assert abort.detail.endswith("proposes mode = semi-honest; this client's policy accepts one of active")
        await server.check_honest_round()


@pytest.mark.asyncio
@pytest.mark.threat("server/bad-model")
async def test_a_model_with_nan_is_refused(federation: Any) -> None:
    numbers = federation.keeper.flat.astype("<f4")
    numbers[-1] = np.nan
    model = numbers.tobytes()
    announcing = to_victim(StartRound, lambda said: [said.changed(model=announce(model, SumLabel.MODEL))])
    sending = to_victim(Chunk, lambda said: [replace(said, payload=model)])
    async with cheating(federation) as server:
        abort = await refused(server, all_of(announcing, sending, UNREFUSED))
        assert (abort.code, abort.detail) == (Code.MODEL, "the model has numbers that are not finite")
        await server.check_honest_round(lost=[VICTIM])


@pytest.mark.asyncio
@pytest.mark.threat("server/bad-model")
async def test_a_model_of_another_architecture_is_not_trained(federation: Any) -> None:
    async with cheating(federation) as server:
        abort = await refused(server, all_of(configured(federation, layout=bytes(32)), UNREFUSED))
        assert (abort.code, abort.detail) == (Code.LOCAL, "it cannot train; its own log says why")
        (why,) = federation.events(VICTIM, TrainingFailed)
        assert "the model built here has other tensors than the server's" in why.detail
        await server.check_honest_round(lost=[VICTIM])


PICKLES: dict[str, tuple[Callable[[Any, bytes], Lie], Code]] = {
    "body": (lambda _, trap: to_victim(StartRound, lambda said: [replace(said, body=trap)]), Code.MALFORMED),
    "model": (lambda _, trap: to_victim(Chunk, lambda said: [replace(said, payload=trap)]), Code.MODEL),
    "configuration": (
        lambda _, trap: to_victim(Welcome, lambda said: [said.changed(configuration=trap)]),
        Code.MALFORMED,
    ),
    "task": (lambda federation, trap: configured(federation, task=trap), Code.MALFORMED),
}


@pytest.mark.asyncio
@pytest.mark.threat("server/pickle")
@pytest.mark.parametrize("place", PICKLES)
async def test_a_pickle_is_refused_unopened(federation: Any, trap: bytes, place: str) -> None:
    make, code = PICKLES[place]
    async with cheating(federation) as server:
        abort = await refused(server, make(federation, trap))
        assert abort.code is code
        await server.check_honest_round()


@pytest.mark.asyncio
@pytest.mark.threat("server/asks-twice")
async def test_who_asks_twice_gets_one_answer(federation: Any) -> None:
    """Again for the same survivors, and then for fewer, of whom it would get the other secret."""
    fewer = encode_members([1, 2, 3], 4)

    def thrice(said: Saying) -> Sequence[Saying]:
        return [said, said, said.changed(survivors=fewer, signers=fewer, signatures=said.message.signatures[64:])]

    async with cheating(federation) as server:
        server.lie = to_victim(UnmaskRequest, thrice)
        server.join(*federation.clients)
        await server.listen(lambda: bool(server.rounds))
        server.check_sum(federation.clients)
        await server.check_honest_round()
        # One answer per round; by the second one it had heard all three requests of the first.
        assert len(server.heard[VICTIM, UnmaskShares]) == 2
        assert not server.heard[VICTIM, Abort]


@pytest.mark.asyncio
@pytest.mark.threat("server/restarts-midway")
async def test_a_restarted_server_gets_no_second_answer_in_its_former_session(federation: Any) -> None:
    """It has the sum of four, restarts under the name of that session, and asks three of them for the same round: their
    journals are on the disk, and say no. The next round has everybody."""
    others = [name for name in federation.clients if name != VICTIM]
    async with cheating(federation) as server:
        server.join(*federation.clients)
        await server.listen(lambda: bool(server.rounds))
        server.check_sum(federation.clients)
    ended = await federation.all_of(*server.clients.values())
    assert {end.code for end in ended} == {Code.LEFT}
    session = server.machine.session
    for name in federation.clients:
        entries = JournalFile(federation.journal(name)).read()
        assert [(entry.session, entry.round) for entry in entries] == [(session, 1)]
    async with cheating(federation) as server:
        server.machine.presence.session = session
        server.join(*others)
        await server.listen(lambda: all(server.heard[name, Hello] for name in others))
        await server.say(server.machine.expire(EventLog.now() + federation.seconds))
        await server.listen(lambda: bool(server.rounds))
        assert server.rounds[0].total is None
        for name in others:
            (abort,) = server.heard[name, Abort]
            assert abort.code is Code.SESSION
            assert abort.detail == "this client was in round 1 of this session before"
            assert not server.heard[name, MaskedInput]
        assert not server.words
        await server.check_honest_round()
