"""The members of a session at its server: links, hellos and resumptions, violations, leaving; and a round's outcome.

The machine of rounds (server.py) builds on this one, and handles the consequences of a leaving member (`_gone`).

A member is present from its hello on; a lost link has a grace period before the member counts as gone. When the link is
restored the member asks to resume, and receives the messages that it missed. A member that breaks a rule is excluded
for the session and ignored from then on; one that was late or lost is out of the round, and rejoins with its next
hello.

A hello is answered with the whole configuration, and a resumption with many messages as well. So a member has a few
answers of either kind, and regains one from time to time. An excess request is no offence: it waits for its turn.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from tacit.protocol.core.blob import OutgoingBlob, announce
from tacit.protocol.core.codec import Envelope, Frame, Packet, decode, encode_structure
from tacit.protocol.core.errors import DETAIL_LIMIT, Code, RemoteProtocolError
from tacit.protocol.core.events import MessageRefused
from tacit.protocol.core.link import NO_SESSION, Link, Traffic
from tacit.protocol.core.machine import Ended, Heard, Machine, Output, Step, Table, Transmit
from tacit.protocol.core.messages import Abort, Blob, Message, Resume
from tacit.protocol.core.rate_limit import RateLimit
from tacit.protocol.core.roster import Roster, encode_members
from tacit.protocol.session.events import ClientJoined, ClientLeft, ClientResumed
from tacit.protocol.session.messages import MESSAGES, Finish, Hello, NewRoster, Welcome
from tacit.protocol.session.rounds import RoundDone, SpendingHeld
from tacit.protocol.session.states import SessionState, SessionTrigger
from tacit.protocol.sum.configuration import Configuration
from tacit.protocol.sum.exchange import Dropped, ServerAborted, Summed
from tacit.protocol.sum.spending import SpendingSeen, held_of, news
from tacit.protocol.sum.states import SumLabel


class Presence:
    """The clients of a session. grace: seconds for a lost link to reconnect."""

    def __init__(self, own: str, clients: tuple[str, ...], session: bytes, grace: float) -> None:
        self.traffic = Traffic()
        self.barred: set[str] = set()
        self.missing: frozenset[str] = frozenset()
        """Clients that will not come, as the process that starts them all knows."""
        self.declined: set[str] = set()
        """Clients that cannot continue, or refused the configuration, and have not rejoined."""
        self.grace = grace
        self._own = own
        self._clients = clients
        self.session = session
        self._links: dict[str, Link] = {}
        self.over = False
        """Whether the session has ended: requests to resume are answered with the end, and all others are ignored."""
        self._lost: dict[str, float] = {}
        """Deadlines for lost links to reconnect."""
        self.answers = RateLimit[str, Envelope | None]()
        """Limit on answers to hellos and resumptions. A waiting resumption names a conversation that its sender does
        not have."""
        self._numbers: dict[str, int] = {}
        """Numbers of the links of members' hellos."""
        self._asked: dict[str, Envelope] = {}
        """Conversations that members last asked to resume."""

    def __contains__(self, member: str) -> bool:
        return member in self._links

    @property
    def members(self) -> tuple[str, ...]:
        """All members with a conversation, in the order of their hellos."""
        return tuple(self._links)

    @property
    def there(self) -> tuple[str, ...]:
        """All members with a conversation, in the order of the roster."""
        return tuple(name for name in self._clients if name in self._links)

    @property
    def linked(self) -> tuple[str, ...]:
        """Those of them whose link is not lost for the moment."""
        return tuple(name for name in self.there if name not in self._lost)

    @property
    def lost(self) -> tuple[str, ...]:
        return tuple(self._lost)

    @property
    def untold(self) -> bool:
        """Whether the session has ended, and a member may still reconnect to learn it."""
        return self.over and bool(self._lost)

    @property
    def possible(self) -> tuple[str, ...]:
        """All clients that can still be present, in the order of the roster."""
        return tuple(name for name in self._clients if name not in self.barred | self.missing | self.declined)

    def deadlines(self) -> Iterable[float]:
        """Times at which lost links count as gone, and waiting members are answered."""
        return *self._lost.values(), *self.answers.deadlines()

    def overdue(self, now: float) -> list[str]:
        return [member for member, until in self._lost.items() if now >= until]

    def heard(self, sender: str) -> bool:
        """Whether messages of this party are processed at all."""
        return sender in self._clients and sender not in self.barred

    def join(self, member: str, now: float) -> None:
        """Begin a member's conversation, or begin it anew."""
        self._lost.pop(member, None)
        self.declined.discard(member)
        self.answers.spend(member, now)
        self._links[member] = self._link(member)

    def asks(self, member: str, asked: Envelope) -> bool:
        """Whether this was a member's last request to resume, and fits its conversation."""
        return self._asked.get(member) is asked

    def go_on(self, member: str, now: float) -> list[Transmit] | None:
        """Resume with a member that asked: the messages it missed, or None if they are not kept any more."""
        self._lost.pop(member, None)
        self.answers.spend(member, now)
        return self._links[member].answer()

    def refuse(self, member: str, detail: str, asked: Envelope | None = None) -> Transmit:
        """The answer to a member whose conversation cannot resume, as the next message that it expects."""
        asked = self._asked[member] if asked is None else asked
        link = self._link(member, asked.session, number=asked.link, said=asked.received)
        return link.transmit(Abort(code=Code.LEFT, detail=detail, culprit=member), round=0)

    def leave(self, member: str) -> bool:
        """Remove a member; returns whether it was present."""
        self._lost.pop(member, None)
        self.answers.withdraw(member)
        return self._links.pop(member, None) is not None

    def link_lost(self, member: str, now: float) -> None:
        """The link to a member is down; the grace begins."""
        if member in self._links and not self.over:
            self._lost[member] = now + self.grace
            self._links[member].broken = True

    def link_back(self, member: str) -> None:
        """The link is up again. At the end of the session that is not enough, until the member resumes."""
        if not self.over:
            self._lost.pop(member, None)

    def end(self) -> None:
        self.over = True
        self.answers.clear()

    def read(self, sender: str, frames: Sequence[Frame]) -> Packet | None:
        """The next message of a member; None before its hello, and for a message that comes too late to matter."""
        packet = decode(frames, MESSAGES)
        envelope, link = packet.envelope, self._links.get(sender)
        if self.over and packet.kind is not Resume:
            return None
        if packet.kind in (Hello, Resume) and envelope.round:
            detail = f"{packet.kind.TYPE} as a message of round {envelope.round}"
            raise RemoteProtocolError(Code.SESSION, detail, culprit=sender)
        if packet.kind is Hello:
            self._numbers[sender] = envelope.link
            if link is not None:
                # A hello ends the previous conversation, even if it is refused: its sender expects a first answer.
                self._links[sender] = self._link(sender)
            return self._link(sender, NO_SESSION).accept(packet)
        if packet.kind is Resume:
            if link is None or not link.may_be_asked(envelope):
                # Of another conversation than its present one, if any.
                return self._link(sender, envelope.session).of_peer(packet)
            if envelope.link >= link.number:
                self._asked[sender] = link.asked(packet).envelope
                return packet
        if link is None or link.late(packet):
            return None
        link.accept(packet)
        link.check_heard(envelope.round)
        return packet

    def transmit(self, member: str, message: Message, *, round: int, payload: Frame | None = None) -> Transmit:
        """A message for a member; on a fresh link, if that has no conversation."""
        link = self._links.get(member) or self._link(member)
        return link.transmit(message, round=round, payload=payload)

    def bitmap(self, names: Iterable[str]) -> bytes:
        """Bitmap of these clients, over those of the roster in its order."""
        return encode_members([self._clients.index(name) for name in names], len(self._clients))

    def _link(self, member: str, session: bytes | None = None, number: int | None = None, said: int = 0) -> Link:
        number = self._numbers.get(member, 0) if number is None else number
        session = self.session if session is None else session
        return Link(self._own, member, session, self.traffic, MESSAGES, number=number, said=said)


