"""The ring against Python integers."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tacit.secagg.ring import Ring, sign_extend
from tests.cases import cases

ALL_BITS = range(8, 65)


@st.composite
def ring_and_numbers(draw: st.DrawFn, vectors: int = 1) -> tuple[Ring, list[list[int]]]:
    ring = Ring(draw(st.integers(8, 64)))
    length = draw(st.integers(0, 20))
    element = st.integers(0, ring.modulus - 1) | st.sampled_from([0, ring.modulus - 1, ring.modulus // 2])
    return ring, [draw(st.lists(element, min_size=length, max_size=length)) for _ in range(vectors)]


@cases("bits", ALL_BITS)
def test_widths(bits: int) -> None:
    ring = Ring(bits)
    assert ring.modulus == 2**bits
    assert ring.word.kind == "u"
    assert np.dtype(ring.word.newbyteorder("<")) == ring.word
    assert 8 * ring.word.itemsize >= bits
    assert ring.word.itemsize == 1 or 4 * ring.word.itemsize < bits
    assert 8 * ring.wire_bytes >= bits > 8 * (ring.wire_bytes - 1)


@settings(max_examples=150)
@given(ring_and_numbers(vectors=2))
def test_addition_and_subtraction_are_modular(case: tuple[Ring, list[list[int]]]) -> None:
    ring, (left, right) = case
    words, other = np.array(left, ring.word), np.array(right, ring.word)
    ring.add_into(words, other)
    assert words.tolist() == [(a + b) % ring.modulus for a, b in zip(left, right, strict=True)]
    ring.subtract_into(words, other)
    assert words.tolist() == left
    ring.subtract_into(words, other)
    assert words.tolist() == [(a - b) % ring.modulus for a, b in zip(left, right, strict=True)]


@cases("bits", ALL_BITS)
def test_signed_reading_is_twos_complement(bits: int) -> None:
    ring = Ring(bits)
    half = ring.modulus // 2
    words = np.array([0, 1, half - 1, half, half + 1, ring.modulus - 1], ring.word)
    numbers = ring.signed(words)
    assert numbers.dtype == np.int64
    assert numbers.tolist() == [0, 1, half - 1, -half, -half + 1, -1]
    assert ring.from_signed(numbers).dtype == ring.word
    assert ring.from_signed(numbers).tolist() == words.tolist()
    if bits < 62:
        assert ring.from_signed(np.array([2**bits + 3, -(2**bits) - 3])).tolist() == [3, 2**bits - 3]


def test_sign_extension_ignores_higher_bits() -> None:
    assert sign_extend(np.array([0b1_0111, 0b1_1000]), 4).tolist() == [7, -8]


@settings(max_examples=150)
@given(ring_and_numbers())
def test_packed_bytes_are_little_endian_and_return(case: tuple[Ring, list[list[int]]]) -> None:
    ring, (numbers,) = case
    packed = ring.pack(np.array(numbers, ring.word))
    assert bytes(packed) == b"".join(number.to_bytes(ring.wire_bytes, "little") for number in numbers)
    for buffer in (packed, bytes(packed), bytearray(packed)):
        words = ring.unpack(buffer)
        assert words.dtype == ring.word
        assert words.tolist() == numbers


@cases(("bits", "shared"), [(16, True), (32, True), (24, False), (29, True)])
def test_packing_copies_only_where_bytes_are_dropped(bits: int, shared: bool) -> None:
    ring = Ring(bits)
    words = np.arange(10, dtype=ring.word)
    assert np.shares_memory(np.frombuffer(ring.pack(words), np.uint8), words) is shared
    assert ring.unpack(ring.pack(words[::3])).tolist() == [0, 3, 6, 9]


def test_unpacked_words_do_not_write_into_the_buffer() -> None:
    words = Ring(32).unpack(bytearray(8))
    with pytest.raises(ValueError, match="read-only"):
        words[0] = 1


@cases("bits", ALL_BITS)
def test_unpack_refuses_parts_and_elements_beyond_the_modulus(bits: int) -> None:
    ring = Ring(bits)
    encoded = [number.to_bytes(ring.wire_bytes + 1, "little") for number in (0, ring.modulus - 1, ring.modulus)]
    if bits % 8:
        with pytest.raises(ValueError, match=f"element 2 is {ring.modulus}, not below 2\\^{bits}"):
            ring.unpack(b"".join(number[:-1] for number in encoded))
    if bits > 8:
        with pytest.raises(ValueError, match="no whole number"):
            ring.unpack(bytes(3 * ring.wire_bytes - 1))


def test_refusals() -> None:
    for bits in (-1, 0, 7, 65):
        with pytest.raises(ValueError, match="8 to 64 bits"):
            Ring(bits)
    ring = Ring(8)
    for combine in (ring.add_into, ring.subtract_into):
        with pytest.raises(ValueError, match="cannot add"):
            combine(np.zeros(3, np.uint8), np.ones(1, np.uint8))
    for words in (np.zeros(3, np.uint16), np.zeros((1, 3), np.uint8), np.zeros(3, np.int8)):
        with pytest.raises(ValueError, match="expected a vector of uint8 words"):
            ring.pack(words)
