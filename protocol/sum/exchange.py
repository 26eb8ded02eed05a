"""Common parts of a sum's machines: their outputs, the client as Participant, and the server's waiting for members.

A Participant begins without its vector; CONTRIBUTE brings it as soon as it is made. Chunks of a long vector may be
requested before it is there. A server's phase waits for a set of members and ends when each has answered or is out. A
member whose vector waits to be fetched is not late. Only MASKED_INPUT waits as long as training may take.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from tacit.protocol.core.blob import WINDOW
from tacit.protocol.core.codec import Envelope, Frame, Packet
from tacit.protocol.core.errors import DETAIL_LIMIT, Code, LocalProtocolError, RemoteProtocolError
from tacit.protocol.core.events import Event, MessageRefused
from tacit.protocol.core.machine import (
    Entropy,
    Heard,
    Machine,
    Output,
    Result,
    Send,
    StateT,
    Step,
    Table,
    Trigger,
)
from tacit.protocol.core.messages import Abort, Message
from tacit.protocol.core.primitives import SigningKey
from tacit.protocol.sum.agreement import Agreement
from tacit.protocol.sum.events import ClientDropped, PhaseOpened
from tacit.protocol.sum.messages import FetchVector, MaskedInput, VectorChunk
from tacit.protocol.sum.spending import SpendingSeen
from tacit.protocol.sum.states import ClientState, Phase, ServerState, SumTrigger
from tacit.protocol.sum.vector_sum import VectorSum


@dataclass(frozen=True)
class Contributed(Result):
    """Output: the client is finished; `opened`: members of the sum that it helped to open."""

    opened: tuple[str, ...]


@dataclass(frozen=True)
class ClientAborted(Result):
    """Output: the client aborted the round."""

    code: Code
    detail: str
    culprit: str


@dataclass(frozen=True)
class Dropped:
    """A member that is out: the phase, the reason, and whether its vector is in the sum."""

    member: str
    phase: Phase
    code: Code
    detail: str
    included: bool


@dataclass(frozen=True)
class Summed(Result):
    """Output: the sum over the survivors, as ring words; without secure aggregation, the total of a PlainSum."""

    total: npt.NDArray[Any]
    survivors: tuple[str, ...]
    vectors: Mapping[str, npt.NDArray[Any]] = field(default_factory=dict, repr=False)
    """The words of every survivor, if the agreement requires them."""


@dataclass(frozen=True)
class ServerAborted(Result):
    """Output: there is no sum, with the reason; `culprit` is the member at fault or empty."""

    code: Code
    detail: str
    culprit: str


class Answering(Machine[StateT]):
    """The client of an exchange. Any failure ends it with a ClientAborted, and the server is informed."""

    ends: ClassVar[tuple[Any, Any]]
    """Final states of success and of failure."""

    def __init__(self, table: Table[StateT], state: StateT, server: str) -> None:
        super().__init__(table, state)
        self._server = server

    def start(self, now: float) -> list[Output]:
        """Send the first message."""
        return self.trigger(Trigger.START, now)

    def on_abort(self, heard: Heard[Abort], now: float) -> Step[StateT]:
        return self._aborted(ClientAborted(heard.message.code, heard.message.detail, heard.message.culprit))

    def on_expire(self, now: float) -> Step[StateT]:
        detail = f"no word from {self._server}: {self._left_to_do()}"
        return self._aborted(ClientAborted(Code.TIMEOUT, detail, self._server))

    def on_drop(self, detail: str, now: float) -> Step[StateT]:
        return self._aborted(ClientAborted(Code.LEFT, detail, self._server))

    def refuse(self, sender: str, error: RemoteProtocolError, now: float) -> Step[StateT]:
        if self.state in self.ends:
            report = MessageRefused(member=sender, code=error.code.name, detail=error.detail)
            return Step(self.state, (report,))
        culprit = error.culprit or sender
        abort = self._send(Abort(code=error.code, detail=error.detail, culprit=culprit))
        return self._aborted(ClientAborted(error.code, error.detail, culprit), abort)

    def _left_to_do(self) -> str:
        return f"still to {self.state.value}"

    def _aborted(self, outcome: ClientAborted, *sends: Send) -> Step[StateT]:
        return Step(self.ends[1], (*sends, outcome))

    def _send(self, message: Message, payload: Frame | None = None) -> Send:
        return Send(self._server, message, payload)


@dataclass(frozen=True)
class Own:
    """A participant's vector, in every state. asked: chunks that the server has requested."""

    vector: npt.NDArray[Any] | None = field(default=None, repr=False)
    asked: int = 0


