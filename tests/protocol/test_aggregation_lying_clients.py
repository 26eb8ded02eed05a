"""Keys and shares that break a rule: their senders are named, the others lose nothing while enough of them remain."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from tacit.protocol.adverts import sign_advert
from tacit.protocol.aggregation_results import ServerAborted, Summed
from tacit.protocol.errors import Code
from tacit.protocol.machine import Report
from tacit.protocol.members import encode_members
from tacit.protocol.messages import AdvertiseKeys, MaskedInput, Message, ShareKeys
from tacit.protocol.primitives import PRIME_25519, Label
from tacit.protocol.sharing import PACKET_BYTES, seal_shares
from tacit.protocol.transcript import shares_signed
from tacit.simulate.memory import Delivery, MemorySum, memory_sum

Audit = Callable[[MemorySum], Summed | ServerAborted]
ExactSum = Callable[[MemorySum], Summed]
Change = Callable[[MemorySum, Any], Message]
CLIENTS = 5
CHEAT = "c1"
MEMBER = 1
OTHERS = ("c0", "c2", "c3", "c4")
modes = pytest.mark.parametrize("active", [True, False], ids=["active", "semi-honest"])


def cheating(active: bool, kind: type[Message], change: Change, *, by: tuple[str, ...] = (CHEAT,)) -> MemorySum:
    """A finished sum in which these clients said `change` of their honest message."""
    run = memory_sum(CLIENTS, active=active, seed=b"cheats")

    def hook(delivery: Delivery) -> list[Delivery]:
        if delivery.sender in by and isinstance(delivery.message, kind):
            return [replace(delivery, message=change(run, delivery.message))]
        return [delivery]

    run.hook = hook
    run.run()
    return run


def named(run: MemorySum, phase: str, code: Code, *members: str) -> None:
    assert [(drop.member, drop.phase, drop.code) for drop in run.server.drops] == [
        (member, phase, code) for member in members or (CHEAT,)
    ]
    told = {d.receiver: d.message for d in run.log if d.sender == "server" and d.kind == "abort"}
    assert all(told[member].code is code and told[member].culprit == member for member in members or (CHEAT,))  # type: ignore[attr-defined]


def flipped(data: bytes, place: int) -> bytes:
    return data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :]


# Keys


def advertising(**keys: Callable[[MemorySum, AdvertiseKeys], bytes]) -> Change:
    """Other keys, rightly signed."""

    def change(run: MemorySum, message: AdvertiseKeys) -> AdvertiseKeys:
        chosen = {"channel_key": message.channel_key, "mask_key": message.mask_key, "choices": message.choices}
        chosen |= {field: key(run, message) for field, key in keys.items()}
        return sign_advert(run.agreement, MEMBER, run.signing[CHEAT], **chosen).message()

    return change


def key_of_c0(run: MemorySum, message: AdvertiseKeys) -> bytes:
    return next(d.message.mask_key for d in run.log if isinstance(d.message, AdvertiseKeys) and d.sender == "c0")


BAD_KEYS: dict[str, Change] = {
    "small order": advertising(mask_key=lambda run, message: (1).to_bytes(32, "little")),
    "small order on the channel": advertising(channel_key=lambda run, message: bytes(32)),
    "not canonical": advertising(channel_key=lambda run, message: (PRIME_25519 + 9).to_bytes(32, "little")),
    "another's mask key": advertising(mask_key=key_of_c0),
    "another's mask key for the channel": advertising(channel_key=key_of_c0),
    "one key for both": advertising(mask_key=lambda run, message: message.channel_key),
}


@modes
@pytest.mark.parametrize("name", BAD_KEYS)
def test_bad_keys(name: str, active: bool, summed: ExactSum) -> None:
    run = cheating(active, AdvertiseKeys, BAD_KEYS[name])
    assert summed(run).survivors == OTHERS
    named(run, "ADVERTISE_KEYS", Code.KEYS)


@modes
def test_choices_in_a_complete_graph(active: bool, summed: ExactSum) -> None:
    run = cheating(active, AdvertiseKeys, advertising(choices=lambda run, message: b"\0\0"))
    assert summed(run).survivors == OTHERS
    named(run, "ADVERTISE_KEYS", Code.MEMBERS)


@pytest.mark.parametrize("place", [0, 31, 32, 63])
def test_bad_signature_over_keys(place: int, summed: ExactSum) -> None:
    run = cheating(
        True, AdvertiseKeys, lambda run, m: msgspec.structs.replace(m, signature=flipped(m.signature, place))
    )
    assert summed(run).survivors == OTHERS
    named(run, "ADVERTISE_KEYS", Code.SIGNATURE)


@pytest.mark.parametrize("signature", [b"", bytes(63), bytes(64)])
@pytest.mark.parametrize("kind", [AdvertiseKeys, ShareKeys])
def test_no_signature(kind: type[Message], signature: bytes, summed: ExactSum) -> None:
    run = cheating(True, kind, lambda run, message: msgspec.structs.replace(message, signature=signature))
    assert summed(run).survivors == OTHERS
    named(run, "ADVERTISE_KEYS" if kind is AdvertiseKeys else "SHARE_KEYS", Code.SIGNATURE)


@pytest.mark.parametrize("kind", [AdvertiseKeys, ShareKeys])
def test_signature_in_semi_honest_mode(kind: type[Message], summed: ExactSum) -> None:
    run = cheating(False, kind, lambda run, message: msgspec.structs.replace(message, signature=bytes(64)))
    assert summed(run).survivors == OTHERS
    named(run, "ADVERTISE_KEYS" if kind is AdvertiseKeys else "SHARE_KEYS", Code.SIGNATURE)


# Shares


def resigned(run: MemorySum, message: ShareKeys, **changes: bytes) -> ShareKeys:
    """Other content, rightly signed."""
    changed = msgspec.structs.replace(message, **changes)
    if not run.agreement.active:
        return changed
    parts = shares_signed(
        run.agreement,
        run.clients[CHEAT]._adverts_digest,
        MEMBER,
        changed.seed_commitment,
        changed.holders,
        changed.packets,
    )
    return msgspec.structs.replace(changed, signature=run.signing[CHEAT].sign(Label.SIGN_SHARES, *parts))


@modes
def test_other_holders(active: bool, summed: ExactSum) -> None:
    def change(run: MemorySum, message: ShareKeys) -> ShareKeys:
        return resigned(
            run,
            message,
            holders=encode_members((0, 1, 2, 3), CLIENTS),
            packets=message.packets[: 4 * PACKET_BYTES],
        )

    run = cheating(active, ShareKeys, change)
    assert summed(run).survivors == OTHERS
    named(run, "SHARE_KEYS", Code.MEMBERS)


@modes
@pytest.mark.parametrize("surplus", [-PACKET_BYTES, -1, 1, PACKET_BYTES])
def test_packets_of_another_length(surplus: int, active: bool, summed: ExactSum) -> None:
    run = cheating(
        active,
        ShareKeys,
        lambda run, m: resigned(run, m, packets=(m.packets + bytes(PACKET_BYTES))[: len(m.packets) + surplus]),
    )
    assert summed(run).survivors == OTHERS
    named(run, "SHARE_KEYS", Code.SHARES)


@pytest.mark.parametrize("field", ["seed_commitment", "packets", "signature"])
def test_bad_signature_over_shares(field: str, summed: ExactSum) -> None:
    run = cheating(True, ShareKeys, lambda run, m: msgspec.structs.replace(m, **{field: flipped(getattr(m, field), 7)}))
    assert summed(run).survivors == OTHERS
    named(run, "SHARE_KEYS", Code.SIGNATURE)


PLACES = {"commitment to the key share": 0, "commitment to the seed share": 32, "sealed shares": 64, "tag": 151}


def spoiling(place: int, *holders: int) -> Change:
    def change(run: MemorySum, message: ShareKeys) -> ShareKeys:
        packets = message.packets
        for holder in holders:
            packets = flipped(packets, holder * PACKET_BYTES + place)
        return resigned(run, message, packets=packets)

    return change


@modes
@pytest.mark.parametrize("place", PLACES)
def test_a_bad_share_for_one_holder_is_complained_about(place: str, active: bool, summed: ExactSum) -> None:
    run = cheating(active, ShareKeys, spoiling(PLACES[place], 3))
    assert summed(run).survivors == run.agreement.cohort
    assert run.server.drops == []
    complaints = [report.fields for report in run.outcome(Report, "server") if report.event == "complaint"]
    assert complaints == [{"by": "c3", "against": CHEAT}]
    assert [report.fields for report in run.outcome(Report, "c3")] == [{"against": [CHEAT]}]


@modes
def test_bad_shares_for_too_many_lose_the_secrets_and_name_their_owner(active: bool, audit: Audit) -> None:
    # Own share included, threshold - 1 good ones are left.
    run = cheating(active, ShareKeys, spoiling(70, *((3, 4) if active else (2, 3, 4))))
    outcome = audit(run)
    assert isinstance(outcome, ServerAborted)
    assert (outcome.code, outcome.culprit) == (Code.SHARES, CHEAT)
    assert "unmask-request" not in {delivery.kind for delivery in run.log}


def sharing_others(*, key: bool = False, seed: bool = False) -> Change:
    """Good shares of other secrets than those committed to."""

    def change(run: MemorySum, message: ShareKeys) -> ShareKeys:
        client = run.clients[CHEAT]
        packets = seal_shares(
            run.agreement,
            client._adverts_digest,
            owner=MEMBER,
            channel=client._channel,
            secrets=(bytes(32) if key else client._mask_key.private, bytes(32) if seed else client._seed),
            holders={member: advert.channel_key for member, advert in client._adverts.items()},
            entropy=run.entropy,
        )
        return resigned(run, message, packets=packets)

    return change


@modes
def test_another_seed_than_committed_to(active: bool, audit: Audit) -> None:
    outcome = audit(cheating(active, ShareKeys, sharing_others(seed=True)))
    assert isinstance(outcome, ServerAborted)
    assert (outcome.code, outcome.culprit) == (Code.SECRET, CHEAT)
    assert "seed" in outcome.detail


@modes
def test_commitment_to_another_seed(active: bool, audit: Audit) -> None:
    outcome = audit(cheating(active, ShareKeys, lambda run, m: resigned(run, m, seed_commitment=bytes(32))))
    assert isinstance(outcome, ServerAborted)
    assert (outcome.code, outcome.culprit) == (Code.SECRET, CHEAT)


@modes
def test_another_mask_key_than_advertised(active: bool, audit: Audit, summed: ExactSum) -> None:
    # While its owner stays, nobody needs the key.
    assert summed(cheating(active, ShareKeys, sharing_others(key=True))).survivors[MEMBER] == CHEAT
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


@modes
def test_shares_that_belong_to_no_secret(active: bool, audit: Audit) -> None:
    # Good packets of two different sharings: each holder is content, together they are points of nothing.
    def change(run: MemorySum, message: ShareKeys) -> ShareKeys:
        other = sharing_others(key=True, seed=True)(run, message)
        assert isinstance(other, ShareKeys)
        return resigned(run, message, packets=message.packets[:PACKET_BYTES] + other.packets[PACKET_BYTES:])

    run = cheating(active, ShareKeys, change)
    outcome = audit(run)
    assert isinstance(outcome, ServerAborted)
    assert (outcome.code, outcome.culprit) == (Code.SECRET, CHEAT)
    assert not [report for report in run.outcome(Report) if report.event == "complaint"]
