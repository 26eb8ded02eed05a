"""Rules that both owners of a session of private inference share: its terms, and the rounds of a pass.

data_owner.py and model_owner.py are the two sides. Any failure ends the session: shares in transit cannot be recovered,
and correlated randomness serves once.

Both sides follow the same schedule. In a round each opens the scheduled number of bytes, possibly none. A side that
owes nothing in a round does not wait in it, so messages may arrive for rounds later than this side's current one; but
never for a round after one in which this side still owes something, because the peer's opening depends on it.

In the round `range` each opens one word. If their sum modulo 2^64 is 0 the pass is in range and continues; otherwise it
is refused, and over for each side as soon as it knows both words. Each machine computes the verdict itself, from the
same two words, so neither can mistake the other's next message for one out of turn.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from msgspec.structs import replace

from tacit.protocol.core.codec import Frame, Packet
from tacit.protocol.core.errors import Code, LocalProtocolError, RemoteProtocolError
from tacit.protocol.core.link import NO_SESSION, Link, Traffic
from tacit.protocol.core.machine import Heard, Output, Send, Step, Table, Transmit, Trigger
from tacit.protocol.core.messages import Abort, Message
from tacit.protocol.core.primitives import KEY_BYTES
from tacit.protocol.core.roster import Roster
from tacit.protocol.inference.audit import (
    Audit,
    AuditAsked,
    AuditPicked,
    KeysRevealed,
    joined_keys,
    picked,
    split_keys,
)
from tacit.protocol.inference.exchange import ExchangeSide, check_number
from tacit.protocol.inference.material import Arrivals, chunks
from tacit.protocol.inference.messages import (
    AuditCoin,
    AuditCommitment,
    AuditKeys,
    Opening,
    PassStarted,
    StartPass,
)
from tacit.protocol.inference.quota import Quota, Spent, answered
from tacit.protocol.inference.results import (
    Agreed,
    Charged,
    InferenceEnded,
    MaskedLayer,
    Opened,
    PassAsked,
    PassBegun,
    PassRefused,
)
from tacit.protocol.inference.schedule import RANGE, WORD_BITS, Round, pass_rounds
from tacit.protocol.inference.states import InferenceState, InferenceTrigger


class PassRounds:
    """Progress of one owner in the rounds of a pass: openings owed, due, and not allowed yet."""

    def __init__(self, rounds: Sequence[Round], *, model_owner: bool) -> None:
        pairs = [(each.model_owner_bytes, each.data_owner_bytes) for each in rounds]
        own, peers = zip(*(pair if model_owner else pair[::-1] for pair in pairs), strict=True)
        self._owed = [(step, size) for step, size in enumerate(own) if size]
        self._given = 0
        self._range = next((step for step, each in enumerate(rounds) if each.operation == RANGE), None)
        self._word: int | None = None
        """The first word of the range check."""
        self.arrivals = Arrivals("the opening of round", enumerate(peers))

    @property
    def owed(self) -> int | None:
        """The next round in which this side opens something."""
        return self._owed[self._given][0] if self._given < len(self._owed) else None

    @property
    def over(self) -> bool:
        return self.owed is None and self.arrivals.next is None

    @property
    def waiting(self) -> bool:
        """Whether it is the peer's turn, as far as this side can know."""
        due, owed = self.arrivals.next, self.owed
        return due is not None and (owed is None or due <= owed)

    @property
    def word_opened(self) -> bool:
        """Whether this side has opened its word of the range check, so that the peer can know the verdict."""
        return any(step == self._range for step, _ in self._owed[: self._given])

    def check(self, step: int, chunk: int, payload: Frame | None) -> None:
        """Refuse an opening that is not due, or that the peer cannot know yet."""
        self.arrivals.check(step, chunk, payload)
        if self.owed is not None and self.owed < step:
            raise RemoteProtocolError(
                Code.UNEXPECTED, f"the opening of round {step} came before this side has opened anything in {self.owed}"
            )

    def give(self, step: int, size: int) -> None:
        """Record this side's opening. Raises LocalProtocolError for another round or length than the one owed."""
        expected = self._owed[self._given] if self._given < len(self._owed) else None
        due = self.arrivals.next
        if (step, size) != expected or (due is not None and due < step):
            raise LocalProtocolError(f"{size} bytes for round {step}; owed (round, bytes): {expected}, due: {due}")
        self._given += 1

    def verdict(self, step: int, opened: Frame | None) -> bool | None:
        """Return whether the pass is in range, if this opening is the second word of the range check; else None."""
        if step != self._range or self._word is None:
            return None
        return (self._word + _word(opened)) % (1 << WORD_BITS) == 0

    def note(self, step: int, opened: Frame | None) -> None:
        """Store the opening if it is the first word of the range check."""
        if step == self._range and self._word is None:
            self._word = _word(opened)


