"""The server of a sum without secure aggregation: it waits for the vectors, sees each of them, and adds them up.

Of the phases of a secure sum (sum/server.py) only MASKED_INPUT is left, which begins at once: whoever is silent when
the training should be over, and a phase after it, is dropped. Whoever breaks a rule is excluded and named.
A vector that is whole counts, even if its client goes afterwards. The sum needs as many vectors as the agreement says,
but no holder of anything.
"""

from __future__ import annotations

from tacit.protocol.core.errors import Code, RemoteProtocolError
from tacit.protocol.core.machine import Heard, Step
from tacit.protocol.core.members import decode_members
from tacit.protocol.sum.agreement import Agreement
from tacit.protocol.sum.attendance import Attendance
from tacit.protocol.sum.messages import MaskedInput
from tacit.protocol.sum.plain_tables import PLAIN_SERVER_TABLE
from tacit.protocol.sum.results import Summed
from tacit.protocol.sum.tables import ServerState


class PlainSumServer(Attendance, tables=(PLAIN_SERVER_TABLE,)):
    """The server of one such sum. Members are waited for from the start; `now` starts the first deadline."""

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
