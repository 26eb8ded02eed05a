"""Both directions between two parties: writes and checks envelopes, and repeats messages after a lost connection.

A Link numbers outgoing messages and requires that incoming ones have the authenticated sender, the session, and the
next number. Every message acknowledges the number of received ones. When the connecting side has a new connection, it
asks to resume (`ask`) on a link with the next number; the other side answers (`answer`), and each repeats the messages
that the other has not received. Messages with another link number are ignored.

The number of kept messages is bounded: beyond it, a link cannot resume.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence
from typing import Final

from msgspec import Struct, structs

from tacit.protocol.core.codec import Envelope, Frame, Packet, decode, encode, encode_structure
from tacit.protocol.core.errors import Code, RemoteProtocolError
from tacit.protocol.core.machine import Transmit
from tacit.protocol.core.messages import SESSION, TRAIN, Abort, Kinds, Message, Resume

MOST_KEPT: Final = 64
"""Messages kept for repetition."""
MOST_KEPT_BYTES: Final = 1 << 24
"""Bytes of all their frames together."""


class Traffic:
    """Bytes of frames by (round, phase), in each direction. One per party; all its links count into it.

    begun: last round of the party that starts rounds. A later round, which any peer can name, counts as outside of
    rounds."""

    def __init__(self, begun: int | None = None) -> None:
        self.begun = begun
        self.sent: Counter[tuple[int, str]] = Counter()
        self.received: Counter[tuple[int, str]] = Counter()


NO_SESSION = bytes(32)
"""Session of a client's Hello, which cannot know it yet."""


class _SentMessage(Struct, frozen=True):
    """A message that may have to be repeated."""

    envelope: Envelope
    rest: tuple[Frame, ...]
    """The frames after the envelope."""
    phase: str
    size: int

    def __repr__(self) -> str:
        return f"_SentMessage(envelope={self.envelope!r})"


