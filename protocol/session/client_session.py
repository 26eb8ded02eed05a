"""The client's side of a session: its link to the server, its journal, and the ways in which it all ends.

What happens in the rounds, and between them, says the session's own class (session/client.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tacit.protocol.core.codec import Frame, Packet, decode
from tacit.protocol.core.errors import DETAIL_LIMIT, Code, RemoteProtocolError
from tacit.protocol.core.link import NO_SESSION, Link, Traffic
from tacit.protocol.core.machine import Entropy, Machine, Output, Step
from tacit.protocol.core.messages import Abort, Message
from tacit.protocol.core.outputs import Ended, Transmit
from tacit.protocol.core.primitives import SigningKey
from tacit.protocol.core.roster import Roster
from tacit.protocol.session.messages import MESSAGES, MOST_PROMISES, Finish, Hello, StartRound
from tacit.protocol.session.tables import OUTSIDE_ROUNDS, TRAINING_CLIENT_TABLE, TrainingState
from tacit.protocol.session.voiding import promise
from tacit.protocol.sum.configuration import Policy
from tacit.protocol.sum.results import Contribution


class ClientSession(Machine[TrainingState]):
    """One client in its session; arguments as of TrainingClient."""

    def __init__(
        self,
        name: str,
        roster: Roster,
        *,
        signing: SigningKey,
        policy: Policy,
        journal: Iterable[Contribution],
        entropy: Entropy,
        patience: float,
        grace: float,
    ) -> None:
        super().__init__(TRAINING_CLIENT_TABLE, TrainingState.OFFLINE)
        self.name = name
        self.round = 0
        """The round that this client takes, or last took, part in; 0 before the first."""
        self.traffic = Traffic()
        self._roster = roster
        self._server = roster.server.name
        self._signing = signing
        self._policy = policy
        self._journal = {(entry.session, entry.round): entry for entry in journal}
        self._entropy = entropy
        self._patience = patience
        self._grace = grace
        self._link = Link(name, self._server, NO_SESSION, self.traffic, MESSAGES)
        self._lost_until: float | None = None

    def server_lost(self, now: float) -> None:
        """The link is down; the grace begins."""
        if self.state not in (TrainingState.OFFLINE, TrainingState.ENDED):
            self._lost_until = now + self._grace

    def server_back(self) -> None:
        """The link is up again."""
        self._lost_until = None

    def give_up(self, detail: str, now: float) -> list[Output]:
        """This party cannot go on (its own disk, data or device): tell the server, and end."""
        if self.state is TrainingState.ENDED:
            return []
        return self._take(self._end(RemoteProtocolError(Code.LOCAL, detail, culprit=self.name), now), None, now)

    def on_start(self, now: float) -> Step[TrainingState]:
        closed = [entry for entry in self._journal.values() if not entry.unmasked][-MOST_PROMISES:]
        promises = tuple(promise(entry, self.name, self._signing) for entry in closed)

        def commit() -> list[Output]:
            self.deadline = now + self._patience
            return [self._transmit(Hello(roster=self._roster.hash, promises=promises))]

        return Step(TrainingState.AWAIT_WELCOME, (), commit)

    def on_finish(self, sender: str, message: Finish, payload: None, now: float) -> Step[TrainingState]:
        return self._ended(None, "the federation is finished")

    def on_expire(self, now: float) -> Step[TrainingState]:
        return self._ended(Code.TIMEOUT, f"no word from {self._server} while it was to {self.state.value}")

    def on_drop(self, now: float) -> Step[TrainingState]:
        return self._ended(Code.LEFT, f"the link to {self._server} is lost and did not come back in {self._grace:g} s")

    def _read(self, frames: Sequence[Frame]) -> Packet:
        """The packet, with the session taken from the server's first answer."""
        if self.state is TrainingState.AWAIT_WELCOME:
            session = decode(frames, MESSAGES).envelope.session
            fresh = Link(self.name, self._server, session, self.traffic, MESSAGES)
            packet = fresh.packet(frames)
            self._link = fresh
        else:
            packet = self._link.packet(frames)
        kind, round = packet.kind, packet.envelope.round
        if kind is StartRound and round <= self.round:
            raise RemoteProtocolError(Code.SESSION, f"round {round} is started a second time")
        if kind is not StartRound and round > self.round:
            raise RemoteProtocolError(Code.SESSION, f"{kind.TYPE} of a round that has not begun")
        if kind is not Abort and (round == 0) != (kind in OUTSIDE_ROUNDS):
            raise RemoteProtocolError(Code.SESSION, f"{kind.TYPE} as a message of round {round}")
        return packet

    def _end(self, error: RemoteProtocolError, now: float) -> Step[TrainingState]:
        """End the session, and say why to the server."""
        ended = self._ended(error.code, f"{error.culprit or self._server}: {error.detail}")
        abort = Abort(code=error.code, detail=error.detail[:DETAIL_LIMIT], culprit=error.culprit or self._server)
        return Step(ended.state, (self._transmit(abort, round=0), *ended.outputs), ended.commit)

    def _ended(self, code: Code | None, detail: str) -> Step[TrainingState]:
        def commit() -> None:
            self._forget()
            self.deadline = self._lost_until = None

        return Step(TrainingState.ENDED, (Ended(code, detail),), commit)

    def _forget(self) -> None:
        """Drop every secret."""
        raise NotImplementedError

    def _transmit(self, message: Message, payload: Frame | None = None, *, round: int | None = None) -> Transmit:
        round = self.round if round is None else round
        return Transmit(self._server, self._link.frames(message, round=round, payload=payload), message.PHASE)
