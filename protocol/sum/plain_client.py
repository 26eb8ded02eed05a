"""The client of a sum without secure aggregation: it sends its vector as it is, and the server sees it.

Of the phases of a secure sum (sum/client.py) only the vectors are left: the same words in chunks, but no keys, shares
and masks, and no second answer. So nothing hides the vector but the link, and a
client is brought here only by a policy that lists the mode "none". Each chunk leaves once, in order; where the members
agreed to skip zeros, without its blocks of zeros, which tells the server nothing that the words would not.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from tacit.protocol.core.codec import Frame
from tacit.protocol.core.errors import Code, LocalProtocolError, RemoteProtocolError
from tacit.protocol.core.machine import Entropy, Heard, Step
from tacit.protocol.core.members import encode_members
from tacit.protocol.core.primitives import SigningKey
from tacit.protocol.sum.agreement import Agreement
from tacit.protocol.sum.messages import FetchVector, MaskedInput, VectorChunk
from tacit.protocol.sum.participant import Participant
from tacit.protocol.sum.plain_tables import PLAIN_CLIENT_TABLE
from tacit.protocol.sum.results import Contributed
from tacit.protocol.sum.tables import ClientState
from tacit.secagg.filled_blocks import pack_filled


@dataclass(frozen=True)
class _Sending:
    """sent: chunks of the vector that have left."""

    vector: npt.NDArray[Any] = field(repr=False)
    sent: int = 0


class PlainSumClient(Participant, tables=(PLAIN_CLIENT_TABLE,)):
    """One client in one sum that the server sees the summands of. LocalProtocolError for a secure agreement."""

    def __init__(
        self, agreement: Agreement, name: str, *, signing: SigningKey, vector: npt.NDArray[Any], entropy: Entropy
    ) -> None:
        if agreement.secure:
            raise LocalProtocolError("the vector of a secure sum must not leave without masks")
        super().__init__(PLAIN_CLIENT_TABLE, agreement, name, signing=signing, vector=vector, entropy=entropy)
        self.data = _Sending(vector)

    def on_start(self, now: float) -> Step[ClientState]:
        agreement = self.agreement
        message = MaskedInput(complaints=encode_members((), agreement.size), signatures=b"")
        if agreement.chunks == 1:
            return Step(ClientState.DONE, (self._send(message, self._plain_chunk(0)), Contributed(())))
        return Step(
            ClientState.AWAIT_SURVIVORS,
            (self._send(message),),
            data=self.data,
            # Others train longer, and may be fetched from before.
            deadline=now + agreement.train_seconds + agreement.input_seconds + agreement.phase_seconds,
        )

    def on_fetch_vector(self, heard: Heard[FetchVector], now: float) -> Step[ClientState]:
        due, chunks = self.at(_Sending).sent, self.agreement.chunks
        if heard.message.chunk != due:
            raise RemoteProtocolError(
                Code.UNEXPECTED,
                f"it asks for chunk {heard.message.chunk} of the vector, not for {due} of {chunks}: each goes out once",
            )
        chunk = self._send(VectorChunk(chunk=due), self._plain_chunk(due))
        if due + 1 == chunks:
            return Step(ClientState.DONE, (chunk, Contributed(())))
        return Step(ClientState.AWAIT_SURVIVORS, (chunk,), data=replace(self.at(_Sending), sent=due + 1))

    def _left_to_do(self) -> str:
        return f"it has fetched {self.at(_Sending).sent} of {self.agreement.chunks} chunks of the vector"

    def _plain_chunk(self, chunk: int) -> Frame:
        ring, words = self.agreement.ring, self.at(_Sending).vector[self.agreement.chunk_span(chunk)]
        return pack_filled(ring, words) if self.agreement.skip_zeros else ring.pack(np.array(words))
