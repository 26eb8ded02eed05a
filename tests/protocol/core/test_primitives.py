"""The primitives against computations by hand, and against the vectors of their RFCs."""

import hashlib
import hmac
import re
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20
from cryptography.hazmat.primitives.poly1305 import Poly1305
from hypothesis import given
from hypothesis import strategies as st

from docs.generate.specification import LABELS
from tacit.protocol.core.errors import Code, RemoteProtocolError
from tacit.protocol.core.machine import Transmit
from tacit.protocol.core.primitives import (
    PRIME_25519,
    AgreementKey,
    Label,
    SigningKey,
    check_public_key,
    derive,
    digest,
    framed,
    open_sealed,
    seal,
    verify,
)
from tacit.protocol.session.rounds import Train
from tacit.protocol.sum.sharing import HeldShares
from tacit.protocol.sum.states import Phase, SumLabel
from tacit.simulate.world.federation import MemoryFederation, small_configuration
from tests.cases import cases

ROOT = Path(__file__).parents[3]
Parts = st.lists(st.binary(max_size=12), max_size=4)
Labels = st.sampled_from([*LABELS.values()])


def length(part: bytes) -> bytes:
    return len(part).to_bytes(8, "little")


@given(Labels, Parts)
def test_digest_by_hand(label: Label, parts: list[bytes]) -> None:
    text = length(label) + label + b"".join(length(part) + part for part in parts)
    assert framed(label, *parts) == text
    assert digest(label, *parts) == hashlib.sha256(text).digest()
    assert digest(label, *map(bytearray, parts)) == digest(label, *parts)


@given(Labels, Parts, Labels, Parts)
def test_framed_is_injective(label: Label, parts: list[bytes], other_label: Label, others: list[bytes]) -> None:
    assert (framed(label, *parts) == framed(other_label, *others)) == ((label, parts) == (other_label, others))


@given(Labels, st.binary(max_size=20), st.integers(0, 20))
def test_moving_a_boundary_changes_the_frame(label: Label, joined: bytes, cut: int) -> None:
    frames = [framed(label, joined), framed(label, joined[:cut], joined[cut:]), framed(label, joined, b"")]
    if cut < len(joined):
        assert len(set(frames)) == 3
    assert all(frame.startswith(length(label) + label) for frame in frames)


def test_labels_are_distinct_and_none_is_forgotten() -> None:
    everywhere = "".join(
        path.read_text(encoding="utf-8") for part in ("protocol", "parties") for path in (ROOT / part).rglob("*.py")
    )
    assert set(re.findall(r'Label\(b"(.+?)"\)', everywhere)) == {label.decode() for label in LABELS.values()}
    assert len(set(LABELS.values())) == len(LABELS)
    assert all(label.startswith(b"tacit/1 ") for label in LABELS.values())


def hkdf(secret: bytes, salt: bytes, info: bytes) -> bytes:
    return hmac.digest(hmac.digest(salt, secret, "sha256"), info + b"\x01", "sha256")


@given(st.binary(min_size=1, max_size=40), Labels, st.binary(min_size=1, max_size=40), st.binary(max_size=40))
def test_derive_by_hand(secret: bytes, label: Label, salt: bytes, info: bytes) -> None:
    assert derive(secret, label, salt=salt, info=info) == hkdf(secret, salt, framed(label, info))


def test_agreement_of_rfc_7748() -> None:
    alice = AgreementKey(bytes.fromhex("77076d0a7318a57d3c16c17251b26645df4c2f87ebc0992ab177fba51db92c2a"))
    bob = AgreementKey(bytes.fromhex("5dab087e624a8a4b79e17f8b83800ee66f3bb1292618b6fd1c2f8b27ff88e0eb"))
    assert alice.public.hex() == "8520f0098930a754748b7ddcb43ef75a0dbf3a0d26381af4eba4a98eaa9b4e6a"
    assert bob.public.hex() == "de9edb7d7b7dc1b4d35b61c2ece435373f8343c85b78674dadfc7e146f882b4f"
    shared = "4a5d9d5ba4ce2de1728e3bf480350f25e07e21c947d19e3376f09b3c1e161742"
    assert alice.agree(bob.public).hex() == bob.agree(alice.public).hex() == shared


def test_keys_of_rfc_8032() -> None:
    """Section 7.1, test 1; the signature itself covers our framing, so it is verified with the plain library."""
    key = SigningKey(bytes.fromhex("9d61b19deffd5a60ba844af492ec2cc44449c5697b326919703bac031cae7f60"))
    assert key.public.hex() == "d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a"
    signature = key.sign(SumLabel.SIGN_ADVERT, b"part", b"")
    Ed25519PublicKey.from_public_bytes(key.public).verify(signature, framed(SumLabel.SIGN_ADVERT, b"part", b""))
    verify(key.public, signature, SumLabel.SIGN_ADVERT, b"part", b"")


SIGNER = SigningKey(bytes(range(32)))
SIGNED = SIGNER.sign(SumLabel.SIGN_SHARES, b"one", b"two")


