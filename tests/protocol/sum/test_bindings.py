"""What keys, commitments and signatures are bound to: another owner, holder, round or list of keys is another value."""

from dataclasses import replace
from itertools import product
from typing import Any

import pytest

from tacit.protocol.core.errors import Code, RemoteProtocolError
from tacit.protocol.core.primitives import AgreementKey, SigningKey, framed, seal
from tacit.protocol.sum import sharing
from tacit.protocol.sum.agreement import (
    Agreement,
    complaint_signed,
    packet_signed,
    pairwise_mask,
    sign_advert,
    survivors_signed,
)
from tacit.protocol.sum.sharing import (
    COMMITMENTS_BYTES,
    PACKET_BYTES,
    commit_share,
    open_packet,
    seal_shares,
)
from tacit.protocol.sum.states import SumLabel
from tacit.secagg.shamir import SHARE_BYTES
from tacit.simulate.world.world import Streams
from tests.cases import cases
from tests.world.sums import memory_sum

OTHER = bytes(range(32))
OWNER, HOLDER = AgreementKey(bytes(32)), AgreementKey(bytes([1]) * 32)


def agreement() -> Agreement:
    return memory_sum(5, active=True).agreement


def sealed_packet(**changes: Any) -> bytes:
    """The packet of member 1 for member 3."""
    arguments: dict[str, Any] = {"agreement": agreement(), "adverts_digest": bytes(32), "owner": 1}
    arguments |= changes
    packets, _ = seal_shares(
        **arguments,
        channel=OWNER,
        secrets=(b"k" * 32, b"s" * 32),
        holders=dict.fromkeys(range(5), HOLDER.public),
        entropy=Streams(b"packet").of(""),
    )
    return packets[3 * PACKET_BYTES : 4 * PACKET_BYTES]


def opened(packet: bytes, **changes: Any) -> sharing.HeldShares:
    arguments: dict[str, Any] = {"owner": 1, "holder": 3, "owner_key": OWNER.public}
    arguments |= changes
    return open_packet(agreement(), bytes(32), packet, channel=HOLDER, **arguments)


def test_a_packet_opens_for_its_holder() -> None:
    held, told = opened(sealed_packet())
    assert told == b""
    assert (len(held.key), len(held.seed)) == (SHARE_BYTES, SHARE_BYTES)
    assert held.key != held.seed
    assert repr(held) == "HeldShares(<secret>)"


def test_a_packet_opens_as_what_it_was_made_for_alone() -> None:
    for packet in [
        sealed_packet(agreement=replace(agreement(), round=1)),  # round
        sealed_packet(adverts_digest=OTHER),  # list of keys
        sealed_packet(owner=2),  # owner
    ]:
        with pytest.raises(RemoteProtocolError, match="SHARES"):
            opened(packet)

    for change in [{"holder": 4}, {"owner": 2}, {"owner": 3, "holder": 1}, {"owner_key": HOLDER.public}]:
        with pytest.raises(RemoteProtocolError, match="SHARES"):
            opened(sealed_packet(), **change)


@cases("place", [0, 32])
def test_an_owner_who_commits_to_another_share_is_found_out(place: int, monkeypatch: pytest.MonkeyPatch) -> None:
    # The owner knows the sealing key, so the seal itself is good.
    def seal_with_other_commitments(key: bytes, plaintext: bytes, *, associated: bytes) -> bytes:
        return seal(key, plaintext, associated=bent(associated))

    def bent(commitments: bytes) -> bytes:
        return commitments[:place] + bytes(32) + commitments[place + 32 :]

    monkeypatch.setattr(sharing, "seal", seal_with_other_commitments)
    packet = sealed_packet()
    packet = bent(packet[:COMMITMENTS_BYTES]) + packet[COMMITMENTS_BYTES:]
    with pytest.raises(RemoteProtocolError, match="not the one that it committed to") as refusal:
        opened(packet)
    assert refusal.value.code is Code.SHARES


def test_commitments_are_bound_to_kind_round_owner_and_holder() -> None:
    rounds = (agreement(), replace(agreement(), round=1))
    share = bytes(SHARE_BYTES)
    found = {
        commit_share(label, of_round, owner=owner, holder=holder, share=share)
        for label, of_round, owner, holder in product((SumLabel.KEY_SHARE, SumLabel.SEED_SHARE), rounds, (1, 2), (1, 2))
    }
    assert len(found) == 16


def test_pairwise_seeds_are_bound_to_the_pair_and_the_sharing() -> None:
    found = {
        pairwise_mask(OWNER, HOLDER.public, salt, member, peer).seed
        for salt in (bytes(32), OTHER)
        for member, peer in ((1, 2), (1, 3), (2, 3))
    }
    assert len(found) == 6
    mine = pairwise_mask(OWNER, HOLDER.public, OTHER, 1, 2)
    theirs = pairwise_mask(HOLDER, OWNER.public, OTHER, 2, 1)
    assert (mine.seed, mine.usage, mine.sign) == (theirs.seed, theirs.usage, -theirs.sign)
    assert mine.sign == -1


def test_signatures_cover_everything() -> None:
    base: dict[str, Any] = {
        "agreement": agreement(), "adverts": bytes(32), "owner": 1, "holder": 3, "packet": sealed_packet()
    }  # fmt: skip
    others = {
        "agreement": replace(agreement(), round=1), "adverts": OTHER, "owner": 2, "holder": 2, "packet": b"other"
    }  # fmt: skip
    variants = [base, *({**base, name: other} for name, other in others.items()), {**base, "owner": 3, "holder": 1}]
    assert len({framed(SumLabel.SIGN_SHARES, *packet_signed(**variant)) for variant in variants}) == len(variants)

    base: dict[str, Any] = {"sharing": bytes(32), "owner": 1, "holder": 3}
    variants = [base, *({**base, **other} for other in ({"sharing": OTHER}, {"owner": 2}, {"holder": 2}))]
    variants += [{**base, "owner": 3, "holder": 1}]
    assert len({framed(SumLabel.SIGN_COMPLAINT, *complaint_signed(**variant)) for variant in variants}) == len(variants)

    base: list[Any] = [bytes(32), 1, b"\x0f"]
    others: list[Any] = [OTHER, 2, b"\x17"]
    variants = [base] + [[*base[:i], others[i], *base[i + 1 :]] for i in range(len(base))]
    assert len({framed(SumLabel.SIGN_SURVIVORS, *survivors_signed(*variant)) for variant in variants}) == len(variants)

    signing = SigningKey(OTHER)
    base: dict[str, Any] = {"member": 1, "channel_key": bytes(32), "mask_key": bytes(32), "choices": b""}
    changes: list[dict[str, Any]] = [
        {},
        {"agreement": replace(agreement(), round=1)},
        {"member": 2},
        {"channel_key": OTHER},
        {"mask_key": OTHER},
        {"choices": b"\1\0"},
    ]
    made = [sign_advert(**{"agreement": agreement(), "signing": signing, **base, **change}) for change in changes]
    # Ed25519 is deterministic: equal signatures would mean equal signed parts.
    assert len({advert.signature for advert in made}) == len(changes)
