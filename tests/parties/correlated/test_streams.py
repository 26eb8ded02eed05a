"""Keystreams: the cipher, and numbered streams."""

import numpy as np
import pytest
import torch
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import AES256
from cryptography.hazmat.primitives.ciphers.modes import ECB

from tacit.parties.correlated.material import Keystream

KEY = bytes(range(32))


def reference(key: bytes, words: int) -> list[int]:
    """The stream's definition: AES of every counter block, read as signed little-endian words."""
    blocks = b"".join(block.to_bytes(16, "big") for block in range(-(-words // 2)))
    return [int(word) for word in np.frombuffer(Cipher(AES256(key), ECB()).encryptor().update(blocks), "<i8")[:words]]


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