class InferenceSession(
    ExchangeSide[InferenceState],
    outputs=Transmit
    | Agreed
    | MaskedLayer
    | PassAsked
    | AuditAsked
    | AuditPicked
    | KeysRevealed
    | PassBegun
    | Charged
    | Opened
    | PassRefused
    | InferenceEnded,
):
    """One owner towards its peer. quota: the peer's daily limits at this side; spent: their earlier use."""

    def __init__(
        self,
        table: Table[InferenceState],
        state: InferenceState,
        *,
        own: str,
        peer: str,
        roster: Roster,
        patience: float,
        quota: Quota,
        spent: Spent,
    ) -> None:
        super().__init__(
            table,
            state,
            ends=(InferenceState.CLOSED, InferenceState.ABORTED),
            link=Link(own, peer, NO_SESSION, Traffic(), self.kinds),
            patience=patience,
        )
        self.number = 0
        """Number of the current or latest pass, from 1."""
        self._roster = roster
        self._agreed: Agreed | None = None
        self._quota = quota
        self._spent = spent
        self.unaudited = False
        """Whether an audit of the pass is still due, or due again because the last coin picked requests."""

    @property
    def judged(self) -> bool:
        """Whether passes end in a verdict, which both sides learn."""
        return True

    @property
    def agreed(self) -> Agreed:
        """The agreement of both sides. Raises LocalProtocolError before there is one."""
        if self._agreed is None:
            raise LocalProtocolError(f"{self.own!r} and {self.peer!r} have not agreed on terms")
        return self._agreed

    @property
    def waiting(self) -> bool:
        computing = isinstance(self.data, PassRounds) and not self.data.waiting
        return (self.state, Trigger.EXPIRE) in self.table and not computing

    def give(self, step: int, data: Frame, now: float) -> list[Output]:
        """Open this side's data in a round of the pass; without effect once the session is over."""
        return [] if self.over else self.trigger(InferenceTrigger.OPEN, now, step, data)

    def audit(self, contribution: bytes, numbers: Sequence[int], now: float) -> list[Output]:
        """Audit these requests, which have arrived and are unused. contribution: KEY_BYTES fresh random bytes."""
        return [] if self.over else self.trigger(InferenceTrigger.AUDIT, now, contribution, tuple(numbers))

    def reveal(self, keys: Sequence[bytes], now: float) -> list[Output]:
        """Reveal the keys of the picked requests, in order."""
        return [] if self.over else self.trigger(InferenceTrigger.REVEAL, now, keys)

    def _picked(self, audit: Audit, theirs: bytes) -> tuple[int, ...]:
        server = self.own == self._roster.server.name
        model_owner, data_owner = (audit.contribution, theirs) if server else (theirs, audit.contribution)
        return picked(
            audit.numbers,
            audited=self.agreed.terms.audited,
            session=self.session,
            model_owner=model_owner,
            data_owner=data_owner,
        )

    def _reveals(self, keys: Sequence[bytes], then: InferenceState) -> Step[InferenceState]:
        audit = self.at(Audit)
        if len(keys) != len(audit.picked):
            raise LocalProtocolError(f"{len(keys)} keys where {len(audit.picked)} requests were picked")
        return Step(then, (self._send(AuditKeys(), joined_keys(keys)),), data=audit)

    def _revealed(self, heard: Heard[AuditKeys]) -> KeysRevealed:
        count, said = len(self.at(Audit).picked), bytes(heard.payload or b"")
        if len(said) != KEY_BYTES * count:
            raise RemoteProtocolError(
                Code.VECTOR, f"it reveals {len(said)} bytes of keys where the coin has picked {count} requests"
            )
        return KeysRevealed(split_keys(said))

    def on_opening(self, heard: Heard[Opening], now: float) -> Step[InferenceState]:
        rounds = self.at(PassRounds)
        step = heard.message.step
        rounds.check(step, heard.message.chunk, heard.payload)
        in_range = rounds.verdict(step, heard.payload)

        def commit() -> list[Output]:
            rounds.note(step, heard.payload)
            complete = rounds.arrivals.take(heard.payload)
            opened: list[Output] = [] if complete is None else [Opened(*complete)]
            return [*opened, *self._judged(in_range)]

        over = in_range is False or (rounds.owed is None and rounds.arrivals.ends_with(heard.payload))
        return Step(InferenceState.IDLE if over else InferenceState.COMPUTING, (), commit)

    def on_give(self, step: int, data: Frame, now: float) -> Step[InferenceState]:
        rounds = self.at(PassRounds)
        rounds.give(step, memoryview(data).nbytes)
        sends = tuple(self._send(Opening(step=step, chunk=chunk), piece) for chunk, piece in chunks(data))
        in_range = rounds.verdict(step, data)
        rounds.note(step, data)
        over = in_range is False or rounds.over
        return Step(InferenceState.IDLE if over else InferenceState.COMPUTING, sends, lambda: self._judged(in_range))

    def _judged(self, in_range: bool | None) -> list[Output]:
        if in_range is None:
            return []
        if not in_range:
            return [PassRefused(self.number)]
        self._spent = answered(self._spent, self._count_of(self.number))
        return [Charged(self.peer, self._spent)]

    def _ended(self, code: Code | None, detail: str, culprit: str = "", *sends: Send) -> Step[InferenceState]:
        step = super()._ended(code, detail, culprit, *sends)
        if isinstance(self.data, PassRounds) and self.judged and not self.data.word_opened:
            # If the peer cannot know the verdict, the pass counts as no refusal, regardless of the party that failed.
            charged = Charged(self.peer, answered(self._spent, self._count_of(self.number)))
            return replace(step, outputs=(charged, *step.outputs))
        return step

    def _count_of(self, number: int) -> int:
        raise NotImplementedError

    def _accept(self, packet: Packet) -> bool:
        self._link.accept(packet)
        if packet.kind is not Abort:
            check_number(packet, self._number_of(packet.kind) + (packet.kind is StartPass))
        return True

    def _number_of(self, kind: type[Message]) -> int:
        return self.number if kind in _IN_A_PASS else 0

    def _begun(self, *said: Output) -> Step[InferenceState]:
        rounds = self._rounds_of(self.agreed.images_of(self.number))
        begun = PassBegun(self.number, rounds)
        return Step(
            InferenceState.COMPUTING,
            (*said, begun),
            data=PassRounds(rounds, model_owner=self.own == self._roster.server.name),
        )

    def _rounds_of(self, images: int) -> tuple[Round, ...]:
        terms = self.agreed.terms
        return pass_rounds(terms.sizes, images, results=terms.results)


_IN_A_PASS: Final = (StartPass, AuditCommitment, AuditCoin, AuditKeys, PassStarted, Opening)


def _word(opened: Frame | None) -> int:
    return int.from_bytes(bytes(opened or b""), "little")
