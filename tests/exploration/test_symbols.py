"""The stand-ins have the lengths of the real primitives, refuse where these refuse, and go when they are not used."""

from typing import Any

# mypy: disable-error-code=attr-defined
# It looks at names that modules import: there the stand-ins are put.
import numpy as np
import pytest

from tacit.protocol.core import primitives
from tacit.protocol.core.errors import Code, RemoteProtocolError
from tacit.protocol.core.primitives import KEY_BYTES, SIGNATURE_BYTES, TAG_BYTES
from tacit.protocol.sum import client as aggregation_client
from tacit.protocol.sum import sharing
from tacit.protocol.sum.states import SumLabel
from tacit.secagg.keystream import Mask, Usage
from tacit.secagg.ring import Ring
from tests.cases import cases
from tests.exploration.symbols import STAND_INS, symbolic_cryptography

SECRETS = (b"k" * 32, b"s" * 32)
POINTS = np.array([1, 3, 4])


def test_names_are_replaced_and_put_back() -> None:
    stood_in = primitives.AgreementKey, aggregation_client.apply_masks, sharing.share, sharing.reconstruct_each
    assert set(stood_in) <= {stand_in for _, stand_in in STAND_INS}
    for module in (aggregation_client, sharing, sharing, primitives):
        assert not {id(real) for real, _ in STAND_INS} & {id(value) for value in vars(module).values()}
    with symbolic_cryptography():
        pass
    assert primitives.AgreementKey is stood_in[0]


def test_both_ends_agree_and_nobody_else() -> None:
    keys = [primitives.AgreementKey(bytes([place]) * KEY_BYTES) for place in range(3)]
    for key in keys:
        primitives.check_public_key(key.public)
        assert len(key.public) == KEY_BYTES
    agreed = {(one, other): keys[one].agree(keys[other].public) for one in range(3) for other in range(3)}
    assert agreed[0, 1] == agreed[1, 0]
    assert len(set(agreed.values())) == 6


def test_a_wrong_signature_or_key_is_refused() -> None:
    for public, signature, label, part in [
        (1, 0, SumLabel.SIGN_SURVIVORS, b"x"),
        (0, 1, SumLabel.SIGN_SURVIVORS, b"x"),
        (0, 0, SumLabel.SIGN_SHARES, b"x"),
        (0, 0, SumLabel.SIGN_SURVIVORS, b"y"),
    ]:
        keys = [primitives.SigningKey(bytes([place]) * KEY_BYTES) for place in range(2)]
        signed = [key.sign(SumLabel.SIGN_SURVIVORS, b"x") for key in keys]
        assert {len(one) for one in signed} == {SIGNATURE_BYTES}
        primitives.verify(keys[0].public, signed[0], SumLabel.SIGN_SURVIVORS, b"x")
        with pytest.raises(RemoteProtocolError) as refused:
            primitives.verify(keys[public].public, signed[signature], label, part)
        assert refused.value.code is Code.SIGNATURE

    sealed = primitives.seal(b"k" * 32, b"plain", associated=b"data")
    assert len(sealed) == len(b"plain") + TAG_BYTES
    assert primitives.open_sealed(b"k" * 32, sealed, associated=b"data") == b"plain"
    for key, packet, data in (
        (b"l" * 32, sealed, b"data"),
        (b"k" * 32, sealed, b"date"),
        (b"k" * 32, bytes(21), b"data"),
    ):
        with pytest.raises(RemoteProtocolError):
            primitives.open_sealed(key, packet, associated=data)


def shares(threshold: int) -> Any:
    return sharing.share(SECRETS, points=POINTS, threshold=threshold, seed=bytes(32))


def test_enough_shares_of_one_kind_open_a_secret_and_others_do_not() -> None:
    made = shares(threshold=2)
    assert sharing.reconstruct_each(made[1:].transpose(1, 0, 2), np.tile(POINTS[1:], (2, 1))) == [*SECRETS]

    for what in ["too few", "mixed kinds", "one twice", "wrong points"]:
        made = shares(threshold=2)[:, :1]
        given, points = {
            "too few": (made[:1], POINTS[:1]),
            "mixed kinds": (np.stack([made[0], shares(threshold=2)[1, 1:]]), POINTS[:2]),
            "one twice": (made[[0, 0]], POINTS[[0, 0]]),
            "wrong points": (made[:2], POINTS[1:]),
        }[what]
        with pytest.raises(ValueError, match="do not belong together"):
            sharing.reconstruct_each(given.transpose(1, 0, 2), points[np.newaxis])


@cases("bits", [20, 64])
def test_masks_cancel_in_pairs_and_only_then(bits: int) -> None:
    ring = Ring(bits)
    words = np.arange(3, dtype=ring.word)
    plus, minus = (Mask(b"m" * 32, Usage.PAIRWISE_MASK, sign) for sign in (1, -1))
    masked = words.copy()
    aggregation_client.apply_masks(masked, [plus], ring)
    assert (masked != words).all()
    part = masked[1:].copy()
    aggregation_client.apply_masks(part, [minus], ring, start=1)
    np.testing.assert_array_equal(part, words[1:])
    other = masked.copy()
    aggregation_client.apply_masks(other, [Mask(b"m" * 32, Usage.SELF_MASK, -1)], ring)
    assert (other != words).all()
