"""One direction-pair between two parties: envelopes written and checked.

A Link numbers what it sends and requires that what arrives bears the authenticated sender, the session, and the next
number. So a message of another session, replayed, reordered or lost on the way is found before its type is looked at.
That a number is passed over is an offence, unless the transport broke meanwhile: then it is a loss, and nobody's fault.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from tacit.protocol.core.codec import VERSION, Envelope, Frame, Packet, decode, encode
from tacit.protocol.core.errors import Code, RemoteProtocolError
from tacit.protocol.core.messages import Message, Phase
from tacit.protocol.core.outputs import Transmit


class Traffic:
    """Bytes of frames by (round, phase), in each direction. One per party; all its links count into it."""

    def __init__(self) -> None:
        self.sent: Counter[tuple[int, Phase]] = Counter()
        self.received: Counter[tuple[int, Phase]] = Counter()


NO_SESSION = bytes(32)
"""What a client's Hello bears: it cannot know the session yet."""


class Link:
    """The state of the conversation between `own` and `peer` in one session; kinds: as of `decode`."""

    def __init__(
        self, own: str, peer: str, session: bytes, traffic: Traffic, kinds: Mapping[str, type[Message]]
    ) -> None:
        self.own = own
        self.peer = peer
        self.session = session
        self.traffic = traffic
        self._kinds = kinds
        self.broken = False
        """Whether the transport was lost since the beginning, so that messages may be missing."""
        self._sent = 0
        self._received = 0

    def frames(self, message: Message, *, round: int, payload: Frame | None = None) -> list[Frame]:
        """The frames of the next message to the peer."""
        envelope = Envelope(
            version=VERSION,
            type=message.TYPE,
            session=self.session,
            round=round,
            sender=self.own,
            sequence=self._sent,
        )
        self._sent += 1
        frames = encode(message, envelope, payload)
        self.traffic.sent[round, _phase(type(message), round)] += sum(len(frame) for frame in frames)
        return frames

    def transmit(self, message: Message, *, round: int, payload: Frame | None = None) -> Transmit:
        """The next message to the peer, as the shell is told of it."""
        return Transmit(self.peer, self.frames(message, round=round, payload=payload), _phase(type(message), round))

    def packet(self, frames: Sequence[Frame]) -> Packet:
        """The next message of the peer; its body is not read yet."""
        return self.accept(decode(frames, self._kinds))

    def accept(self, packet: Packet) -> Packet:
        """The same of a packet that was decoded before it was known to be of this link."""
        envelope = packet.envelope
        if envelope.sender != self.peer:
            raise RemoteProtocolError(Code.SENDER, f"it calls itself {envelope.sender!r}", culprit=self.peer)
        if envelope.session != self.session:
            raise RemoteProtocolError(Code.SESSION, "the message is of another session", culprit=self.peer)
        if envelope.sequence != self._received:
            lost = self.broken and envelope.sequence > self._received
            raise RemoteProtocolError(
                Code.LEFT if lost else Code.SEQUENCE,
                f"message {envelope.sequence} came where message {self._received} was due"
                f"{': what was under way when the link broke is lost' if lost else ''}",
                culprit=self.peer,
            )
        self._received += 1
        self.traffic.received[envelope.round, _phase(packet.kind, envelope.round)] += packet.size
        return packet


def _phase(kind: type[Message], round: int) -> Phase:
    """What a message is traffic of."""
    return Phase.SESSION if kind.PHASE is Phase.TRAIN and not round else kind.PHASE
