"""Server and clients of a whole session over real links, without models: for benchmarks of the network alone.

Nothing is trained and torch is not loaded: a client waits for a training time, and contributes zeros with a weight of
one. The server runs in its own process.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing import get_context
from multiprocessing.connection import Connection
from struct import pack
from typing import Final, TypeVar

import numpy as np

from tacit.parties.links.client_endpoint import ClientEndpoint
from tacit.parties.links.endpoint import Event, LinkLost, LinkUp, NotConnectedError, Received
from tacit.parties.links.keys import PartyKeys, generate
from tacit.parties.links.server_endpoint import ServerEndpoint
from tacit.protocol.core.blob import StateLayout
from tacit.protocol.core.machine import Ended, Output, Transmit
from tacit.protocol.core.primitives import SigningKey
from tacit.protocol.core.roster import Roster
from tacit.protocol.session.client import TrainingClient
from tacit.protocol.session.rounds import RoundDone, Train
from tacit.protocol.session.server import TrainingServer
from tacit.protocol.sum.configuration import Configuration, share
from tacit.protocol.sum.policy import Policy
from tacit.protocol.sum.states import Phase
from tacit.secagg.packing import WeightForm
from tacit.secagg.ring import Words
from tacit.simulate.bench.ends import LOOPBACK, SERVER, BenchmarkError, Progress, resident_bytes

_CORRUPT: Final = 0.05
PATIENCE: Final = 600.0
_LOOK_AGAIN: Final = 1.0
_OTHERS: Final = 0.01
"""Interval in seconds at which a client with the model checks whether the others have it."""
_ReceivedT = TypeVar("_ReceivedT", bound="str | ServerMeasurement")


@dataclass(frozen=True, kw_only=True)
class BenchedSession:
    """A session and its parties."""

    configuration: Configuration
    rounds: int
    training_seconds: float
    """Time that every client waits in place of training, in every round."""
    keys: dict[str, PartyKeys]
    roster: Roster

    @classmethod
    def of(cls, clients: int, *, parameters: int, rounds: int, training_seconds: float = 0.0) -> BenchedSession:
        """Make a session in active mode of so many clients with new keys, and a model of so many parameters."""
        names = (SERVER, *(f"client-{number + 1}" for number in range(clients)))
        keys = {name: generate(name) for name in names}
        members = (own.member("server" if name == SERVER else "client") for name, own in keys.items())
        configuration = Configuration(
            scheme="fedavg", mode="active", graph="auto", colluders=share(_CORRUPT, clients), dropout=0.05, threshold=0,
            clients=clients, clip=1.0, value_bits=16, max_weight=1, ring_bits=24, form=WeightForm.SCALAR,
            tensor_sizes=(parameters,), metrics=(), state=StateLayout(type="float32", count=parameters),
            task=b"", train_seconds=PATIENCE, phase_seconds=PATIENCE,
        )  # fmt: skip
        return cls(
            configuration=configuration,
            rounds=rounds,
            training_seconds=training_seconds,
            keys=keys,
            roster=Roster(tuple(members)),
        )


@dataclass
class TimedRound:
    """A round at the server, in seconds since it announced the round, less the training."""

    seconds: float = 0.0
    """Time until the last shares for unmasking and the sum."""
    uploaded: float = 0.0
    """Arrival of the last piece of a vector, by the clock of the machine."""


@dataclass
class ServerMeasurement:
    """Measurements of the server's process."""

    rounds: list[TimedRound] = field(default_factory=list)
    idle_bytes: int = 0
    """Resident memory while it waits for the first client."""
    connected_bytes: int = 0
    """Resident memory after all welcomes, as the first round begins."""


class ServerProcess:
    """The server of a cast, in another process; ends with its `with` block. `address` is where it listens."""

    def __init__(self, cast: BenchedSession) -> None:
        context = get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs, cast), daemon=True)
        self.address = ""

    def __enter__(self) -> ServerProcess:
        self._process.start()
        self.address = self._receive(str)
        return self

    def __exit__(self, *error: object) -> None:
        self._pipe.close()
        self._process.terminate()
        self._process.join()

    def measurement(self) -> ServerMeasurement:
        """Wait for the end of the session and return its measurements. BenchmarkError if it failed."""
        return self._receive(ServerMeasurement)

    def _receive(self, kind: type[_ReceivedT]) -> _ReceivedT:
        try:
            received = self._pipe.recv()
        except EOFError:
            raise BenchmarkError("the process of the server died") from None
        if isinstance(received, BenchmarkError) or not isinstance(received, kind):
            raise BenchmarkError(str(received))
        return received


async def join_all(cast: BenchedSession, address: str, progress: Progress) -> dict[int, float]:
    """Run all clients in this process until the session is over. BenchmarkError if one ends early.

    Returns the start of the first upload, by round and by the clock of the machine.
    """
    packing = cast.configuration.packing()
    words = packing.encode(np.zeros(packing.values_length), 1, {}, np.random.default_rng(0)).words
    progress("running the rounds")
    shared = _Together(len(cast.roster.clients), cast.training_seconds)
    async with asyncio.TaskGroup() as clients:
        for name in cast.roster.clients:
            clients.create_task(_join(cast, name, address, words, shared))
    return shared.began