@dataclass(frozen=True)
class Model:
    """The server's model, little-endian float32 bytes, and its announcement."""

    data: bytes = field(repr=False)
    announced: Blob

    @classmethod
    def of(cls, data: bytes) -> Model:
        return cls(data, announce(data, SumLabel.MODEL))


@dataclass(frozen=True)
class CurrentRound:
    began: float
    cohort: tuple[str, ...]
    outgoing: OutgoingBlob
    """The model, for its members to fetch."""
    fixed: OutgoingBlob
    """The fixed tensors, for members that lack them."""


def outcome(
    number: int,
    part: CurrentRound,
    drops: tuple[Dropped, ...],
    result: Summed | ServerAborted,
    lost: frozenset[str] = frozenset(),
) -> RoundDone:
    """The outcome of the round of this number; drops: members out of its sum; lost: those whose link or process was
    lost."""
    summed = result if isinstance(result, Summed) else None
    aborted = result if isinstance(result, ServerAborted) else None
    return RoundDone(
        round=number,
        began=part.began,
        cohort=part.cohort,
        survivors=summed.survivors if summed else (),
        dropped=drops,
        total=summed.total if summed else None,
        code=aborted.code if aborted else None,
        detail=aborted.detail if aborted else "",
        culprit=aborted.culprit if aborted else "",
        vectors=summed.vectors if summed else {},
        lost=tuple(name for name in part.cohort if name in lost),
    )


