"""The server's side of a session: who is there, who is lost for the moment, and who is out for good.

A member is there from its hello on; a lost link has a grace before it counts as gone. Who broke a rule is barred: it is
told so and not heard again. What a member's leaving means for a round or a key, the session's own class says
(session/server.py).
"""

from __future__ import annotations

from typing import Final

from tacit.protocol.core.codec import Frame, encode_structure
from tacit.protocol.core.errors import DETAIL_LIMIT, Code, RemoteProtocolError
from tacit.protocol.core.link import Link, Traffic
from tacit.protocol.core.machine import Entropy, Machine, Output, Report, Step
from tacit.protocol.core.members import encode_members
from tacit.protocol.core.messages import Abort, Message
from tacit.protocol.core.outputs import Transmit
from tacit.protocol.core.primitives import KEY_BYTES
from tacit.protocol.core.roster import Roster
from tacit.protocol.session.messages import MESSAGES, Hello, Welcome
from tacit.protocol.session.tables import TRAINING_SERVER_TABLE, SessionState
from tacit.protocol.session.voiding import Promises, check_promise
from tacit.protocol.sum.configuration import Configuration
from tacit.protocol.sum.server import AggregationServer

NOT_AT_FAULT: Final = frozenset({Code.TIMEOUT, Code.LEFT, Code.LOCAL})
"""Reasons to drop a member that do not bar it from coming back."""


class SessionAttendance(Machine[SessionState]):
    """The members of one session. completed: rounds of earlier sessions, after which this one goes on counting."""

    def __init__(
        self, roster: Roster, configuration: Configuration, *, entropy: Entropy, grace: float, completed: int
    ) -> None:
        super().__init__(TRAINING_SERVER_TABLE, SessionState.GATHERING)
        self.session = entropy(KEY_BYTES)
        self.round = completed
        self.traffic = Traffic()
        self._name = roster.server.name
        self._roster = roster
        self._configuration = configuration
        self._grace = grace
        self._links: dict[str, Link] = {}
        self._barred: set[str] = set()
        self._lost: dict[str, float] = {}
        """Until when lost links may come back."""
        self._promises = Promises()

    def link_lost(self, member: str, now: float) -> None:
        """The link to a member is down; the grace begins."""
        if member in self._links:
            self._lost[member] = now + self._grace

    def link_back(self, member: str) -> None:
        """The link is up again."""
        self._lost.pop(member, None)

    def on_hello(self, sender: str, message: Hello, payload: None, now: float) -> Step[SessionState]:
        if message.roster != self._roster.hash:
            raise RemoteProtocolError(Code.ROSTER, "it holds another roster: give all parties the same file")
        for given in message.promises:
            check_promise(self._roster, sender, given, given.signature)
        again = sender in self._links
        configuration = encode_structure(self._configuration)

        def commit() -> list[Output]:
            self._lost.pop(sender, None)
            self._links[sender] = Link(self._name, sender, self.session, self.traffic, MESSAGES)
            for given in message.promises:
                self._promises.add(sender, given)
            welcome = Welcome(roster=self._roster.hash, configuration=configuration)
            greeted = [self._transmit(sender, welcome, round=0), Report("joined", {"member": sender})]
            if not again:
                return greeted
            # It is there again before the others hear that it was not.
            detail = "it started again"
            left = Report("left", {"member": sender, "detail": detail})
            return [left, *greeted, *self._gone(sender, Code.LEFT, detail, now)]

        return Step(self.state, (), commit)

    def on_abort(self, sender: str, message: Abort, payload: None, now: float) -> Step[SessionState]:
        return Step(self.state, commit=lambda: self._leave(sender, f"it gave up: {message.detail}", now))

    def refuse(self, sender: str, error: RemoteProtocolError, now: float) -> Step[SessionState]:
        if sender in self._barred:
            return Step(self.state)
        refused = Report("refused", {"member": sender, "code": error.code.name, "detail": error.detail})
        return Step(self.state, (refused,), lambda: self._bar(sender, error.code, error.detail, now))

    def _bar_culprits(self, finished: AggregationServer, now: float) -> list[Output]:
        """Those who broke a rule in a sum are out."""
        outputs: list[Output] = []
        for dropped in finished.drops:
            if dropped.code not in NOT_AT_FAULT:
                outputs += self._bar(dropped.member, dropped.code, dropped.detail, now)
        return outputs

    def _part_with(self, member: str, code: Code, detail: str, now: float) -> list[Output]:
        """A member kept the others from a key: it is out, for good if it broke a rule."""
        if code not in NOT_AT_FAULT:
            return self._bar(member, code, detail, now)
        if member not in self._links:
            return []
        abort = Abort(code=code, detail=detail[:DETAIL_LIMIT], culprit=member)
        return [self._transmit(member, abort, round=0), *self._leave(member, detail, now, code=code)]

    def _bar(self, member: str, code: Code, detail: str, now: float) -> list[Output]:
        """A member is out for the session, and told so, even if its hello is what was wrong."""
        if member in self._barred:
            return []
        self._barred.add(member)
        link = self._links.get(member) or Link(self._name, member, self.session, self.traffic, MESSAGES)
        abort = Abort(code=code, detail=detail[:DETAIL_LIMIT], culprit=member)
        told = Transmit(member, link.frames(abort, round=0), abort.PHASE)
        return [told, *self._leave(member, detail, now, code=code)]

    def _leave(self, member: str, detail: str, now: float, *, code: Code = Code.LEFT) -> list[Output]:
        """A member is gone from the session, and from the sum if one goes on."""
        self._lost.pop(member, None)
        if self._links.pop(member, None) is None:
            return []
        left = Report("left", {"member": member, "detail": detail})
        return [left, *self._gone(member, code, detail, now)]

    def _gone(self, member: str, code: Code, detail: str, now: float) -> list[Output]:
        """What its leaving means for what goes on."""
        raise NotImplementedError

    def _transmit(
        self, member: str, message: Message, *, payload: Frame | None = None, round: int | None = None
    ) -> Transmit:
        round = self.round if round is None else round
        return Transmit(member, self._links[member].frames(message, round=round, payload=payload), message.PHASE)

    def _bitmap(self, names: tuple[str, ...]) -> bytes:
        clients = self._roster.clients
        return encode_members([clients.index(name) for name in names], len(clients))
