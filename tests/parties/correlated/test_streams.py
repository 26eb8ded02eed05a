"""Keystreams: the cipher, and numbered streams."""

import math

import numpy as np
import pytest
import torch
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import AES256
from cryptography.hazmat.primitives.ciphers.modes import ECB
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from hypothesis import given
from hypothesis import strategies as st

from tacit.parties.correlated.material import Keystream, request_stream
from tacit.protocol.core.primitives import framed
from tacit.protocol.inference.material import request_key
from tacit.protocol.inference.states import InferenceLabel

KEY = bytes(range(32))


def reference(key: bytes, words: int) -> list[int]:
    """The stream's definition: AES of every counter block, read as signed little-endian words."""
    blocks = b"".join(block.to_bytes(16, "big") for block in range(-(-words // 2)))
    return [int(word) for word in np.frombuffer(Cipher(AES256(key), ECB()).encryptor().update(blocks), "<i8")[:words]]


@given(shapes=st.lists(st.lists(st.integers(0, 5), max_size=3).map(tuple), max_size=4))
def test_draws_of_any_shape_continue_the_reference(shapes: list[tuple[int, ...]]) -> None:
    stream = Keystream(KEY)
    drawn = [stream.draw(shape) for shape in shapes]
    assert [tensor.shape for tensor in drawn] == shapes
    total = sum(map(math.prod, shapes))
    assert [word for tensor in drawn for word in tensor.flatten().tolist()] == reference(KEY, total)
    assert stream.drawn == total


def test_a_long_draw_is_the_same_as_short_ones() -> None:
    words = 3 * (1 << 14) + 5  # More than two blocks of zeros.
    short = Keystream(KEY)
    pieces = [short.draw((size,)) for size in (1, 1 << 14, words - 1 - (1 << 14))]
    assert torch.equal(Keystream(KEY).draw((words,)), torch.cat(pieces))


@pytest.mark.parametrize("bits", [1, 16, 63])
def test_fewer_bits_are_the_low_ones(bits: int) -> None:
    assert Keystream(KEY).draw((50,), bits).tolist() == [word % (1 << bits) for word in reference(KEY, 50)]


@pytest.mark.parametrize("key", [KEY[:31], KEY + b"x"])
def test_a_key_of_another_length_is_refused(key: bytes) -> None:
    with pytest.raises(ValueError, match="32 bytes"):
        Keystream(key)


def test_every_request_has_a_key_of_its_own_which_is_not_the_sessions() -> None:
    """HKDF-SHA256 of the session's key (RFC 5869), whose info is the label and the number."""
    numbers = [0, 1, 255, 256, 2**32, 2**64 - 1]
    keys = [request_key(KEY, number) for number in numbers]
    assert len({KEY, *keys}) == len(numbers) + 1
    for number, key in zip(numbers, keys, strict=True):
        info = framed(InferenceLabel.REQUEST, number.to_bytes(8, "big"))
        assert key == HKDF(SHA256(), 32, None, info).derive(KEY)
        assert request_stream(KEY, number).draw((9,)).tolist() == reference(key, 9)
