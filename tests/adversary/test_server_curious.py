"""What a server that follows the protocol, and keeps all it receives, sees of a single client: nothing but noise.

Every mask and every secret is fresh in every sum, is sent by nobody, and shows in no representation of a party. That
masks are the specified ones is shown by the independent verifier (tests/verifier), on transcripts of whole sums.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from scipy.stats import chi2

from tacit.protocol.core.machine import Entropy
from tacit.protocol.sum import client as aggregation_client
from tacit.protocol.sum import sharing
from tacit.protocol.sum.exchange import Summed
from tacit.protocol.sum.messages import AdvertiseKeys, ShareKeys
from tacit.protocol.sum.sharing import PACKET_BYTES, HeldShares
from tacit.protocol.sum.states import SumLabel
from tacit.secagg.graph import GraphParameters
from tacit.secagg.keystream import Mask
from tacit.simulate.world.world import Streams
from tests.cases import cases
from tests.world.exchange import Delivery
from tests.world.sums import MemorySum, memory_sum

ExactSum = Callable[[MemorySum], Summed]
CLIENTS = 5
FOUR = GraphParameters(neighbours=4, threshold=3)
KINDS: dict[str, dict[str, Any]] = {
    "active": {"clients": 5, "active": True},
    "semi-honest": {"clients": 5, "active": False},
    "chosen": {"clients": 10, "active": True, "parameters": FOUR},
    "ring": {"clients": 10, "active": False, "parameters": FOUR},
}
pytestmark = pytest.mark.threat("server/curious-log")
modes = cases("active", [True, False])
each_kind = cases("kind", KINDS)


@pytest.fixture
def masks(monkeypatch: pytest.MonkeyPatch) -> list[list[Mask]]:
    found: list[list[Mask]] = []

    def recording(words: Any, masks: Sequence[Mask], ring: Any, *, start: int = 0) -> None:
        found.append(list(masks))
        apply_masks(words, masks, ring, start=start)

    apply_masks = aggregation_client.apply_masks
    monkeypatch.setattr(aggregation_client, "apply_masks", recording)
    return found


def pieces(run: MemorySum) -> list[bytes]:
    """Every key, commitment, sealed share and masked vector that was sent."""
    found = []
    for delivery in run.log:
        message = delivery.message
        if isinstance(message, AdvertiseKeys):
            found += [message.channel_key, message.mask_key]
        elif isinstance(message, ShareKeys):
            found.append(message.seed_commitment)
            for start in range(0, len(message.packets), PACKET_BYTES):
                packet = message.packets[start : start + PACKET_BYTES]
                found += [packet[:32], packet[32:64], packet[64:]]
        if delivery.payload is not None:
            found.append(bytes(delivery.payload))
    return found


@each_kind
def test_two_sums_of_the_same_vectors_share_nothing(kind: str, summed: ExactSum) -> None:
    # Agreement and vectors are the same, so that all that differs is what the clients draw.
    first = memory_sum(seed=b"one", **KINDS[kind])
    second = MemorySum(first.agreement, first.signing, first.vectors, Streams(b"two"))
    first.run()
    second.run()
    np.testing.assert_array_equal(summed(first).total, summed(second).total)
    clients, holders = len(first.vectors), 4 + (kind in ("active", "semi-honest"))
    assert len(pieces(first)) == clients * (2 + 1 + 3 * holders + 1)
    assert len(set(pieces(first) + pieces(second))) == 2 * len(pieces(first))


CHANGES: tuple[dict[str, Any], ...] = (
    {}, {"round": 1}, {"session": bytes(32)}, {"model": bytes(32)}, {"configuration": bytes(32)}, {"roster": bytes(32)},
)  # fmt: skip


def same_secrets(kind: str, change: dict[str, Any]) -> MemorySum:
    """A sum with the same entropy, hence the same keys, in another round, session, or for another model, as after a
    machine was set back to an earlier state: only the context protects the masks."""
    made = memory_sum(seed=b"one", **KINDS[kind])
    return MemorySum(replace(made.agreement, **change), made.signing, made.vectors, made.streams)


@pytest.mark.threat("server/restarts-midway", "server/splits-models", "server/splits-configurations")
@each_kind
def test_masks_pair_up_and_none_is_used_twice(kind: str, masks: list[list[Mask]]) -> None:
    seen: set[bytes] = set()
    keys = []
    for change in CHANGES:
        run = same_secrets(kind, change)
        masks.clear()
        run.run()
        assert len(masks) == len(run.vectors)
        keys.append({d.message.mask_key for d in run.log if isinstance(d.message, AdvertiseKeys)})
        own = [of_client[0] for of_client in masks]
        pairwise = [mask for of_client in masks for mask in of_client[1:]]
        assert not {mask.usage for mask in own} & {mask.usage for mask in pairwise}
        signs: dict[bytes, list[int]] = {}
        for mask in pairwise:
            signs.setdefault(mask.seed, []).append(mask.sign)
        assert all(sorted(pair) == [-1, 1] for pair in signs.values())
        fresh = {*(mask.seed for mask in own), *signs}
        assert len(fresh) == len(own) + len(signs)
        assert not fresh & seen
        seen |= fresh
    assert all(other == keys[0] for other in keys)


@pytest.mark.threat("server/replays-shares")
def test_no_two_packets_are_sealed_under_one_key(monkeypatch: pytest.MonkeyPatch) -> None:
    """The nonce is constant, so a key must seal once: both directions of a pair, and each round, have their own."""
    seal, keys = sharing.seal, list[bytes]()

    def observe(key: bytes, plaintext: bytes, *, associated: bytes) -> bytes:
        keys.append(key)
        return seal(key, plaintext, associated=associated)

    monkeypatch.setattr(sharing, "seal", observe)
    for change in CHANGES:
        same_secrets("active", change).run()
    assert len(set(keys)) == len(keys) == len(CHANGES) * CLIENTS**2


@each_kind
def test_what_is_sent_shows_neither_vector_nor_secrets(
    kind: str, masks: list[list[Mask]], monkeypatch: pytest.MonkeyPatch
) -> None:
    masks.clear()
    # All that a client draws is secret: its two private keys, its seed, the coefficients of its shares, its choice.
    drawn: list[bytes] = []
    held: list[HeldShares] = []
    open_packet = aggregation_client.open_packet

    def keeping(*arguments: Any, **options: Any) -> tuple[HeldShares, bytes]:
        opened = open_packet(*arguments, **options)
        held.append(opened[0])
        return opened

    monkeypatch.setattr(aggregation_client, "open_packet", keeping)
    made = memory_sum(seed=b"one", **KINDS[kind])

    class Observed(Streams):
        def of(self, name: str) -> Entropy:
            source = super().of(name)

            def entropy(length: int) -> bytes:
                drawn.append(source(length))
                return drawn[-1]

            return entropy

    run = MemorySum(made.agreement, made.signing, made.vectors, Observed(b"one"))
    run.hook = lambda delivery: [] if delivery.kind == "unmask-request" else [delivery]
    run.start()
    run.advance()
    clients = len(run.vectors)
    assert (len(drawn), len(masks)) == (clients * (5 if kind == "chosen" else 4), clients)
    secrets = drawn + [mask.seed for of_client in masks for mask in of_client]
    secrets += [share for shares in held for share in (shares.key, shares.seed)]
    secrets += [vector.tobytes() for vector in run.vectors.values()]
    sent = b"".join(
        value
        for delivery in run.log
        for value in (*(getattr(delivery.message, name) for name in delivery.message.__struct_fields__),
                      bytes(delivery.payload or b""))
    )  # fmt: skip
    assert not [secret for secret in secrets if secret in sent]
    shown = "".join(map(repr, [run.server, *run.clients.values(), *run.outputs, *masks, *held]))
    assert not [secret for secret in secrets if repr(secret)[2:-1] in shown or secret.hex() in shown]


@modes
@cases("gone", ["", "masked-input"])
def test_all_that_was_said_gives_the_one_sum(gone: str, active: bool, summed: ExactSum, opened: Any, sums: Any) -> None:
    run = memory_sum(CLIENTS + 1, active=active, seed=b"curious")

    def hook(delivery: Delivery) -> list[Delivery]:
        if (delivery.sender, delivery.kind) == ("c4", gone):
            run.kill("c4")
            return []
        return [delivery]

    run.hook = hook
    run.run()
    assert sums.revealed(run) == [summed(run).survivors]
    # Of every client there are shares of one kind only.
    kinds = {owner: {label for label, shares in of.items() if shares} for owner, of in opened(run).items()}
    dropped = {4} if gone else set()
    assert kinds == {owner: {SumLabel.KEY_SHARE if owner in dropped else SumLabel.SEED_SHARE} for owner in range(6)}


@modes
def test_a_masked_vector_is_uniform_whatever_is_in_it(active: bool, sums: Any) -> None:
    # Two vectors as unlike as can be, under fresh keys: what the server receives of either is uniform over the ring,
    # also after it took off the self mask, which it may.
    words, ring_bits = 50_000, 16
    for value in (0, 2**ring_bits - 1):
        run = memory_sum(3, active=active, seed=b"curious", length=words, ring_bits=ring_bits)
        vectors = {name: np.full(words, value, run.agreement.ring.word) for name in run.vectors}
        run = MemorySum(run.agreement, run.signing, vectors, Streams(bytes([value & 1])))
        run.run()
        received = {d.sender: d.payload for d in run.log if d.kind == "masked-input"}
        unpacked = [run.agreement.ring.unpack(payload) for payload in received.values()]
        for seen in (*unpacked, *sums.unmasked_vectors(run).values()):
            counts = np.bincount(seen >> 8, minlength=256)
            # Exceeded by chance less than once in 10^10 times.
            assert ((counts - words / 256) ** 2).sum() / (words / 256) < chi2.isf(1e-10, 255)
        assert not np.array_equal(unpacked[0], unpacked[1])
        assert sums.revealed(run) == [("c0", "c1", "c2")]
