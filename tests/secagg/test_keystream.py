"""Masks against one-shot AES-CTR, HKDF-Expand of the library, and Python integers."""

import os
import tracemalloc

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDFExpand
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from tacit.secagg.keystream import Mask, Usage, apply_masks, keystream
from tacit.secagg.ring import Ring
from tests.cases import cases

SEED = bytes(range(32))
seeds = st.binary(min_size=32, max_size=32)


def reference_stream(seed: bytes, usage: Usage, length: int) -> bytes:
    key = HKDFExpand(SHA256(), length=32, info=usage.value).derive(seed)
    return Cipher(algorithms.AES(key), modes.CTR(bytes(16))).encryptor().update(bytes(length))


def reference_masked(words: list[int], masks: list[Mask], ring: Ring, start: int) -> list[int]:
    size = ring.word.itemsize
    masked = list(words)
    for mask in masks:
        stream = reference_stream(mask.seed, mask.usage, (start + len(words)) * size)
        for index in range(len(words)):
            position = (start + index) * size
            masked[index] += mask.sign * int.from_bytes(stream[position : position + size], "little")
    return [number % ring.modulus for number in masked]


def test_streams_are_aes_ctr_under_an_expanded_key_of_each_usage() -> None:
    assert len({usage.value for usage in Usage}) == len(Usage) == 7
    streams = {usage: keystream(SEED, usage, 1000) for usage in Usage}
    assert streams == {usage: reference_stream(SEED, usage, 1000) for usage in Usage}
    assert len(set(streams.values())) == len(Usage)


@settings(max_examples=60)
@given(
    bits=st.integers(8, 64),
    signs=st.lists(st.sampled_from([1, -1]), max_size=4),
    length=st.integers(0, 70),
    start=st.integers(0, 5),
    usage=st.sampled_from(Usage),
    seed=seeds,
)
def test_masks_equal_the_reference(bits: int, signs: list, length: int, start: int, usage: Usage, seed: bytes) -> None:
    ring = Ring(bits)
    start *= 16 // ring.word.itemsize
    masks = [Mask(bytes([index]) + seed[1:], usage, sign) for index, sign in enumerate(signs)]
    numbers = [index * 0x9E3779B97F4A7C15 % ring.modulus for index in range(length)]
    words = np.array(numbers, ring.word)
    apply_masks(words, masks, ring, start=start)
    assert words.tolist() == reference_masked(numbers, masks, ring, start)


@cases("bits", [8, 20, 32, 64])
@cases("threads", [1, 2, 3, 7])
def test_result_does_not_depend_on_threads_or_pieces(monkeypatch: pytest.MonkeyPatch, bits: int, threads: int) -> None:
    ring = Ring(bits)
    masks = [Mask(bytes([index] * 32), Usage.PAIRWISE_MASK, 1 if index % 3 else -1) for index in range(40)]
    length = (
        300_001 // ring.word.itemsize
    )  # Several blocks per thread, enough keystream for every thread, no round end.
    expected = np.zeros(length, ring.word)
    for mask in masks:
        stream = np.frombuffer(reference_stream(mask.seed, mask.usage, expected.nbytes), ring.word)
        expected = expected + stream if mask.sign == 1 else expected - stream
    expected &= ring.word.type(ring.modulus - 1)
    monkeypatch.setattr(os, "cpu_count", lambda: threads)
    whole = np.zeros(length, ring.word)
    apply_masks(whole, masks, ring)
    assert np.array_equal(whole, expected)
    pieces = np.zeros(length, ring.word)
    for low in range(0, length, 10_000):
        apply_masks(pieces[low : low + 10_000], masks, ring, start=low)
    assert np.array_equal(pieces, expected)


def test_opposite_masks_cancel() -> None:
    ring = Ring(20)
    words = np.arange(1000, dtype=ring.word)
    apply_masks(words, [Mask(SEED, Usage.PAIRWISE_MASK, 1)], ring)
    assert not np.array_equal(words, np.arange(1000))
    apply_masks(words, [Mask(SEED, Usage.PAIRWISE_MASK, -1)], ring)
    assert np.array_equal(words, np.arange(1000))
    apply_masks(words, [Mask(SEED, Usage.SELF_MASK, 1), Mask(SEED, Usage.SELF_MASK, -1)], ring)
    assert np.array_equal(words, np.arange(1000))


@cases(("bits", "count"), [(8, 8), (12, 12), (32, 8)])
def test_masks_are_uniform_over_the_whole_ring(bits: int, count: int) -> None:
    """Fixed seed, so the outcome is fixed; a biased construction has a vanishing p-value for nearly every seed."""
    ring = Ring(bits)
    words = np.zeros(1_000_000, ring.word)
    apply_masks(words, [Mask(SEED, Usage.SELF_MASK, 1)], ring)
    observed = np.bincount(words >> ring.word.type(bits - count), minlength=2**count)
    assert len(observed) == 2**count
    assert observed.min() > 0  # The ends 0 and 2^bits - 1 included.
    assert stats.chisquare(observed).pvalue > 1e-6


def test_memory_does_not_grow_with_the_vector() -> None:
    """Scratch of one block per thread; a copy of the vector would be 16 MB."""
    ring = Ring(32)
    words = np.zeros(4_000_000, ring.word)
    masks = [Mask(SEED, Usage.PAIRWISE_MASK, 1)] * 2
    tracemalloc.start()
    try:
        apply_masks(words, masks, ring)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < (os.cpu_count() or 1) * 400_000


def test_refusals() -> None:
    for bits, start in ((8, 8), (16, 4), (32, 2), (64, 1), (32, -4)):
        ring = Ring(bits)
        with pytest.raises(ValueError, match="masks start at multiples"):
            apply_masks(np.zeros(4, ring.word), [], ring, start=start)
    with pytest.raises(ValueError, match="expected a vector of uint32"):
        apply_masks(np.zeros(4, np.uint64), [], Ring(32))
    for length in (0, 31, 33):
        with pytest.raises(ValueError, match="32 bytes"):
            Mask(bytes(length), Usage.SELF_MASK, 1)
        with pytest.raises(ValueError, match="32 bytes"):
            keystream(bytes(length), Usage.RING_ORDER, 16)
    for sign in (0, 2):
        with pytest.raises(ValueError, match="sign"):
            Mask(SEED, Usage.SELF_MASK, sign)  # type: ignore[arg-type]


def test_a_mask_does_not_show_its_seed() -> None:
    assert "seed" not in repr(Mask(SEED, Usage.SELF_MASK, 1))
