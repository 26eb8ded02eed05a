"""The server of a sum without secure aggregation: it waits for the vectors, sees each of them, and adds them up.

It is the server of a secure sum (sum/server.py) of whose phases only MASKED_INPUT is left, which begins with
the training: whoever is silent when the training should be over, and a phase after it, is dropped, and a transfer that
moves extends that. Whoever breaks a rule is excluded and named. A vector that is whole counts, even if its client goes
afterwards. The sum needs as many vectors as the agreement says, but no holder of anything.
"""

from __future__ import annotations

from tacit.protocol.core.machine import Step
from tacit.protocol.sum.agreement import Agreement
from tacit.protocol.sum.plain_tables import PLAIN_SERVER_TABLE
from tacit.protocol.sum.results import Summed
from tacit.protocol.sum.server import AggregationServer
from tacit.protocol.sum.tables import ServerState


class PlainSumServer(AggregationServer):
    """The server of one such sum. Members are waited for from the start; `now` starts the first deadline."""

    def __init__(self, agreement: Agreement, now: float) -> None:
        super().__init__(agreement, now)
        self.table, self.state = PLAIN_SERVER_TABLE, ServerState.MASKED_INPUT
        self._phase_began = now + agreement.train_seconds

    @property
    def training(self) -> bool:
        """Whether nobody has said yet that its vector is ready."""
        return not self._complaints

    def close_inputs(self, now: float) -> Step[ServerState]:
        agreement = self.agreement
        survivors = tuple(sorted(self._vectors.included))
        if shortage := self._shortage(len(survivors), "clients sent a vector", agreement.fewest_survivors):
            return shortage
        names = tuple(agreement.cohort[member] for member in survivors)

        def commit() -> None:
            self.deadline = None

        vectors = {agreement.cohort[member]: words for member, words in sorted(self._vectors.vectors.items())}
        return Step(ServerState.COMPLETED, (Summed(self._vectors.total, names, vectors),), commit)

    def _owners(self, holder: int) -> tuple[int, ...]:
        # Nobody holds shares, so that nobody can complain.
        return ()