class Link:
    """The state of the conversation between `own` and `peer` in one session.

    kinds: its messages; without Resume among them nothing is kept or acknowledged. number, said: of the link and of the
    messages on it, with which the conversation begins."""

    def __init__(
        self,
        own: str,
        peer: str,
        session: bytes,
        traffic: Traffic,
        kinds: Kinds,
        *,
        number: int = 0,
        said: int = 0,
    ) -> None:
        self.own = own
        self.peer = peer
        self.session = session
        self.traffic = traffic
        self.number = number
        """Number of the newest requested link, which incoming messages must have."""
        self.broken = False
        """Whether the connection was lost and the conversation has not resumed yet, so that messages may be missing."""
        self._kinds = kinds
        self._resumes = Resume.TYPE in kinds
        self._agreed = number
        """Number of the newest answered link, which outgoing messages have."""
        self._sent = said
        self._received = 0
        self._kept = deque[_SentMessage]()
        """The last sent messages that are not acknowledged."""
        self._kept_bytes = 0
        self.due = 0
        """Number of the message that the peer expects, by its last Resume."""

    @property
    def asking(self) -> bool:
        """Whether a new link was requested and not yet answered."""
        return self._agreed != self.number

    def frames(self, message: Message, *, round: int, payload: Frame | None = None) -> list[Frame]:
        return self.transmit(message, round=round, payload=payload).frames

    def transmit(self, message: Message, *, round: int, payload: Frame | None = None) -> Transmit:
        envelope = self._envelope(type(message), round=round, sequence=self._sent)
        self._sent += 1
        return self._encoded(message, envelope, payload)

    def packet(self, frames: Sequence[Frame]) -> Packet:
        return self.accept(decode(frames, self._kinds))

    def accept(self, packet: Packet) -> Packet:
        """The same for a packet that was decoded before its link was known."""
        envelope = packet.envelope
        self._check_names(envelope)
        if (envelope.link, envelope.sequence) != (self.number, self._received):
            detail = f"message {envelope.sequence} came where message {self._received} was due"
            on = "" if envelope.link == self.number else f", on link {envelope.link} instead of {self.number}"
            raise RemoteProtocolError(Code.SEQUENCE, detail + on, culprit=self.peer)
        if self.asking and packet.kind is not Abort:
            raise RemoteProtocolError(Code.SEQUENCE, f"link {self.number} is not agreed on", culprit=self.peer)
        self._acknowledged(envelope)
        self._received += 1
        self._count(packet)
        return packet

    def late(self, packet: Packet) -> bool:
        """Whether to ignore a message: it was sent on another link, or after one that was lost with it."""
        envelope = packet.envelope
        lost = self.broken and not self.asking and envelope.link == self.number and envelope.sequence > self._received
        return envelope.session == self.session and (envelope.link != self.number or lost)

    def of_peer(self, packet: Packet) -> Packet:
        """The same packet, if it belongs to the peer and the session, regardless of its numbers."""
        self._check_names(packet.envelope)
        return packet

    def check_heard(self, round: int) -> None:
        """Refuse a message in a round from a peer that has not received all messages of former rounds."""
        former = next((said.envelope for said in self._kept if 0 < said.envelope.round < round), None)
        if former is not None:
            detail = f"in round {round} it has not received message {former.sequence}, of round {former.round}"
            raise RemoteProtocolError(Code.SEQUENCE, detail, culprit=self.peer)

    def ask(self) -> Transmit:
        self.number += 1
        return self._resume(self._sent)

    def may_be_asked(self, envelope: Envelope) -> bool:
        """Whether the peer asks to resume this conversation: by its session, or from before it knew that."""
        untouched = not self._received and len(self._kept) == self._sent
        from_start = envelope.session == NO_SESSION and untouched and envelope.link > self.number
        return envelope.session == self.session or from_start

    def asked(self, packet: Packet) -> Packet:
        """Process the peer's request to resume. Refuses impossible numbers."""
        envelope = packet.envelope
        self._check_names(envelope, or_session=NO_SESSION)
        self._check_resume(envelope, envelope.link > self.number and envelope.sequence >= self._received)
        self.number, self.broken = envelope.link, False
        self._count(packet)
        return packet

    def answer(self) -> list[Transmit] | None:
        """Resume on the link that the peer requested; None if the messages it lacks are not kept any more."""
        if len(self._kept) != self._sent - self.due:
            return None
        self._agreed = self.number
        return [self._resume(self.due), *self._repeated()]

    def answered(self, packet: Packet) -> Packet:
        """Process the peer's answer. Refuses impossible numbers."""
        envelope = packet.envelope
        self._check_names(envelope)
        now_due = self.asking and (envelope.link, envelope.sequence) == (self.number, self._received)
        self._check_resume(envelope, now_due)
        self.broken = False
        self._agreed = self.number
        self._count(packet)
        return packet

    def rest(self) -> list[Transmit] | None:
        """Messages that the peer lacks by its answer; None if they are not kept any more."""
        return self._repeated() if len(self._kept) == self._sent - self.due else None

    def within(self, session: bytes) -> Link:
        """The same before any message, in the session that the peer has named."""
        link = Link(self.own, self.peer, session, self.traffic, self._kinds, number=self.number)
        link._agreed, link.broken = self._agreed, self.broken
        return link

    def _check_names(self, envelope: Envelope, *, or_session: bytes | None = None) -> None:
        if envelope.sender != self.peer:
            raise RemoteProtocolError(Code.SENDER, f"it calls itself {envelope.sender!r}", culprit=self.peer)
        if envelope.session not in (self.session, or_session):
            raise RemoteProtocolError(Code.SESSION, "the message is of another session", culprit=self.peer)

    def _check_resume(self, envelope: Envelope, numbers_fit: bool) -> None:
        if not numbers_fit:
            detail = f"it goes on with message {envelope.sequence} on link {envelope.link} where link {self.number} "
            raise RemoteProtocolError(Code.SEQUENCE, f"{detail}had come to message {self._received}", culprit=self.peer)
        self._acknowledged(envelope)
        self.due = envelope.received

    def _acknowledged(self, envelope: Envelope) -> None:
        most = self._sent if self._resumes else 0
        if envelope.received > most:
            detail = f"it has received {envelope.received} messages where {most} were said"
            raise RemoteProtocolError(Code.SEQUENCE, detail, culprit=self.peer)
        while self._kept and self._kept[0].envelope.sequence < envelope.received:
            self._drop_oldest()

    def _drop_oldest(self) -> None:
        self._kept_bytes -= self._kept.popleft().size

    def _repeated(self) -> list[Transmit]:
        again = []
        for said in self._kept:
            envelope = structs.replace(said.envelope, link=self._agreed, received=self._received)
            frames = [encode_structure(envelope), *said.rest]
            self.traffic.sent[envelope.round, said.phase] += sum(map(len, frames))
            again.append(Transmit(self.peer, frames, said.phase))
        return again

    def _resume(self, sequence: int) -> Transmit:
        envelope = structs.replace(self._envelope(Resume, round=0, sequence=sequence), link=self.number)
        return self._encoded(Resume(), envelope, None, keep=False)

    def _envelope(self, kind: type[Message], *, round: int, sequence: int) -> Envelope:
        return Envelope(
            version=self._kinds.version, type=kind.TYPE, session=self.session, round=round, sender=self.own,
            sequence=sequence, link=self._agreed, received=self._received if self._resumes else 0,
        )  # fmt: skip

    def _encoded(self, message: Message, envelope: Envelope, payload: Frame | None, *, keep: bool = True) -> Transmit:
        frames, phase = encode(message, envelope, payload), _phase(type(message), envelope.round)
        size = sum(map(len, frames))
        if keep and self._resumes:
            self._kept.append(_SentMessage(envelope, tuple(frames[1:]), phase, size))
            self._kept_bytes += size
            while len(self._kept) > MOST_KEPT or self._kept_bytes > MOST_KEPT_BYTES:
                self._drop_oldest()
        self.traffic.sent[envelope.round, phase] += size
        return Transmit(self.peer, frames, phase)

    def _count(self, packet: Packet) -> None:
        round, begun = packet.envelope.round, self.traffic.begun
        if begun is not None and round > begun:
            round = 0
        self.traffic.received[round, _phase(packet.kind, round)] += packet.size


def _phase(kind: type[Message], round: int) -> str:
    return SESSION if kind.PHASE == TRAIN and not round else kind.PHASE
