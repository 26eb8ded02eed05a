"""What the client of an exchange is: it answers one server, and ends well, or aborted with a code.

A Participant is that of a sum, whether anything hides its vector (sum/client.py) or not (sum/plain_client.py): it
contributes one vector, and ends in DONE with what it helped to open.
"""

from __future__ import annotations

from typing import Any, ClassVar

import numpy.typing as npt

from tacit.protocol.core.codec import Envelope, Frame
from tacit.protocol.core.errors import Code, LocalProtocolError, RemoteProtocolError
from tacit.protocol.core.machine import Entropy, Heard, Machine, Output, Report, Send, StateT, Step, Table, Trigger
from tacit.protocol.core.messages import Abort, Message
from tacit.protocol.core.primitives import SigningKey
from tacit.protocol.sum.agreement import Agreement
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


class Participant(Answering[ClientState], outputs=Send | Report | Contributed | ClientAborted):
    """One client in one sum. vector: ring words of the agreement's length; not modified."""

    ends = (ClientState.DONE, ClientState.ABORTED)

    def __init__(
        self,
        table: Table[ClientState],
        agreement: Agreement,
        name: str,
        *,
        signing: SigningKey,
        vector: npt.NDArray[Any],
        entropy: Entropy,
    ) -> None:
        super().__init__(table, ClientState.READY, agreement.server)
        if vector.shape != (agreement.length,) or vector.dtype != agreement.ring.word:
            raise LocalProtocolError(
                f"the vector is {vector.dtype}{list(vector.shape)}, not {agreement.length} ring words"
            )
        self.agreement = agreement
        self.name = name
        self.member = agreement.places[name]
        self._signing = signing
        self._entropy = entropy

    def hears(self, sender: str, envelope: Envelope) -> bool:
        return envelope.round == self.agreement.round
