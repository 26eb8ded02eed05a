"""Hashes, keys, seals, signatures, keystreams, secret sharing: docs/spec/primitives.md, read literally."""

import hashlib
import hmac
import struct

from constants import KEYSTREAM_LABELS, LIMB_BITS, LIMBS, PRIME, RING_ORDER, SHARE_BYTES, SHARE_COEFFICIENTS, require
from cryptography.exceptions import InvalidSignature, InvalidTag
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.ciphers.algorithms import AES
from cryptography.hazmat.primitives.ciphers.modes import ECB

SMALL_ORDER = (
    0,
    1,
    2**255 - 20,
    325606250916557431795983626356110631294008115727848805560023387167927233504,
    39382357235489614581723060781553021112529911719440698176882885853963445705823,
)


def u8(number: int) -> bytes:
    return number.to_bytes(1, "little")


def u16(number: int) -> bytes:
    return number.to_bytes(2, "little")


def u32(number: int) -> bytes:
    return number.to_bytes(4, "little")


def u64(number: int) -> bytes:
    return number.to_bytes(8, "little")


def framed(*parts: bytes) -> bytes:
    return b"".join(u64(len(part)) + part for part in parts)


def digest(label: bytes, *parts: bytes) -> bytes:
    """H of the specification."""
    return hashlib.sha256(framed(label, *parts)).digest()


def hmac_sha256(key: bytes, message: bytes) -> bytes:
    return hmac.new(key, message, hashlib.sha256).digest()


def derive(secret: bytes, label: bytes, salt: bytes, info: bytes) -> bytes:
    """HKDF-SHA256 of 32 bytes: RFC 5869, Extract and the first block of Expand."""
    pseudorandom_key = hmac_sha256(salt, secret)
    return hmac_sha256(pseudorandom_key, framed(label, info) + b"\x01")


def x25519_public(private: bytes) -> bytes:
    return X25519PrivateKey.from_private_bytes(private).public_key().public_bytes_raw()


def check_public_key(public: bytes) -> None:
    u = int.from_bytes(public, "little")
    require(len(public) == 32 and u < 2**255 - 19 and u not in SMALL_ORDER, "KEYS")


def x25519(private: bytes, public: bytes) -> bytes:
    check_public_key(public)
    return X25519PrivateKey.from_private_bytes(private).exchange(X25519PublicKey.from_public_bytes(public))


def seal(key: bytes, plaintext: bytes, associated: bytes) -> bytes:
    return ChaCha20Poly1305(key).encrypt(bytes(12), plaintext, associated)


def unseal(key: bytes, ciphertext: bytes, associated: bytes) -> bytes:
    require(len(ciphertext) >= 16, "SHARES")
    try:
        return ChaCha20Poly1305(key).decrypt(bytes(12), ciphertext, associated)
    except InvalidTag:
        require(False, "SHARES")
        raise


def ed25519_public(private: bytes) -> bytes:
    return Ed25519PrivateKey.from_private_bytes(private).public_key().public_bytes_raw()


def sign(private: bytes, label: bytes, *parts: bytes) -> bytes:
    return Ed25519PrivateKey.from_private_bytes(private).sign(framed(label, *parts))


def verify(public: bytes, signature: bytes, label: bytes, *parts: bytes) -> None:
    require(len(signature) == 64, "SIGNATURE")
    try:
        Ed25519PublicKey.from_public_bytes(public).verify(signature, framed(label, *parts))
    except (InvalidSignature, ValueError):
        require(False, "SIGNATURE")


def keystream(seed: bytes, usage: bytes, length: int, first_byte: int = 0) -> bytes:
    """AES-256 of the blocks 0, 1, 2, ...; `first_byte`, a multiple of 16, leaves out that much of the beginning."""
    require(len(seed) == 32 and usage in KEYSTREAM_LABELS and first_byte >= 0 and first_byte % 16 == 0, "INVALID")
    key = hmac_sha256(seed, usage + b"\x01")
    first, last = first_byte // 16, (first_byte + length + 15) // 16
    blocks = b"".join(counter.to_bytes(16, "big") for counter in range(first, last))
    return Cipher(AES(key), ECB()).encryptor().update(blocks)[:length]


def order(members: list[int], seed: bytes) -> list[int]:
    members = sorted(members)
    words = struct.unpack(f"<{len(members)}Q", keystream(seed, RING_ORDER, 8 * len(members)))
    return [member for _, member in sorted(zip(words, members, strict=True))]


def limbs(secret: bytes) -> list[int]:
    require(len(secret) == 32, "INVALID")
    number = int.from_bytes(secret, "little")
    return [(number >> (LIMB_BITS * place)) % 2**LIMB_BITS for place in range(LIMBS)]


def check_points(points: list[int]) -> None:
    require(len(set(points)) == len(points) and all(1 <= point < PRIME for point in points), "INVALID")


def coefficients(seed: bytes, count: int) -> list[int]:
    """The first `count` 16-bit words of the stream that are below the prime."""
    words_read = count
    while True:
        stream = struct.unpack(f"<{words_read}H", keystream(seed, SHARE_COEFFICIENTS, 2 * words_read))
        accepted = [word for word in stream if word < PRIME]
        if len(accepted) >= count:
            return accepted[:count]
        words_read *= 2


def share(secrets: list[bytes], points: list[int], threshold: int, seed: bytes) -> list[list[bytes]]:
    """For each point the shares of all secrets."""
    check_points(points)
    require(2 <= threshold <= len(points), "INVALID")
    constants = [limb for secret in secrets for limb in limbs(secret)]
    width = len(constants)
    drawn = coefficients(seed, width * (threshold - 1))
    rows = [constants] + [drawn[width * power : width * (power + 1)] for power in range(threshold - 1)]
    result = []
    for point in points:
        values = [
            sum(rows[power][place] * pow(point, power, PRIME) for power in range(threshold)) % PRIME
            for place in range(width)
        ]
        packed = b"".join(u16(value) for value in values)
        result.append([packed[start : start + SHARE_BYTES] for start in range(0, len(packed), SHARE_BYTES)])
    return result


def reconstruct(shares: list[bytes], points: list[int]) -> bytes:
    """The secret of one share for each point."""
    check_points(points)
    require(len(shares) == len(points) >= 1 and all(len(item) == SHARE_BYTES for item in shares), "INVALID")
    rows = [struct.unpack(f"<{LIMBS}H", item) for item in shares]
    require(all(element < PRIME for row in rows for element in row), "INVALID")
    weights = []
    for x in points:
        weight = 1
        for other in points:
            if other != x:
                weight = weight * other * pow(other - x, -1, PRIME) % PRIME
        weights.append(weight)
    number = 0
    for place in range(LIMBS):
        limb = sum(weight * row[place] for weight, row in zip(weights, rows, strict=True)) % PRIME
        require(limb < (2 if place == LIMBS - 1 else 2**LIMB_BITS), "INVALID")
        number += limb << (LIMB_BITS * place)
    return number.to_bytes(32, "little")
