"""The clients of a live server: all are ours, each on a link of its own, and in every case one of them cheats.

The server decides when a round starts, and bars whoever breaks a rule for the rest of its session. So every case is
played by another client while there are enough of them; then all leave, which ends the session, and the server must be
started again. The first case checks the model: it must have moved by the mean of what our clients contributed.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from typing import Final, Self

import numpy as np

from tacit.parties.client_endpoint import ClientEndpoint, NotAdmittedError
from tacit.parties.endpoint import EndpointError, Event, LinkLost, LinkUp, Received
from tacit.parties.keys import PartyKeys, generate
from tacit.protocol.codec import decode
from tacit.protocol.configuration import Policy
from tacit.protocol.errors import Code
from tacit.protocol.link import NO_SESSION, Link, Traffic
from tacit.protocol.machine import Output
from tacit.protocol.primitives import SigningKey
from tacit.protocol.roster import Roster
from tacit.protocol.rounds import Accepted, Ended, RoundOver, Train, Transmit
from tacit.protocol.training_client import TrainingClient, TrainingState
from tacit.secagg.packing import Total, WeightForm
from tacit.simulate.conformance_peer.keyring import Keyring
from tacit.simulate.conformance_peer.script import (
    FEWEST_CLIENTS,
    Case,
    Contribution,
    Lie,
    PeerError,
    Saying,
    Stage,
    Verdict,
    draw_update,
    honest,
    verdict,
)
from tacit.simulate.conformance_peer.server_cases import OTHERS, SERVER_CASES, STAYS

HONEST: Final = Case("honest", "two honest rounds; the model must move by the mean", "all finish, the model is right")
STRANGER: Final = Case("stranger", "connects with a key that is not in the roster", "not admitted")
ALL_SERVER_CASES: Final = (HONEST, STRANGER, *SERVER_CASES)

_POLICY: Final = Policy(modes=("active", "semi-honest"), smallest_cohort=2, least_corrupt=0.0, largest_clip=1e6)
_FOREVER: Final = 1e9
"""Seconds; the kit has a deadline of its own."""


@dataclass
class Actor:
    """One of our clients on its link."""

    keys: PartyKeys
    roster: Roster
    endpoint: ClientEndpoint
    lie: Lie = honest
    lied: int | None = None
    """The round of its lie, once it is told; 0 for one told while joining."""
    barred: bool = False
    linked: bool = True
    models: dict[int, bytes] = field(default_factory=dict)
    contributions: dict[int, Contribution] = field(default_factory=dict)
    ends: list[tuple[int, Code | None]] = field(default_factory=list)
    """Rounds that ended for it since the case began, and with what code; those of the session as round -1."""

    def __post_init__(self) -> None:
        self.machine = self._new_machine()

    def _new_machine(self) -> TrainingClient:
        self._link = Link(self.keys.name, self.roster.server.name, NO_SESSION, Traffic())
        return TrainingClient(
            self.keys.name,
            self.roster,
            signing=SigningKey(self.keys.signing_secret),
            policy=_POLICY,
            journal=(),
            entropy=os.urandom,
            patience=_FOREVER,
            grace=_FOREVER,
        )

    @property
    def joined(self) -> bool:
        """Whether it is in a session and may stay."""
        return self.machine.state not in (
            TrainingState.OFFLINE,
            TrainingState.AWAIT_WELCOME,
            TrainingState.ENDED,
        ) and not (self.barred)

    async def join(self) -> None:
        """Say hello, in a conversation or without one."""
        self.machine = self._new_machine()
        self.models, self.contributions = {}, {}
        await self.perform(self.machine.start(0.0))

    async def take(self, event: Event) -> None:
        """What happened on its link."""
        if isinstance(event, Received):
            await self.perform(self.machine.feed(event.frames, 0.0))
        elif isinstance(event, LinkUp):
            # Whatever was in this session before: behind a new link there may be another server process.
            if not self.linked:
                self.barred = False
                await self.join()
            self.linked = True
        elif isinstance(event, LinkLost):
            self.linked = False
            self.ends.append((-1, Code.LEFT))

    async def leave(self) -> None:
        """End the session."""
        await self.perform(self.machine.give_up("the next test needs another session", 0.0))

    async def perform(self, outputs: Sequence[Output]) -> None:
        """Carry out what the machine says."""
        for output in outputs:
            if isinstance(output, Transmit):
                await self._transmit(output)
            elif isinstance(output, Train):
                contribution = draw_update(self.machine.configuration)
                self.models[output.round], self.contributions[output.round] = output.model, contribution
                await self.perform(self.machine.contribute(output.round, contribution.words, 0.0))
            elif isinstance(output, RoundOver):
                self.ends.append((output.round, output.code))
            elif isinstance(output, Ended):
                self.ends.append((-1, output.code))

    async def _transmit(self, output: Transmit) -> None:
        packet = decode(output.frames)
        if packet.envelope.session != self._link.session:
            self._link = Link(self.keys.name, self.roster.server.name, packet.envelope.session, Traffic())
        said = Saying(packet.parse(), packet.envelope.round, packet.payload)
        clients = self.roster.clients
        stage = Stage(len(self.machine_cohort), 0, None, b"") if False else None
        del stage, clients
        lies = self.lie(Stage(self.size, self.roster.index(self.keys.name)), said)
        if list(lies) != [said] and self.lied is None:
            self.lied = said.round
        for lie in lies:
            frames = lie.frames(self._link)
            for _ in range(lie.times):
                await self.endpoint.send(frames)
