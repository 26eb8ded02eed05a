"""What a sum and a group key cost on the wire, declared from their parameters alone.

The declaration is made of the messages' own structures with fields of the right length; it counts envelopes, bodies and
raw frames; CURVE, ZeroMQ and TCP come on top, and in a session up to two bytes of each message for the number of its
link. A test compares it with what the links measure. What a vector without its zeros takes depends on the vector;
without one the declaration is the most that it can take.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from tacit.protocol.core.codec import Envelope, encode_structure
from tacit.protocol.core.messages import Message
from tacit.protocol.core.primitives import KEY_BYTES, SIGNATURE_BYTES
from tacit.protocol.core.roster import encode_members
from tacit.protocol.group_key.agreement import COMMIT_BYTES, CONFIRMATION_BYTES, KeyAgreement
from tacit.protocol.group_key.agreement import PACKET_BYTES as KEY_PACKET_BYTES
from tacit.protocol.group_key.messages import (
    ConfirmKey,
    KeyAccepted,
    KeyCommit,
    KeyContribution,
    PeerKeyCommits,
    PeerKeyConfirmations,
    PeerKeyContributions,
)
from tacit.protocol.sum.agreement import Agreement, record_bytes
from tacit.protocol.sum.messages import (
    AdvertiseKeys,
    ConfirmSurvivors,
    FetchVector,
    MaskedInput,
    PeerKeys,
    PeerShares,
    ShareKeys,
    Survivors,
    UnmaskRequest,
    UnmaskShares,
    VectorChunk,
)
from tacit.protocol.sum.sharing import packet_bytes
from tacit.protocol.sum.states import VERSION, Phase
from tacit.secagg.shamir import SHARE_BYTES


@dataclass(frozen=True, kw_only=True)
class Degrees:
    """How many members a client has to do with."""

    holders: int
    owners: int
    known: int
    """Itself and everybody whose keys it needs."""
    signers: int
    """Whose signatures over the survivors it gets."""


@dataclass(frozen=True)
class PhaseBytes:
    """Bytes of frames of one client, in one phase or in all."""

    sent: int
    received: int


def declared_bytes(agreement: Agreement, name: str, degrees: Degrees) -> dict[Phase, PhaseBytes]:
    """The bytes that a client moves in every phase of a sum without faults, on links that begin with it."""
    bitmap = encode_members((), agreement.size)
    signature = bytes(SIGNATURE_BYTES if agreement.active else 0)
    empty = bytes(KEY_BYTES)
    choices = bytes(record_bytes(agreement) - 2 * KEY_BYTES - agreement.statement_bytes - len(signature))
    spent = bytes(agreement.statement_bytes)
    vector_said, vector_heard, vector_bytes = _vector(agreement)
    said: list[Message] = [
        AdvertiseKeys(channel_key=empty, mask_key=empty, choices=choices, spent=spent, signature=signature),
        ShareKeys(
            seed_commitment=empty,
            holders=bitmap,
            packets=bytes(packet_bytes(agreement) * degrees.holders),
            signatures=bytes(len(signature) * degrees.holders),
        ),
        *vector_said,
        *([ConfirmSurvivors(signature=signature)] if agreement.active else []),
        UnmaskShares(owners=bitmap, shares=bytes(SHARE_BYTES * degrees.owners)),
    ]
    heard: list[Message] = [
        PeerKeys(
            advertised=bitmap,
            digest=empty,
            included=bitmap,
            adverts=bytes(record_bytes(agreement) * degrees.known),
        ),
        PeerShares(
            sharers=bitmap,
            owners=bitmap,
            packets=bytes(packet_bytes(agreement) * degrees.owners),
            signatures=bytes(len(signature) * degrees.owners),
        ),
        *vector_heard,
        *([Survivors(survivors=bitmap)] if agreement.active else []),
        UnmaskRequest(
            survivors=bitmap,
            signers=bitmap,
            signatures=bytes(len(signature) * degrees.signers),
            answered=bitmap,
            answers=b"",
        ),
    ]
    sent, received = _add_up(agreement, name, said), _add_up(agreement, agreement.server, heard)
    sent[Phase.MASKED_INPUT] += vector_bytes
    return {phase: PhaseBytes(sent[phase], received[phase]) for phase in {*sent, *received}}


def declared_plain_bytes(agreement: Agreement, name: str) -> PhaseBytes:
    """The bytes that a client moves in a sum without secure aggregation, on links that begin with it."""
    said, heard, vector_bytes = _vector(agreement)
    moved = _moved(agreement, name, said, heard)
    return PhaseBytes(moved.sent + vector_bytes, moved.received)


def declared_key_bytes(agreement: KeyAgreement, name: str) -> PhaseBytes:
    """The bytes that a member moves in an agreement on a group key without faults, on links that begin with it."""
    empty, signature, epoch, others = bytes(KEY_BYTES), bytes(SIGNATURE_BYTES), agreement.epoch, agreement.size - 1
    packets = bytes(KEY_PACKET_BYTES * others)
    said = [
        KeyCommit(epoch=epoch, channel_key=empty, commitment=empty, signature=signature),
        KeyContribution(epoch=epoch, packets=packets),
        ConfirmKey(epoch=epoch, tag=empty, signature=signature),
        KeyAccepted(epoch=epoch),
    ]
    heard = [
        PeerKeyCommits(commits=bytes(COMMIT_BYTES * agreement.size)),
        PeerKeyContributions(packets=packets),
        PeerKeyConfirmations(confirmations=bytes(CONFIRMATION_BYTES * agreement.size)),
    ]
    return _moved(agreement, name, said, heard)


def _vector(agreement: Agreement) -> tuple[list[Message], list[Message], int]:
    """What a client says and hears to deliver its vector, and the bytes of its raw frames."""
    nobody = encode_members((), agreement.size)
    chunks, ready = range(agreement.chunks), MaskedInput(complaints=nobody, signatures=b"")
    raw = agreement.ring.wire_bytes * agreement.length
    if agreement.chunks == 1:
        return [ready], [], raw
    said = [ready, *(VectorChunk(chunk=chunk) for chunk in chunks)]
    return said, [FetchVector(chunk=chunk) for chunk in chunks], raw


def _moved(
    agreement: Agreement | KeyAgreement, name: str, said: Iterable[Message], heard: Iterable[Message]
) -> PhaseBytes:
    """The bytes of these messages, in all phases."""
    sent, received = _add_up(agreement, name, said), _add_up(agreement, agreement.server, heard)
    return PhaseBytes(sum(sent.values()), sum(received.values()))


def _add_up(agreement: Agreement | KeyAgreement, sender: str, messages: Iterable[Message]) -> defaultdict[Phase, int]:
    total: defaultdict[Phase, int] = defaultdict(int)
    for sequence, message in enumerate(messages):
        envelope = Envelope(
            version=VERSION,
            type=message.TYPE,
            session=agreement.session,
            round=agreement.round if isinstance(agreement, Agreement) else 0,
            sender=sender,
            sequence=sequence,
        )
        total[Phase(message.PHASE)] += len(encode_structure(envelope)) + len(encode_structure(message))
    return total
