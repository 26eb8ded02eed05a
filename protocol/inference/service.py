"""Several sessions of private inference side by side, and the routing of messages to them.

A model owner has at most one session with each data owner; a new hello ends an older one, which cannot be recovered. A
dealer also has at most one per data owner, identified by the session in the envelope, because the model owner's link
serves all of them. Messages that name no open session belong to one that is over, and are ignored. A message that
cannot be read ends every session of its sender. A sender without a session gets an answer all the same: the message may
be of another version, and silence would leave its sender without an explanation.

A session costs both owners and the dealer much before anything is charged for it. So hellos and unreadable messages are
answered at the rate of a federation's hellos (rate_limit.py): a hello beyond the limit ends the previous session and
waits; an unreadable message is then ignored. A session no longer counts here once one of its passes was charged to the
data owner's quota, or at the dealer, once both owners have joined it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Generic, TypeVar

from tacit.protocol.core.codec import Frame, Packet, decode
from tacit.protocol.core.errors import Code, RemoteProtocolError
from tacit.protocol.core.link import NO_SESSION
from tacit.protocol.core.machine import Machine, Output
from tacit.protocol.core.messages import Kinds
from tacit.protocol.core.rate_limit import RateLimit
from tacit.protocol.core.roster import Roster
from tacit.protocol.inference.dealer import InferenceDealer
from tacit.protocol.inference.messages import INFERENCE_MESSAGES, DealerHello, InferenceHello
from tacit.protocol.inference.model_owner import InferenceModelOwner
from tacit.protocol.inference.states import DealerState

MachineT = TypeVar("MachineT", bound=Machine[Any])
Answers = Iterator[tuple[MachineT, list[Output]]]
"""Outputs, each list with the machine that produced it."""


class Service(Generic[MachineT]):
    def __init__(self) -> None:
        self.sessions: dict[str, MachineT] = {}
        """Keyed by data owner."""
        self._answers = RateLimit[tuple[str, str], Packet]()
        """Answers to hellos and unreadable messages; by sender and data owner."""

    def feed(self, sender: str, frames: Sequence[Frame], now: float) -> Answers[MachineT]:
        raise NotImplementedError

    def drop(self, sender: str, detail: str, now: float) -> Answers[MachineT]:
        raise NotImplementedError

    def expire(self, now: float) -> Answers[MachineT]:
        yield from self.take_turns(now)
        for session in list(self.sessions.values()):
            yield session, session.expire(now)

    def take_turns(self, now: float) -> Answers[MachineT]:
        raise NotImplementedError

    @property
    def next_deadline(self) -> float | None:
        """Return the time at which the shell must call `expire`; None while nothing is due."""
        sessions = (deadline for session in self.sessions.values() for deadline in session.deadlines())
        return min((*self._answers.deadlines(), *sessions), default=None)

    @property
    def next_turn(self) -> float | None:
        return min(self._answers.deadlines(), default=None)


class ModelOwnerService(Service[InferenceModelOwner]):
    """Sessions of a model owner. begin: makes the machine for a data owner; kinds: messages of their links."""

    def __init__(self, begin: Callable[[str], InferenceModelOwner], kinds: Kinds = INFERENCE_MESSAGES) -> None:
        super().__init__()
        self._begin = begin
        self._kinds = kinds

    def feed(self, sender: str, frames: Sequence[Frame], now: float) -> Answers[InferenceModelOwner]:
        packet = _packet(frames, self._kinds)
        if packet is not None and packet.kind is InferenceHello:
            yield from self.drop(sender, "it has said hello again", now)
            turn = self._answers.turn((sender, sender), now)
            if turn > now:
                self._answers.wait((sender, sender), turn, packet)
                return
            self._open(sender, now)
        elif packet is None and (sender not in self.sessions or self.sessions[sender].over):
            if self._answers.turn((sender, sender), now) > now:
                return
            self._open(sender, now)
        if sender in self.sessions:
            session = self.sessions[sender]
            yield session, session.feed(frames, now) if packet is None else session.hear(packet, now)

    def take_turns(self, now: float) -> Answers[InferenceModelOwner]:
        for (sender, _), packet in self._answers.waited(now):
            session = self._open(sender, now)
            yield session, session.hear(packet, now)

    def drop(self, sender: str, detail: str, now: float) -> Answers[InferenceModelOwner]:
        self._answers.withdraw((sender, sender))
        if sender in self.sessions:
            session = self.sessions.pop(sender)
            if session.charged:
                self._answers.give_back((sender, sender))
            yield session, session.drop(detail, now)

    def _open(self, data_owner: str, now: float) -> InferenceModelOwner:
        self._answers.spend((data_owner, data_owner), now)
        session = self.sessions[data_owner] = self._begin(data_owner)
        return session


class DealerService(Service[InferenceDealer]):
    """Sessions of a dealer. begin: makes the machine for a data owner and a session."""

    def __init__(self, roster: Roster, begin: Callable[[str, bytes, float], InferenceDealer]) -> None:
        super().__init__()
        self._roster = roster
        self._begin = begin
        self._openers: dict[str, str] = {}
        """Keyed by data owner: the owner that first named its session."""

    def feed(self, sender: str, frames: Sequence[Frame], now: float) -> Answers[InferenceDealer]:
        packet = _packet(frames, INFERENCE_MESSAGES)
        if packet is None:
            concerned = [each for each in self.sessions.values() if sender in each.owners and not each.over]
            if not concerned and sender in (self._roster.server.name, *self._roster.clients):
                # If the model owner opened it, only with this data owner.
                alone = sender if sender in self._roster.clients else ""
                if self._answers.turn((sender, alone), now) > now:
                    return
                self._answers.spend((sender, alone), now)
                concerned = [self._begin(alone, NO_SESSION, now)]
            for each in concerned:
                yield each, each.feed(sender, frames, now)
            return
        data_owner = self._data_owner(sender, packet)
        if data_owner is None:
            return
        session = packet.envelope.session
        current = self.sessions.get(data_owner)
        if packet.kind is DealerHello:
            yield from self._greet(sender, data_owner, packet, now)
        elif current is not None and current.session == session:
            yield self._hear(current, sender, packet, now)

    def take_turns(self, now: float) -> Answers[InferenceDealer]:
        for (sender, data_owner), packet in self._answers.waited(now):
            self._answers.withdraw((sender, data_owner))
            yield from self._greet(sender, data_owner, packet, now)

    def drop(self, sender: str, detail: str, now: float) -> Answers[InferenceDealer]:
        for data_owner in self._roster.clients:
            self._answers.withdraw((sender, data_owner))
        # Keep those that it has not joined: the model owner may have opened them before its old link is seen to end.
        for session in list(self.sessions.values()):
            if sender in session.owners and not session.awaits(sender):
                yield session, session.drop(sender, detail, now)

    def _greet(self, sender: str, data_owner: str, packet: Packet, now: float) -> Answers[InferenceDealer]:
        """Handle an owner's hello; one for another session ends the current session."""
        current, named = self.sessions.get(data_owner), packet.envelope.session
        if current is not None and current.session != named and not current.over:
            if sender != data_owner and current.awaits(sender):
                return  # Of a former session, and late: the data owner has begun another meanwhile.
            error = RemoteProtocolError(Code.SESSION, "another session has begun", culprit=data_owner)
            yield current, current.give_up(error, now)
        if current is None or current.session != named:
            turn = self._answers.turn((sender, data_owner), now)
            if turn > now:
                self._answers.wait((sender, data_owner), turn, packet)
                return
            self._answers.spend((sender, data_owner), now)
            current = self.sessions[data_owner] = self._begin(data_owner, named, now)
            self._openers[data_owner] = sender
        yield self._hear(current, sender, packet, now)

    def _hear(
        self, session: InferenceDealer, sender: str, packet: Packet, now: float
    ) -> tuple[InferenceDealer, list[Output]]:
        waited, data_owner = session.state is DealerState.AWAIT_OWNERS, session.owners[1]
        outputs = session.hear(sender, packet, now)
        if waited and session.state is DealerState.SERVING:
            self._answers.give_back((self._openers[data_owner], data_owner))
        return session, outputs

    def _data_owner(self, sender: str, packet: Packet) -> str | None:
        if sender in self._roster.clients:
            return sender
        if sender != self._roster.server.name:
            return None
        for name, session in self.sessions.items():
            if session.session == packet.envelope.session:
                return name
        if packet.kind is not DealerHello:
            return None
        try:
            peer = getattr(packet.parse(), "peer", "")
        except RemoteProtocolError:
            return None
        return peer if peer in self._roster.clients else None


def _packet(frames: Sequence[Frame], kinds: Kinds) -> Packet | None:
    """Return a message's envelope, or None if it is unreadable; the session's machine reports the error."""
    try:
        return decode(frames, kinds)
    except RemoteProtocolError:
        return None
