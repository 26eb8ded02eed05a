"""The primitives against computations by hand, and against the vectors of their RFCs."""

import re
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey

from docs.generate.specification import LABELS
from tacit.protocol.core.errors import Code, RemoteProtocolError
from tacit.protocol.core.machine import Transmit
from tacit.protocol.core.primitives import (
    PRIME_25519,
    AgreementKey,
    Label,
    SigningKey,
    check_public_key,
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


def test_labels_are_distinct_and_none_is_forgotten() -> None:
    everywhere = "".join(
        path.read_text(encoding="utf-8") for part in ("protocol", "parties") for path in (ROOT / part).rglob("*.py")
    )
    assert set(re.findall(r'Label\(b"(.+?)"\)', everywhere)) == {label.decode() for label in LABELS.values()}
    assert len(set(LABELS.values())) == len(LABELS)
    assert all(label.startswith(b"tacit/1 ") for label in LABELS.values())


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