class _Together:
    """All clients train equally long, from when the last of them has the model: otherwise uploads would wait for
    downloads."""

    def __init__(self, clients: int, seconds: float) -> None:
        self._clients, self._seconds = clients, seconds
        self._fetched: Counter[int] = Counter()
        self._trained: dict[int, float] = {}
        self.began: dict[int, float] = {}
        """Return value of join_all."""

    def fetched(self, round: int) -> None:
        self._fetched[round] += 1
        self._trained[round] = time.monotonic() + self._seconds

    def remaining(self, round: int) -> float:
        """Return the seconds until training may end."""
        return _OTHERS if self._fetched[round] < self._clients else self._trained[round] - time.monotonic()


def _serve(pipe: Connection, cast: BenchedSession) -> None:
    async def serve() -> ServerMeasurement:
        keys = cast.keys[SERVER]
        async with await ServerEndpoint.bind(LOOPBACK, keys=keys, roster=cast.roster) as endpoint:
            pipe.send(endpoint.address)
            return await _TimedEnd(cast, endpoint).serve()

    try:
        pipe.send(asyncio.run(serve()))
    except BenchmarkError as error:
        pipe.send(error)


class _TimedEnd:
    """The server at its endpoint."""

    def __init__(self, cast: BenchedSession, endpoint: ServerEndpoint) -> None:
        self._cast = cast
        self._endpoint = endpoint
        self._model = bytes(cast.configuration.state.size)
        self._machine = TrainingServer(
            cast.roster,
            cast.configuration,
            self._model,
            entropy=os.urandom,
            smallest_cohort=cast.configuration.clients,
            join_seconds=PATIENCE,
            grace=PATIENCE,
            now=time.monotonic(),
        )
        self.found = ServerMeasurement(idle_bytes=resident_bytes())
        self._began = 0.0
        self._round = TimedRound()
        self._ended = False

    async def serve(self) -> ServerMeasurement:
        while not self._ended or self._machine.untold:
            with suppress(TimeoutError):
                async with asyncio.timeout(_LOOK_AGAIN):
                    await self._take(await self._endpoint.receive())
            await self._perform(self._machine.expire(time.monotonic()))
        return self.found

    async def _take(self, event: Event) -> None:
        now = time.monotonic()
        if isinstance(event, Received):
            if self._machine.phase is Phase.MASKED_INPUT:
                self._round.uploaded = now
            await self._perform(self._machine.feed(event.sender, event.frames, now))
        elif isinstance(event, LinkLost):
            self._machine.link_lost(event.peer, now)
        elif isinstance(event, LinkUp):
            self._machine.link_back(event.peer)

    async def _perform(self, outputs: Iterable[Output]) -> None:
        number = len(self.found.rounds) + 1
        if not self._began and self._machine.round == number:
            self._began = time.monotonic()
            if number == 1:
                self.found.connected_bytes = resident_bytes()
        for output in outputs:
            if isinstance(output, Transmit):
                with suppress(NotConnectedError):
                    await self._endpoint.send(output.to, output.frames)
            elif isinstance(output, RoundDone):
                await self._end_round(output)
            elif isinstance(output, Ended):
                self._ended = True

    async def _end_round(self, done: RoundDone) -> None:
        now = time.monotonic()
        if done.total is None or done.total[:-1].any():
            raise BenchmarkError(f"round {done.round} has no sum, or a wrong one: {done.detail}")
        self._round.seconds = now - self._began - self._cast.training_seconds
        self.found.rounds.append(self._round)
        self._round, self._began = TimedRound(), 0.0
        last = len(self.found.rounds) == self._cast.rounds
        # Another model, as after a training: clients do not fetch the same one twice.
        self._model = pack("<f", done.round) + self._model[4:]
        await self._perform((self._machine.finish if last else self._machine.next_round)(self._model, now))


async def _join(cast: BenchedSession, name: str, address: str, words: Words, shared: _Together) -> None:
    """Run a client for the whole session."""
    keys = cast.keys[name]
    machine = TrainingClient(
        name,
        cast.roster,
        signing=SigningKey(keys.signing_secret),
        policy=Policy(least_corrupt=_CORRUPT),
        journal=(),
        entropy=os.urandom,
        patience=PATIENCE,
        grace=PATIENCE,
    )
    ended: Ended | None = None
    training: int | None = None
    """Round of its training."""

    async def perform(outputs: Iterable[Output]) -> None:
        nonlocal ended, training
        for output in outputs:
            if isinstance(output, Transmit):
                await endpoint.send(output.frames)
            elif isinstance(output, Train):
                training = output.round
                shared.fetched(training)
            elif isinstance(output, Ended):
                ended = output

    async with await ClientEndpoint.connect(
        address, keys=keys, server=cast.roster.server, connect_deadline=PATIENCE
    ) as endpoint:
        await perform(machine.start(time.monotonic()))
        while ended is None:
            if training is not None and shared.remaining(training) <= 0:
                round, training = training, None
                vector = machine.contribute(round, words, time.monotonic())
                shared.began.setdefault(round, time.monotonic())
                await perform(vector)
            until = _LOOK_AGAIN if training is None else shared.remaining(training)
            with suppress(TimeoutError):
                async with asyncio.timeout(min(until, _LOOK_AGAIN)):
                    event = await endpoint.receive()
                    now = time.monotonic()
                    if isinstance(event, Received):
                        await perform(machine.feed(event.frames, now))
                    elif isinstance(event, LinkLost):
                        machine.server_lost(now)
                    elif isinstance(event, LinkUp):
                        await perform(machine.server_back())
            await perform(machine.expire(time.monotonic()))
    if ended.code is not None:
        raise BenchmarkError(f"{name} ended: {ended.detail}")
