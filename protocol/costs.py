"""What a secure sum costs on the wire: the bytes of every phase, declared from its parameters alone.

The declaration is made of the messages' own structures with fields of the right length; it counts envelopes, bodies and
raw frames; CURVE, ZeroMQ and TCP come on top. A test holds it to what the links measure.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from itertools import count

from tacit.protocol.adverts import record_bytes
from tacit.protocol.agreement import Agreement
from tacit.protocol.codec import VERSION, Envelope, encode_structure
from tacit.protocol.members import encode_members
from tacit.protocol.messages import (
    AdvertiseKeys,
    ConfirmSurvivors,
    FetchVector,
    MaskedInput,
    Message,
    PeerKeys,
    PeerShares,
    Phase,
    ShareKeys,
    Survivors,
    UnmaskRequest,
    UnmaskShares,
    VectorChunk,
)
from tacit.protocol.primitives import KEY_BYTES, SIGNATURE_BYTES
from tacit.protocol.sharing import PACKET_BYTES
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
    """Bytes of frames of one client in one phase."""

    sent: int
    received: int


def declared_bytes(agreement: Agreement, name: str, degrees: Degrees) -> dict[Phase, PhaseBytes]:
    """The bytes that a client moves in every phase of a sum without faults, on links that begin with it."""
    bitmap = encode_members((), agreement.size)
    signature = bytes(SIGNATURE_BYTES if agreement.active else 0)
    empty = bytes(KEY_BYTES)
    choices = bytes(record_bytes(agreement) - 2 * KEY_BYTES - len(signature))
    wire, chunks = agreement.ring.wire_bytes, range(agreement.chunks)
    spans = [agreement.chunk_span(chunk) for chunk in chunks]
    sizes = [wire * (span.stop - span.start) for span in spans]
    whole = agreement.chunks == 1
    said: list[tuple[Message, int]] = [
        (AdvertiseKeys(channel_key=empty, mask_key=empty, choices=choices, signature=signature), 0),
        (
            ShareKeys(
                seed_commitment=empty,
                holders=bitmap,
                packets=bytes(PACKET_BYTES * degrees.holders),
                signature=signature,
            ),
            0,
        ),
        (MaskedInput(complaints=bitmap), sizes[0] if whole else 0),
    ]
    heard: list[tuple[Message, int]] = [
        (
            PeerKeys(
                advertised=bitmap,
                digest=empty,
                included=bitmap,
                adverts=bytes(record_bytes(agreement) * degrees.known),
            ),
            0,
        ),
        (PeerShares(sharers=bitmap, owners=bitmap, packets=bytes(PACKET_BYTES * degrees.owners)), 0),
    ]
    if not whole:
        said += [(VectorChunk(chunk=chunk), sizes[chunk]) for chunk in chunks]
        heard += [(FetchVector(chunk=chunk), 0) for chunk in chunks]
    if agreement.active:
        said.append((ConfirmSurvivors(signature=signature), 0))
        heard.append((Survivors(survivors=bitmap), 0))
    said.append((UnmaskShares(owners=bitmap, shares=bytes(SHARE_BYTES * degrees.owners)), 0))
    heard.append(
        (UnmaskRequest(survivors=bitmap, signers=bitmap, signatures=bytes(len(signature) * degrees.signers)), 0)
    )
    sent, received = _add_up(agreement, name, said), _add_up(agreement, agreement.server, heard)
    return {phase: PhaseBytes(sent[phase], received[phase]) for phase in {*sent, *received}}


def _add_up(agreement: Agreement, sender: str, messages: list[tuple[Message, int]]) -> defaultdict[Phase, int]:
    total: defaultdict[Phase, int] = defaultdict(int)
    for sequence, (message, payload) in zip(count(), messages, strict=False):
        envelope = Envelope(
            version=VERSION,
            type=message.TYPE,
            session=agreement.session,
            round=agreement.round,
            sender=sender,
            sequence=sequence,
        )
        total[message.PHASE] += len(encode_structure(envelope)) + len(encode_structure(message)) + payload
    return total