@cases(
    ("public", "signature", "label", "parts"),
    [
        (SigningKey(bytes(32)).public, SIGNED, SumLabel.SIGN_SHARES, (b"one", b"two")),  # another key
        (bytes(31), SIGNED, SumLabel.SIGN_SHARES, (b"one", b"two")),  # no key
        (SIGNER.public, SIGNED, SumLabel.SIGN_ADVERT, (b"one", b"two")),  # another purpose
        (SIGNER.public, SIGNED, SumLabel.SIGN_SHARES, (b"onet", b"wo")),  # another boundary
        (SIGNER.public, SIGNED, SumLabel.SIGN_SHARES, (b"one",)),  # a part less
        (SIGNER.public, SIGNED[:-1], SumLabel.SIGN_SHARES, (b"one", b"two")),  # short signature
        (SIGNER.public, b"", SumLabel.SIGN_SHARES, (b"one", b"two")),  # no signature
        (SIGNER.public, bytes([SIGNED[0] ^ 1]) + SIGNED[1:], SumLabel.SIGN_SHARES, (b"one", b"two")),  # bit
    ],
)
def test_signatures_that_do_not_verify(public: bytes, signature: bytes, label: Label, parts: tuple[bytes, ...]) -> None:
    with pytest.raises(RemoteProtocolError, match=f"a signature for {label.decode()} does not verify") as caught:
        verify(public, signature, label, *parts)
    assert caught.value.code is Code.SIGNATURE


def sealed_by_hand(key: bytes, plaintext: bytes, associated: bytes) -> bytes:
    """RFC 8439, section 2.8, with the nonce of zeros, out of the stream cipher and the one-time authenticator."""

    def chacha20(counter: int, data: bytes) -> bytes:
        nonce = counter.to_bytes(4, "little") + bytes(12)
        return Cipher(ChaCha20(key, nonce), mode=None).encryptor().update(data)

    def padded(data: bytes) -> bytes:
        return data + bytes(-len(data) % 16)

    text = chacha20(1, plaintext)
    authenticated = padded(associated) + padded(text) + length(associated) + length(text)
    return text + Poly1305.generate_tag(chacha20(0, bytes(32)), authenticated)


@given(st.binary(min_size=32, max_size=32), st.binary(max_size=80), st.binary(max_size=40))
def test_seal_by_hand(key: bytes, plaintext: bytes, associated: bytes) -> None:
    sealed = seal(key, plaintext, associated=associated)
    assert sealed == sealed_by_hand(key, plaintext, associated)
    assert open_sealed(key, sealed, associated=associated) == plaintext


def test_what_is_altered_does_not_open() -> None:
    key, sealed = bytes(32), seal(bytes(32), b"shares", associated=b"who")
    bent = [
        *((key, sealed[:place] + bytes([sealed[place] ^ 1]) + sealed[place + 1 :], b"who") for place in range(22)),
        *((key, sealed[:stop], b"who") for stop in range(22)),
        (key, sealed, b"whom"),
        (bytes(31) + b"x", sealed, b"who"),
    ]
    for other_key, text, associated in bent:
        with pytest.raises(RemoteProtocolError, match="a sealed share does not open") as caught:
            open_sealed(other_key, text, associated=associated)
        assert caught.value.code is Code.SHARES


SMALL_ORDER = (
    "0000000000000000000000000000000000000000000000000000000000000000",
    "0100000000000000000000000000000000000000000000000000000000000000",
    "e0eb7a7c3b41b8ae1656e3faf19fc46ada098deb9c32b1fd866205165f49b800",
    "5f9c95bca3508c24b1d0b1559c83ef5b04445cc4581c8e86d8224eddd09f1157",
    "ecffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
)
"""The list of https://cr.yp.to/ecdh.html, reduced."""


def test_public_keys_that_are_refused() -> None:
    for public in SMALL_ORDER:
        key = bytes.fromhex(public)
        # The library agrees: it computes an all-zero secret, and refuses it.
        with pytest.raises(ValueError, match="computing shared key"):
            X25519PrivateKey.from_private_bytes(bytes(range(32))).exchange(X25519PublicKey.from_public_bytes(key))
        with pytest.raises(RemoteProtocolError, match="not canonical or has small order") as caught:
            check_public_key(key)
        assert caught.value.code is Code.KEYS
    for excess in [*range(19), 2**255 - PRIME_25519]:
        with pytest.raises(RemoteProtocolError, match="not canonical"):
            check_public_key((PRIME_25519 + excess).to_bytes(32, "little"))
    key = AgreementKey(bytes(range(32))).public
    check_public_key(key)
    for bit in range(255):
        check_public_key((int.from_bytes(key, "little") ^ 1 << bit).to_bytes(32, "little"))
    with pytest.raises(RemoteProtocolError, match="not canonical"):
        check_public_key(key[:-1] + bytes([key[-1] | 0x80]))
    check_public_key((PRIME_25519 - 2).to_bytes(32, "little"))


def test_secrets_are_not_shown() -> None:
    secret = bytes(range(65, 97))
    agreement, signing = AgreementKey(secret), SigningKey(secret)
    for value in (agreement, signing, HeldShares(key=secret, seed=secret)):
        assert secret.decode() not in f"{value!r} {value!s} {[value]!r}"
        assert secret.hex() not in f"{value!r}"
    federation = MemoryFederation(small_configuration(3), 3).run()
    for machine in (federation.server, *federation.clients.values()):
        assert repr(machine) == object.__repr__(machine)
    train = federation.outcome(Train)[0]
    assert repr(train) == "Train(round=1, key=None)"
    assert (
        repr(Transmit("client-0", [b"frame"], Phase.TRAIN)) == "Transmit(to='client-0', phase=<Phase.TRAIN: 'TRAIN'>)"
    )
