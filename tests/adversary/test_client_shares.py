"""Shares and returned shares that break a rule: whoever made or bent them is named. Complaints: test_complaints.py."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from tacit.protocol.core.errors import Code
from tacit.protocol.core.messages import Message
from tacit.protocol.core.roster import decode_members, encode_members
from tacit.protocol.sum.agreement import packet_signed
from tacit.protocol.sum.events import ComplaintReceived, ComplaintSent
from tacit.protocol.sum.exchange import ServerAborted, Summed
from tacit.protocol.sum.messages import MaskedInput, PeerKeys, ShareKeys, UnmaskShares
from tacit.protocol.sum.sharing import PACKET_BYTES, seal_shares
from tacit.protocol.sum.states import SumLabel
from tacit.secagg.graph import GraphParameters
from tacit.secagg.shamir import SHARE_BYTES
from tests.cases import cases
from tests.world.exchange import Delivery
from tests.world.sums import MemorySum, memory_sum

Audit = Callable[[MemorySum], Summed | ServerAborted]
ExactSum = Callable[[MemorySum], Summed]
Change = Callable[[MemorySum, Any], Message]
CLIENTS = 5
CHEAT = "c1"
MEMBER = 1
OTHERS = ("c0", "c2", "c3", "c4")
modes = cases("active", [True, False])


def flipped(data: bytes, place: int) -> bytes:
    return data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :]


def keys_digest(run: MemorySum) -> bytes:
    return next(d.message.digest for d in run.log if d.receiver == CHEAT and isinstance(d.message, PeerKeys))


def resigned(run: MemorySum, message: ShareKeys, **changes: bytes) -> ShareKeys:
    changed = msgspec.structs.replace(message, **changes)
    if not run.agreement.active:
        return changed
    signatures = b""
    for place, holder in enumerate(decode_members(changed.holders, CLIENTS)):
        packet = changed.packets[place * PACKET_BYTES : (place + 1) * PACKET_BYTES]
        parts = packet_signed(run.agreement, keys_digest(run), owner=MEMBER, holder=holder, packet=packet)
        signatures += run.signing[CHEAT].sign(SumLabel.SIGN_SHARES, *parts)
    return msgspec.structs.replace(changed, signatures=signatures)


@pytest.mark.threat("client/share-for-wrong-receiver")
@modes
def test_other_holders(active: bool, summed: ExactSum, cheats: Any) -> None:
    def change(run: MemorySum, message: ShareKeys) -> ShareKeys:
        return resigned(
            run,
            message,
            holders=encode_members((0, 1, 2, 3), CLIENTS),
            packets=message.packets[: 4 * PACKET_BYTES],
        )

    run = cheats.play(active, ShareKeys, change)
    assert summed(run).survivors == OTHERS
    cheats.caught(run, "SHARE_KEYS", Code.MEMBERS)


@pytest.mark.threat("client/truncated-ciphertext")
@modes
@cases("surplus", [-PACKET_BYTES, -1, 1, PACKET_BYTES])
def test_packets_of_another_length(surplus: int, active: bool, summed: ExactSum, cheats: Any) -> None:
    run = cheats.play(
        active,
        ShareKeys,
        lambda run, m: resigned(run, m, packets=(m.packets + bytes(PACKET_BYTES))[: len(m.packets) + surplus]),
    )
    assert summed(run).survivors == OTHERS
    cheats.caught(run, "SHARE_KEYS", Code.SHARES)


def sharing_others(*, key: bool = False, seed: bool = False) -> Change:
    def change(run: MemorySum, message: ShareKeys) -> ShareKeys:
        client = run.clients[CHEAT].data
        packets, _ = seal_shares(
            run.agreement,
            keys_digest(run),
            owner=MEMBER,
            channel=client.channel,
            secrets=(bytes(32) if key else client.mask_key.private, bytes(32) if seed else client.seed),
            holders={member: advert.channel_key for member, advert in client.adverts.items()},
            entropy=run.streams.of("x"),
        )
        return resigned(run, message, packets=packets)

    return change


def check_commitment_to_another_seed(active: bool, audit: Audit, cheats: Any) -> None:
    outcome = audit(cheats.play(active, ShareKeys, lambda run, m: resigned(run, m, seed_commitment=bytes(32))))
    assert isinstance(outcome, ServerAborted)
    assert (outcome.code, outcome.culprit) == (Code.SECRET, CHEAT)


def check_another_mask_key_than_advertised(active: bool, audit: Audit, summed: ExactSum, cheats: Any) -> None:
    # While its owner stays, nobody needs the key.
    assert summed(cheats.play(active, ShareKeys, sharing_others(key=True))).survivors[MEMBER] == CHEAT
    run = memory_sum(CLIENTS, active=active, seed=b"cheats")

    def hook(delivery: Delivery) -> list[Delivery]:
        if delivery.sender == CHEAT and isinstance(delivery.message, ShareKeys):
            return [replace(delivery, message=sharing_others(key=True)(run, delivery.message))]
        if delivery.sender == CHEAT and isinstance(delivery.message, MaskedInput):
            run.kill(CHEAT)
            return []
        return [delivery]

    run.hook = hook
    run.run()
    outcome = audit(run)
    assert isinstance(outcome, ServerAborted)
    assert (outcome.code, outcome.culprit) == (Code.SECRET, CHEAT)
    assert "mask key" in outcome.detail


def check_shares_that_belong_to_no_secret(active: bool, audit: Audit, cheats: Any) -> None:
    # Good packets of two different sharings: each holder is content, together they are points of nothing.
    def change(run: MemorySum, message: ShareKeys) -> ShareKeys:
        other = sharing_others(key=True, seed=True)(run, message)
        assert isinstance(other, ShareKeys)
        return resigned(run, message, packets=message.packets[:PACKET_BYTES] + other.packets[PACKET_BYTES:])

    run = cheats.play(active, ShareKeys, change)
    outcome = audit(run)
    assert isinstance(outcome, ServerAborted)
    assert (outcome.code, outcome.culprit) == (Code.SECRET, CHEAT)
    assert run.outcome(ComplaintReceived) == []
    assert run.outcome(ComplaintSent) == []


@pytest.mark.threat("client/share-of-another-secret")
@pytest.mark.threat("client/commitment-mismatch")
def test_shares_of_another_secret_than_committed_to(audit: Audit, cheats: Any, summed: ExactSum) -> None:
    for active in [True, False]:
        outcome = audit(cheats.play(active, ShareKeys, sharing_others(seed=True)))
        assert isinstance(outcome, ServerAborted)
        assert (outcome.code, outcome.culprit) == (Code.SECRET, CHEAT)
        assert "seed" in outcome.detail

    for active in [True, False]:
        check_commitment_to_another_seed(active, audit, cheats)

    for active in [True, False]:
        check_another_mask_key_than_advertised(active, audit, summed, cheats)

    for active in [True, False]:
        check_shares_that_belong_to_no_secret(active, audit, cheats)


@pytest.mark.threat("client/bad-share")
@modes
def test_a_complaint_about_shares_not_given(active: bool, audit: Audit, cheats: Any) -> None:
    run = memory_sum(CLIENTS, active=active, seed=b"cheats")

    def hook(delivery: Delivery) -> list[Delivery]:
        if delivery.sender == "c4" and delivery.kind == "share-keys":
            run.kill("c4")
            return []
        if delivery.sender == CHEAT and delivery.kind == "masked-input":
            return [replace(delivery, message=MaskedInput(complaints=encode_members((4,), CLIENTS), signatures=b""))]
        return [delivery]

    run.hook = hook
    run.run()
    drop = next(drop for drop in run.server.drops if drop.member == CHEAT)
    assert (drop.phase, drop.code, drop.included) == ("MASKED_INPUT", Code.MEMBERS, False)
    outcome = audit(run)
    # Three are left; the active threshold is four.
    assert isinstance(outcome, ServerAborted if active else Summed)


RETURNS: dict[str, Callable[[Any], UnmaskShares]] = {
    "a share altered": lambda m: msgspec.structs.replace(m, shares=flipped(m.shares, 50)),
    "shares swapped": lambda m: msgspec.structs.replace(m, shares=m.shares[36:72] + m.shares[:36] + m.shares[72:]),
    "shares cut": lambda m: msgspec.structs.replace(m, shares=m.shares[:-1]),
    "a share too many": lambda m: msgspec.structs.replace(m, shares=m.shares + bytes(36)),
    "an owner left out": lambda m: UnmaskShares(owners=encode_members((0, 1, 2, 3), CLIENTS), shares=m.shares[:-36]),
    "owners renamed": lambda m: msgspec.structs.replace(m, owners=encode_members((0, 1, 2, 3), CLIENTS)),
}


def check_bad_returns_exclude_the_holder(name: str, active: bool, audit: Audit, summed: ExactSum, cheats: Any) -> None:
    run = cheats.play(active, UnmaskShares, lambda run, message: RETURNS[name](message))
    assert summed(run).survivors == run.agreement.cohort
    cheats.caught(run, "UNMASK", Code.SHARES)
    many = ("c1", "c2") if active else ("c1", "c2", "c3")
    run = cheats.play(active, UnmaskShares, lambda run, message: RETURNS[name](message), by=many)
    outcome = audit(run)
    assert isinstance(outcome, ServerAborted)
    assert outcome.code is Code.THRESHOLD
    cheats.caught(run, "UNMASK", Code.SHARES, *many)


def check_the_wrong_kind_of_share(active: bool, summed: ExactSum, cheats: Any) -> None:
    # The share of the key in the place of that of the seed: an honest server does not take what it must not have.
    keys: dict[str, bytes] = {}

    def change(run: MemorySum, message: UnmaskShares) -> UnmaskShares:
        return UnmaskShares(owners=message.owners, shares=keys["c0"] + message.shares[36:])

    run = memory_sum(CLIENTS, active=active, seed=b"cheats")

    def hook(delivery: Delivery) -> list[Delivery]:
        if delivery.sender == CHEAT and delivery.kind == "masked-input":
            keys["c0"] = run.clients[CHEAT].data.held[0].key
        if delivery.sender == CHEAT and isinstance(delivery.message, UnmaskShares):
            return [replace(delivery, message=change(run, delivery.message))]
        return [delivery]

    run.hook = hook
    run.run()
    assert summed(run).survivors == run.agreement.cohort
    cheats.caught(run, "UNMASK", Code.SHARES)


@pytest.mark.threat("client/bad-share")
def test_bad_returns_exclude_the_holder(audit: Audit, summed: ExactSum, cheats: Any) -> None:
    for active in [True, False]:
        for name in RETURNS:
            check_bad_returns_exclude_the_holder(name, active, audit, summed, cheats)

    for active in [True, False]:
        check_the_wrong_kind_of_share(active, summed, cheats)


def overwritten(place: int, share: bytes) -> Callable[[MemorySum, UnmaskShares], UnmaskShares]:
    def change(run: MemorySum, message: UnmaskShares) -> UnmaskShares:
        low = place * SHARE_BYTES
        return msgspec.structs.replace(
            message, shares=message.shares[:low] + share + message.shares[low + SHARE_BYTES :]
        )

    return change


@pytest.mark.threat("client/bad-share")
@modes
def test_of_no_field_or_for_every_owner_it_names_the_holder(active: bool, summed: ExactSum, cheats: Any) -> None:
    run = cheats.play(active, UnmaskShares, overwritten(3, b"\xff" * SHARE_BYTES))
    assert summed(run).survivors == run.agreement.cohort
    cheats.caught(run, "UNMASK", Code.SHARES)

    run = cheats.play(active, UnmaskShares, lambda run, m: msgspec.structs.replace(m, shares=m.shares[::-1]))
    assert summed(run).survivors == run.agreement.cohort
    cheats.caught(run, "UNMASK", Code.SHARES)


@pytest.mark.threat("client/bad-share")
@modes
def test_a_share_that_is_not_needed_harms_nobody(active: bool, summed: ExactSum, cheats: Any) -> None:
    # c4 is the last of five holders, of whom the first three or four are enough.
    run = cheats.play(active, UnmaskShares, overwritten(0, bytes(SHARE_BYTES)), by=("c4",))
    assert summed(run).survivors == run.agreement.cohort
    assert run.server.drops == []

    # It stays unnamed when another holder is found to lie of another owner.
    run, places = memory_sum(CLIENTS, active=False, seed=b"cheats"), {CHEAT: 2, "c4": 0}

    def hook(delivery: Delivery) -> list[Delivery]:
        if delivery.sender not in places or not isinstance(delivery.message, UnmaskShares):
            return [delivery]
        lie = overwritten(places[delivery.sender], bytes(SHARE_BYTES))
        return [replace(delivery, message=lie(run, delivery.message))]

    run.hook = hook
    run.run()
    assert summed(run).survivors == run.agreement.cohort
    cheats.caught(run, "UNMASK", Code.SHARES)

    # Of the same owner, it is found too.
    run = cheats.play(active, UnmaskShares, overwritten(0, bytes(SHARE_BYTES)), by=("c1", "c4"))
    if not active:
        assert summed(run).survivors == run.agreement.cohort
    cheats.caught(run, "UNMASK", Code.SHARES, "c1", "c4")


@pytest.mark.threat("client/bad-share")
@pytest.mark.threat("client/share-of-another-secret")
def test_a_holder_that_lies_of_an_owner_that_lies(audit: Audit, cheats: Any) -> None:
    # The holder is out, and then all other shares are those committed to: it is the owner.
    run = memory_sum(CLIENTS, active=False, seed=b"cheats")

    def hook(delivery: Delivery) -> list[Delivery]:
        if delivery.sender == CHEAT and isinstance(delivery.message, ShareKeys):
            return [replace(delivery, message=resigned(run, delivery.message, seed_commitment=bytes(32)))]
        if delivery.sender == "c0" and isinstance(delivery.message, UnmaskShares):
            return [replace(delivery, message=overwritten(MEMBER, bytes(SHARE_BYTES))(run, delivery.message))]
        return [delivery]

    run.hook = hook
    run.run()
    outcome = audit(run)
    assert isinstance(outcome, ServerAborted)
    assert (outcome.code, outcome.culprit) == (Code.SECRET, CHEAT)
    assert [(drop.member, drop.phase, drop.code) for drop in run.server.drops] == [("c0", "UNMASK", Code.SHARES)]


@pytest.mark.threat("client/bad-share")
def test_a_secret_that_is_open_needs_no_shares_any_more(summed: ExactSum) -> None:
    # The liar gave a good share of another owner, of whom just the threshold is there with it.
    run = memory_sum(9, active=False, seed=b"cheats", parameters=GraphParameters(neighbours=4, threshold=3))
    holders: dict[int, tuple[int, ...]] = {}

    def roles() -> tuple[int, int, int]:
        """Owner lied of, liar, and who is gone, of no secret of that owner but of another that the liar holds."""
        for owner, (liar, *others) in holders.items():
            for held in holders.values():
                gone = set(held) - {liar, *others}
                if liar in held and gone:
                    return owner, liar, min(gone)
        raise AssertionError(holders)

    def hook(delivery: Delivery) -> list[Delivery]:
        sender = run.agreement.places.get(delivery.sender, -1)
        if isinstance(delivery.message, ShareKeys):
            holders[sender] = decode_members(delivery.message.holders, 9)
        if isinstance(delivery.message, UnmaskShares):
            owner, liar, gone = roles()
            if sender == gone:
                run.kill(delivery.sender)
                return []
            if sender == liar:
                place = decode_members(delivery.message.owners, 9).index(owner)
                return [replace(delivery, message=overwritten(place, bytes(SHARE_BYTES))(run, delivery.message))]
        return [delivery]

    run.hook = hook
    run.run()
    assert summed(run).survivors == run.agreement.cohort
    _, liar, gone = roles()
    assert {drop.member: drop.code for drop in run.server.drops} == {f"c{liar}": Code.SHARES, f"c{gone}": Code.LEFT}
