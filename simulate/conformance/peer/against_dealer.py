"""A live dealer: we play both owners, who agree on a session by themselves and have nothing to say to each other.

Both order the same, and know the keys of all streams. So what the dealer sends is compared with what it must be.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from itertools import chain
from typing import Final

from tacit.parties.correlated.dealing import Dealing
from tacit.parties.correlated.material import Weight
from tacit.parties.inference.material import (
    AnyBlockRequest,
    Fixed,
    Matrix,
    correction_bytes,
    encoded_correction,
    encoded_requests,
)
from tacit.parties.inference.owner import dealer_of
from tacit.protocol.core.codec import Frame, encode_structure
from tacit.protocol.core.machine import Output
from tacit.protocol.core.messages import Message
from tacit.protocol.core.outputs import Transmit
from tacit.protocol.core.primitives import KEY_BYTES, Label, digest
from tacit.protocol.inference.material import MaterialOwner
from tacit.protocol.inference.results import Agreed, InferenceEnded, MaterialArrived, MaterialKey
from tacit.protocol.inference.tables import MaterialState
from tacit.simulate.conformance.peer.against_owners import connecting
from tacit.simulate.conformance.peer.inference_cast import FOREVER, InferenceCast, Line
from tacit.simulate.conformance.peer.inference_script import DATA_OWNER, MODEL_OWNER
from tacit.simulate.conformance.peer.keyring import Keyring
from tacit.simulate.world.inference import small_terms

_ORDERS: Final[tuple[tuple[AnyBlockRequest, ...], ...]] = (
    (Weight(0, (3, 2)), Fixed(0, (5,), 0, (3, 2))),
    (Matrix("matmul", (2, 3), (3, 4)),),
)


class AgainstDealer(InferenceCast):
    """We play the model owner and this data owner; the dealer listens at the address."""

    def __init__(self, keyring: Keyring, data_owner: str, address: str, *, wait: float) -> None:
        self._roster = keyring.roster
        self._owners = (keyring.roster.server.name, data_owner)
        self._machines: dict[str, MaterialOwner] = {}
        self._keys: dict[str, bytes] = {}
        self._arrived: dict[int, bytes] = {}
        live = dealer_of(keyring.roster).name
        lines = [Line(name, live, connecting(keyring, name, live, address, wait)) for name in self._owners]
        roles = dict(zip(self._owners, (MODEL_OWNER, DATA_OWNER), strict=True))
        super().__init__(live, lines, liars=(data_owner,), roles=roles, wait=wait)

    @property
    def held(self) -> bool:
        return all(machine.state is MaterialState.CLOSED for machine in self._machines.values())

    async def begin(self) -> None:
        self._keys, self._arrived = {}, {}
        self.involved |= set(self._owners)
        terms, session = small_terms(), os.urandom(KEY_BYTES)
        digested = digest(Label.INFERENCE_TERMS, encode_structure(terms))
        for own, peer in zip(self._owners, self._owners[::-1], strict=True):
            self._machines[own] = MaterialOwner(
                own,
                self._roster,
                dealer=self.live,
                agreed=Agreed(peer, session, terms, digested, images=1, batch=1),
                entropy=os.urandom,
                patience=FOREVER,
            )
        for own, machine in self._machines.items():
            await self._perform(own, machine.start(0.0))

    async def hear(self, own: str, frames: Sequence[Frame], message: Message | None) -> None:
        await self._perform(own, self._machines[own].feed(frames, 0.0))

    async def _perform(self, own: str, outputs: Sequence[Output]) -> None:
        for output in outputs:
            match output:
                case Transmit():
                    await self.say(own, output.frames)
                case MaterialKey(key=key):
                    self._keys[own] = key
                    await self._order(own)
                case MaterialArrived():
                    self._arrived[output.number] = bytes(output.data)
                case InferenceEnded(code=code) if code is not None:
                    self.blame(own, output)
        await self._go_on()

    async def _order(self, own: str) -> None:
        rank = self._owners.index(own)
        first = 0
        for requests in _ORDERS:
            corrections = [
                (number, correction_bytes(request))
                for number, request in enumerate(requests, first)
                if request.receiver == rank
            ]
            first += len(requests)
            order = self._machines[own].order(encoded_requests(requests), len(requests), corrections, 0.0)
            await self._perform(own, order)

    async def _go_on(self) -> None:
        """When everything has come, look at it, and end the session."""
        if len(self._keys) < len(self._owners) or self.held:
            return
        dealing = Dealing([self._keys[own] for own in self._owners])
        words = (dealing.correction(request, number) for number, request in enumerate(chain(*_ORDERS)))
        corrections = enumerate(map(encoded_correction, words))
        expected = {number: bytes(data) for number, data in corrections if data is not None}
        if self._arrived.keys() != expected.keys():
            return
        if self._arrived != expected:
            self.observed.reproach = "deals other corrections than the keys of both owners give"
        for own, machine in self._machines.items():
            for output in machine.finish(0.0):
                if isinstance(output, Transmit):
                    await self.say(own, output.frames)
