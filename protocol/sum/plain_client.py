"""The client of a sum without secure aggregation: it sends its vector as it is, and the server sees it.

Of the phases of a secure sum (sum/client.py) only the vectors are left: the same words in chunks, but no keys, shares
and masks, and no second answer. So nothing hides the vector but the link, and a
client is brought here only by a policy that lists the mode "none". Each chunk leaves once, in order.
"""

from __future__ import annotations

from typing import Any

import numpy.typing as npt

from tacit.protocol.core.codec import Frame
from tacit.protocol.core.errors import LocalProtocolError
from tacit.protocol.core.machine import Entropy, Send, Step
from tacit.protocol.core.members import encode_members
from tacit.protocol.core.primitives import SigningKey
from tacit.protocol.sum.agreement import Agreement
from tacit.protocol.sum.messages import MaskedInput
from tacit.protocol.sum.participant import Own, Participant
from tacit.protocol.sum.plain_tables import PLAIN_CLIENT_TABLE
from tacit.protocol.sum.results import Contributed
from tacit.protocol.sum.tables import ClientState


class PlainSumClient(Participant, tables=(PLAIN_CLIENT_TABLE,)):
    """One client in one sum that the server sees the summands of. LocalProtocolError for a secure agreement."""

    def __init__(self, agreement: Agreement, name: str, *, signing: SigningKey, entropy: Entropy) -> None:
        if agreement.secure:
            raise LocalProtocolError("the vector of a secure sum must not leave without masks")
        super().__init__(PLAIN_CLIENT_TABLE, agreement, name, signing=signing, entropy=entropy)

    def on_start(self, now: float) -> Step[ClientState]:
        return Step(ClientState.AWAIT_VECTOR, data=self.data)

    def on_vector(self, now: float) -> Step[ClientState]:
        agreement, own = self.agreement, self.at(Own)
        message = MaskedInput(complaints=encode_members((), agreement.size), signatures=b"")
        # Others train longer, and may be fetched from before.
        deadline = now + agreement.train_seconds + agreement.input_seconds + agreement.phase_seconds
        return self._sent(own, *self._announced(own, message), deadline=deadline)

    def _sent(self, own: Own, *sends: Send, deadline: float | None = None) -> Step[ClientState]:
        if own.vector is None:
            return super()._sent(own, *sends)
        if self.agreement.chunks in (1, own.asked):
            return Step(ClientState.DONE, (*sends, Contributed(())))
        return Step(ClientState.AWAIT_SURVIVORS, sends, data=own, deadline=deadline)

    def _left_to_do(self) -> str:
        return f"it has fetched {self.at(Own).asked} of {self.agreement.chunks} chunks of the vector"

    def _packed(self, words: npt.NDArray[Any], start: int) -> Frame:
        return self.agreement.ring.pack(words)
