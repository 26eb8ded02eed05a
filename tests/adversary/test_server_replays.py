"""A server that passes on what was said before or to somebody else, or alters it on the way."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from tacit.protocol.core.errors import Code
from tacit.protocol.core.messages import Message
from tacit.protocol.core.roster import encode_members, split_records
from tacit.protocol.sum.agreement import Advert, adverts_digest
from tacit.protocol.sum.events import ComplaintSent
from tacit.protocol.sum.exchange import ServerAborted, Summed
from tacit.protocol.sum.messages import (
    AdvertiseKeys,
    ConfirmSurvivors,
    MaskedInput,
    PeerKeys,
    PeerShares,
    ShareKeys,
    Survivors,
    UnmaskRequest,
)
from tacit.protocol.sum.sharing import PACKET_BYTES
from tests.cases import cases
from tests.world.exchange import Delivery
from tests.world.sums import MemorySum, memory_sum

Audit = Callable[[MemorySum], Summed | ServerAborted]
ExactSum = Callable[[MemorySum], Summed]
Change = Callable[[MemorySum, Any], Message]
Former = Callable[[MemorySum], MemorySum]
CLIENTS = 5
VICTIM = "c0"
ACTIVE, SEMI_HONEST = (True,), (False,)
modes = cases("active", [True, False])


def bitmap(*members: int) -> bytes:
    return encode_members(members, CLIENTS)


def spoken(run: MemorySum, sender: str, kind: type[Any]) -> Any:
    return next(d.message for d in run.log if d.sender == sender and isinstance(d.message, kind))


def former(**changes: Any) -> Former:
    def hold(run: MemorySum) -> MemorySum:
        other = MemorySum(replace(run.agreement, **changes), run.signing, run.vectors, run.streams)
        other.run()
        return other

    return hold


FORMER: dict[str, Former] = {"round": former(round=1), "session": former(session=bytes(32))}


def adverts_of(run: MemorySum) -> dict[int, Advert]:
    return {
        member: Advert(said.channel_key, said.mask_key, said.choices, said.signature)
        for member in range(CLIENTS)
        for said in [spoken(run, f"c{member}", AdvertiseKeys)]
    }


def adverts_from(source: Former, *members: int) -> Change:
    """A consistent list in which the adverts of these members are old."""

    def change(run: MemorySum, message: PeerKeys) -> PeerKeys:
        old = adverts_of(source(run))
        adverts = adverts_of(run) | {member: old[member] for member in members}
        records = b"".join(adverts[member].record for member in sorted(adverts))
        return msgspec.structs.replace(message, digest=adverts_digest(run.agreement, adverts), adverts=records)

    return change


ADVERTS: dict[str, tuple[Any, ...]] = {
    f"{which} of a former {what}": row
    for what, source in FORMER.items()
    for which, row in {
        "c1's": (adverts_from(source, 1), Code.SIGNATURE, "advert of c1", ACTIVE),
        "all others'": (adverts_from(source, 1, 2, 3, 4), Code.SIGNATURE, "advert of c1", ACTIVE),
        "its own": (adverts_from(source, 0), Code.KEYS, "other keys for this client"),
        "the whole list": (adverts_from(source, 0, 1, 2, 3, 4), Code.KEYS, "other keys for this client"),
    }.items()
}


@pytest.mark.threat("server/replays-adverts")
@cases("name", ADVERTS)
def test_replayed_adverts(name: str, sums: Any) -> None:
    sums.refused(PeerKeys, *ADVERTS[name])


def split(run: MemorySum, message: ShareKeys | PeerShares) -> dict[int, tuple[bytes, bytes]]:
    signatures = run.agreement.split_signatures(message.signatures, range(CLIENTS))
    packets = split_records(message.packets, PACKET_BYTES, range(CLIENTS))
    return {member: (packets[member], signatures[member]) for member in range(CLIENTS)}


def packet(run: MemorySum, owner: int, holder: int) -> tuple[bytes, bytes]:
    return split(run, spoken(run, f"c{owner}", ShareKeys))[holder]


def with_packets(run: MemorySum, message: PeerShares, packets: dict[int, tuple[bytes, bytes]]) -> PeerShares:
    changed = (split(run, message) | packets).values()
    packed, signatures = (b"".join(parts) for parts in zip(*changed, strict=True))
    return msgspec.structs.replace(message, packets=packed, signatures=signatures)


def packets_from(source: Former, *owners: int, holder: int = 0) -> Change:
    """The packets of these owners are those that they made for that holder in the other sum."""

    def change(run: MemorySum, message: PeerShares) -> PeerShares:
        old = source(run)
        return with_packets(run, message, {owner: packet(old, owner, holder) for owner in owners})

    return change


def same(run: MemorySum) -> MemorySum:
    return run


def as_another(run: MemorySum, message: PeerShares) -> PeerShares:
    return with_packets(run, message, {2: packet(run, 1, 0)})


def turned_round(run: MemorySum, message: PeerShares) -> PeerShares:
    """The victim's own packet for c2 comes back as c2's for the victim."""
    return with_packets(run, message, {2: packet(run, 0, 2)})


def bent(owner: int, place: int) -> Change:
    def change(run: MemorySum, message: PeerShares) -> PeerShares:
        data, signature = packet(run, owner, 0)
        spoilt = data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :]
        return with_packets(run, message, {owner: (spoilt, signature)})

    return change


OWN_SHARES: dict[str, Change] = {
    "of another receiver": packets_from(same, *range(CLIENTS), holder=1),
    **{f"of a former {what}": packets_from(source, *range(CLIENTS)) for what, source in FORMER.items()},
}
OTHERS_SHARES: dict[str, Change] = {
    "of another receiver": packets_from(same, 2, holder=1),
    "of another owner": as_another,
    "turned round": turned_round,
    **{f"of a former {what}": packets_from(source, 2) for what, source in FORMER.items()},
}


@pytest.mark.threat("server/replays-shares")
def test_shares_replayed(sums: Any, summed: ExactSum) -> None:
    for name in OWN_SHARES:
        refused_as_own(OWN_SHARES[name], sums)

    for name in OTHERS_SHARES:
        complained(OTHERS_SHARES[name], summed, sums)


def refused_as_own(change: Change, sums: Any) -> None:
    """In active mode its own signature is missing over what came back; otherwise it does not open."""
    sums.refused(PeerShares, change, Code.SIGNATURE, "does not verify", ACTIVE)
    sums.refused(PeerShares, change, Code.SHARES, "altered", SEMI_HONEST)


def complained(change: Change, summed: ExactSum, sums: Any) -> None:
    """In active mode the victim ends the round; else it complains about c2, which answers: the sum is exact."""
    sums.refused(PeerShares, change, Code.SIGNATURE, "does not verify", ACTIVE)
    run = memory_sum(CLIENTS, active=False, seed=b"lies")
    run.hook = lambda d: (
        [replace(d, message=change(run, d.message))] if (d.receiver, d.kind) == (VICTIM, "peer-shares") else [d]
    )
    run.run()
    assert summed(run).survivors == run.agreement.cohort
    assert run.outcome(ComplaintSent, VICTIM) == [ComplaintSent(against=["c2"])]
    assert spoken(run, VICTIM, MaskedInput).complaints == bitmap(2)
    assert sums.revealed(run) == [run.agreement.cohort]
    sums.check_next_round(run)


# Both commitments, the sealed pair of shares and the tag, at their first and last bytes.
PLACES = [0, 31, 32, 63, 64, 135, 136, PACKET_BYTES - 1]


def check_packets_of_another_size(name: str, sums: Any) -> None:
    def change(run: MemorySum, message: PeerShares) -> PeerShares:
        return msgspec.structs.replace(message, packets=RESIZED[name](message.packets))

    sums.refused(PeerShares, change, Code.SHARES, "bytes")


@pytest.mark.threat("server/bends-shares")
def test_packets_bent_or_of_another_size(summed: ExactSum, sums: Any) -> None:
    for place in PLACES:
        complained(bent(2, place), summed, sums)

    for place in PLACES:
        refused_as_own(bent(0, place), sums)

    for name in RESIZED:
        check_packets_of_another_size(name, sums)


RESIZED: dict[str, Callable[[bytes], bytes]] = {
    "cut": lambda packets: packets[:-1],
    "longer": lambda packets: packets + bytes(1),
    "none": lambda packets: b"",
}


@modes
@pytest.mark.threat("server/bends-shares")
def test_the_packets_of_one_owner_bent_for_all_others(active: bool, audit: Audit, sums: Any) -> None:
    # Nobody but c2 itself holds a share of its secrets then: its vector can never be unmasked.
    run = memory_sum(CLIENTS, active=active, seed=b"lies")

    def hook(delivery: Delivery) -> list[Delivery]:
        message = delivery.message
        if isinstance(message, PeerShares) and delivery.receiver != "c2":
            nothing = bytes(PACKET_BYTES), packet(run, 2, 2)[1]
            return [replace(delivery, message=with_packets(run, message, {2: nothing}))]
        return [delivery]

    run.hook = hook
    run.run()
    outcome = audit(run)
    assert isinstance(outcome, ServerAborted)
    # In semi-honest mode, where the server is trusted to pass on what it got, so many complaints are proof.
    assert (outcome.code, outcome.culprit) == ((Code.THRESHOLD, "") if active else (Code.SHARES, "c2"))
    assert sums.revealed(run) == []
    sums.check_next_round(run)


def signatures(replaced: Callable[[MemorySum], dict[int, bytes]]) -> Change:
    """The signatures of some members over the survivors are replaced."""

    def change(run: MemorySum, message: UnmaskRequest) -> UnmaskRequest:
        honest = {member: message.signatures[64 * member : 64 * member + 64] for member in range(4)}
        return msgspec.structs.replace(message, signatures=b"".join((honest | replaced(run)).values()))

    return change


def over_other_survivors(run: MemorySum) -> dict[int, bytes]:
    """What c1 signs if the same sum is computed with other survivors."""
    twin = memory_sum(CLIENTS, active=True, seed=b"lies")
    twin.hook = lambda d: [replace(d, message=Survivors(survivors=bitmap(0, 1, 2, 3))) if d.kind == "survivors" else d]
    twin.run()
    return {1: spoken(twin, "c1", ConfirmSurvivors).signature}


def of_all(kind: type[Any], source: Former = same, *members: int) -> Callable[[MemorySum], dict[int, bytes]]:
    def replaced(run: MemorySum) -> dict[int, bytes]:
        other = source(run)
        return {member: spoken(other, f"c{member}", kind).signature for member in members}

    return replaced


def flipped(member: int, place: int) -> Callable[[MemorySum], dict[int, bytes]]:
    def replaced(run: MemorySum) -> dict[int, bytes]:
        signature = spoken(run, f"c{member}", ConfirmSurvivors).signature
        return {member: signature[:place] + bytes([signature[place] ^ 1]) + signature[place + 1 :]}

    return replaced


def swapped(run: MemorySum) -> dict[int, bytes]:
    found = [spoken(run, name, ConfirmSurvivors).signature for name in ("c1", "c2")]
    return {1: found[1], 2: found[0]}


def resized(change: Callable[[bytes], bytes]) -> Change:
    return lambda run, message: msgspec.structs.replace(message, signatures=change(message.signatures))


SIGNATURES: dict[str, Change] = {
    **{
        f"{which} of a former {what}": signatures(of_all(ConfirmSurvivors, source, *members))
        for what, source in FORMER.items()
        for which, members in {"c1's": (1,), "the last": (3,), "all": (0, 1, 2, 3)}.items()
    },
    "c1's over its keys": signatures(of_all(AdvertiseKeys, same, 1)),
    "c1's over its shares": signatures(lambda run: {1: packet(run, 1, 0)[1]}),
    "c1's over other survivors": signatures(over_other_survivors),
    "swapped": signatures(swapped),
    "first bent": signatures(flipped(0, 0)),
    "last bent": signatures(flipped(3, 63)),
    "cut": resized(lambda found: found[:-1]),
    "surplus": resized(lambda found: found + bytes(64)),
}


@pytest.mark.threat("server/replays-signatures")
@cases("name", SIGNATURES)
def test_signatures_over_something_else(name: str, sums: Any) -> None:
    text = "bytes" if name in ("cut", "surplus") else "does not verify"
    sums.refused(UnmaskRequest, SIGNATURES[name], Code.SIGNATURE, text, ACTIVE)
