"""A sum without secure aggregation: only the vectors are left of the phases of a secure sum, and the server sees each.

Only the link hides them, so a client takes part only by a policy that lists the mode "none". A client is finished with
its last chunk: the end of the round reports the outcome. A complete vector counts, even if its client leaves
afterwards.
"""

from __future__ import annotations

from typing import Any, Final

import numpy.typing as npt

from tacit.protocol.core.codec import Frame
from tacit.protocol.core.errors import Code, LocalProtocolError, RemoteProtocolError
from tacit.protocol.core.machine import IGNORE, Entropy, Heard, Row, Send, Step, Table, Trigger
from tacit.protocol.core.messages import Abort
from tacit.protocol.core.primitives import SigningKey
from tacit.protocol.core.roster import decode_members, encode_members
from tacit.protocol.sum.agreement import Agreement
from tacit.protocol.sum.exchange import Attendance, Contributed, Own, Participant, Summed
from tacit.protocol.sum.messages import FetchVector, MaskedInput, VectorChunk
from tacit.protocol.sum.states import ClientState, ServerState, SumTrigger


class PlainSumClient(Participant):
    """One client in one sum whose summands the server sees. LocalProtocolError for a secure agreement."""

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


class PlainSumServer(Attendance):
    """The server of one such sum. Members are awaited from the start; `now` starts the first deadline."""

    def __init__(self, agreement: Agreement, now: float) -> None:
        super().__init__(PLAIN_SERVER_TABLE, ServerState.MASKED_INPUT, agreement, now)

    def on_start(self, now: float) -> Step[ServerState]:
        return Step(self.state, commit=lambda: self._requests(self._vectors.invite(now)))

    def on_masked_input(self, heard: Heard[MaskedInput], now: float) -> Step[ServerState]:
        if decode_members(heard.message.complaints, self.agreement.size):
            raise RemoteProtocolError(Code.MEMBERS, "it complains about shares that nobody has")
        self.agreement.split_signatures(heard.message.signatures, ())
        return self._take_vector(heard, now, lambda: None)

    def close_inputs(self, now: float) -> Step[ServerState]:
        agreement = self.agreement
        survivors = tuple(sorted(self._vectors.included))
        if shortage := self._shortage(len(survivors), "clients sent a vector", agreement.fewest_summed):
            return shortage
        names = tuple(agreement.cohort[member] for member in survivors)
        vectors = {agreement.cohort[member]: words for member, words in sorted(self._vectors.vectors.items())}
        return Step(ServerState.COMPLETED, (Summed(self._vectors.total, names, vectors),))


_READY, _OWN, _FETCHED = ClientState.READY, ClientState.AWAIT_VECTOR, ClientState.AWAIT_SURVIVORS

PLAIN_CLIENT_TABLE: Final[Table[ClientState]] = {
    (_READY, Trigger.START): Row(PlainSumClient.on_start, (_OWN,)),
    (_READY, Trigger.DROP): Row(PlainSumClient.on_drop, (ClientState.ABORTED,)),
    (_OWN, SumTrigger.CONTRIBUTE): Row(PlainSumClient.on_contribute, (_OWN,)),
    (_OWN, Trigger.COMPLETE): Row(PlainSumClient.on_vector, (_FETCHED, ClientState.DONE)),
    (_OWN, FetchVector): Row(PlainSumClient.on_fetch_vector, (_OWN,)),
    (_FETCHED, FetchVector): Row(PlainSumClient.on_fetch_vector, (_FETCHED, ClientState.DONE)),
    (_FETCHED, Trigger.EXPIRE): Row(PlainSumClient.on_expire, (ClientState.ABORTED,)),
    **{(state, Abort): Row(PlainSumClient.on_abort, (ClientState.ABORTED,)) for state in (_OWN, _FETCHED)},
    **{(state, Trigger.DROP): Row(PlainSumClient.on_drop, (ClientState.ABORTED,)) for state in (_OWN, _FETCHED)},
}

_COLLECTING = ServerState.MASKED_INPUT

PLAIN_SERVER_TABLE: Final[Table[ServerState]] = {
    (_COLLECTING, Trigger.START): Row(PlainSumServer.on_start, (_COLLECTING,)),
    (_COLLECTING, MaskedInput): Row(PlainSumServer.on_masked_input, (_COLLECTING,)),
    (_COLLECTING, VectorChunk): Row(PlainSumServer.on_vector_chunk, (_COLLECTING,)),
    (_COLLECTING, Abort): Row(PlainSumServer.on_abort, (_COLLECTING,)),
    (_COLLECTING, Trigger.DROP): Row(PlainSumServer.on_drop, (_COLLECTING,)),
    (_COLLECTING, Trigger.EXPIRE): Row(PlainSumServer.on_expire, (_COLLECTING,)),
    (_COLLECTING, Trigger.COMPLETE): Row(PlainSumServer.close_inputs, (ServerState.COMPLETED, ServerState.ABORTED)),
    **{
        (state, cause): IGNORE
        for state in (ServerState.COMPLETED, ServerState.ABORTED)
        for cause in (MaskedInput, VectorChunk, Abort, Trigger.DROP, Trigger.EXPIRE)
    },
}
