"""Every rule that a client enforces, against a server that breaks it: the client ends with a code and says no more."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import msgspec
import pytest

from tacit.protocol.adverts import Advert, adverts_digest, record_bytes, split_records
from tacit.protocol.aggregation_results import ClientAborted, ServerAborted, Summed
from tacit.protocol.aggregation_tables import ClientState
from tacit.protocol.errors import Code
from tacit.protocol.machine import Report
from tacit.protocol.members import decode_members, encode_members
from tacit.protocol.messages import (
    MaskedInput,
    Message,
    PeerKeys,
    PeerShares,
    Survivors,
    UnmaskRequest,
)
from tacit.protocol.primitives import PRIME_25519, AgreementKey, Label
from tacit.protocol.sharing import PACKET_BYTES
from tacit.protocol.transcript import survivors_signed
from tacit.simulate.memory import Delivery, MemorySum, memory_sum

Audit = Callable[[MemorySum], Summed | ServerAborted]
ExactSum = Callable[[MemorySum], Summed]
Change = Callable[[MemorySum, Any], Message]
CLIENTS = 5
VICTIM = "c0"


def bitmap(*members: int) -> bytes:
    return encode_members(members, CLIENTS)


def flipped(data: bytes, place: int = 0) -> bytes:
    return data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :]


def other_round(run: MemorySum) -> MemorySum:
    """A sum of the same members in the next round, run to its end."""
    other = MemorySum(replace(run.agreement, round=1), run.signing, run.vectors, run.entropy)
    other.run()
    return other


def said(run: MemorySum, receiver: str, kind: type[Any]) -> Any:
    return next(d.message for d in run.log if d.receiver == receiver and isinstance(d.message, kind))


# PeerKeys


def listing(run: MemorySum, adverts: dict[int, Advert], *, digest: bytes | None = None) -> PeerKeys:
    """A list of keys that is consistent in itself."""
    everybody = bitmap(*adverts)
    return PeerKeys(
        advertised=everybody,
        digest=digest or adverts_digest(run.agreement, adverts),
        included=everybody,
        adverts=b"".join(adverts[member].record for member in sorted(adverts)),
    )


def keys_of(run: MemorySum, message: PeerKeys) -> dict[int, Advert]:
    return split_records(run.agreement, message.adverts, decode_members(message.included, CLIENTS))


def with_advert(member: int, **fields: Any) -> Change:
    return lambda run, message: listing(
        run, {**(keys := keys_of(run, message)), member: replace(keys[member], **fields)}
    )


def without(*members: int) -> Change:
    return lambda run, message: listing(
        run, {member: advert for member, advert in keys_of(run, message).items() if member not in members}
    )


def taking(source: int, target: int, *fields: str) -> Change:
    """Member `target` gets these fields of member `source`."""

    def change(run: MemorySum, message: PeerKeys) -> PeerKeys:
        keys = keys_of(run, message)
        return listing(run, {**keys, target: replace(keys[target], **{f: getattr(keys[source], f) for f in fields})})

    return change


def flipping(member: int, field: str) -> Change:
    def change(run: MemorySum, message: PeerKeys) -> PeerKeys:
        keys = keys_of(run, message)
        return listing(run, {**keys, member: replace(keys[member], **{field: flipped(getattr(keys[member], field))})})

    return change


def fields(**changes: Callable[[Any], Any]) -> Change:
    """Fields replaced by a function of the honest message."""
    return lambda run, message: msgspec.structs.replace(
        message, **{name: change(message) for name, change in changes.items()}
    )


def says(**values: bytes) -> Change:
    """Fields replaced by these values."""
    return lambda run, message: msgspec.structs.replace(message, **values)


def of_another_round(run: MemorySum, message: PeerKeys) -> PeerKeys:
    return listing(run, {**keys_of(run, message), 1: keys_of(run, said(other_round(run), "c1", PeerKeys))[1]})


BOTH = (True, False)
ACTIVE = (True,)
SEMI_HONEST = (False,)
SMALL_ORDER = (0).to_bytes(32, "little")
NOT_CANONICAL = (PRIME_25519 + 9).to_bytes(32, "little")
TOP_BIT = (2**255 + 9).to_bytes(32, "little")
FRESH = AgreementKey(bytes(range(32))).public


@dataclass(frozen=True)
class Lie:
    """The server says `change` of its honest message; `gone` dropped out before sending that kind of message."""

    name: str
    kind: type[Message]
    change: Change
    code: Code
    text: str
    modes: tuple[bool, ...] = BOTH
    gone: str = ""


LIES = [
    Lie("own keys missing", PeerKeys, without(0), Code.MEMBERS, "lacks this client"),
    Lie("own channel key altered", PeerKeys, flipping(0, "channel_key"), Code.KEYS, "other keys for this client"),
    Lie("own mask key altered", PeerKeys, flipping(0, "mask_key"), Code.KEYS, "other keys for this client"),
    Lie("own signature altered", PeerKeys, flipping(0, "signature"), Code.KEYS, "other keys for this client", ACTIVE),
    Lie("own keys twice", PeerKeys, taking(0, 1, "channel_key", "mask_key"), Code.KEYS, "are equal"),
    Lie("equal channel keys", PeerKeys, taking(1, 2, "channel_key"), Code.KEYS, "are equal"),
    Lie("equal mask keys", PeerKeys, taking(1, 2, "mask_key"), Code.KEYS, "are equal"),
    Lie("another's key replaced", PeerKeys, with_advert(1, mask_key=FRESH), Code.SIGNATURE, "c1", ACTIVE),
    Lie("another's channel key replaced", PeerKeys, with_advert(1, channel_key=FRESH), Code.SIGNATURE, "c1", ACTIVE),
    Lie("keys of another round", PeerKeys, of_another_round, Code.SIGNATURE, "advert of c1", ACTIVE),
    *(
        Lie(f"{what} {field}", PeerKeys, with_advert(4, **{field: key}), Code.KEYS, "advert of c4: a public key is not")
        for what, key in (("small order", SMALL_ORDER), ("not canonical", NOT_CANONICAL), ("top bit set", TOP_BIT))
        for field in ("channel_key", "mask_key")
    ),
    Lie("bad signature", PeerKeys, flipping(3, "signature"), Code.SIGNATURE, "advert of c3", ACTIVE),
    Lie("another's signature", PeerKeys, taking(1, 2, "signature"), Code.SIGNATURE, "advert of c2", ACTIVE),
    Lie("digest wrong", PeerKeys, fields(digest=lambda m: flipped(m.digest)), Code.KEYS, "digest"),
    Lie(
        "keys of somebody absent",
        PeerKeys,
        fields(advertised=lambda m: bitmap(0, 1, 2, 3)),
        Code.MEMBERS,
        "somebody absent",
    ),
    Lie(
        "a key withheld",
        PeerKeys,
        lambda run, message: msgspec.structs.replace(without(4)(run, message), advertised=message.advertised),
        Code.MEMBERS,
        "not that of this client's neighbours",
    ),
    Lie("too few keys, active", PeerKeys, without(3, 4), Code.THRESHOLD, "only 3", ACTIVE),
    Lie("too few keys", PeerKeys, without(2, 3, 4), Code.THRESHOLD, "only 2", SEMI_HONEST),
    Lie("keys cut", PeerKeys, fields(adverts=lambda m: m.adverts[:-1]), Code.KEYS, "bytes"),
    Lie("keys too many", PeerKeys, fields(adverts=lambda m: m.adverts + bytes(1)), Code.KEYS, "bytes"),
    Lie("set too long", PeerKeys, fields(advertised=lambda m: m.advertised + b"\0"), Code.MEMBERS, "1 bytes, not 2"),
    Lie("set beyond the cohort", PeerKeys, fields(included=lambda m: b"\x3f"), Code.MEMBERS, "beyond the 5 members"),
]

# PeerShares


def sharing(*members: int) -> Change:
    """As if only these had shared, consistently."""

    def change(run: MemorySum, message: PeerShares) -> PeerShares:
        owners = decode_members(message.owners, CLIENTS)
        packets = [
            message.packets[place * PACKET_BYTES : (place + 1) * PACKET_BYTES]
            for place, owner in enumerate(owners)
            if owner in members
        ]
        return PeerShares(sharers=bitmap(*members), owners=bitmap(*members), packets=b"".join(packets))

    return change


def packets_from(receiver: str, *owners: int, of: Callable[[MemorySum], MemorySum] = lambda run: run) -> Change:
    """The packets of these owners are those meant for that receiver."""

    def change(run: MemorySum, message: PeerShares) -> PeerShares:
        source = of(run)
        foreign = next(
            output.packets
            for output in [d.message for d in source.log if d.receiver == receiver] + queued(source, receiver)
            if isinstance(output, PeerShares)
        )
        packets = message.packets
        for owner in owners:
            span = slice(owner * PACKET_BYTES, (owner + 1) * PACKET_BYTES)
            packets = packets[: span.start] + foreign[span] + packets[span.stop :]
        return msgspec.structs.replace(message, packets=packets)

    return change


def queued(run: MemorySum, receiver: str) -> list[Message]:
    return [delivery.message for delivery in run._queue if delivery.receiver == receiver]


LIES += [
    Lie("sharers who never advertised", PeerShares, fields(sharers=lambda m: bitmap(0, 1, 2, 3, 4)), Code.MEMBERS,
        "not among those who advertised", gone="advertise-keys"),
    Lie("self no sharer", PeerShares, sharing(1, 2, 3, 4), Code.MEMBERS, "lack this client"),
    Lie("too few sharers, active", PeerShares, sharing(0, 1, 2), Code.THRESHOLD, "only 3", ACTIVE),
    Lie("too few sharers", PeerShares, sharing(0, 1), Code.THRESHOLD, "only 2", SEMI_HONEST),
    Lie("a packet withheld", PeerShares,
        lambda run, message: msgspec.structs.replace(sharing(0, 1, 2, 3)(run, message), sharers=message.sharers),
        Code.SHARES, "not those of the owners"),
    Lie("a packet too many", PeerShares, fields(sharers=lambda m: bitmap(0, 1, 2, 3)), Code.SHARES, "not those of"),
    Lie("packets cut", PeerShares, fields(packets=lambda m: m.packets[:-1]), Code.SHARES, "bytes"),
    Lie("packets longer", PeerShares, fields(packets=lambda m: m.packets + bytes(1)), Code.SHARES, "bytes"),
    Lie("own packet altered", PeerShares, fields(packets=lambda m: flipped(m.packets, 70)), Code.SHARES, "altered"),
    Lie("own commitment altered", PeerShares, fields(packets=lambda m: flipped(m.packets, 3)), Code.SHARES, "altered"),
    Lie("packets of another receiver", PeerShares, packets_from("c1", *range(CLIENTS)), Code.SHARES, "altered"),
    Lie("packets of another round", PeerShares, packets_from(VICTIM, *range(CLIENTS), of=other_round), Code.SHARES,
        "altered"),
]  # fmt: skip

# Survivors and UnmaskRequest

for kind, modes in ((Survivors, ACTIVE), (UnmaskRequest, SEMI_HONEST)):
    few = bitmap(0, 1, 2) if kind is Survivors else bitmap(0, 1)
    count = few[0].bit_count()
    LIES += [
        Lie("survivors who never shared", kind, fields(survivors=lambda m: bitmap(0, 1, 2, 3, 4)), Code.MEMBERS,
            "never shared", modes, gone="share-keys"),
        Lie("self dropped", kind, fields(survivors=lambda m: bitmap(1, 2, 3, 4)), Code.MEMBERS, "as dropped", modes),
        Lie("too few survivors", kind, says(survivors=few), Code.THRESHOLD,
            f"only {count} clients survived", modes),
        Lie("set of survivors too long", kind, fields(survivors=lambda m: m.survivors + b"\0"), Code.MEMBERS, "bytes",
            modes),
    ]  # fmt: skip


def signed_by(*members: int) -> Change:
    def change(run: MemorySum, message: UnmaskRequest) -> UnmaskRequest:
        signatures = [message.signatures[64 * member : 64 * member + 64] for member in members]
        return msgspec.structs.replace(message, signers=bitmap(*members), signatures=b"".join(signatures))

    return change


def signatures_of_another_round(run: MemorySum, message: UnmaskRequest) -> UnmaskRequest:
    return msgspec.structs.replace(message, signatures=said(other_round(run), VICTIM, UnmaskRequest).signatures)


def signed_other_survivors(run: MemorySum, message: UnmaskRequest) -> UnmaskRequest:
    client = run.clients["c1"]
    parts = survivors_signed(client._sharing, 1, bitmap(0, 1, 2, 3))
    other = run.signing["c1"].sign(Label.SIGN_SURVIVORS, *parts)
    return msgspec.structs.replace(message, signatures=message.signatures[:64] + other + message.signatures[128:])


LIES += [
    Lie("other survivors than signed", UnmaskRequest, fields(survivors=lambda m: bitmap(0, 1, 2, 3)), Code.MEMBERS,
        "not those that this client signed", ACTIVE),
    Lie("too few signatures", UnmaskRequest, signed_by(0, 1, 2), Code.THRESHOLD, "only 3 clients signed", ACTIVE),
    Lie("no signatures", UnmaskRequest, signed_by(), Code.THRESHOLD, "only 0 clients signed", ACTIVE),
    Lie("signed by a client that did not survive", UnmaskRequest,
        fields(signers=lambda m: bitmap(0, 1, 2, 4)), Code.MEMBERS, "no surviving neighbours", ACTIVE,
        gone="masked-input"),
    Lie("forged signature", UnmaskRequest, fields(signatures=lambda m: flipped(m.signatures, 70)), Code.SIGNATURE,
        "does not verify", ACTIVE),
    Lie("last signature forged", UnmaskRequest, fields(signatures=lambda m: flipped(m.signatures, 255)), Code.SIGNATURE,
        "does not verify", ACTIVE),
    Lie("signatures swapped", UnmaskRequest, fields(signatures=lambda m: m.signatures[64:] + m.signatures[:64]),
        Code.SIGNATURE, "does not verify", ACTIVE),
    Lie("signature over other survivors", UnmaskRequest, signed_other_survivors, Code.SIGNATURE, "not verify", ACTIVE),
    Lie("signatures of another round", UnmaskRequest, signatures_of_another_round, Code.SIGNATURE, "verify", ACTIVE),
    Lie("signatures cut", UnmaskRequest, fields(signatures=lambda m: m.signatures[:-1]), Code.SIGNATURE, "255", ACTIVE),
    Lie("signatures surplus", UnmaskRequest, fields(signatures=lambda m: m.signatures + bytes(64)), Code.SIGNATURE,
        "320", ACTIVE),
    Lie("signers in semi-honest mode", UnmaskRequest, fields(signers=lambda m: bitmap(1)), Code.SIGNATURE,
        "in semi-honest mode", SEMI_HONEST),
    Lie("signatures in semi-honest mode", UnmaskRequest, fields(signatures=lambda m: bytes(64)), Code.SIGNATURE,
        "in semi-honest mode", SEMI_HONEST),
]  # fmt: skip

CASES = [
    pytest.param(lie, active, id=f"{lie.kind.__name__}: {lie.name}, {'active' if active else 'semi-honest'}")
    for lie in LIES
    for active in lie.modes
]


@pytest.mark.parametrize(("lie", "active"), CASES)
def test_a_client_refuses(lie: Lie, active: bool, audit: Audit) -> None:
    run = memory_sum(CLIENTS, active=active, seed=b"lies")
    told = False

    def hook(delivery: Delivery) -> list[Delivery]:
        nonlocal told
        if delivery.sender == "c4" and delivery.kind == lie.gone:
            run.kill("c4")
            return []
        if delivery.receiver != VICTIM or not isinstance(delivery.message, lie.kind):
            return [delivery]
        told = True
        message = lie.change(run, delivery.message)
        assert message != delivery.message
        return [replace(delivery, message=message)]

    run.hook = hook
    run.run()
    assert told
    (aborted,) = run.outcome(ClientAborted, VICTIM)
    assert aborted.code is lie.code
    assert lie.text in aborted.detail
    assert aborted.culprit == "server"
    assert run.clients[VICTIM].state is ClientState.ABORTED
    position = next(i for i, d in enumerate(run.log) if d.receiver == VICTIM and isinstance(d.message, lie.kind))
    assert [delivery.kind for delivery in run.log[position:] if delivery.sender == VICTIM] == ["abort"]
    # With c4 gone too, an active sum of five has one client too few.
    outcome = audit(run)
    assert isinstance(outcome, ServerAborted if lie.gone and active else Summed)


@pytest.mark.parametrize("active", BOTH)
@pytest.mark.parametrize(
    "change",
    [packets_from("c1", 2), packets_from(VICTIM, 2, of=other_round), fields(packets=lambda m: flipped(m.packets, 400))],
    ids=["of another receiver", "of another round", "altered"],
)
def test_one_false_packet_is_complained_about(change: Change, active: bool, summed: ExactSum) -> None:
    run = memory_sum(CLIENTS, active=active, seed=b"lies")

    def hook(delivery: Delivery) -> list[Delivery]:
        if delivery.receiver == VICTIM and isinstance(delivery.message, PeerShares):
            return [replace(delivery, message=change(run, delivery.message))]
        return [delivery]

    run.hook = hook
    run.run()
    assert summed(run).survivors == run.agreement.cohort
    assert [report.fields for report in run.outcome(Report, VICTIM)] == [{"against": ["c2"]}]
    sent = next(d.message for d in run.log if d.sender == VICTIM and isinstance(d.message, MaskedInput))
    assert decode_members(sent.complaints, CLIENTS) == (2,)


def test_records_have_one_size() -> None:
    assert [record_bytes(memory_sum(CLIENTS, active=active).agreement) for active in BOTH] == [128, 64]