class Participant(Answering[ClientState], outputs=Send | Event | SpendingSeen | Contributed | ClientAborted):
    """One client in one sum."""

    ends = (ClientState.DONE, ClientState.ABORTED)

    def __init__(
        self, table: Table[ClientState], agreement: Agreement, name: str, *, signing: SigningKey, entropy: Entropy
    ) -> None:
        super().__init__(table, ClientState.READY, agreement.server)
        self.agreement = agreement
        self.name = name
        self.member = agreement.places[name]
        self._signing = signing
        self._entropy = entropy
        self.data = Own()

    def contribute(self, vector: npt.NDArray[Any], now: float) -> list[Output]:
        """Submit the vector, once: ring words of the agreement's length; not modified."""
        return self.trigger(SumTrigger.CONTRIBUTE, now, vector)

    def check_vector(self, vector: npt.NDArray[Any]) -> None:
        """LocalProtocolError for an invalid vector."""
        agreement = self.agreement
        if vector.shape != (agreement.length,) or vector.dtype != agreement.ring.word:
            raise LocalProtocolError(
                f"the vector is {vector.dtype}{list(vector.shape)}, not {agreement.length} ring words"
            )

    def hears(self, sender: str, envelope: Envelope) -> bool:
        return envelope.round == self.agreement.round

    def complete(self) -> bool:
        return self.at(Own).vector is not None

    def on_contribute(self, vector: npt.NDArray[Any], now: float) -> Step[ClientState]:
        self.check_vector(vector)
        if self.at(Own).vector is not None:
            raise LocalProtocolError(f"{self.name} contributes a second vector to one sum")
        return Step(self.state, data=replace(self.at(Own), vector=vector))

    def on_fetch_vector(self, heard: Heard[FetchVector], now: float) -> Step[ClientState]:
        own, chunk, chunks = self.at(Own), heard.message.chunk, self.agreement.chunks
        if chunks == 1 or chunk >= chunks:
            raise RemoteProtocolError(Code.VECTOR, f"chunk {chunk} of a vector of {chunks} was asked for")
        if chunk != own.asked or (own.vector is None and chunk >= WINDOW):
            raise RemoteProtocolError(
                Code.UNEXPECTED,
                f"it asks for chunk {chunk} of the vector, not for {own.asked}: each goes out once, and at most "
                f"{WINDOW} are asked for in advance",
            )
        own = replace(own, asked=chunk + 1)
        return self._sent(own) if own.vector is None else self._sent(own, self._vector_chunk(own, chunk))

    def _announced(self, own: Own, message: MaskedInput) -> tuple[Send, ...]:
        """Messages to send once the vector is there: all of it if it is one chunk, else its requested chunks."""
        if self.agreement.chunks == 1:
            return (self._send(message, self._words(own, 0)),)
        return (self._send(message), *(self._vector_chunk(own, chunk) for chunk in range(own.asked)))

    def _vector_chunk(self, own: Own, chunk: int) -> Send:
        return self._send(VectorChunk(chunk=chunk), self._words(own, chunk))

    def _sent(self, own: Own, *sends: Send) -> Step[ClientState]:
        """Send these chunks; returns the resulting step."""
        return Step(self.state, sends, data=own)

    def _words(self, own: Own, chunk: int) -> Frame:
        span = self.agreement.chunk_span(chunk)
        if own.vector is None:
            raise LocalProtocolError(f"{self.name} has no vector yet")
        return self._packed(np.array(own.vector[span]), span.start)

    def _packed(self, words: npt.NDArray[Any], start: int) -> Frame:
        """Encode these words of the vector, from `start` on; they may be changed."""
        raise NotImplementedError


