"""What a live client says after a lie, put into the words of a verdict."""

from __future__ import annotations

from dataclasses import dataclass, field

from tacit.protocol.core.messages import Abort, Message
from tacit.protocol.session.tables import SUM_TO_SERVER
from tacit.protocol.sum.messages import AnswerComplaints, Survivors, UnmaskRequest, UnmaskShares
from tacit.simulate.conformance.peer.client_cases import TAKES_PART, refuses_round, refuses_session


@dataclass
class Observation:
    """One case. late: whether the lie came when the client had sent its vector and opened nothing."""

    late: bool = False
    summed: bool = False
    """Whether the client's vector was in the sum of the round with the lie."""
    round: int | None = None
    """The round with the lie, once it is over: of others nothing is noted then."""
    answer: bytes = b""
    """The shares that the client is to answer a complaint with."""
    said: list[tuple[int, Message]] = field(default_factory=list)
    """Since the last lie, with the rounds."""

    def lie(self, message: Message) -> None:
        """The client is told a lie in the place of this message."""
        self.late = isinstance(message, Survivors | UnmaskRequest)
        if self.refusal is None:
            self.said = []

    def note(self, round: int, message: Message) -> None:
        """The client has said something after the lie."""
        if self.round in (None, round):
            self.said.append((round, message))

    @property
    def refusal(self) -> tuple[int, Abort] | None:
        """The first abort, with its round."""
        return next(((round, said) for round, said in self.said if isinstance(said, Abort)), None)

    def words(self) -> list[str]:
        """What was seen."""
        answers = [said for _, said in self.said if isinstance(said, SUM_TO_SERVER)]
        if self.refusal is not None:
            round, abort = self.refusal
            words = [refuses_round(abort.code) if round else refuses_session(abort.code)]
            return words + [f"says {said.TYPE} nevertheless" for said in answers]
        if not self.summed:
            return [f"goes on with {answers[-1].TYPE}" if answers else "does not answer"]
        told = [said.shares for said in answers if isinstance(said, AnswerComplaints)]
        opened = sum(isinstance(said, UnmaskShares) for said in answers)
        words = [TAKES_PART]
        words += [f"answers a complaint{'' if told == [self.answer] else ' with something else'}"] if told else []
        return words + ([f"opens {opened} times"] if opened > 1 else [])
