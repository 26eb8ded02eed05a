"""Symbolic cryptography: stand-ins for the primitives that are cheap, deterministic, and can be read.

Keys, hashes and signatures are tagged hashes of what they were made from; a sealed packet is its plaintext with a tag;
a share is its secret with the point, the kind and the threshold. They have the lengths of the real ones, are injective
up to a collision of SHA-256, and refuse where the real ones refuse. They hide nothing: in an exploration nobody
computes with what it holds, and what an observer could learn is read off the shares that left their holders. Masks are
pseudorandom words, so that masks that do not cancel show in the sum, but for one case in 2^64.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from tacit.protocol.core import primitives
from tacit.protocol.core.errors import Code, RemoteProtocolError
from tacit.protocol.core.primitives import KEY_BYTES, SIGNATURE_BYTES, TAG_BYTES, Label, framed
from tacit.secagg import keystream, shamir
from tacit.secagg.keystream import Mask
from tacit.secagg.ring import Ring


def _term(tag: str, *parts: bytes) -> bytes:
    lengths = ",".join(str(len(part)) for part in parts)
    return hashlib.sha256(b"".join((f"{tag}:{lengths}:".encode(), *parts))).digest()


@dataclass
class SymbolicEntropy:
    """The secrets of one party: named and numbered, so that they depend on nothing but its own past."""

    party: str
    drawn: int = 0

    def __call__(self, length: int) -> bytes:
        self.drawn += 1
        name = f"{self.party} secret {self.drawn}".encode()
        return name.ljust(length, b".") if length >= len(name) else hashlib.sha256(name).digest()[:length]


@dataclass(frozen=True)
class SymbolicAgreementKey:
    private: bytes

    @property
    def public(self) -> bytes:
        return _term("public", self.private)[: KEY_BYTES - 1] + b"\0"

    def agree(self, public: bytes) -> bytes:
        return _term("agreed", *sorted((self.public, public)))


@dataclass(frozen=True)
class SymbolicSigningKey:
    private: bytes

    @property
    def public(self) -> bytes:
        return _term("signer", self.private)

    def sign(self, label: Label, *parts: bytes) -> bytes:
        return _term("signature", self.public, framed(label, *parts)).ljust(SIGNATURE_BYTES, b".")


def _verify(public: bytes, signature: bytes, label: Label, *parts: bytes) -> None:
    if signature != _term("signature", public, framed(label, *parts)).ljust(SIGNATURE_BYTES, b"."):
        raise RemoteProtocolError(Code.SIGNATURE, f"a signature for {label.decode()} does not verify")


def _derive(secret: bytes, label: Label, *, salt: bytes, info: bytes = b"") -> bytes:
    return _term("derived", secret, label, salt, info)


def _seal(key: bytes, plaintext: bytes, *, associated: bytes) -> bytes:
    return plaintext + _term("seal", key, plaintext, associated)[:TAG_BYTES]


def _open_sealed(key: bytes, ciphertext: bytes, *, associated: bytes) -> bytes:
    plaintext = ciphertext[:-TAG_BYTES]
    if ciphertext != _seal(key, plaintext, associated=associated):
        raise RemoteProtocolError(Code.SHARES, "a sealed share does not open")
    return plaintext


@dataclass(frozen=True)
class SymbolicShare:
    """A share, read: 36 bytes as 18 field elements, of which the last two tell point, kind and threshold."""

    secret: bytes
    point: int
    kind: int
    """Place of the secret among those shared together: 0 the mask key, 1 the seed of the self mask."""
    threshold: int

    def encode(self) -> bytes:
        return self.secret + bytes((self.point, 0, self.kind, self.threshold))

    @classmethod
    def decode(cls, share: bytes) -> SymbolicShare:
        return cls(share[:KEY_BYTES], share[KEY_BYTES], share[KEY_BYTES + 2], share[KEY_BYTES + 3])


def _share(
    secrets: Sequence[bytes], *, points: npt.NDArray[np.integer[Any]], threshold: int, seed: bytes
) -> npt.NDArray[np.uint16]:
    encoded = b"".join(
        SymbolicShare(secret, int(point), kind, threshold).encode()
        for point in points
        for kind, secret in enumerate(secrets)
    )
    return np.frombuffer(encoded, "<u2").reshape(len(points), len(secrets), shamir.LIMBS)


def _reconstruct_each(shares: npt.NDArray[np.uint16], points: npt.NDArray[np.integer[Any]]) -> list[bytes]:
    secrets = []
    for given, places in zip(shares, points, strict=True):
        read = [SymbolicShare.decode(part.astype("<u2").tobytes()) for part in given]
        same = {(share.secret, share.kind, share.threshold) for share in read}
        if len(same) != 1 or [share.point for share in read] != [*places] or len({*places}) < read[0].threshold:
            raise ValueError("limb-range: the shares do not belong together, or are too few")
        secrets.append(read[0].secret)
    return secrets


def _apply_masks(words: npt.NDArray[Any], masks: Sequence[Mask], ring: Ring, *, start: int = 0) -> None:
    for mask in masks:
        stream = hashlib.shake_256(mask.usage.value + mask.seed).digest((start + words.size) * ring.word.itemsize)
        mask_words = np.frombuffer(stream, ring.word)[start:]
        (np.add if mask.sign == 1 else np.subtract)(words, mask_words, out=words)
        ring.reduce_into(words)


STAND_INS: Final[tuple[tuple[Any, Any], ...]] = (
    (primitives.AgreementKey, SymbolicAgreementKey),
    (primitives.SigningKey, SymbolicSigningKey),
    (primitives.verify, _verify),
    (primitives.derive, _derive),
    (primitives.seal, _seal),
    (primitives.open_sealed, _open_sealed),
    (shamir.share, _share),
    (shamir.reconstruct_each, _reconstruct_each),
    (keystream.apply_masks, _apply_masks),
)
"""Every primitive and what stands in for it. SHA-256 stays: it is as cheap as a stand-in."""


@contextmanager
def symbolic_cryptography() -> Iterator[None]:
    """While open, the machines of this process compute with symbols, under whatever name a module knows a primitive."""
    stand_ins = {id(real): stand_in for real, stand_in in STAND_INS}
    replaced = [
        (module, name, value)
        for module_name, module in [*sys.modules.items()]
        if module_name.startswith("tacit.protocol.")
        for name, value in vars(module).items()
        if id(value) in stand_ins
    ]
    for module, name, value in replaced:
        setattr(module, name, stand_ins[id(value)])
    try:
        yield
    finally:
        for module, name, value in replaced:
            setattr(module, name, value)
