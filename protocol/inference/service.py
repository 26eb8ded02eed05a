"""Several sessions of private inference side by side: which of them a message belongs to.

A model owner has at most one session with each data owner; a new hello ends an older one, of which nothing can be
recovered. A dealer has at most one for each data owner as well, told apart by the session in the envelope, because the
model owner's link serves all of them. What names no session that is open is ignored: it belongs to one that is over.
A message that cannot be read ends every session that its sender takes part in. From an owner without one it is answered
all the same: what cannot be read may be of another version, which would be silence to whoever speaks it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Generic, TypeVar

from tacit.protocol.core.codec import Frame, Packet, decode
from tacit.protocol.core.errors import Code, RemoteProtocolError
from tacit.protocol.core.link import NO_SESSION
from tacit.protocol.core.machine import Machine, Output
from tacit.protocol.core.messages import Kinds
from tacit.protocol.core.roster import Roster
from tacit.protocol.inference.dealer import InferenceDealer
from tacit.protocol.inference.messages import INFERENCE_MESSAGES, InferenceHello, MaterialHello
from tacit.protocol.inference.model_owner import InferenceModelOwner

MachineT = TypeVar("MachineT", bound=Machine[Any])
Answers = Iterator[tuple[MachineT, list[Output]]]
"""Outputs, each list with the machine whose they are."""


class Service(Generic[MachineT]):
    """All sessions of a party that serves."""

    def __init__(self) -> None:
        self.sessions: dict[str, MachineT] = {}
        """By data owner."""

    def feed(self, sender: str, frames: Sequence[Frame], now: float) -> Answers[MachineT]:
        """One message of an owner."""
        raise NotImplementedError

    def drop(self, sender: str, detail: str, now: float) -> Answers[MachineT]:
        """An owner is gone."""
        raise NotImplementedError

    def expire(self, now: float) -> Answers[MachineT]:
        """Look at all deadlines."""
        for session in list(self.sessions.values()):
            yield session, session.expire(now)


class ModelOwnerService(Service[InferenceModelOwner]):
    """Those of a model owner. begin: makes the machine for a data owner; kinds: what is spoken with them."""

    def __init__(self, begin: Callable[[str], InferenceModelOwner], kinds: Kinds = INFERENCE_MESSAGES) -> None:
        super().__init__()
        self._begin = begin
        self._kinds = kinds

    def feed(self, sender: str, frames: Sequence[Frame], now: float) -> Answers[InferenceModelOwner]:
        packet = _packet(frames, self._kinds)
        current = self.sessions.get(sender)
        unreadable = packet is None and (current is None or current.over)
        if unreadable or (packet is not None and packet.kind is InferenceHello):
            yield from self.drop(sender, "it has said hello again", now)
            self.sessions[sender] = self._begin(sender)
        if sender in self.sessions:
            session = self.sessions[sender]
            yield session, session.feed(frames, now) if packet is None else session.hear(packet, now)

    def drop(self, sender: str, detail: str, now: float) -> Answers[InferenceModelOwner]:
        if sender in self.sessions:
            session = self.sessions.pop(sender)
            yield session, session.drop(detail, now)


class DealerService(Service[InferenceDealer]):
    """Those of a dealer. begin: makes the machine for a data owner and a session."""

    def __init__(self, roster: Roster, begin: Callable[[str, bytes, float], InferenceDealer]) -> None:
        super().__init__()
        self._roster = roster
        self._begin = begin

    def feed(self, sender: str, frames: Sequence[Frame], now: float) -> Answers[InferenceDealer]:
        packet = _packet(frames, INFERENCE_MESSAGES)
        if packet is None:
            concerned = [each for each in self.sessions.values() if sender in each.owners and not each.over]
            if not concerned and sender in (self._roster.server.name, *self._roster.clients):
                # With nobody else, where the model owner has said it.
                concerned = [self._begin(sender if sender in self._roster.clients else "", NO_SESSION, now)]
            for each in concerned:
                yield each, each.feed(sender, frames, now)
            return
        data_owner = self._data_owner(sender, packet)
        if data_owner is None:
            return
        session = packet.envelope.session
        current = self.sessions.get(data_owner)
        if packet.kind is MaterialHello and (current is None or current.session != session):
            if current is not None and not current.over:
                if sender != data_owner and current.awaits(sender):
                    return  # Of a former session, and late: the data owner has begun another meanwhile.
                error = RemoteProtocolError(Code.SESSION, "another session has begun", culprit=data_owner)
                yield current, current.give_up(error, now)
            current = self.sessions[data_owner] = self._begin(data_owner, session, now)
        if current is not None and current.session == session:
            yield current, current.hear(sender, packet, now)

    def drop(self, sender: str, detail: str, now: float) -> Answers[InferenceDealer]:
        # Not those that it has not come to: the model owner may have named them before the end of its old link shows.
        for session in list(self.sessions.values()):
            if sender in session.owners and not session.awaits(sender):
                yield session, session.drop(sender, detail, now)

    def _data_owner(self, sender: str, packet: Packet) -> str | None:
        """Whose session the message is of."""
        if sender in self._roster.clients:
            return sender
        if sender != self._roster.server.name:
            return None
        for name, session in self.sessions.items():
            if session.session == packet.envelope.session:
                return name
        if packet.kind is not MaterialHello:
            return None
        try:
            peer = getattr(packet.parse(), "peer", "")
        except RemoteProtocolError:
            return None
        return peer if peer in self._roster.clients else None


def _packet(frames: Sequence[Frame], kinds: Kinds) -> Packet | None:
    """What a message says it is, or None if that cannot be read; the session's machine says what is wrong with it."""
    try:
        return decode(frames, kinds)
    except RemoteProtocolError:
        return None