class Attendance(Machine[ServerState], outputs=Send | Event | SpendingSeen | Summed | ServerAborted):
    """The members of one sum. All are awaited from the start; `now` starts the first deadline."""

    def __init__(self, table: Table[ServerState], state: ServerState, agreement: Agreement, now: float) -> None:
        super().__init__(table, state)
        self.agreement = agreement
        self.waiting: set[int] = set()
        """Members that this phase still waits for."""
        self.dropped: dict[int, tuple[Phase, Code, str]] = {}
        """Phase, code and reason, by member."""
        self.proceed_at: float | None = None
        """Time to continue without untrained members, if the others are enough; None: at the deadline only."""
        self.last_ready = now
        """Time at which the last vector was ready."""
        self._vectors = VectorSum(agreement)
        self._begin_phase(tuple(range(agreement.size)), now)

    def start(self, now: float) -> list[Output]:
        """Return the messages before any input."""
        return self.trigger(Trigger.START, now)

    def drop(self, member: str, code: Code, detail: str, now: float) -> list[Output]:
        """Drop a member. A name that is no member of this sum has no effect."""
        return self.trigger(Trigger.DROP, now, member, code, detail)

    @property
    def answered(self) -> int:
        """Number of members that have answered in this phase."""
        return self.agreement.size - len(self.waiting) - len(self.dropped)

    @property
    def drops(self) -> list[Dropped]:
        """All members that are out, in the order of the cohort."""
        return [
            Dropped(self.agreement.cohort[member], phase, code, detail, member in self._vectors.included)
            for member, (phase, code, detail) in sorted(self.dropped.items())
        ]

    @property
    def training(self) -> bool:
        """Whether it waits for a member that has not reported the end of its training."""
        return self.state is ServerState.MASKED_INPUT and not self.waiting <= self._vectors.ready

    def hears(self, sender: str, envelope: Envelope) -> bool:
        return sender in self.agreement.places and envelope.round == self.agreement.round

    def late(self, sender: str, packet: Packet) -> bool:
        member = self.agreement.places[sender]
        answered = packet.kind is not Abort and member not in self.waiting
        return answered or (packet.kind is MaskedInput and member in self._vectors.ready)

    def complete(self) -> bool:
        return not self.waiting

    def deadlines(self) -> Iterator[float]:
        yield from super().deadlines()
        if self.waiting:
            yield from self._vectors.deadlines()
        if self.proceed_at is not None and self._may_proceed():
            yield self.proceed_at

    def expire(self, now: float) -> list[Output]:
        outputs: list[Output] = []
        for member in self._vectors.stalled(now) if self.waiting else ():
            late = RemoteProtocolError(Code.TIMEOUT, "its vector did not come in time")
            outputs += self.reject(self.agreement.cohort[member], late, now)
        if self.proceed_at is not None and now >= self.proceed_at and self._may_proceed():
            outputs += self.trigger(Trigger.EXPIRE, now)
        return outputs + super().expire(now)

    def _may_proceed(self) -> bool:
        """Whether it waits for vectors, and the ready ones are enough for a sum."""
        if self.state is not ServerState.MASKED_INPUT or self.deadline is None or not self.training:
            return False
        agreement, ready = self.agreement, self._vectors.ready - self.dropped.keys()
        whole = sum(ready.issuperset(group) for group in agreement.group_of.values())
        return len(ready) >= agreement.parameters.threshold and whole >= agreement.fewest_summed

    def on_abort(self, heard: Heard[Abort], now: float) -> Step[ServerState]:
        # The code is the client's accusation of others; the client itself is not at fault.
        return self._drop(heard.sender, Code.LEFT, f"it gave up: {heard.message.detail}", now, tell=False)

    def on_drop(self, member: str, code: Code, detail: str, now: float) -> Step[ServerState]:
        return self._drop(member, code, detail, now, tell=False)

    def on_expire(self, now: float) -> Step[ServerState]:
        detail = f"it did not answer in time in {self.state.value}"
        steps = [
            self._drop(self.agreement.cohort[member], Code.TIMEOUT, detail, now, tell=True)
            for member in sorted(self.waiting)
            if not self._vectors.underway(member)
        ]

        def commit() -> None:
            self.deadline = None
            for step in steps:
                step.commit()

        return Step(self.state, tuple(output for step in steps for output in step.outputs), commit)

    def on_vector_chunk(self, heard: Heard[VectorChunk], now: float) -> Step[ServerState]:
        member, chunk = self.agreement.places[heard.sender], heard.message.chunk
        self._vectors.check(member, chunk)
        words = self._vectors.words(heard.payload or b"", chunk)

        def commit() -> list[Output]:
            requests = self._vectors.store(member, chunk, words, now)
            self.waiting -= self._vectors.settled & {member}
            return self._requests(requests)

        return Step(self.state, (), commit)

    def refuse(self, sender: str, error: RemoteProtocolError, now: float) -> Step[ServerState]:
        return self._drop(sender, error.code, error.detail, now, tell=True)

    def _drop(self, name: str, code: Code, detail: str, now: float, *, tell: bool) -> Step[ServerState]:
        member = self.agreement.places.get(name)
        if member is None or member in self.dropped or self.state in (ServerState.COMPLETED, ServerState.ABORTED):
            return Step(self.state)
        phase = Phase(self.state.value)
        report = ClientDropped(member=name, phase=phase, code=code.name, detail=detail)
        notices = (Send(name, Abort(code=code, detail=detail, culprit=name)),) if tell else ()

        def commit() -> list[Output]:
            self.dropped[member] = (phase, code, detail)
            requests = self._vectors.discard(member, now)
            self.waiting.discard(member)
            if self.state is ServerState.MASKED_INPUT:
                self.waiting -= self._vectors.settled
            return self._requests(requests)

        return Step(self.state, (report, *notices), commit)

    def _requests(self, requests: list[tuple[int, int]]) -> list[Output]:
        return [Send(self.agreement.cohort[member], FetchVector(chunk=chunk)) for member, chunk in requests]

    def _answered(self, member: int, store: Callable[[], None], *outputs: Output) -> Step[ServerState]:
        def commit() -> None:
            store()
            self.waiting.discard(member)

        return Step(self.state, outputs, commit)

    def _take_vector(
        self, heard: Heard[MaskedInput], now: float, store: Callable[[], None], *reports: Event
    ) -> Step[ServerState]:
        """A vector is ready: take it, or request it when its turn comes."""
        member, payload = self.agreement.places[heard.sender], heard.payload
        if (payload is not None) != (self.agreement.chunks == 1):
            raise RemoteProtocolError(
                Code.VECTOR, "a vector of one chunk comes at once, a longer one when it is fetched"
            )
        words = None if payload is None else self._vectors.words(payload, 0)

        def commit() -> list[Output]:
            store()
            self.last_ready = now
            requests = self._vectors.take(member, words, now)
            self.waiting -= self._vectors.settled & {member}
            return self._requests(requests)

        return Step(self.state, reports, commit)

    def _begin_phase(self, members: tuple[int, ...], now: float) -> None:
        training = self.state is ServerState.MASKED_INPUT
        self.waiting = set(members)
        self.deadline = now + self.agreement.phase_seconds + (self.agreement.train_seconds if training else 0)

    def _next(
        self,
        state: ServerState,
        messages: Mapping[int, Message],
        commit: Callable[[], Sequence[Output] | None],
        *reports: Event | SpendingSeen,
    ) -> Step[ServerState]:
        report = PhaseOpened(phase=Phase(state.value), members=len(messages))
        sends = [Send(self.agreement.cohort[member], message) for member, message in messages.items()]
        return Step(state, (*reports, report, *sends), commit)

    def _shortage(self, count: int, what: str, needed: int | None = None) -> Step[ServerState] | None:
        needed = self.agreement.parameters.threshold if needed is None else needed
        return None if count >= needed else self._too_few(count, what, needed)

    def _too_few(self, count: int, what: str, needed: int) -> Step[ServerState]:
        reasons = [f"; {self.agreement.cohort[member]}: {detail}" for member, (_, _, detail) in self.dropped.items()]
        return self._aborted(Code.THRESHOLD, f"only {count} {what}; {needed} are needed{''.join(reasons[:1])}", "")

    def _aborted(self, code: Code, detail: str, culprit: str) -> Step[ServerState]:
        abort = Abort(code=code, detail=detail[:DETAIL_LIMIT], culprit=culprit)
        sends = [Send(name, abort) for member, name in enumerate(self.agreement.cohort) if member not in self.dropped]
        return Step(ServerState.ABORTED, (*sends, ServerAborted(code, detail, culprit)))
