"""An exchange of a server with its members: machines that say messages and know nothing of links.

Messages are numbered when they are delivered, after the hook has seen them; so a hook may drop, repeat or replace any
of them without a gap in the numbers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Self

from tacit.protocol.core.codec import Frame
from tacit.protocol.core.errors import Code
from tacit.protocol.core.link import Link, Traffic
from tacit.protocol.core.machine import Machine, Output, Send, Trigger
from tacit.protocol.core.messages import Message
from tacit.protocol.session.messages import MESSAGES
from tacit.simulate.conformance.exchange import hear
from tacit.simulate.world.world import Streams, Timer, World


@dataclass(frozen=True)
class Delivery:
    sender: str
    receiver: str
    message: Message
    payload: Frame | None

    @property
    def kind(self) -> str:
        return self.message.TYPE


class Exchange(World[Delivery]):
    def __init__(
        self,
        streams: Streams,
        server: str,
        members: Sequence[str],
        *,
        session: bytes,
        round: int,
    ) -> None:
        super().__init__(streams)
        self.traffic = Traffic()
        self._server = server
        self._round = round
        pairs = [pair for name in members for pair in ((name, server), (server, name))]
        self._links = {(own, peer): Link(own, peer, session, self.traffic, MESSAGES) for own, peer in pairs}

    @property
    def parties(self) -> dict[str, Machine[Any]]:
        raise NotImplementedError

    def run(self) -> Self:
        self.start()
        return self.settle()

    def start(self) -> None:
        for name, party in self.parties.items():
            if name != self._server and name not in self.dead:
                self.emit(name, party.trigger(Trigger.START, self.now))

    def timers(self) -> Iterator[Timer]:
        for name, party in self.parties.items():
            if name not in self.dead:
                yield party.next_deadline, partial(self.tell_time, name, party)

    def carried(self, party: str, output: Output) -> Delivery | None:
        return Delivery(party, output.to, output.message, output.payload) if isinstance(output, Send) else None

    def hand_over(self, item: Delivery) -> list[Output]:
        out = self._links[item.sender, item.receiver]
        frames = [bytes(frame) for frame in out.frames(item.message, round=self._round, payload=item.payload)]
        link = self._links[item.receiver, item.sender]
        return self.emit(item.receiver, hear(self.parties[item.receiver], link, frames, self.now))

    def kill(self, name: str) -> None:
        super().kill(name)
        server: Any = self.parties[self._server]
        if name != self._server:
            self.emit(self._server, server.drop(name, Code.LEFT, "killed", self.now))
