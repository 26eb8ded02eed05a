"""Clients that pool what they hold, with all that the server saw: threshold - 1 of them learn nothing, threshold do."""

import base64
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from tacit.parties.links.keys import encode_key
from tacit.protocol.core.primitives import KEY_BYTES, AgreementKey, derive, digest
from tacit.protocol.core.roster import decode_members
from tacit.protocol.sum.agreement import pairwise_mask
from tacit.protocol.sum.exchange import Summed
from tacit.protocol.sum.messages import AdvertiseKeys, PeerKeys, PeerShares, ShareKeys
from tacit.protocol.sum.sharing import PACKET_BYTES, shares_array
from tacit.protocol.sum.states import SumLabel
from tacit.secagg.keystream import Mask, Usage, apply_masks
from tacit.secagg.shamir import LIMBS, PRIME, lagrange_at_zero, reconstruct
from tests.cases import cases
from tests.world.sums import MemorySum, memory_sum

ExactSum = Callable[[MemorySum], Summed]
CLIENTS = 5
VICTIM = "c0"
modes = cases("active", [True, False])


def pooled(run: MemorySum, coalition: range) -> dict[str, npt.NDArray[np.uint16]]:
    """The shares [holders, 18] of both secrets of c0 that these members hold once all have masked their vectors."""
    assert run.advance(lambda: all(client.masks for client in run.clients.values()))
    held = [run.clients[run.agreement.cohort[member]].data.held[0] for member in coalition]
    return {
        "key": np.concatenate([shares_array(shares.key) for shares in held]),
        "seed": np.concatenate([shares_array(shares.seed) for shares in held]),
    }


def limbs(secret: bytes) -> list[int]:
    number = int.from_bytes(secret, "little")
    return [number >> 15 * index & 0x7FFF for index in range(LIMBS)]


def started(active: bool) -> MemorySum:
    run = memory_sum(CLIENTS, active=active, seed=b"coalition")
    run.start()
    return run


@pytest.mark.threat("client/coalition")
@modes
def test_every_secret_fits_the_shares_of_one_holder_less_than_the_threshold(active: bool) -> None:
    """Each secret is met by exactly one share of the missing holder, so that with uniform shares all are as likely."""
    run = started(active)
    threshold = run.agreement.parameters.threshold
    coalition = range(1, threshold)
    points = np.array([*coalition, CLIENTS]) + 1
    coefficients = lagrange_at_zero(points).tolist()
    # The last coefficient is no zero of the field: the missing share and the secret determine each other.
    assert coefficients[-1] % PRIME
    inverse = pow(coefficients[-1], -1, PRIME)
    for known in pooled(run, coalition).values():
        so_far = [sum(c * int(share) for c, share in zip(coefficients, row, strict=False)) for row in known.T]
        for secret in (bytes(32), b"\xff" * 32, bytes(range(32)), run.streams.of("x")(32)):
            missing = [
                (limb - known_sum) * inverse % PRIME for limb, known_sum in zip(limbs(secret), so_far, strict=True)
            ]
            shares = np.vstack([known, np.array(missing, np.uint16)])
            assert reconstruct(shares[:, np.newaxis], points) == [secret]


@pytest.mark.threat("client/coalition")
@modes
def test_the_threshold_of_holders_and_the_server_know_the_vector(active: bool) -> None:
    """The other direction: what is tolerated ends exactly there."""
    run = started(active)
    agreement = run.agreement
    coalition = range(1, agreement.parameters.threshold + 1)
    shares = pooled(run, coalition)
    points = np.array(coalition) + 1
    (key,), (seed,) = (reconstruct(shares[kind][:, np.newaxis], points) for kind in ("key", "seed"))
    shared = next(d.message for d in run.log if isinstance(d.message, ShareKeys) and d.sender == VICTIM)
    assert digest(SumLabel.SEED, agreement.context, seed) == shared.seed_commitment
    adverts = {d.sender: d.message for d in run.log if isinstance(d.message, AdvertiseKeys)}
    mask_key = AgreementKey(key)
    assert mask_key.public == adverts[VICTIM].mask_key
    assert not np.array_equal(unmasked(run, None, seed), run.vectors[VICTIM])
    assert not np.array_equal(unmasked(run, mask_key, None), run.vectors[VICTIM])
    np.testing.assert_array_equal(unmasked(run, mask_key, seed), run.vectors[VICTIM])


