"""A server that lies about the public keys of a round: it leaves some out, adds some, or replaces some by others."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from tacit.protocol.core.errors import Code
from tacit.protocol.core.messages import Message
from tacit.protocol.core.primitives import PRIME_25519, AgreementKey, SigningKey
from tacit.protocol.core.roster import encode_members
from tacit.protocol.sum.agreement import Advert, adverts_digest, sign_advert
from tacit.protocol.sum.exchange import ClientAborted, Summed
from tacit.protocol.sum.messages import AdvertiseKeys, PeerKeys
from tests.world.exchange import Delivery
from tests.world.sums import MemorySum, memory_sum

Change = Callable[[MemorySum, Any], Message]
ExactSum = Callable[[MemorySum], Summed]
CLIENTS = 5
ACTIVE, SEMI_HONEST = (True,), (False,)
OF_THE_SERVER = AgreementKey(bytes(range(32))).public


def bitmap(*members: int) -> bytes:
    return encode_members(members, CLIENTS)


def flipped(data: bytes) -> bytes:
    return bytes([data[0] ^ 1]) + data[1:]


def sent(run: MemorySum) -> dict[int, Advert]:
    found = {run.agreement.places[d.sender]: d.message for d in run.log if isinstance(d.message, AdvertiseKeys)}
    return {
        member: Advert(message.channel_key, message.mask_key, message.choices, message.signature)
        for member, message in sorted(found.items())
    }


def listing(run: MemorySum, adverts: dict[int, Advert]) -> PeerKeys:
    everybody = bitmap(*adverts)
    return PeerKeys(
        advertised=everybody,
        digest=adverts_digest(run.agreement, adverts),
        included=everybody,
        adverts=b"".join(adverts[member].record for member in sorted(adverts)),
    )


def without(*members: int) -> Change:
    return lambda run, message: listing(
        run, {member: advert for member, advert in sent(run).items() if member not in members}
    )


def with_advert(member: int, **fields: Any) -> Change:
    return lambda run, message: listing(run, {**sent(run), member: replace(sent(run)[member], **fields)})


def flipping(member: int, field: str) -> Change:
    return lambda run, message: with_advert(member, **{field: flipped(getattr(sent(run)[member], field))})(run, message)


def taking(source: int, target: int, *fields: str) -> Change:
    """Member `target` gets these fields of member `source`."""
    return lambda run, message: with_advert(target, **{field: getattr(sent(run)[source], field) for field in fields})(
        run, message
    )


def made_by_the_server(run: MemorySum, message: PeerKeys) -> PeerKeys:
    """Keys for c4, signed with the only kind of key that the server has: one that is nobody's in the roster."""
    keys = {"channel_key": OF_THE_SERVER, "mask_key": AgreementKey(bytes(32)).public}
    return listing(run, {**sent(run), 4: sign_advert(run.agreement, 4, SigningKey(bytes(32)), choices=b"", **keys)})


def says(**fields: Callable[[Any], bytes]) -> Change:
    return lambda run, message: msgspec.structs.replace(
        message, **{name: change(message) for name, change in fields.items()}
    )


def withheld_but_advertised(run: MemorySum, message: PeerKeys) -> Message:
    return msgspec.structs.replace(without(4)(run, message), advertised=message.advertised)


DROPPED: dict[str, tuple[Any, ...]] = {
    "own": (without(0), Code.MEMBERS, "lacks this client"),
    "of a neighbour": (withheld_but_advertised, Code.MEMBERS, "not that of this client's neighbours"),
    "of too many, active": (without(3, 4), Code.THRESHOLD, "only 3", ACTIVE),
    "of too many": (without(2, 3, 4), Code.THRESHOLD, "only 2", SEMI_HONEST),
    "cut": (says(adverts=lambda m: m.adverts[:-1]), Code.KEYS, "bytes"),
    "another digest": (says(digest=lambda m: flipped(m.digest)), Code.KEYS, "digest"),
}


def check_keys_left_out_for_one_client_only(active: bool, sums: Any, summed: ExactSum) -> None:
    # The list is consistent, but the others got a longer one: c0 shares with four holders where five are due, under
    # keys that depend on another digest. A server that follows the rules otherwise can only go on without it.
    run = memory_sum(CLIENTS, active=active, seed=b"lies")
    run.hook = lambda d: (
        [replace(d, message=without(4)(run, d.message))] if (d.receiver, d.kind) == ("c0", "peer-keys") else [d]
    )
    run.run()
    (aborted,) = run.outcome(ClientAborted)
    assert (aborted.code, aborted.culprit) == (Code.MEMBERS, "c0")
    assert run.clients["c0"].masks == 0
    assert sums.revealed(run) == [summed(run).survivors] == [("c1", "c2", "c3", "c4")]
    sums.check_next_round(run)


