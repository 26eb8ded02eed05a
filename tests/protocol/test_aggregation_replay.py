"""The machines are deterministic in entropy and time, and nothing that must be fresh is ever the same twice."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tacit.protocol.aggregation_results import Summed
from tacit.protocol.aggregation_tables import ClientState
from tacit.protocol.messages import AdvertiseKeys, ShareKeys
from tacit.protocol.sharing import PACKET_BYTES
from tacit.secagg.graph import GraphParameters
from tacit.secagg.keystream import Mask
from tacit.simulate.memory import MemorySum, memory_sum, replayable_entropy

CLIENTS = 5
FOUR = GraphParameters(neighbours=4, threshold=3)
KINDS = {
    "active": {"clients": 5, "active": True},
    "semi-honest": {"clients": 5, "active": False},
    "chosen": {"clients": 10, "active": True, "parameters": FOUR},
    "ring": {"clients": 10, "active": False, "parameters": FOUR},
}
each_kind = pytest.mark.parametrize("kind", KINDS)


def made(kind: str, seed: bytes) -> MemorySum:
    return memory_sum(seed=seed, **KINDS[kind])  # type: ignore[arg-type]


def finished(run: MemorySum) -> list[tuple[Any, ...]]:
    run.run()
    return [(d.sender, d.receiver, d.message, None if d.payload is None else bytes(d.payload)) for d in run.log]


@each_kind
def test_the_same_entropy_gives_the_same_transcript(kind: str) -> None:
    assert finished(made(kind, b"one")) == finished(made(kind, b"one"))


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
def test_different_entropy_shares_nothing(kind: str, summed: Callable[[MemorySum], Summed]) -> None:
    # Agreement and vectors are the same, so that all that differs is what the clients draw.
    first = made(kind, b"one")
    second = MemorySum(first.agreement, first.signing, first.vectors, replayable_entropy(b"two"))
    first.run()
    second.run()
    np.testing.assert_array_equal(summed(first).total, summed(second).total)
    assert len(pieces(first)) > 100 / 2
    assert len(set(pieces(first) + pieces(second))) == 2 * len(pieces(first))


def masks(run: MemorySum) -> dict[str, list[Mask]]:
    """The masks of every client, taken when all have sent their vector."""
    run.start()
    assert run.advance(lambda: all(c.state is ClientState.AWAIT_SURVIVORS for c in run.clients.values()))
    return {name: list(client._masks) for name, client in run.clients.items()}


@each_kind
def test_masks_pair_up_and_none_is_used_twice(kind: str) -> None:
    seen: set[bytes] = set()
    first = made(kind, b"one")
    runs = [first]
    # The same entropy, hence the same keys, in another round, session, or for another model or configuration.
    for change in ({"round": 1}, {"session": bytes(32)}, {"model": bytes(32)}, {"configuration": bytes(32)},
                   {"roster": bytes(32)}):  # fmt: skip
        again = made(kind, b"one")
        runs.append(MemorySum(replace(again.agreement, **change), again.signing, again.vectors, again.entropy))
    keys = []
    for run in runs:
        found = masks(run)
        keys.append({d.message.mask_key for d in run.log if isinstance(d.message, AdvertiseKeys)})
        own = [mask.seed for of_client in found.values() for mask in of_client[:1]]
        pairwise = [mask for of_client in found.values() for mask in of_client[1:]]
        assert all(of_client[0].usage != of_client[1].usage for of_client in found.values())
        signs: dict[bytes, list[int]] = {}
        for mask in pairwise:
            signs.setdefault(mask.seed, []).append(mask.sign)
        assert all(sorted(pair) == [-1, 1] for pair in signs.values())
        assert len(set(own)) == len(own)
        fresh = {*own, *signs}
        assert len(fresh) == len(own) + len(signs)
        assert not fresh & seen
        seen |= fresh
    assert all(other == keys[0] for other in keys)


@each_kind
def test_what_is_sent_shows_neither_vector_nor_secrets(kind: str) -> None:
    run = made(kind, b"one")
    found = masks(run)
    secrets = [mask.seed for of_client in found.values() for mask in of_client]
    for client in run.clients.values():
        secrets += [client._seed, client._mask_key.private, client._channel.private]
        secrets += [share for held in client._held.values() for share in (held.key, held.seed)]
    secrets += [vector.tobytes() for vector in run.vectors.values()]
    sent = b"".join(
        value
        for delivery in run.log
        for value in (*(getattr(delivery.message, name) for name in delivery.message.__struct_fields__),
                      bytes(delivery.payload or b""))
    )  # fmt: skip
    assert not [secret for secret in secrets if secret in sent]
    held = [share for client in run.clients.values() for share in client._held.values()]
    shown = "".join(map(repr, [run.server, *run.clients.values(), *run.results, *found.values(), *held]))
    assert not [secret for secret in secrets if repr(secret)[2:-1] in shown or secret.hex() in shown]
