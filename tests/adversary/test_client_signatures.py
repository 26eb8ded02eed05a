"""Keys and signatures that break a rule: their senders are named, the others lose nothing."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from tacit.protocol.core.errors import Code
from tacit.protocol.core.messages import Message
from tacit.protocol.core.primitives import PRIME_25519
from tacit.protocol.core.roster import encode_members
from tacit.protocol.sum.agreement import sign_advert, survivors_signed
from tacit.protocol.sum.exchange import ServerAborted, Summed
from tacit.protocol.sum.messages import AdvertiseKeys, ConfirmSurvivors, ShareKeys
from tacit.protocol.sum.states import SumLabel
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


def advertising(**keys: Callable[[MemorySum, AdvertiseKeys], bytes]) -> Change:
    def change(run: MemorySum, message: AdvertiseKeys) -> AdvertiseKeys:
        chosen = {"channel_key": message.channel_key, "mask_key": message.mask_key, "choices": message.choices}
        chosen |= {field: key(run, message) for field, key in keys.items()}
        return sign_advert(run.agreement, MEMBER, run.signing[CHEAT], **chosen).message()

    return change


def key_of_c0(run: MemorySum, message: AdvertiseKeys) -> bytes:
    return next(d.message.mask_key for d in run.log if isinstance(d.message, AdvertiseKeys) and d.sender == "c0")


BAD_KEYS: dict[str, tuple[Change, Code]] = {
    "small order": (advertising(mask_key=lambda run, message: (1).to_bytes(32, "little")), Code.KEYS),
    "small order on the channel": (advertising(channel_key=lambda run, message: bytes(32)), Code.KEYS),
    "not canonical": (
        advertising(channel_key=lambda run, message: (PRIME_25519 + 9).to_bytes(32, "little")),
        Code.KEYS,
    ),
    "another's mask key": (advertising(mask_key=key_of_c0), Code.KEYS),
    "another's mask key for the channel": (advertising(channel_key=key_of_c0), Code.KEYS),
    "one key for both": (advertising(mask_key=lambda run, message: message.channel_key), Code.KEYS),
    "choices in a complete graph": (advertising(choices=lambda run, message: b"\0\0"), Code.MEMBERS),
}


@pytest.mark.threat("client/small-order-key", "client/duplicate-identity")
@modes
@cases("name", BAD_KEYS)
def test_bad_keys(name: str, active: bool, summed: ExactSum, cheats: Any) -> None:
    change, code = BAD_KEYS[name]
    run = cheats.play(active, AdvertiseKeys, change)
    assert summed(run).survivors == OTHERS
    cheats.caught(run, "ADVERTISE_KEYS", code)


def check_bad_signature_over_keys(place: int, summed: ExactSum, cheats: Any) -> None:
    run = cheats.play(
        True, AdvertiseKeys, lambda run, m: msgspec.structs.replace(m, signature=flipped(m.signature, place))
    )
    assert summed(run).survivors == OTHERS
    cheats.caught(run, "ADVERTISE_KEYS", Code.SIGNATURE)


def check_no_signature(signature: bytes, summed: ExactSum, cheats: Any) -> None:
    run = cheats.play(True, AdvertiseKeys, lambda run, message: msgspec.structs.replace(message, signature=signature))
    assert summed(run).survivors == OTHERS
    cheats.caught(run, "ADVERTISE_KEYS", Code.SIGNATURE)


def check_packets_without_signatures(signatures: bytes, summed: ExactSum, cheats: Any) -> None:
    run = cheats.play(True, ShareKeys, lambda run, message: msgspec.structs.replace(message, signatures=signatures))
    assert summed(run).survivors == OTHERS
    cheats.caught(run, "SHARE_KEYS", Code.SIGNATURE)


def check_signature_in_semi_honest_mode(kind: type[Message], field: str, summed: ExactSum, cheats: Any) -> None:
    run = cheats.play(False, kind, lambda run, message: msgspec.structs.replace(message, **{field: bytes(64)}))
    assert summed(run).survivors == OTHERS
    cheats.caught(run, "ADVERTISE_KEYS" if kind is AdvertiseKeys else "SHARE_KEYS", Code.SIGNATURE)


def check_bad_signature_over_shares(field: str, place: int, summed: ExactSum, cheats: Any) -> None:
    def change(run: MemorySum, message: ShareKeys) -> ShareKeys:
        data = getattr(message, field)
        return msgspec.structs.replace(message, **{field: flipped(data, place % len(data))})

    run = cheats.play(True, ShareKeys, change)
    assert summed(run).survivors == OTHERS
    cheats.caught(run, "SHARE_KEYS", Code.SIGNATURE)


@pytest.mark.threat("client/forged-signature")
def test_forged_signatures(summed: ExactSum, cheats: Any) -> None:
    for place in [0, 31, 32, 63]:
        check_bad_signature_over_keys(place, summed, cheats)

    for signature in [b"", bytes(63), bytes(64)]:
        check_no_signature(signature, summed, cheats)

    for signatures in [b"", bytes(64), bytes(64 * CLIENTS - 1), bytes(64 * CLIENTS)]:
        check_packets_without_signatures(signatures, summed, cheats)

    for kind, field in [(AdvertiseKeys, "signature"), (ShareKeys, "signatures")]:
        check_signature_in_semi_honest_mode(kind, field, summed, cheats)

    for place in [
        7,  # first
        -7,  # last
    ]:
        for field in ["packets", "signatures"]:
            check_bad_signature_over_shares(field, place, summed, cheats)

    run = memory_sum(CLIENTS, active=True, seed=b"cheats")

    def hook(delivery: Delivery) -> list[Delivery]:
        if delivery.sender == CHEAT and delivery.kind == "confirm-survivors":
            survivors = encode_members((0, 1, 2, 3), run.agreement.size)
            parts = survivors_signed(run.clients[CHEAT].data.sharing, MEMBER, survivors)
            signature = run.signing[CHEAT].sign(SumLabel.SIGN_SURVIVORS, *parts)
            return [replace(delivery, message=msgspec.structs.replace(delivery.message, signature=signature))]
        return [delivery]

    run.hook = hook
    run.run()
    assert summed(run).survivors == run.agreement.cohort
    cheats.caught(run, "CONSISTENCY_CHECK", Code.SIGNATURE)


def earlier(run: MemorySum, kind: type[Message]) -> Any:
    """What c1 said in another round of the same members, keys and survivors."""
    same = memory_sum(CLIENTS, active=True, seed=b"cheats")
    other = MemorySum(replace(same.agreement, round=1), same.signing, same.vectors, same.streams)
    other.run()
    return said(other, kind, CHEAT)


def said(run: MemorySum, kind: type[Message], sender: str) -> Any:
    return next(d.message for d in run.log if isinstance(d.message, kind) and d.sender == sender)


REPLAYS: dict[str, Callable[[MemorySum, Any], Any]] = {
    "another round": lambda run, message: earlier(run, type(message)),
    "another phase": lambda run, message: earlier(
        run, AdvertiseKeys if isinstance(message, ConfirmSurvivors) else ConfirmSurvivors
    ),
    "another client": lambda run, message: said(run, type(message), "c0"),
}


def check_a_signature_of_another_round_phase_or_client(
    name: str, kind: type[Message], phase: str, summed: ExactSum, cheats: Any
) -> None:
    def change(run: MemorySum, message: Any) -> Message:
        other = REPLAYS[name](run, message)
        if not isinstance(message, ShareKeys):
            return msgspec.structs.replace(message, signature=other.signature)
        signatures = other.signatures if isinstance(other, ShareKeys) else CLIENTS * other.signature
        return msgspec.structs.replace(message, signatures=signatures)

    run = cheats.play(True, kind, change)
    assert summed(run).survivors == (run.agreement.cohort if kind is ConfirmSurvivors else OTHERS)
    cheats.caught(run, phase, Code.SIGNATURE)


def check_a_whole_message_of_another_round(kind: type[Message], summed: ExactSum, cheats: Any) -> None:
    run = cheats.play(True, kind, lambda run, message: earlier(run, kind))
    assert summed(run).survivors == OTHERS
    cheats.caught(run, "ADVERTISE_KEYS" if kind is AdvertiseKeys else "SHARE_KEYS", Code.SIGNATURE)


@pytest.mark.threat("client/replayed-signature")
def test_a_signature_of_another_round_phase_or_client(summed: ExactSum, cheats: Any) -> None:
    for kind, phase in [
        (AdvertiseKeys, "ADVERTISE_KEYS"),
        (ShareKeys, "SHARE_KEYS"),
        (ConfirmSurvivors, "CONSISTENCY_CHECK"),
    ]:
        for name in REPLAYS:
            check_a_signature_of_another_round_phase_or_client(name, kind, phase, summed, cheats)

    for kind in [AdvertiseKeys, ShareKeys]:
        check_a_whole_message_of_another_round(kind, summed, cheats)
