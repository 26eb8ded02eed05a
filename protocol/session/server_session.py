"""Who is in a session, at its server, whatever is done there: hellos and resumptions, broken rules, leaving, the end.

A machine of rounds is made of this one (server.py): it says what a member's leaving means for what goes on (`_gone`).

Who breaks a rule is out for the session; who was late or lost is out of the round, and back as soon as it says hello.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Final

from tacit.protocol.core.codec import Frame, Packet, encode_structure
from tacit.protocol.core.errors import DETAIL_LIMIT, Code, RemoteProtocolError
from tacit.protocol.core.link import Traffic
from tacit.protocol.core.machine import Heard, Machine, Output, Report, Step, Trigger
from tacit.protocol.core.messages import Abort, Message, Resume
from tacit.protocol.core.outputs import Ended, Transmit
from tacit.protocol.core.roster import Roster
from tacit.protocol.session.messages import Finish, Hello, NewRoster, Welcome
from tacit.protocol.session.presence import Presence
from tacit.protocol.session.tables import TRAINING_SERVER_TABLE, SessionState
from tacit.protocol.sum.configuration import Configuration

NOT_AT_FAULT: Final = frozenset({Code.TIMEOUT, Code.LEFT, Code.LOCAL})
"""Reasons to drop a member that do not bar it from coming back."""


class SessionServer(Machine[SessionState]):
    """The server of one session.

    session: its name, 32 bytes; grace: seconds for a lost link to come back; completed: rounds of earlier sessions,
    after which this one goes on counting.
    """

    def __init__(
        self, roster: Roster, configuration: Configuration, *, session: bytes, grace: float, completed: int
    ) -> None:
        super().__init__(TRAINING_SERVER_TABLE, SessionState.GATHERING)
        self._roster = roster
        self.round = completed
        """The round that goes on, or the last one."""
        self.presence = Presence(roster.server.name, roster.clients, session, grace)
        self._holds: dict[str, bytes] = {}
        """By member, the hash of the roster that its last hello named."""
        self._successor: Roster | None = None
        """The later version of the roster with which the next session goes on."""
        self._welcome = Welcome(roster=roster.hash, configuration=encode_structure(configuration))

    @property
    def session(self) -> bytes:
        """Its name, 32 bytes."""
        return self.presence.session

    @property
    def traffic(self) -> Traffic:
        """What went over all its links."""
        return self.presence.traffic

    @property
    def untold(self) -> bool:
        """Whether this machine has ended, and the shell should stay for a member that may come back to be told so."""
        return self.presence.untold

    def deadlines(self) -> Iterator[float]:
        yield from super().deadlines()
        yield from self.presence.deadlines()

    def link_lost(self, member: str, now: float) -> None:
        """The link to a member is down; the grace begins."""
        self.presence.link_lost(member, now)

    def link_back(self, member: str) -> None:
        """The link is up again."""
        self.presence.link_back(member)

    def feed(self, sender: str, frames: Sequence[Frame], now: float) -> list[Output]:
        """One multipart message of a member whom the transport authenticated."""
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
        """End this session, and hand everybody a later version of the roster, by which the next session goes: between
        rounds or before the first. As after the last round the model is handed out where only the clients can read it.

        unusable: as for `next_round`.
        """
        self._successor = roster
        return self.trigger(Trigger.CHANGE_ROSTER, now, model, unusable)

    def expire(self, now: float) -> list[Output]:
        outputs: list[Output] = []
        for member in self.presence.overdue(now):
            outputs += self._leave(member, f"its link was lost for {self.presence.grace:g} s", now)
        for member in self.presence.waited(now):
            turn = self._go_on if member in self.presence else self._greet
            outputs += self._take(Step(self.state, commit=partial(turn, member, now)), now)
        return outputs + super().expire(now)

    def on_hello(self, heard: Heard[Hello], now: float) -> Step[SessionState]:
        sender, detail = heard.sender, "it started again"
        again, turn = sender in self.presence, self.presence.turn(sender, now)

        def commit() -> list[Output]:
            self._holds[sender] = heard.message.roster
            if turn > now:
                outputs = self._leave(sender, detail, now)
                self.presence.wait(sender, turn)
                return outputs
            if heard.message.roster != self._roster.hash:
                return [*self._leave(sender, detail, now), *self._greet(sender, now)]
            if not again:
                return self._greet(sender, now)
            # It is there again before the others hear that it was not.
            left = Report("left", {"member": sender, "detail": detail})
            return [left, *self._greet(sender, now), *self._gone(sender, Code.LEFT, detail, now)]

        return Step(self.state, (), commit)

    def _greet(self, member: str, now: float) -> list[Output]:
        if self._holds[member] != self._roster.hash:
            return self._correct(member, now)
        self.presence.join(member, now)
        return [self._transmit(member, self._welcome, round=0), Report("joined", {"member": member})]

    def _correct(self, member: str, now: float) -> list[Output]:
        """A member that holds another roster is told this one, if it can check it. It may come again."""
        self.presence.spend(member, now)
        roster, code = self._roster, Code.ROSTER
        detail = "it holds another roster: give all parties the same file"
        answer: Message = Abort(code=code, detail=detail, culprit=member)
        if roster.operator:
            detail = f"it holds another roster, and is handed version {roster.version}"
            answer = NewRoster(roster=roster.encoded, signature=roster.signature)
        refused = Report("refused", {"member": member, "code": code.name, "detail": detail})
        return [self._transmit(member, answer, round=0), refused]

    def on_resume(self, heard: Heard[Resume], now: float) -> Step[SessionState]:
        sender, turn = heard.sender, self.presence.turn(heard.sender, now)
        if not self.presence.asks(sender, heard.envelope):
            return Step(self.state, (self.presence.refuse(sender, "there is no such conversation", heard.envelope),))
        if turn > now:
            return Step(self.state, commit=lambda: self.presence.wait(sender, turn))
        return Step(self.state, commit=lambda: self._go_on(sender, now))

    def _go_on(self, member: str, now: float) -> list[Output]:
        missed = self.presence.go_on(member, now)
        if missed is None:
            detail = "what it lacks is not kept any more"
            return [self.presence.refuse(member, detail), *self._leave(member, detail, now)]
        return [Report("resumed", {"member": member, "messages": len(missed) - 1}), *missed]

    def on_abort(self, heard: Heard[Abort], now: float) -> Step[SessionState]:
        return Step(self.state, commit=lambda: self._leave(heard.sender, f"it gave up: {heard.message.detail}", now))

    def on_change_roster(self, model: bytes, unusable: str, now: float) -> Step[SessionState]:
        return self._all_done()

    def refuse(self, sender: str, error: RemoteProtocolError, now: float) -> Step[SessionState]:
        if sender in self.presence.barred:
            return Step(self.state)
        refused = Report("refused", {"member": sender, "code": error.code.name, "detail": error.detail})
        said = () if error.code in NOT_AT_FAULT else (refused,)
        return Step(self.state, said, lambda: self._part_with(sender, error.code, error.detail, now))

    def _read(self, sender: str, frames: Sequence[Frame]) -> Packet | None:
        """The packet; None if it comes too late to matter."""
        return self.presence.read(sender, frames)

    def _part_with(self, member: str, code: Code, detail: str, now: float) -> list[Output]:
        """A member is out, and told so; for good if it broke a rule, even if its hello is what was wrong."""
        bar = code not in NOT_AT_FAULT
        if member in self.presence.barred or not (bar or member in self.presence):
            return []
        if bar:
            self._bar(member)
        abort = Abort(code=code, detail=detail[:DETAIL_LIMIT], culprit=member)
        return [self._transmit(member, abort, round=0), *self._leave(member, detail, now, code=code)]

    def _bar(self, member: str) -> None:
        """It is not heard again."""
        self.presence.barred.add(member)

    def _leave(self, member: str, detail: str, now: float, *, code: Code = Code.LEFT) -> list[Output]:
        """A member is gone from the session, and from the sum if one goes on."""
        if not self.presence.leave(member):
            return []
        return [Report("left", {"member": member, "detail": detail}), *self._gone(member, code, detail, now)]

    def _gone(self, member: str, code: Code, detail: str, now: float) -> list[Output]:
        """What its leaving means for what goes on."""
        raise NotImplementedError

    def _all_done(self) -> Step[SessionState]:
        """No more rounds, or none with this roster."""
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
