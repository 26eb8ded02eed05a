"""Masks computed a second time, by hand, from what is written down about them: nothing of Tacit and no cipher library.

AES-256 after FIPS 197, counter mode after NIST SP 800-38A, HKDF after RFC 5869 over the standard library, X25519
after RFC 7748. What Tacit makes of them follows the docstrings of secagg/keystream.py, protocol/core/primitives.py and
protocol/sum/agreement.py. Plain integers and bytes, slow, and open to timing: for tests only.
"""

from __future__ import annotations

import hmac
from hashlib import sha256

BLOCK_BYTES = 16
_ROUNDS = 14
_PRIME = 2**255 - 19


def _times(left: int, right: int) -> int:
    """Product in GF(2^8) modulo x^8 + x^4 + x^3 + x + 1 (FIPS 197, section 4.2)."""
    product = 0
    while right:
        product ^= left * (right & 1)
        left, right = left << 1 ^ (left >> 7) * 0x11B, right >> 1
    return product


def _substitute(octet: int) -> int:
    """The S-box (FIPS 197, section 5.1.1): the inverse, then an affine map."""
    inverse = next((other for other in range(256) if _times(octet, other) == 1), 0)
    twice = inverse << 8 | inverse
    result = 0x63
    for shift in (0, 4, 5, 6, 7):
        result ^= twice >> shift & 0xFF
    return result


_SUBSTITUTE = bytes(map(_substitute, range(256)))
_TIMES_2 = bytes(_times(octet, 2) for octet in range(256))
_TIMES_3 = bytes(_times(octet, 3) for octet in range(256))
# Where the byte of every place comes from in ShiftRows: row r (place modulo 4) turns left by r columns.
_SHIFTED = [(place + 4 * (place % 4)) % BLOCK_BYTES for place in range(BLOCK_BYTES)]


def round_keys(key: bytes) -> list[bytes]:
    """KeyExpansion of a 32-byte key (FIPS 197, section 5.2): 15 round keys of 16 bytes."""
    words = [key[place : place + 4] for place in range(0, 32, 4)]
    constant = 1
    while len(words) < 4 * (_ROUNDS + 1):
        word = words[-1]
        if len(words) % 8 == 0:
            word = (word[1:] + word[:1]).translate(_SUBSTITUTE)
            word = bytes([word[0] ^ constant]) + word[1:]
            constant = _times(constant, 2)
        elif len(words) % 8 == 4:
            word = word.translate(_SUBSTITUTE)
        words.append(_xor(words[-8], word))
    return [b"".join(words[place : place + 4]) for place in range(0, len(words), 4)]


def encrypt_block(keys: list[bytes], block: bytes) -> bytes:
    state = _xor(block, keys[0])
    for number in range(1, _ROUNDS + 1):
        substituted = state.translate(_SUBSTITUTE)
        state = bytes(substituted[place] for place in _SHIFTED)
        if number < _ROUNDS:
            state = b"".join(_mix(state[place : place + 4]) for place in range(0, BLOCK_BYTES, 4))
        state = _xor(state, keys[number])
    return state


def counter_stream(key: bytes, first: int, length: int) -> bytes:
    """Keystream of AES-256 in counter mode; the counter block is a 128-bit big-endian integer."""
    keys = round_keys(key)
    blocks = range(first, first - (-length // BLOCK_BYTES))
    stream = b"".join(encrypt_block(keys, (count % 2**128).to_bytes(BLOCK_BYTES, "big")) for count in blocks)
    return stream[:length]


def hkdf(secret: bytes, *, salt: bytes, info: bytes, length: int = 32) -> bytes:
    key, output, block = hmac.digest(salt, secret, "sha256"), b"", b""
    for number in range(1, -(-length // 32) + 1):
        block = hmac.digest(key, block + info + bytes([number]), "sha256")
        output += block
    return output[:length]


def x25519(private: bytes, public: bytes) -> bytes:
    """The shared secret (RFC 7748, section 5), by the Montgomery ladder."""
    scalar = int.from_bytes(private, "little") & ~(7 | 1 << 255) | 1 << 254
    point = int.from_bytes(public, "little") % 2**255
    x2, z2, x3, z3, swapped = 1, 0, point, 1, 0
    for place in reversed(range(255)):
        bit = scalar >> place & 1
        if swapped ^ bit:
            x2, x3, z2, z3 = x3, x2, z3, z2
        swapped = bit
        plus, minus = x2 + z2, x2 - z2
        square_plus, square_minus = plus * plus, minus * minus
        difference = square_plus - square_minus
        crossed, uncrossed = (x3 - z3) * plus, (x3 + z3) * minus
        x3, z3 = (crossed + uncrossed) ** 2 % _PRIME, point * (crossed - uncrossed) ** 2 % _PRIME
        x2, z2 = square_plus * square_minus % _PRIME, difference * (square_plus + 121665 * difference) % _PRIME
    if swapped:
        x2, z2 = x3, z3
    return (x2 * pow(z2, _PRIME - 2, _PRIME) % _PRIME).to_bytes(32, "little")


def public_key(private: bytes) -> bytes:
    return x25519(private, (9).to_bytes(32, "little"))


def framed(*parts: bytes) -> bytes:
    """Every part behind its length as eight little-endian bytes."""
    return b"".join(len(part).to_bytes(8, "little") + part for part in parts)


def commitment(context: bytes, seed: bytes) -> bytes:
    return sha256(framed(b"tacit/1 commitment to the self-mask seed", context, seed)).digest()


def sharing_digest(context: bytes, adverts: bytes, sharers: bytes) -> bytes:
    """The salt of every mask of a round; adverts: the digest over them, sharers: a bitmap."""
    return sha256(framed(b"tacit/1 sharing", context, adverts, sharers)).digest()


def self_mask_seed(seed: bytes, sharing: bytes) -> bytes:
    return hkdf(seed, salt=sharing, info=framed(b"tacit/1 self mask seed", b""))


def pairwise_seed(private: bytes, public: bytes, sharing: bytes, member: int, peer: int) -> bytes:
    """What the mask between two members is expanded from, the same at either."""
    places = min(member, peer).to_bytes(2, "little") + max(member, peer).to_bytes(2, "little")
    info = framed(b"tacit/1 pairwise mask seed", places)
    return hkdf(x25519(private, public), salt=sharing, info=info)


def mask_words(seed: bytes, usage: bytes, count: int, bits: int, *, start: int = 0) -> list[int]:
    """`count` words of a mask from word `start` on, which begins a cipher block; ring elements are `bits` wide."""
    word_bytes = next(size for size in (1, 2, 4, 8) if 8 * size >= bits)
    key = hmac.digest(seed, usage + b"\x01", "sha256")
    stream = counter_stream(key, start * word_bytes // BLOCK_BYTES, count * word_bytes)
    words = (stream[place : place + word_bytes] for place in range(0, len(stream), word_bytes))
    return [int.from_bytes(word, "little") % 2**bits for word in words]


def _mix(column: bytes) -> bytes:
    return bytes(
        _TIMES_2[column[row]] ^ _TIMES_3[column[row - 3]] ^ column[row - 2] ^ column[row - 1] for row in range(4)
    )


def _xor(left: bytes, right: bytes) -> bytes:
    return bytes(a ^ b for a, b in zip(left, right, strict=True))
