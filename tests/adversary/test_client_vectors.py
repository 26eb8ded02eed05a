"""Vectors that are not right, late or twice, and messages out of turn: their senders are named or not heard."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import pytest

from tacit.protocol.core.errors import Code
from tacit.protocol.core.messages import Message
from tacit.protocol.sum.exchange import ServerAborted, Summed
from tacit.protocol.sum.messages import (
    AdvertiseKeys,
    ConfirmSurvivors,
    MaskedInput,
    PeerKeys,
    ShareKeys,
    UnmaskShares,
    VectorChunk,
)
from tacit.secagg.packing import Packing, Total, WeightForm
from tacit.simulate.world.world import Streams
from tests.cases import cases
from tests.world.exchange import Delivery
from tests.world.sums import MemorySum, memory_sum

Audit = Callable[[MemorySum], Summed | ServerAborted]
ExactSum = Callable[[MemorySum], Summed]
Change = Callable[[MemorySum, Any], Message]
CLIENTS = 5
CHEAT = "c1"
MEMBER = 1
OTHERS = ("c0", "c2", "c3", "c4")
modes = cases("active", [True, False])


@pytest.mark.threat("client/wrong-length-vector")
@modes
@cases("payload", [b"", bytes(19), bytes(16), bytes(24), None])
def test_a_vector_of_another_length(payload: bytes | None, active: bool, summed: ExactSum, cheats: Any) -> None:
    run = memory_sum(CLIENTS, active=active, seed=b"cheats")
    run.hook = lambda d: [replace(d, payload=payload)] if (d.sender, d.kind) == (CHEAT, "masked-input") else [d]
    run.run()
    assert summed(run).survivors == OTHERS
    cheats.caught(run, "MASKED_INPUT", Code.VECTOR)


def check_the_second_of_two_vectors_is_ignored(active: bool, summed: ExactSum, cheats: Any) -> None:
    run = memory_sum(CLIENTS, active=active, seed=b"cheats")
    run.hook = lambda d: [d, replace(d, payload=bytes(20))] if (d.sender, d.kind) == (CHEAT, "masked-input") else [d]
    run.run()
    assert summed(run).survivors == run.agreement.cohort
    assert (run.server.ignored, run.server.drops) == (1, [])


def check_the_second_of_two_adverts_is_ignored(active: bool, summed: ExactSum, cheats: Any) -> None:
    run = memory_sum(CLIENTS, active=active, seed=b"cheats")
    second = AdvertiseKeys(channel_key=bytes(32), mask_key=bytes(32), choices=b"", spent=b"", signature=b"")
    run.hook = lambda d: [d, replace(d, message=second)] if (d.sender, d.kind) == (CHEAT, "advertise-keys") else [d]
    run.run()
    assert summed(run).survivors == run.agreement.cohort
    assert (run.server.ignored, run.server.drops) == (1, [])


@pytest.mark.threat("client/two-vectors")
@pytest.mark.threat("client/duplicate-identity")
def test_the_second_of_two_vectors_or_adverts_is_ignored(summed: ExactSum, cheats: Any) -> None:
    for active in [True, False]:
        check_the_second_of_two_vectors_is_ignored(active, summed, cheats)

    for active in [True, False]:
        check_the_second_of_two_adverts_is_ignored(active, summed, cheats)


PHASES = {
    "advertise-keys": "ADVERTISE_KEYS",
    "share-keys": "SHARE_KEYS",
    "masked-input": "MASKED_INPUT",
    "unmask-shares": "UNMASK",
}


@pytest.mark.threat("client/late-vector")
@modes
@cases("kind", PHASES)
def test_a_late_message_is_ignored(kind: str, active: bool, summed: ExactSum, cheats: Any) -> None:
    run = memory_sum(CLIENTS, active=active, seed=b"cheats")
    held: list[Delivery] = []

    def hook(delivery: Delivery) -> list[Delivery]:
        if (delivery.sender, delivery.kind) == (CHEAT, kind):
            held.append(delivery)
            return []
        return [delivery]

    run.hook = hook
    run.run()
    late = run.server.ignored
    run.hook = lambda delivery: [delivery]
    run.deliver(held[0])
    assert run.server.ignored == late + 1
    assert summed(run).survivors == (run.agreement.cohort if kind == "unmask-shares" else OTHERS)
    cheats.caught(run, PHASES[kind], Code.TIMEOUT)


@pytest.mark.threat("server/drops-key")
@modes
def test_what_a_client_holds_against_others_is_no_fault_of_its_own(active: bool, summed: ExactSum, cheats: Any) -> None:
    run = memory_sum(CLIENTS, active=active, seed=b"cheats")
    run.hook = lambda d: (
        [replace(d, message=msgspec.structs.replace(d.message, adverts=b""))]
        if (d.receiver, d.kind) == (CHEAT, "peer-keys")
        else [d]
    )
    run.run()
    assert summed(run).survivors == OTHERS
    (drop,) = run.server.drops
    assert (drop.member, drop.code) == (CHEAT, Code.LEFT)
    assert drop.detail.startswith("it gave up: ")


EARLY: dict[str, Message] = {
    "share-keys": ShareKeys(seed_commitment=bytes(32), holders=b"", packets=b"", signatures=b""),
    "masked-input": MaskedInput(complaints=b"", signatures=b""),
    "vector-chunk": VectorChunk(chunk=0),
    "confirm-survivors": ConfirmSurvivors(signature=b""),
    "unmask-shares": UnmaskShares(owners=b"", shares=b""),
    "peer-keys": PeerKeys(advertised=b"", digest=bytes(32), included=b"", adverts=b""),
}
"""What a client may not say before its turn, or never."""


@pytest.mark.threat("client/out-of-turn")
@modes
@cases(
    ("kind", "early"),
    [(kind, early) for place, kind in enumerate((AdvertiseKeys, ShareKeys)) for early in list(EARLY)[place:]],
)
def test_a_message_out_of_turn(kind: type[Message], early: str, active: bool, summed: ExactSum, cheats: Any) -> None:
    run = cheats.play(active, kind, lambda run, message: EARLY[early])
    assert summed(run).survivors == OTHERS
    cheats.caught(run, PHASES[kind.TYPE], Code.UNEXPECTED)


PACKING = Packing(
    clients=CLIENTS,
    clip=1.0,
    value_bits=16,
    max_weight=1,
    form=WeightForm.COORDINATE,
    tensor_sizes=(4,),
    metrics=("samples",),
)
"""Per coordinate a value and a count of 0 or 1 in one word."""
FORGED = 2
"""The coordinate that c1 lies about."""


def contributing(words: npt.NDArray[Any]) -> tuple[MemorySum, Total]:
    """A finished sum of honest contributions and this one of c1, and what it decodes to without the lie."""
    generator = np.random.default_rng(3)
    honest = [
        PACKING.encode(generator.uniform(-1, 1, 4), np.ones(4, int), {"samples": 7}, generator).words
        for _ in range(CLIENTS)
    ]
    template = memory_sum(CLIENTS, active=True, seed=b"cheats", length=PACKING.length, ring_bits=PACKING.ring.bits)
    forged = honest[MEMBER].copy()
    PACKING.ring.add_into(forged, words)
    vectors = dict(zip(template.agreement.cohort, [*honest[:MEMBER], forged, *honest[MEMBER + 1 :]], strict=True))
    run = MemorySum(template.agreement, template.signing, vectors, Streams(b"counts"))
    run.run()
    total = np.zeros(PACKING.length, PACKING.ring.word)
    for vector in honest:
        PACKING.ring.add_into(total, vector)
    return run, PACKING.decode(total, contributors=CLIENTS)


def forging(value: int, count: int) -> npt.NDArray[Any]:
    """Words that add an integer and a count to the one coordinate."""
    numbers = np.zeros(PACKING.length, np.int64)
    numbers[FORGED] = (count << PACKING.value_field) + value
    return PACKING.ring.from_signed(numbers)


@pytest.mark.threat("client/forged-counts")
@cases("count", [-5, -1, 1, 5])
@cases("value", [-1, 0, 1])
def test_forged_counts_and_values_shift_their_own_coordinate_and_nothing_else(
    value: int, count: int, summed: ExactSum, sums: Any
) -> None:
    run, honest = contributing(forging(value, count))
    total = summed(run).total
    assert run.server.drops == []
    reachable = 0 <= int(honest.weights[FORGED]) + count <= CLIENTS
    if reachable:
        found = PACKING.decode(total, contributors=CLIENTS)
        others = np.arange(4) != FORGED
        np.testing.assert_array_equal(found.values[others], honest.values[others])
        np.testing.assert_array_equal(found.weights[others], honest.weights[others])
        assert found.metrics == honest.metrics
        assert found.weights[FORGED] == honest.weights[FORGED] + count
        # Both are whole numbers of steps; float64 holds them exactly up to a rounding each.
        shift = found.values[FORGED] - honest.values[FORGED]
        assert abs(shift - value * PACKING.quantiser.step) <= CLIENTS * PACKING.clip * 2.0**-50
    else:
        # More than all clients together could have counted, so the sum is not applied.
        with pytest.raises(ValueError, match=r"summed weights lie in .* beyond the reachable 0\.\.5"):
            PACKING.decode(total, contributors=CLIENTS)
    # What the others say is the same, bit for bit, whatever the cheat adds to its vector.
    truthful, _ = contributing(forging(0, 0))
    assert [(d.sender, d.message) for d in run.log] == [(d.sender, d.message) for d in truthful.log]
    payloads = [
        (one.payload == other.payload) for one, other in zip(run.log, truthful.log, strict=True) if one.sender != CHEAT
    ]
    assert all(payloads)
    sums.check_next_round(run)


@pytest.mark.threat("client/forged-counts")
def test_a_value_beyond_the_clip_moves_the_sum_no_further_than_all_clips_together(summed: ExactSum) -> None:
    reach = CLIENTS * PACKING.quantiser.levels
    run, honest = contributing(forging(0, 0))
    there = round(honest.values[FORGED] / PACKING.quantiser.step)
    run, _ = contributing(forging(reach - there, 0))
    found = PACKING.decode(summed(run).total, contributors=CLIENTS)
    assert found.values[FORGED] == pytest.approx(CLIENTS * PACKING.clip, rel=2.0**-50)
    run, _ = contributing(forging(reach - there + 1, 0))
    with pytest.raises(ValueError, match="summed values lie in"):
        PACKING.decode(summed(run).total, contributors=CLIENTS)
