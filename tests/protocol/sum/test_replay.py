"""The machines are deterministic in entropy and time: the same entropy gives the same transcript, byte for byte."""

from typing import Any

from tacit.protocol.sum.adverts import record_bytes
from tacit.secagg.graph import GraphParameters
from tests.cases import cases
from tests.world.sums import memory_sum

FOUR = GraphParameters(neighbours=4, threshold=3)
KINDS: dict[str, dict[str, Any]] = {
    "active": {"clients": 5, "active": True},
    "semi-honest": {"clients": 5, "active": False},
    "chosen": {"clients": 10, "active": True, "parameters": FOUR},
    "ring": {"clients": 10, "active": False, "parameters": FOUR},
}


@cases("kind", KINDS)
def test_the_same_entropy_gives_the_same_transcript(kind: str) -> None:
    transcripts = []
    for _ in range(2):
        run = memory_sum(seed=b"one", **KINDS[kind])
        run.run()
        transcripts.append([(d.sender, d.receiver, d.message, bytes(d.payload or b"")) for d in run.log])
    assert transcripts[0] == transcripts[1]


def test_records_have_one_size() -> None:
    assert [record_bytes(memory_sum(5, active=active).agreement) for active in (True, False)] == [128, 64]