NOT_AT_FAULT: Final = frozenset({Code.TIMEOUT, Code.LEFT, Code.LOCAL})
"""Reasons to drop a member that do not exclude it from rejoining."""


class SessionServer(Machine[SessionState]):
    """The server of one session.

    session: its identifier, 32 bytes; grace: seconds for a lost link to reconnect; completed: rounds of earlier
    sessions, from which this one continues counting; held: signing keys and the kept statements of spending."""

    def transitions(self) -> Table[SessionState]:
        raise NotImplementedError

    def __init__(
        self,
        roster: Roster,
        configuration: Configuration,
        *,
        session: bytes,
        grace: float,
        completed: int,
        held: Iterable[tuple[bytes, bytes]] = (),
    ) -> None:
        super().__init__(self.transitions(), SessionState.GATHERING)
        self._roster = roster
        self.round = completed
        """The present or last round."""
        self.presence = Presence(roster.server.name, roster.clients, session, grace)
        self.presence.traffic.begun = completed
        self._holds: dict[str, bytes] = {}
        """By member, the hash of the roster in its last hello."""
        self._successor: Roster | None = None
        """The later version of the roster for the next session."""
        self._lost_links: set[str] = set()
        """Members whose link or process was lost since the round began."""
        self._held = dict(held)
        self._encoded, self._spending = encode_structure(configuration), configuration.spending

    @property
    def session(self) -> bytes:
        return self.presence.session

    @property
    def traffic(self) -> Traffic:
        return self.presence.traffic

    @property
    def untold(self) -> bool:
        """Whether this machine has ended, and the shell should stay for a member that may reconnect to learn it."""
        return self.presence.untold

    def deadlines(self) -> Iterator[float]:
        yield from super().deadlines()
        yield from self.presence.deadlines()

    def link_lost(self, member: str, now: float) -> None:
        """The link to a member is down; the grace begins."""
        self._lost_links.add(member)
        self.presence.link_lost(member, now)

    def link_back(self, member: str) -> None:
        """The link is up again."""
        self.presence.link_back(member)

    def feed(self, sender: str, frames: Sequence[Frame], now: float) -> list[Output]:
        """Process one multipart message of a member that the transport authenticated."""
        packet = None
        if self.presence.heard(sender):
            try:
                packet = self._read(sender, frames)
            except RemoteProtocolError as error:
                return self.reject(sender, error, now)
        if packet is None:
            self.ignored += 1
            return []
        return self.receive(sender, packet, now)

    def change_roster(self, roster: Roster, model: bytes, now: float, *, unusable: str = "") -> list[Output]:
        """End this session, and send all members a later version of the roster, for the next session: between rounds or
        before the first. As after the last round the model is distributed if only the clients can read it.

        unusable: see `next_round`."""
        self._successor = roster
        return self.trigger(SessionTrigger.CHANGE_ROSTER, now, model, unusable)

    def expire(self, now: float) -> list[Output]:
        outputs: list[Output] = []
        for member in self.presence.overdue(now):
            outputs += self._leave(member, f"its link was lost for {self.presence.grace:g} s", now)
        for member, stray in self.presence.answers.waited(now):
            if stray is not None:
                refused = partial(self._refuse_stray, member, stray, now)
                outputs += self._take(Step(self.state, commit=refused), now)
                continue
            turn = self._resume_member if member in self.presence else self._greet
            outputs += self._take(Step(self.state, commit=partial(turn, member, now)), now)
        return outputs + super().expire(now)

    def on_hello(self, heard: Heard[Hello], now: float) -> Step[SessionState]:
        sender, detail = heard.sender, "it started again"
        again, turn = sender in self.presence, self.presence.answers.turn(sender, now)

        def commit() -> list[Output]:
            self._holds[sender] = heard.message.roster
            self._lost_links.add(sender)
            if turn > now:
                outputs = self._leave(sender, detail, now)
                self.presence.answers.wait(sender, turn, None)
                return outputs
            if heard.message.roster != self._roster.hash:
                return [*self._leave(sender, detail, now), *self._greet(sender, now)]
            if not again:
                return self._greet(sender, now)
            # It is present again before the others learn that it was not.
            left = ClientLeft(member=sender, detail=detail)
            return [left, *self._greet(sender, now), *self._gone(sender, Code.LEFT, detail, now)]

        return Step(self.state, (), commit)

    def _greet(self, member: str, now: float) -> list[Output]:
        if self._holds[member] != self._roster.hash:
            return self._correct(member, now)
        self.presence.join(member, now)
        spent = held_of(self._held, self._roster.member(member)) if self._spending else b""
        welcome = Welcome(roster=self._roster.hash, configuration=self._encoded, spent=spent)
        return [self._transmit(member, welcome, round=0), ClientJoined(member=member)]

    def _correct(self, member: str, now: float) -> list[Output]:
        """Send this roster to a member that holds another one, if it can verify it. It may rejoin."""
        self.presence.answers.spend(member, now)
        roster, code = self._roster, Code.ROSTER
        detail = "it holds another roster: give all parties the same file"
        answer: Message = Abort(code=code, detail=detail, culprit=member)
        if roster.operator:
            detail = f"it holds another roster, and is handed version {roster.version}"
            answer = NewRoster(roster=roster.encoded, signature=roster.signature)
        refused = MessageRefused(member=member, code=code.name, detail=detail)
        return [self._transmit(member, answer, round=0), refused]

    def on_resume(self, heard: Heard[Resume], now: float) -> Step[SessionState]:
        sender, turn = heard.sender, self.presence.answers.turn(heard.sender, now)
        if not self.presence.asks(sender, heard.envelope):
            if turn > now:
                return Step(self.state, commit=lambda: self.presence.answers.wait(sender, turn, heard.envelope))
            return Step(self.state, commit=lambda: self._refuse_stray(sender, heard.envelope, now))
        if turn > now:
            return Step(self.state, commit=lambda: self.presence.answers.wait(sender, turn, None))
        return Step(self.state, commit=lambda: self._resume_member(sender, now))

    def _refuse_stray(self, member: str, asked: Envelope, now: float) -> list[Output]:
        self.presence.answers.spend(member, now)
        return [self.presence.refuse(member, "there is no such conversation", asked)]

    def _resume_member(self, member: str, now: float) -> list[Output]:
        missed = self.presence.go_on(member, now)
        if missed is None:
            detail = "what it lacks is not kept any more"
            return [self.presence.refuse(member, detail), *self._leave(member, detail, now)]
        return [ClientResumed(member=member, messages=len(missed) - 1), *missed]

    def on_abort(self, heard: Heard[Abort], now: float) -> Step[SessionState]:
        sender, code = heard.sender, heard.message.code

        def commit() -> list[Output]:
            if code is Code.LEFT:
                # It was stopped, as before its host restarts.
                self._lost_links.add(sender)
            elif sender in self.presence:
                self.presence.declined.add(sender)
            did = "refuses" if code is Code.POLICY else "gave up"
            return self._leave(sender, f"it {did}: {heard.message.detail}", now)

        return Step(self.state, (), commit)

    def on_spending_seen(self, seen: SpendingSeen, now: float) -> Step[SessionState]:
        """Keep clients' statements of their spending, for clients that have lost theirs."""
        stated = ((self._roster.member(name).signing_public, said) for name, said in seen.statements)
        kept = news(self._held, stated)
        return Step(self.state, (SpendingHeld(kept),) * bool(kept), lambda: self._held.update(kept))

    def on_change_roster(self, model: bytes, unusable: str, now: float) -> Step[SessionState]:
        return self._all_done()

    def refuse(self, sender: str, error: RemoteProtocolError, now: float) -> Step[SessionState]:
        if sender in self.presence.barred:
            return Step(self.state)
        refused = MessageRefused(member=sender, code=error.code.name, detail=error.detail)
        said = () if error.code in NOT_AT_FAULT else (refused,)
        return Step(self.state, said, lambda: self._expel(sender, error.code, error.detail, now))

    def _read(self, sender: str, frames: Sequence[Frame]) -> Packet | None:
        """The packet; None if it comes too late to matter."""
        return self.presence.read(sender, frames)

    def _expel(self, member: str, code: Code, detail: str, now: float) -> list[Output]:
        """Exclude a member and inform it; for the session if it broke a rule, even if its hello is invalid."""
        bar = code not in NOT_AT_FAULT
        if member in self.presence.barred or not (bar or member in self.presence):
            return []
        if bar:
            self._exclude(member)
        abort = Abort(code=code, detail=detail[:DETAIL_LIMIT], culprit=member)
        return [self._transmit(member, abort, round=0), *self._leave(member, detail, now, code=code)]

    def _exclude(self, member: str) -> None:
        self.presence.barred.add(member)

    def _leave(self, member: str, detail: str, now: float, *, code: Code = Code.LEFT) -> list[Output]:
        """Remove a member from the session, and from a running sum."""
        if not self.presence.leave(member):
            return []
        return [ClientLeft(member=member, detail=detail), *self._gone(member, code, detail, now)]

    def _gone(self, member: str, code: Code, detail: str, now: float) -> list[Output]:
        raise NotImplementedError

    def _all_done(self) -> Step[SessionState]:
        roster = self._successor
        if roster is None:
            return self._ended(None, "all rounds are done")
        detail = f"it goes on with version {roster.version} of the roster"
        return self._ended(Code.ROSTER, detail, NewRoster(roster=roster.encoded, signature=roster.signature))

    def _ended(self, code: Code | None, detail: str, message: Message | None = None) -> Step[SessionState]:
        if message is None:
            message = Finish() if code is None else Abort(code=code, detail=detail[:DETAIL_LIMIT], culprit="")

        def commit() -> list[Output]:
            self.presence.end()
            return [*(self._transmit(name, message, round=0) for name in self.presence.members), Ended(code, detail)]

        return Step(SessionState.ENDED, (), commit)

    def _transmit(
        self, member: str, message: Message, *, payload: Frame | None = None, round: int | None = None
    ) -> Transmit:
        return self.presence.transmit(member, message, round=self.round if round is None else round, payload=payload)
