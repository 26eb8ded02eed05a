"""What a sum moves is what is declared, phase by phase."""

import os
from collections import Counter

import numpy as np
import pytest

from tacit.protocol.costs import Degrees, declared_bytes
from tacit.protocol.members import decode_members
from tacit.protocol.messages import PeerKeys, Phase, ShareKeys, UnmaskRequest, UnmaskShares
from tacit.secagg.graph import GraphParameters
from tacit.simulate.memory import MemorySum, memory_sum

CASES = {
    "active": {"clients": 5, "active": True},
    "semi-honest": {"clients": 5, "active": False},
    "several chunks": {"clients": 3, "active": True, "length": 600_000},
    "ring": {"clients": 24, "active": False, "parameters": GraphParameters(neighbours=8, threshold=4)},
    "chosen": {"clients": 24, "active": True, "parameters": GraphParameters(neighbours=8, threshold=6)},
}


def degrees(run: MemorySum, name: str) -> Degrees:
    """From what the client said and heard: sets of members, not lengths."""
    size = run.agreement.size

    def members(kind: type, field: str) -> int:
        (found,) = (
            delivery.message
            for delivery in run.log
            if isinstance(delivery.message, kind) and name in (delivery.sender, delivery.receiver)
        )
        return len(decode_members(getattr(found, field), size))

    return Degrees(
        holders=members(ShareKeys, "holders"),
        owners=members(UnmaskShares, "owners"),
        known=members(PeerKeys, "included"),
        signers=members(UnmaskRequest, "signers"),
    )


@pytest.mark.parametrize("case", CASES)
def test_bytes_on_the_wire_are_those_declared(case: str) -> None:
    run = memory_sum(**CASES[case], seed=os.urandom(8))
    run.run()
    sent: Counter[Phase] = Counter()
    received: Counter[Phase] = Counter()
    for name in run.agreement.cohort:
        for phase, moved in declared_bytes(run.agreement, name, degrees(run, name)).items():
            sent[phase] += moved.sent
            received[phase] += moved.received
    # Both ends of every link count into one Traffic: what clients sent, the server received.
    number = run.agreement.round
    for phase in sent | received:
        assert run.traffic.sent[number, phase] == sent[phase] + received[phase], phase
        assert run.traffic.received[number, phase] == sent[phase] + received[phase], phase
    assert {phase for _, phase in run.traffic.sent} == set(sent | received)


def test_the_vector_dominates() -> None:
    run = memory_sum(5, active=True, length=100_000, ring_bits=24)
    moved = declared_bytes(run.agreement, "c0", Degrees(holders=5, owners=5, known=5, signers=4))
    total = sum(phase.sent for phase in moved.values())
    assert 300_000 < total < 300_000 * 1.01
    assert np.isclose(moved[Phase.MASKED_INPUT].sent, 300_000, rtol=1e-3)
