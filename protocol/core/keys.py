"""The long-lived keys of a party. What others may know of them stands in the roster."""

from __future__ import annotations

from dataclasses import dataclass, field

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from tacit.protocol.core.machine import Entropy
from tacit.protocol.core.primitives import KEY_BYTES, SigningKey
from tacit.protocol.core.roster import Member, Role, check_name


@dataclass(frozen=True, kw_only=True)
class PartyKeys:
    """One party's key pairs, each key 32 raw bytes: X25519 for the link, as CURVE takes it, and Ed25519.

    Raises ValueError when the name is not valid, a key has the wrong length or a public key does not match its secret.
    """

    name: str
    curve_public: bytes
    curve_secret: bytes = field(repr=False)
    signing_public: bytes
    signing_secret: bytes = field(repr=False)

    def __post_init__(self) -> None:
        check_name(self.name)
        for key in (self.curve_public, self.curve_secret, self.signing_public, self.signing_secret):
            if len(key) != KEY_BYTES:
                raise ValueError(f"keys of {self.name!r}: every key must have {KEY_BYTES} bytes, not {len(key)}")
        if _curve_public(self.curve_secret) != self.curve_public:
            raise ValueError(f"keys of {self.name!r}: the curve public key does not belong to the curve secret key")
        if _signing_public(self.signing_secret) != self.signing_public:
            raise ValueError(f"keys of {self.name!r}: the signing public key does not belong to the signing secret key")

    def member(self, role: Role, group: int = 0) -> Member:
        """What the roster says about the owner of these keys."""
        return Member(
            name=self.name,
            role=role,
            curve_public=self.curve_public,
            signing_public=self.signing_public,
            group=group,
        )


def new_keys(name: str, *, entropy: Entropy) -> PartyKeys:
    """Keys that nobody has. name: of small letters, digits and hyphens, else ValueError; entropy: os.urandom."""
    check_name(name)
    curve_secret, signing_secret = entropy(KEY_BYTES), entropy(KEY_BYTES)
    return PartyKeys(
        name=name,
        curve_public=_curve_public(curve_secret),
        curve_secret=curve_secret,
        signing_public=_signing_public(signing_secret),
        signing_secret=signing_secret,
    )


def _curve_public(secret: bytes) -> bytes:
    return X25519PrivateKey.from_private_bytes(secret).public_key().public_bytes_raw()


def _signing_public(secret: bytes) -> bytes:
    return SigningKey(secret).public
