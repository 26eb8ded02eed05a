"""What a sum moves is what is declared, phase by phase; and a group key."""

import os
from collections import Counter
from pathlib import Path

import numpy as np

from docs.generate import declared_costs
from docs.generate.traffic import (
    Degrees,
    declared_bytes,
    declared_key_bytes,
    declared_plain_bytes,
)
from tacit.protocol.core.roster import decode_members
from tacit.protocol.group_key.agreement import KeyAgreement
from tacit.protocol.group_key.states import ATTEMPT_TO_MEMBER, ATTEMPT_TO_RELAY
from tacit.protocol.sum.messages import PeerKeys, ShareKeys, UnmaskRequest, UnmaskShares
from tacit.protocol.sum.states import Phase
from tacit.secagg.graph import GraphParameters
from tacit.simulate.world.federation import SERVER, MemoryFederation, small_configuration
from tacit.simulate.world.world import altered
from tests.cases import cases
from tests.world.sums import MemorySum, memory_sum

CASES = {
    "active": {"clients": 5, "active": True},
    "semi-honest": {"clients": 5, "active": False},
    "statements": {"clients": 5, "active": True, "spending": True},
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


@cases("case", CASES)
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


@cases("length", [5, 600_000])
def test_bytes_of_a_plain_sum_are_those_declared(length: int) -> None:
    run = memory_sum(2, active=False, secure=False, length=length, seed=os.urandom(8))
    run.run()
    declared = [declared_plain_bytes(run.agreement, name) for name in run.agreement.cohort]
    moved = sum(one.sent + one.received for one in declared)
    assert run.traffic.sent[run.agreement.round, Phase.MASKED_INPUT] == moved


def test_the_vector_dominates() -> None:
    run = memory_sum(5, active=True, length=100_000, ring_bits=24)
    moved = declared_bytes(run.agreement, "c0", Degrees(holders=5, owners=5, known=5, signers=4))
    total = sum(phase.sent for phase in moved.values())
    assert 300_000 < total < 300_000 * 1.01
    assert np.isclose(moved[Phase.MASKED_INPUT].sent, 300_000, rtol=1e-3)


def moved_by(run: MemoryFederation, name: str, kinds: tuple[type, ...]) -> tuple[int, int]:
    """Bytes of frames of these kinds that a client sent and received, with links whose numbers take one byte."""

    def total(sender: str, receiver: str) -> int:
        link = [parcel for parcel in run.log if (parcel.sender, parcel.receiver) == (sender, receiver)]
        return sum(sum(map(len, altered(parcel, link=0).frames)) for parcel in link if parcel.packet.kind in kinds)

    return total(name, SERVER), total(SERVER, name)


@cases("clients", [3, 12])
def test_bytes_of_a_group_key_are_those_declared(clients: int) -> None:
    run = MemoryFederation(small_configuration(clients, group_key=True, mode="none"), clients)
    run.run()
    names = run.roster.clients
    agreement = KeyAgreement(
        session=run.server.session,
        epoch=0,
        server=SERVER,
        members=names,
        signing_keys=tuple(run.roster.member(name).signing_public for name in names),
        roster=run.roster.hash,
        configuration=run.configuration.hash(),
        phase_seconds=10.0,
    )
    for name in names:
        declared = declared_key_bytes(agreement, name)
        measured = moved_by(run, name, (*ATTEMPT_TO_MEMBER, *ATTEMPT_TO_RELAY))
        assert (declared.sent, declared.received) == measured


def test_the_page_has_the_declared_figures() -> None:
    lines = (Path(__file__).parents[2] / "docs/costs.md").read_text(encoding="utf-8")
    where = "docs/generate/declared_costs.py"
    assert "\n".join(declared_costs.section()) in lines, f"put the lines of {where} into docs/costs.md"
