"""What the client of an exchange is: it answers one server, and ends well, or aborted with a code.

A Participant is that of a sum, whether anything hides its vector (sum/client.py) or not (sum/plain_client.py): it
contributes one vector, and ends in DONE with what it helped to open. It begins without its vector, which is brought by
CONTRIBUTE as soon as it is made: what does not depend on it is done meanwhile. Chunks of a long one may be asked for
before it is there; they leave with its announcement.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from tacit.protocol.core.blob import WINDOW
from tacit.protocol.core.codec import Envelope, Frame
from tacit.protocol.core.errors import Code, LocalProtocolError, RemoteProtocolError
from tacit.protocol.core.machine import Entropy, Heard, Machine, Output, Report, Send, StateT, Step, Table, Trigger
from tacit.protocol.core.messages import Abort, Message
from tacit.protocol.core.primitives import SigningKey
from tacit.protocol.sum.agreement import Agreement
from tacit.protocol.sum.messages import FetchVector, MaskedInput, VectorChunk
from tacit.protocol.sum.results import ClientAborted, Contributed
from tacit.protocol.sum.tables import ClientState


class Answering(Machine[StateT]):
    """The client of an exchange. What goes wrong ends it with a ClientAborted, and the server is told."""

    ends: ClassVar[tuple[Any, Any]]
    """The state in which it ended well, and that in which it aborted."""

    def __init__(self, table: Table[StateT], state: StateT, server: str) -> None:
        super().__init__(table, state)
        self._server = server

    def start(self, now: float) -> list[Output]:
        """Say the first thing."""
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
            report = Report("refused", {"from": sender, "code": error.code.name, "detail": error.detail})
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
    """What a participant has of its vector in every state. asked: chunks of it that the server has asked for."""

    vector: npt.NDArray[Any] | None = field(default=None, repr=False)
    asked: int = 0


class Participant(Answering[ClientState], outputs=Send | Report | Contributed | ClientAborted):
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
        """The vector is there: ring words of the agreement's length; not modified. Once only."""
        return self.trigger(Trigger.CONTRIBUTE, now, vector)

    def check_vector(self, vector: npt.NDArray[Any]) -> None:
        """LocalProtocolError for what is no vector of this sum."""
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
        """What leaves as soon as the vector is there: all of it if it is one chunk, else what was asked for of it."""
        if self.agreement.chunks == 1:
            return (self._send(message, self._words(own, 0)),)
        return (self._send(message), *(self._vector_chunk(own, chunk) for chunk in range(own.asked)))

    def _vector_chunk(self, own: Own, chunk: int) -> Send:
        return self._send(VectorChunk(chunk=chunk), self._words(own, chunk))

    def _sent(self, own: Own, *sends: Send) -> Step[ClientState]:
        """These chunks leave; what comes of it."""
        return Step(self.state, sends, data=own)

    def _words(self, own: Own, chunk: int) -> Frame:
        """A chunk of the vector as it leaves."""
        span = self.agreement.chunk_span(chunk)
        if own.vector is None:
            raise LocalProtocolError(f"{self.name} has no vector yet")
        return self._packed(np.array(own.vector[span]), span.start)

    def _packed(self, words: npt.NDArray[Any], start: int) -> Frame:
        """These words of the vector, from `start` on, as they leave; they may be changed."""
        raise NotImplementedError
