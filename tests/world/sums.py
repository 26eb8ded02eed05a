"""A secure sum in memory, or one without masks: a server and its clients."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from hashlib import sha256
from typing import Any

import numpy as np
import numpy.typing as npt

from tacit.protocol.core.machine import Machine, Trigger
from tacit.protocol.core.primitives import KEY_BYTES, SigningKey
from tacit.protocol.session.rounds import sum_client, sum_server
from tacit.protocol.sum.agreement import Agreement
from tacit.protocol.sum.states import SumTrigger
from tacit.secagg.graph import GraphParameters, complete_parameters
from tacit.secagg.packing import WeightForm
from tacit.secagg.plain import PlainPacking
from tacit.secagg.ring import Ring
from tacit.simulate.world.federation import added, plain_words
from tacit.simulate.world.world import Streams
from tests.world.exchange import Exchange


class MemorySum(Exchange):
    """One server and its clients. Each draws from the stream of its name."""

    def __init__(
        self,
        agreement: Agreement,
        signing: Mapping[str, SigningKey],
        vectors: Mapping[str, npt.NDArray[Any]],
        streams: Streams,
    ) -> None:
        super().__init__(
            streams,
            agreement.server,
            agreement.cohort,
            session=agreement.session,
            round=agreement.round,
        )
        self.agreement, self.signing, self.vectors = agreement, signing, vectors
        self.server = sum_server(agreement, self.now)
        self.clients = {
            name: sum_client(agreement, name, signing=signing[name], entropy=self.streams.of(name))
            for name in agreement.cohort
        }
        self.training: set[str] = set()
        """Clients whose vectors come later than everything else, when the test says `contribute`."""

        self._begun = False

    def start(self) -> None:
        """Start everybody, and give those who do not train any more their vectors."""
        self._begun = True
        self.emit(self.agreement.server, self.server.start(self.now))
        for name in self.clients:
            if name not in self.dead and self.clients[name].admits(Trigger.START):
                self.emit(name, self.clients[name].start(self.now))
        self.contribute(*(name for name in self.clients if name not in self.training))

    def contribute(self, *names: str) -> None:
        """These clients have their vectors, where they still matter. If nobody has started, the others still train."""
        if not self._begun:
            self.training = set(self.clients)
            self.start()
        for name in names:
            if name not in self.dead and self.clients[name].admits(SumTrigger.CONTRIBUTE):
                self.emit(name, self.clients[name].contribute(self.vectors[name], self.now))

    @property
    def parties(self) -> dict[str, Machine[Any]]:
        return {self.agreement.server: self.server, **self.clients}

    def plain_sum(self, names: Collection[str]) -> npt.NDArray[Any]:
        """What the sum over these clients must be, added in the clear."""
        if self.agreement.plain is not None:
            return added(self.agreement.plain, [self.vectors[name] for name in self.clients if name in names])
        total = np.zeros(self.agreement.length, self.agreement.ring.word)
        for name in names:
            self.agreement.ring.add_into(total, self.vectors[name])
        return total


def memory_sum(
    clients: int,
    *,
    active: bool,
    seed: bytes = b"",
    length: int = 5,
    ring_bits: int = 32,
    parameters: GraphParameters | None = None,
    round: int = 0,
    secure: bool = True,
    spending: bool = False,
    fewest_survivors: int = 0,
    groups: tuple[tuple[int, ...], ...] = (),
) -> MemorySum:
    """A sum of random vectors among clients c0, c1, ..., whose keys, secrets and vectors follow from the seed.

    parameters: of a regular graph; by default those of the complete graph with no colluder. secure:
    False for a sum without masks, of 32-bit words, the last of which is a weight. groups: of members that are in the
    sum all or none.
    """
    streams, ring = Streams(seed), Ring(ring_bits if secure else 32)
    plain = None
    if not secure:
        plain = PlainPacking(
            clients=clients, max_weight=100, form=WeightForm.SCALAR, tensor_sizes=(length - 1,), metrics=()
        )
    signing = {f"c{member}": SigningKey(streams.of("keys")(KEY_BYTES)) for member in range(clients)}
    agreement = Agreement(
        session=streams.of("session")(32),
        round=round,
        server="server",
        cohort=tuple(signing),
        signing_keys=tuple(key.public for key in signing.values()),
        active=active,
        regular=parameters is not None,
        parameters=(parameters or complete_parameters(clients, active=active, colluders=0))
        if secure
        else GraphParameters(clients - 1, 1),
        fewest_survivors=fewest_survivors,
        groups=groups,
        plain=plain,
        spending=spending,
        ring=ring,
        length=length,
        roster=sha256(b"roster").digest(),
        configuration=sha256(b"configuration").digest(),
        model=sha256(b"model").digest(),
        train_seconds=100.0,
        phase_seconds=10.0,
    )
    generator = np.random.default_rng(list(streams.of("vectors")(32)))
    words = generator.integers(0, ring.modulus, (clients, length), np.uint64, endpoint=False).astype(ring.word)
    if plain is not None:
        words = np.array([plain_words(plain, each) for each in words])
    return MemorySum(agreement, signing, dict(zip(signing, words, strict=True)), streams)
