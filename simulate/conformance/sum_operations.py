"""Operations that play one secure sum: its server, its clients, or one of them alone."""

from __future__ import annotations

from typing import Any

import msgspec

from tacit.protocol.core.machine import Output
from tacit.protocol.core.primitives import SigningKey
from tacit.protocol.session.rounds import sum_client, sum_server
from tacit.protocol.sum.agreement import Agreement
from tacit.protocol.sum.results import ClientAborted, Contributed, ServerAborted, Summed
from tacit.simulate.conformance.exchange_stage import ExchangeStage
from tacit.simulate.conformance.notation import Octets
from tacit.simulate.conformance.primitive_operations import SumTerms
from tacit.simulate.conformance.stage import entropy_of, event


class SumClient(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A client that is played."""

    name: str
    signing_private: Octets
    vector: Octets
    """Packed ring words."""
    entropy: Octets
    """What it draws, one after the other; docs/spec says in which order."""


class SumStage(ExchangeStage):
    """One secure sum."""

    reports = ("dropped", "complaint", "refused")

    def __init__(self) -> None:
        super().__init__()
        self._agreement: Agreement

    def begin_sum(self, *, terms: SumTerms, clients: tuple[SumClient, ...], server: bool) -> bytes:
        """Begin a secure sum, of which these parties are played, at time 0. Returns its context."""
        self._agreement = agreement = terms.agreement()
        if server:
            self._machines[agreement.server] = sum_server(agreement, 0.0)
        for client in clients:
            self._machines[client.name] = sum_client(
                agreement,
                client.name,
                signing=SigningKey(client.signing_private),
                vector=agreement.ring.unpack(client.vector),
                entropy=entropy_of(client.entropy),
            )
        self._link(agreement.session, server=agreement.server, members=agreement.cohort, round=agreement.round)
        return agreement.context

    def _events(self, party: str, output: Output) -> list[dict[str, Any]]:
        match output:
            case Contributed():
                return []  # Its state says so.
            case ClientAborted() | ServerAborted():
                return [event("aborted", output, "code", "culprit")]
            case Summed():
                words = self._agreement.ring.pack(output.total)
                return [{"event": "sum", "words": words, "survivors": output.survivors}]
        raise TypeError(type(output).__name__)
