"""Vectors that are asked for, sent, or counted as lost while their owners still train."""

from typing import Any

import numpy as np
import pytest

from tacit.protocol.core.errors import Code
from tacit.protocol.core.messages import Abort
from tacit.protocol.sum import agreement as agreement_module
from tacit.protocol.sum.agreement import UPLOADS
from tacit.protocol.sum.exchange import ClientAborted, Summed
from tacit.protocol.sum.messages import FetchVector, VectorChunk
from tacit.protocol.sum.states import ClientState, SumLabel
from tacit.secagg.keystream import apply_masks
from tests.adversary.conftest import opened_shares
from tests.cases import cases
from tests.world.exchange import Delivery
from tests.world.sums import MemorySum, memory_sum

CHUNKS = 7
VICTIM = "c0"
modes = cases("active", [True, False])


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agreement_module, "CHUNK_BYTES", 64)


def training_until(state: ClientState, *, active: bool) -> MemorySum:
    """A sum whose victim, that trains, is in this state; the server has asked it for nothing."""
    run = memory_sum(5, active=active, length=16 * CHUNKS)
    run.training = {VICTIM}
    run.hook = lambda delivery: [] if delivery.kind == "fetch-vector" else [delivery]
    run.start()
    assert run.advance(lambda: run.clients[VICTIM].state is state)
    return run


@pytest.mark.threat("server/asks-early")
@modes
@cases(
    ("state", "chunks", "code"),
    [
        (ClientState.AWAIT_PEER_KEYS, [0], Code.UNEXPECTED),  # before the keys
        (ClientState.AWAIT_PEER_SHARES, [0], Code.UNEXPECTED),  # before the shares
        (ClientState.AWAIT_VECTOR, [0, 0], Code.UNEXPECTED),  # twice
        (ClientState.AWAIT_VECTOR, [1], Code.UNEXPECTED),  # out of order
        (ClientState.AWAIT_VECTOR, range(CHUNKS), Code.UNEXPECTED),  # all of it
        (ClientState.AWAIT_VECTOR, [CHUNKS], Code.VECTOR),  # beyond the end
    ],
)
def test_a_client_is_asked_for_a_window_when_it_knows_who_shared(
    state: ClientState, chunks: Any, code: Code, active: bool
) -> None:
    run = training_until(state, active=active)
    for chunk in chunks:
        run.put(Delivery("server", VICTIM, FetchVector(chunk=chunk), None))
    (aborted,) = run.outcome(ClientAborted, VICTIM)
    assert (aborted.code, aborted.culprit) == (code, "server")
    # What it makes afterwards stays with it.
    run.contribute(VICTIM)
    run.settle()
    assert not [delivery for delivery in run.log if delivery.sender == VICTIM and delivery.payload is not None]


@pytest.mark.threat("server/counts-training-as-lost")
@modes
def test_a_vector_that_comes_after_its_mask_key_was_opened_stays_under_its_self_mask(active: bool) -> None:
    run = memory_sum(5, active=active)
    run.training = {VICTIM}
    # The server gives it up, has the others open its mask key, and does not tell it.
    run.hook = lambda d: [] if d.receiver == VICTIM and isinstance(d.message, Abort) else [d]
    run.run()
    opened = opened_shares(run)[0]
    assert len(opened[SumLabel.KEY_SHARE]) >= run.agreement.parameters.threshold
    assert opened[SumLabel.SEED_SHARE] == {}
    client = run.clients[VICTIM]
    assert client.state is ClientState.AWAIT_VECTOR
    masks = client.data.masks
    run.contribute(VICTIM)
    (sent,) = [parcel for parcel in run.network.under_way(VICTIM, "server") if parcel.payload is not None]
    words = np.array(run.agreement.ring.unpack(sent.payload or b""))
    # All pairwise masks follow from the key; the first one is the self mask, of which no share has left anybody.
    pairwise = [type(mask)(mask.seed, mask.usage, -mask.sign) for mask in masks[1:]]
    apply_masks(words, pairwise, run.agreement.ring)
    assert not (words == run.vectors[VICTIM]).any()
    # And nobody answers any more: the round is over for all others.
    run.settle()
    assert opened_shares(run)[0][SumLabel.SEED_SHARE] == {}


@pytest.mark.threat("client/sends-unasked")
@cases("cheat", [VICTIM, f"c{UPLOADS}"])
@modes
def test_who_sends_chunks_before_it_says_that_its_vector_is_ready_is_out(cheat: str, active: bool) -> None:
    run = memory_sum(UPLOADS + 3, active=active, length=16 * CHUNKS)
    run.contribute()
    run.advance()
    assert {d.receiver for d in run.log if d.kind == "fetch-vector"} == set(run.agreement.cohort[:UPLOADS])
    run.put(Delivery(cheat, "server", VectorChunk(chunk=0), bytes(64)))
    run.contribute(*run.agreement.cohort)
    run.settle()
    (summed,) = run.outcome(Summed)
    assert summed.survivors == tuple(name for name in run.agreement.cohort if name != cheat)
    np.testing.assert_array_equal(summed.total, run.plain_sum(summed.survivors))
    assert [(drop.member, drop.code) for drop in run.server.drops] == [(cheat, Code.UNEXPECTED)]