def unmasked(run: MemorySum, mask_key: AgreementKey | None, seed: bytes | None) -> npt.NDArray[Any]:
    run.advance()
    agreement = run.agreement
    told = next(d.message for d in run.log if isinstance(d.message, PeerKeys) and d.receiver == VICTIM)
    sharing = agreement.sharing_digest(told.digest, told.advertised)
    masks = [] if seed is None else [Mask(derive(seed, SumLabel.SELF_SEED, salt=sharing), Usage.SELF_MASK, -1)]
    if mask_key is not None:
        for delivery in run.log:
            if isinstance(delivery.message, AdvertiseKeys) and delivery.sender != VICTIM:
                peer = agreement.places[delivery.sender]
                mask = pairwise_mask(mask_key, delivery.message.mask_key, sharing, 0, peer)
                masks.append(Mask(mask.seed, mask.usage, 1 if mask.sign == -1 else -1))
    payload = next(d.payload for d in run.log if d.kind == "masked-input" and d.sender == VICTIM)
    words = agreement.ring.unpack(payload or b"").copy()
    apply_masks(words, masks, agreement.ring)
    return words


@pytest.mark.threat("client/curious-log")
@modes
def test_what_a_client_is_told_of_another(active: bool, summed: ExactSum) -> None:
    """Public keys, and of every other client one packet: not the packets of others, no vector, no returned share."""
    run = memory_sum(CLIENTS, active=active, seed=b"coalition")
    run.run()
    summed(run)
    told = [delivery for delivery in run.log if delivery.receiver == "c1"]
    kinds = ["peer-keys", "peer-shares", *(["survivors"] if active else []), "unmask-request"]
    assert [delivery.kind for delivery in told] == kinds
    assert all(delivery.payload is None for delivery in told)
    shares = next(d.message for d in told if isinstance(d.message, PeerShares))
    owners = decode_members(shares.owners, CLIENTS)
    given = {d.sender: d.message.packets for d in run.log if isinstance(d.message, ShareKeys)}
    # A client's packets stand in the order of their holders: what c1 gets is the second of each.
    of_c1 = [given[run.agreement.cohort[owner]][PACKET_BYTES : 2 * PACKET_BYTES] for owner in owners]
    assert shares.packets == b"".join(of_c1)


@pytest.mark.threat("client/curious-log", "server/curious-log")
@pytest.mark.asyncio
async def test_no_log_has_a_secret(federation: Any) -> None:
    server = await federation.serve(rounds=1)
    words: list[bytes] = []
    clients = [
        federation.join(name, on_update=lambda round, update: words.append(update.words.tobytes()))
        for name in federation.clients
    ]
    await federation.all_of(server, *clients)
    secrets = [secret for keys in federation.keys.values() for secret in (keys.curve_secret, keys.signing_secret)] + [
        vector[start : start + 12] for vector in words for start in range(0, len(vector) - 12, 64)
    ]
    for name in ("server", *federation.clients):
        log = (federation.directory / f"{name}.events").read_bytes()
        assert b'"round-ended"' in log or b'"session-ended"' in log
        for secret in secrets:
            shown = [secret, secret.hex().encode(), base64.b64encode(secret)[:16], repr(secret)[2:-1].encode()]
            shown.append(encode_key(secret).encode() if len(secret) == KEY_BYTES else secret)
            assert not [form for form in shown if form in log]
