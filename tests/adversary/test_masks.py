"""Masks are uniform over the ring, never used twice, and what an independent implementation says they are.

Seeds are fixed, so every outcome is fixed. FALSE_ALARM is the probability with which a perfect source would have failed
one of the comparisons for a random seed; there are fewer than a thousand of them in this file.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from scipy import stats

from tacit.protocol.core.machine import Entropy
from tacit.protocol.sum import client as aggregation_client
from tacit.protocol.sum import sharing
from tacit.protocol.sum.messages import AdvertiseKeys, MaskedInput, PeerKeys, PeerShares, ShareKeys
from tacit.secagg.graph import GraphParameters
from tacit.secagg.keystream import Mask, Usage, apply_masks, keystream
from tacit.secagg.ring import Ring
from tacit.simulate.world.world import Streams
from tests.cases import cases
from tests.world.sums import MemorySum, memory_sum

FALSE_ALARM = 1e-9
SEED = bytes(range(32))

pytestmark = pytest.mark.threat("server/curious-log")


@pytest.fixture
def reference(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(Path(__file__).parent)
    import keystream_reference

    return keystream_reference


def observed_sum(template: MemorySum, seed: bytes) -> tuple[MemorySum, list[bytes]]:
    """The sum once more with fresh machines, and all 32-byte strings of entropy that they will have drawn."""
    drawn = list[bytes]()

    class Observed(Streams):
        def of(self, name: str) -> Entropy:
            source = super().of(name)

            def entropy(length: int) -> bytes:
                drawn.append(source(length))
                return drawn[-1]

            return entropy

    run = MemorySum(template.agreement, template.signing, template.vectors, Observed(seed))
    return run, drawn


def is_uniform(counts: np.ndarray) -> bool:
    return bool(stats.chisquare(counts).pvalue > FALSE_ALARM)


def test_reference_gives_the_published_values(reference: ModuleType) -> None:
    """FIPS 197 appendix C.3, NIST SP 800-38A F.5.5, RFC 5869 A.1, RFC 7748 section 5.2."""
    plain = bytes.fromhex("00112233445566778899aabbccddeeff")
    keys = reference.round_keys(bytes(range(32)))
    assert reference.encrypt_block(keys, plain).hex() == "8ea2b7ca516745bfeafc49904b496089"
    key = bytes.fromhex("603deb1015ca71be2b73aef0857d77811f352c073b6108d72d9810a30914dff4")
    stream = reference.counter_stream(key, int("f0f1f2f3f4f5f6f7f8f9fafbfcfdfeff", 16), 32)
    assert stream.hex() == "0bdf7df1591716335e9a8b15c860c5025a6e699d536119065433863c8f657b94"
    derived = reference.hkdf(bytes([0x0B] * 22), salt=bytes(range(13)), info=bytes(range(0xF0, 0xFA)), length=42)
    assert derived.hex() == ("3cb25f25faacd57a90434f64d0362f2a2d2d0a90cf1a5a4c5db02d56ecc4c5bf34007208d5b887185865")
    agreed = reference.x25519(
        bytes.fromhex("a546e36bf0527c9d3b16154b82465edd62144c0ac1fc5a18506a2244ba449ac4"),
        bytes.fromhex("e6db6867583030db3594c1a424b15f7c726624ec26b3353b10a903a6d0ab1c4c"),
    )
    assert agreed.hex() == "c3da55379de9c6908e94ea4df28d084f32eccf03491c71f754b4075577a28552"


@cases("usage", Usage)
@cases("bits", [8, 12, 24, 32, 61])
def test_every_mask_is_that_of_the_reference(reference: ModuleType, usage: Usage, bits: int) -> None:
    ring = Ring(bits)
    for start in (0, 32 // ring.word.itemsize):
        words = np.zeros(37, ring.word)
        apply_masks(words, [Mask(SEED, usage, 1)], ring, start=start)
        assert words.tolist() == reference.mask_words(SEED, usage.value, words.size, bits, start=start)


@cases(
    ("clients", "active", "bits", "parameters", "dropped"),
    [
        (4, True, 32, None, ""),
        (5, True, 20, None, "c1"),
        (4, False, 61, None, "c0"),
        (7, True, 32, GraphParameters(neighbours=4, threshold=3), ""),
        (7, False, 32, GraphParameters(neighbours=4, threshold=3), "c2"),
    ],
)
def test_the_masks_of_a_whole_round_are_those_of_the_reference(
    reference: ModuleType, clients: int, active: bool, bits: int, parameters: GraphParameters | None, dropped: str
) -> None:
    """Every masked vector less its vector is the self mask and the pairwise masks, computed from the drawn secrets.

    dropped: who is gone before it has shared its secrets, and so is in nobody's mask.
    """
    template = memory_sum(clients, active=active, seed=b"whole", ring_bits=bits, parameters=parameters)
    run, drawn = observed_sum(template, b"secrets")
    run.start()
    run.advance(lambda: len([d for d in run.log if isinstance(d.message, AdvertiseKeys)]) == clients)
    if dropped:
        run.kill(dropped)
    run.settle()
    said: dict[tuple[str, type], Any] = {}
    for delivery in run.log:
        client = delivery.sender if delivery.receiver == "server" else delivery.receiver
        said[client, type(delivery.message)] = delivery
    agreement, modulus = run.agreement, 2**bits
    publics = {name: said[name, AdvertiseKeys].message.mask_key for name in agreement.cohort}
    privates = {reference.public_key(secret): secret for secret in drawn if len(secret) == 32}
    commitments = {reference.commitment(agreement.context, secret): secret for secret in drawn}
    sharers = [name for name in agreement.cohort if name != dropped]
    for name in sharers:
        keys, shares = said[name, PeerKeys].message, said[name, PeerShares].message
        salt = reference.sharing_digest(agreement.context, keys.digest, shares.sharers)
        member = agreement.places[name]
        seed = commitments[said[name, ShareKeys].message.seed_commitment]
        expected = reference.mask_words(
            reference.self_mask_seed(seed, salt), b"tacit/1 self mask", agreement.length, bits
        )
        for peer, other in enumerate(agreement.cohort):
            if other == name or other not in sharers or not keys.included[peer // 8] >> peer % 8 & 1:
                continue
            between = reference.pairwise_seed(privates[publics[name]], publics[other], salt, member, peer)
            words = reference.mask_words(between, b"tacit/1 pairwise mask", agreement.length, bits)
            sign = 1 if member > peer else -1
            expected = [(total + sign * word) % modulus for total, word in zip(expected, words, strict=True)]
        masked = agreement.ring.unpack(said[name, MaskedInput].payload)
        taken_off = [(int(m) - int(v)) % modulus for m, v in zip(masked, run.vectors[name], strict=True)]
        assert taken_off == expected


@cases(("bits", "active"), [(12, True), (32, False)])
def test_what_the_server_gets_is_uniform(bits: int, active: bool) -> None:
    """Vectors of zeros, so that nothing but the masks can make what is sent uniform.

    Of 12-bit elements every value must occur, of 32-bit ones every byte of the word is tested. The difference of two
    clients' masked vectors, in which common masks would cancel, must be as uniform, and so must pairs of neighbours.
    """
    run = memory_sum(3, active=active, seed=b"uniform", length=200_000, ring_bits=bits)
    for vector in run.vectors.values():
        vector[:] = 0
    run.run()
    ring = run.agreement.ring
    sent = {d.sender: ring.unpack(d.payload) for d in run.log if isinstance(d.message, MaskedInput) and d.payload}
    assert len(sent) == 3
    for words in [*sent.values(), *(ring.signed(a - b) for a, b in combinations(sent.values(), 2))]:
        elements = np.asarray(words).astype(np.int64) % ring.modulus
        for shift in range(0, bits, 8):
            width = min(8, bits - shift)
            assert is_uniform(np.bincount(elements >> shift & (1 << width) - 1, minlength=1 << width))
        low = elements & 0xFF
        assert is_uniform(np.bincount(low[:-1:2] << 8 | low[1::2], minlength=1 << 16))
        if bits == 12:
            assert is_uniform(np.bincount(elements, minlength=ring.modulus))


def variants() -> Iterator[tuple[str, MemorySum]]:
    """The same sum with the same entropy, except for one thing that tells rounds and sessions apart.

    As after a machine was set back to an earlier state: all secrets repeat, and only the context protects the masks.
    """
    base = memory_sum(4, active=True, seed=b"again")
    other = bytes(range(32))
    changes: dict[str, dict[str, Any]] = {
        "the first": {},
        "next round": {"round": 1},
        "restarted server": {"session": other},
        "other model": {"model": other},
        "other configuration": {"configuration": other},
        "other roster": {"roster": other},
        "other threshold": {"parameters": GraphParameters(neighbours=3, threshold=4)},
    }
    for name, fields in changes.items():
        template = MemorySum(replace(base.agreement, **fields), base.signing, base.vectors, base.streams)
        yield name, observed_sum(template, b"the same secrets")[0]
    yield "new secrets", observed_sum(base, b"other secrets")[0]


@pytest.mark.threat("server/restarts-midway", "server/splits-models", "server/splits-configurations")
def test_no_mask_is_used_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not in two rounds, sessions, models or configurations, not for two peers, not for two purposes.

    A mask between two clients is used by both, once with either sign.
    """
    seeds: Counter[tuple[bytes, Usage]] = Counter()
    signs: Counter[tuple[bytes, Usage]] = Counter()

    def observe(words: Any, masks: list[Mask], ring: Ring, *, start: int = 0) -> None:
        seeds.update((mask.seed, mask.usage) for mask in masks)
        for mask in masks:
            signs[mask.seed, mask.usage] += mask.sign
        apply_masks(words, masks, ring, start=start)

    monkeypatch.setattr(aggregation_client, "apply_masks", observe)
    names = []
    for name, run in variants():
        run.run()
        names.append(name)
    of_usage = {usage: [seed for seed, used in seeds if used is usage] for usage in Usage}
    assert len(of_usage[Usage.SELF_MASK]) == 4 * len(names)
    assert len(of_usage[Usage.PAIRWISE_MASK]) == 6 * len(names)
    assert {seeds[seed, Usage.SELF_MASK] for seed in of_usage[Usage.SELF_MASK]} == {1}
    for seed in of_usage[Usage.PAIRWISE_MASK]:
        assert (seeds[seed, Usage.PAIRWISE_MASK], signs[seed, Usage.PAIRWISE_MASK]) == (2, 0)
    assert len({seed for seed, _ in seeds}) == len(seeds)
    # 2^-128 per pair of streams is the chance that two of them begin alike.
    assert len({keystream(seed, usage, 16) for seed, _ in seeds for usage in Usage}) == len(Usage) * len(seeds)


@pytest.mark.threat("server/replays-shares")
def test_no_two_packets_are_sealed_under_one_key(monkeypatch: pytest.MonkeyPatch) -> None:
    """The nonce is constant, so a key must seal once: both directions of a pair, and each round, have their own."""
    seal, keys = sharing.seal, list[bytes]()

    def observe(key: bytes, plaintext: bytes, *, associated: bytes) -> bytes:
        keys.append(key)
        return seal(key, plaintext, associated=associated)

    monkeypatch.setattr(sharing, "seal", observe)
    runs = [run for _, run in variants()]
    for run in runs:
        run.run()
    assert len(set(keys)) == len(keys) == len(runs) * 4 * 4
