"""The client's end of its link to the server: where a session begins, and which rounds a message may name."""

from __future__ import annotations

from collections.abc import Sequence

from tacit.protocol.core.codec import Frame, Packet, decode
from tacit.protocol.core.errors import Code, RemoteProtocolError
from tacit.protocol.core.link import NO_SESSION, Link, Traffic
from tacit.protocol.core.messages import Abort, Chunk, Message, Resume
from tacit.protocol.core.outputs import Transmit
from tacit.protocol.session.messages import MESSAGES, Hello, StartRound
from tacit.protocol.session.tables import NO_ROUND, OUTSIDE_ROUNDS, WITHIN_ROUNDS, TrainingState


class ServerLink:
    """The link of one client. round: the one that it takes, or last took, part in; 0 before the first."""

    def __init__(self, own: str, server: str) -> None:
        self.server = server
        self.round = 0
        self.traffic = Traffic()
        self._link = Link(own, server, NO_SESSION, self.traffic, MESSAGES)
        self._former = NO_SESSION
        """The session of the conversation before, if there was one."""
        self._greeted = False

    @property
    def session(self) -> bytes:
        """Its name, 32 bytes; zeros before the server's first answer."""
        return self._link.session

    @property
    def broken(self) -> bool:
        """Whether messages of this conversation may be missing, because the transport was lost."""
        return self._link.broken

    @property
    def asking(self) -> bool:
        """Whether the server has been asked to go on, and has not answered."""
        return self._link.asking

    def lost(self) -> None:
        """The transport was lost."""
        self._link.broken = True

    def hello(self, roster: bytes) -> Transmit:
        """Begin a conversation, the first one or another, with the hash of the roster."""
        if self.session != NO_SESSION:
            self._former = self.session
        number = self._link.number + 1 if self._greeted else 0
        self._greeted = True
        # The hello itself does not count in the conversation that it begins.
        first, self._link = (
            Link(self._link.own, self.server, NO_SESSION, self.traffic, MESSAGES, number=number) for _ in range(2)
        )
        return first.transmit(Hello(roster=roster), round=0)

    def ask(self) -> Transmit:
        """There is another connection: ask the server to go on with the conversation."""
        return self._link.ask()

    def rest(self) -> list[Transmit] | None:
        """What the server lacks, when it goes on; None if that is not there any more."""
        return self._link.rest()

    def read(self, frames: Sequence[Frame], state: TrainingState) -> Packet | None:
        """The next message of the server to a client in this state; None if it comes too late to matter."""
        packet = decode(frames, MESSAGES)
        kind, round = packet.kind, packet.envelope.round
        link = self._link
        if packet.envelope.link < link.number or link.late(packet):
            return None
        if state is TrainingState.AWAIT_WELCOME and self.session == NO_SESSION:
            # The server's first answer names the session.
            link = link.within(packet.envelope.session)
        if kind is Resume:
            link.answered(packet)
        else:
            link.accept(packet)
        if link is not self._link:
            self.round = self.round if link.session in (self._former, NO_SESSION) else 0
            self._link = link
        if kind is StartRound and round <= self.round:
            raise RemoteProtocolError(Code.SESSION, f"round {round} is started a second time")
        if kind is not StartRound and round > self.round:
            raise RemoteProtocolError(Code.SESSION, f"{kind.TYPE} of a round that has not begun")
        outside = kind in OUTSIDE_ROUNDS or (kind is Chunk and not round and state in NO_ROUND)
        if kind is not Abort and (round == 0) != outside:
            raise RemoteProtocolError(Code.SESSION, f"{kind.TYPE} as a message of round {round}")
        over = state is TrainingState.AWAIT_ROUND and kind in (*WITHIN_ROUNDS, Abort)
        late = 0 < round < self.round or (over and 0 < round == self.round)
        return None if late else packet

    def transmit(self, message: Message, payload: Frame | None = None, *, round: int | None = None) -> Transmit:
        """A message on its way to the server, of the present round if no other is named."""
        return self._link.transmit(message, round=self.round if round is None else round, payload=payload)
