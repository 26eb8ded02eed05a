"""Words without their blocks of zeros, against a loop over the blocks, and everything that is no such encoding."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tacit.secagg.filled_blocks import BLOCK_WORDS, BYTE_WORDS, most_bytes, pack_filled, unpack_filled
from tacit.secagg.ring import Ring
from tests.cases import cases

LENGTHS = (0, 1, 63, 64, 65, BYTE_WORDS - 1, BYTE_WORDS, BYTE_WORDS + 1, 3 * BYTE_WORDS + 70)


def reference(words: list[int], wire_bytes: int) -> bytes:
    """The encoding, as the module describes it, block by block in Python integers."""
    bitmap, packed = bytearray(-(-len(words) // BYTE_WORDS)), b""
    for block, start in enumerate(range(0, len(words), BLOCK_WORDS)):
        part = words[start : start + BLOCK_WORDS]
        if any(part):
            bitmap[block // 8] |= 1 << block % 8
            packed += b"".join(word.to_bytes(wire_bytes, "little") for word in part)
    return bytes(bitmap) + packed


@given(
    length=st.sampled_from(LENGTHS),
    bits=st.sampled_from([8, 20, 24, 32, 64]),
    share=st.sampled_from([0.0, 0.002, 0.02, 1.0]),
    seed=st.integers(0, 2**32),
)
def test_words_come_back_from_the_encoding_of_the_reference(length: int, bits: int, share: float, seed: int) -> None:
    ring, random = Ring(bits), np.random.default_rng(seed)
    words = random.integers(1, ring.modulus, length, np.uint64).astype(ring.word)
    words[random.random(length) >= share] = 0
    encoded = pack_filled(ring, words)
    assert encoded == reference(words.tolist(), ring.wire_bytes)
    found = unpack_filled(ring, memoryview(encoded), length)
    assert found.dtype == ring.word
    assert np.array_equal(found, words)
    assert len(encoded) <= most_bytes(ring, length)
    if share == 1.0:
        assert len(encoded) == most_bytes(ring, length)


# 130 words of 20 bits, three bytes each: blocks of 64, 64 and 2 words; bits 3 to 7 of the bitmap are unused.
LENGTH, RING = 130, Ring(20)
FULL, LAST = b"\x01" + bytes(191), b"\x01" + bytes(5)


@cases(
    ("encoded", "complaint"),
    [
        (b"", "0 bytes are no bitmap of 3 blocks"),
        (b"\x08", "the bitmap speaks of more than 3 blocks"),
        (b"\x81" + FULL, "the bitmap speaks of more than 3 blocks"),
        (b"\x00\x00", "2 bytes, where the bitmap says 1"),
        (b"\x01" + FULL[:-1], "192 bytes, where the bitmap says 193"),
        (b"\x01" + FULL + b"\x00", "194 bytes, where the bitmap says 193"),
        (b"\x04" + FULL, "193 bytes, where the bitmap says 7"),
        (b"\x02" + bytes(192), "block 1 is said to hold something, and is zero"),
        (b"\x07" + FULL + FULL + bytes(6), "block 2 is said to hold something, and is zero"),
        (b"\x04" + b"\xff" * 6, "element 0 is 16777215, not below 2"),
    ],
)
def test_there_is_one_encoding(encoded: bytes, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        unpack_filled(RING, encoded, LENGTH)


@cases("encoded", [b"\x00", b"\x01" + FULL, b"\x04" + LAST, b"\x07" + FULL + FULL + LAST])
def test_what_is_nearly_refused_is_read(encoded: bytes) -> None:
    """The neighbours of the refused ones."""
    assert pack_filled(RING, unpack_filled(RING, encoded, LENGTH)) == encoded


def test_words_of_another_width_are_not_encoded() -> None:
    with pytest.raises(ValueError, match="expected a vector of"):
        pack_filled(RING, np.zeros(4, np.uint64))
