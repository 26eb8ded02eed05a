"""The cryptographic primitives (docs/spec/primitives.md), each bound to a named purpose by a Label.

They come from pyca/cryptography, except for X25519 and Ed25519, which are libsodium's by way of PyNaCl: it releases the
interpreter lock, which pyca keeps, and takes half of OpenSSL's time for a signature and for a public key.
"""

from __future__ import annotations

import hashlib
import hmac
import struct
from collections.abc import Sequence
from typing import Final

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from nacl.bindings import crypto_scalarmult, crypto_scalarmult_base
from nacl.exceptions import CryptoError
from nacl.signing import SigningKey as Ed25519Key
from nacl.signing import VerifyKey

from tacit.protocol.core.errors import Code, RemoteProtocolError
from tacit.secagg.threads import map_in_threads
from tacit.secagg.work import WorkKind, work

AGREEMENTS_WORTH_A_THREAD: Final = 8
KEY_BYTES: Final = 32
SIGNATURE_BYTES: Final = 64
TAG_BYTES: Final = 16
_LENGTH: Final = struct.Struct("<Q")


class Label(bytes):
    """Purpose of a hash, a derived key or a signature. Part of the wire format: each is declared once, by the protocol
    that uses it, and no two are equal (tests/protocol/core/test_primitives.py)."""


def framed(label: Label, *parts: bytes) -> bytes:
    """label and parts, each behind its length as eight little-endian bytes: injective."""
    return b"".join([piece for part in (label, *parts) for piece in (_LENGTH.pack(len(part)), part)])


def digest(label: Label, *parts: bytes | bytearray | memoryview) -> bytes:
    """SHA-256 of the framed parts, 32 bytes; nothing is copied."""
    hasher = hashlib.sha256()
    for part in (label, *parts):
        hasher.update(_LENGTH.pack(len(part)))
        hasher.update(part)
    return hasher.digest()


@work(WorkKind.KEY_AGREEMENT)
def derive(secret: bytes, label: Label, *, salt: bytes, info: bytes = b"") -> bytes:
    """HKDF-SHA256: 32 bytes from a secret; the label opens the info string."""
    # One block of output needs one call for each of the two steps: a third of the time of a general implementation.
    return hmac.digest(hmac.digest(salt, secret, "sha256"), framed(label, info) + b"\x01", "sha256")


PRIME_25519: Final = 2**255 - 19
_SMALL_ORDER: Final = frozenset(
    {
        0,
        1,
        PRIME_25519 - 1,
        325606250916557431795983626356110631294008115727848805560023387167927233504,
        39382357235489614581723060781553021112529911719440698176882885853963445705823,
    }
)
"""The u-coordinates of the points whose order divides 8, on the curve and its twist (RFC 7748, section 6.1)."""


def check_public_key(public: bytes) -> None:
    """Refuse an X25519 key that is no canonical u-coordinate or has small order: its shared secrets are all zero."""
    value = int.from_bytes(public, "little")
    if value >= PRIME_25519 or value in _SMALL_ORDER:
        raise RemoteProtocolError(Code.KEYS, "a public key is not canonical or has small order")


class AgreementKey:
    """An ephemeral X25519 key pair. `private` is the 32-byte scalar, which is secret-shared.

    Agreed secrets are kept, because the two directions of a channel derive their keys from the same one."""

    __slots__ = ("_agreed", "private", "public")

    @work(WorkKind.KEY_AGREEMENT)
    def __init__(self, private: bytes) -> None:
        self.private = private
        self._agreed: dict[bytes, bytes] = {}
        self.public = crypto_scalarmult_base(private)

    @work(WorkKind.KEY_AGREEMENT)
    def agree(self, public: bytes) -> bytes:
        """The shared secret with a checked public key; it must go through `derive`."""
        if public not in self._agreed:
            self._agreed[public] = crypto_scalarmult(self.private, public)
        return self._agreed[public]


@work(WorkKind.KEY_AGREEMENT)
def agree_all(pairs: Sequence[tuple[AgreementKey, bytes]]) -> None:
    """Agree with checked public keys on all cores: `agree` then returns these results from its cache."""
    map_in_threads(lambda pair: pair[0].agree(pair[1]), pairs, worth=AGREEMENTS_WORTH_A_THREAD)


class SigningKey:
    __slots__ = ("_key", "public")

    def __init__(self, private: bytes) -> None:
        self._key = Ed25519Key(private)
        self.public = bytes(self._key.verify_key)

    @work(WorkKind.SIGNATURES)
    def sign(self, label: Label, *parts: bytes) -> bytes:
        """64 bytes over the framed parts."""
        return self._key.sign(framed(label, *parts)).signature


@work(WorkKind.SIGNATURES)
def verify(public: bytes, signature: bytes, label: Label, *parts: bytes) -> None:
    """Refuse a signature that does not verify under the member's roster key."""
    try:
        VerifyKey(public).verify(framed(label, *parts), signature)
    except CryptoError:
        raise RemoteProtocolError(Code.SIGNATURE, f"a signature for {label.decode()} does not verify") from None


_ONCE: Final = bytes(12)
"""The nonce may be constant because every key from `derive` seals one message only."""


@work(WorkKind.SHARING)
def seal(key: bytes, plaintext: bytes, *, associated: bytes) -> bytes:
    """ChaCha20-Poly1305 under a single-use key; the ciphertext is 16 bytes longer than the plaintext."""
    return ChaCha20Poly1305(key).encrypt(_ONCE, plaintext, associated)


@work(WorkKind.SHARING)
def open_sealed(key: bytes, ciphertext: bytes, *, associated: bytes) -> bytes:
    """The plaintext; refuses a ciphertext that was not sealed under this key with this associated data."""
    try:
        return ChaCha20Poly1305(key).decrypt(_ONCE, ciphertext, associated)
    except InvalidTag:
        raise RemoteProtocolError(Code.SHARES, "a sealed share does not open") from None