@pytest.mark.threat("server/drops-key")
def test_keys_left_out(sums: Any, summed: ExactSum) -> None:
    for name in DROPPED:
        sums.refused(PeerKeys, *DROPPED[name])

    for active in [True, False]:
        check_keys_left_out_for_one_client_only(active, sums, summed)


ADDED: dict[str, tuple[Any, ...]] = {
    "own twice": (taking(0, 1, "channel_key", "mask_key"), Code.KEYS, "are equal"),
    "a channel key twice": (taking(1, 2, "channel_key"), Code.KEYS, "are equal"),
    "a mask key twice": (taking(1, 2, "mask_key"), Code.KEYS, "are equal"),
    "of somebody absent": (says(advertised=lambda m: bitmap(0, 1, 2, 3)), Code.MEMBERS, "somebody absent"),
    "a record more": (says(adverts=lambda m: m.adverts + bytes(1)), Code.KEYS, "bytes"),
    "a set too long": (says(advertised=lambda m: m.advertised + b"\0"), Code.MEMBERS, "1 bytes, not 2"),
    "a member beyond the cohort": (says(included=lambda m: b"\x3f"), Code.MEMBERS, "beyond the 5 members"),
}


@pytest.mark.threat("server/adds-key")
@pytest.mark.threat("server/replaces-key")
def test_keys_added_or_replaced(sums: Any) -> None:
    for name in ADDED:
        sums.refused(PeerKeys, *ADDED[name])

    # c4 is gone; every one of the others is told that it advertised keys, which are the server's.
    run = memory_sum(CLIENTS, active=True, seed=b"lies")

    def hook(delivery: Delivery) -> list[Delivery]:
        if not isinstance(delivery.message, PeerKeys):
            return [delivery]
        keys = {"channel_key": OF_THE_SERVER, "mask_key": AgreementKey(bytes(32)).public}
        forged = sign_advert(run.agreement, 4, SigningKey(bytes(32)), choices=b"", **keys)
        return [replace(delivery, message=listing(run, {**sent(run), 4: forged}))]

    run.hook = hook
    run.start()
    run.kill("c4")
    run.settle()
    told = {name: run.outcome(ClientAborted, name) for name in ("c0", "c1", "c2", "c3")}
    assert {
        name: (aborted.code, "advert of c4" in aborted.detail) for name, (aborted,) in told.items()
    } == dict.fromkeys(told, (Code.SIGNATURE, True))
    assert sums.revealed(run) == []
    sums.check_next_round(run)

    for name in REPLACED:
        sums.refused(PeerKeys, *REPLACED[name])


REPLACED: dict[str, tuple[Any, ...]] = {
    "own channel key": (flipping(0, "channel_key"), Code.KEYS, "other keys for this client"),
    "own mask key": (flipping(0, "mask_key"), Code.KEYS, "other keys for this client"),
    "own signature": (flipping(0, "signature"), Code.KEYS, "other keys for this client", ACTIVE),
    "another's mask key": (with_advert(1, mask_key=OF_THE_SERVER), Code.SIGNATURE, "advert of c1", ACTIVE),
    "another's channel key": (with_advert(1, channel_key=OF_THE_SERVER), Code.SIGNATURE, "advert of c1", ACTIVE),
    "another's signature": (flipping(3, "signature"), Code.SIGNATURE, "advert of c3", ACTIVE),
    "signature of a third": (taking(1, 2, "signature"), Code.SIGNATURE, "advert of c2", ACTIVE),
    "signed by the server": (made_by_the_server, Code.SIGNATURE, "advert of c4", ACTIVE),
    **{
        f"{what} as {field}": (with_advert(4, **{field: key}), Code.KEYS, "advert of c4: a public key is not")
        for what, key in (
            ("small order", bytes(32)),
            ("not canonical", (PRIME_25519 + 9).to_bytes(32, "little")),
            ("top bit set", (2**255 + 9).to_bytes(32, "little")),
        )
        for field in ("channel_key", "mask_key")
    },
}
