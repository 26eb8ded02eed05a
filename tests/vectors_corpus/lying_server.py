"""Transcripts of secure sums in which the server breaks a rule: the part of a client, up to its abort."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from msgspec.structs import replace

from tacit.protocol.core.roster import encode_members
from tacit.protocol.sum.agreement import Advert, adverts_digest, split_adverts
from tacit.protocol.sum.messages import FetchVector, PeerKeys, UnmaskRequest
from tacit.protocol.sum.sharing import PACKET_BYTES
from tests.vectors_corpus.faults import (
    CHEAT,
    PLACE,
    Fault,
    HonestSum,
    Reframe,
    body,
    fields,
    first_bit,
    instead,
    members,
    to,
)
from tests.vectors_corpus.play import SERVER
from tests.vectors_corpus.primitives import flipped


def listing(change: Callable[[dict[int, Advert]], None]) -> Reframe:
    """Another list of keys, with the digest that belongs to it."""

    def alter(spoilt: HonestSum, message: PeerKeys) -> PeerKeys:
        agreement = spoilt.agreement
        adverts = split_adverts(agreement, message.adverts, tuple(range(agreement.size)))
        change(adverts)
        present = encode_members(adverts, agreement.size)
        return PeerKeys(
            advertised=present,
            digest=adverts_digest(agreement, adverts),
            included=present,
            adverts=b"".join(adverts[member].record for member in sorted(adverts)),
        )

    return body(alter)


def _without(*gone: int) -> Callable[[dict[int, Advert]], None]:
    def change(adverts: dict[int, Advert]) -> None:
        for member in gone:
            del adverts[member]

    return change


def _swap_keys(adverts: dict[int, Advert]) -> None:
    """A key of the server's own in the place of another client's."""
    other = adverts[2]
    adverts[2] = Advert(adverts[0].mask_key, other.mask_key, other.choices, other.signature)


def _other_key(adverts: dict[int, Advert]) -> None:
    other = adverts[2]
    adverts[2] = Advert((9).to_bytes(32, "little"), other.mask_key, other.choices, other.signature)


def _own_key(adverts: dict[int, Advert]) -> None:
    own = adverts[PLACE]
    adverts[PLACE] = Advert((9).to_bytes(32, "little"), own.mask_key, own.choices, own.signature)


def _no_holder(spoilt: HonestSum, message: UnmaskRequest) -> UnmaskRequest:
    choices = spoilt.said("advertise-keys", CHEAT, SERVER).message.choices
    strangers = [member for member in range(5) if member != PLACE and member.to_bytes(2, "little") not in choices]
    signers = encode_members(strangers[:2], 5)
    return replace(message, signers=signers)


FAULTS: Final[dict[str, Fault]] = {
    "peer_keys_bad_list": Fault(
        "The client itself is missing.", "MEMBERS", "peer-keys", listing(_without(PLACE)), to=CHEAT
    ),
    "peer_keys_bad_own_key": Fault(
        "Another key under the client's own name.", "KEYS", "peer-keys", listing(_own_key), to=CHEAT,
        of="semi-honest",
    ),
    "peer_keys_bad_equal": Fault(
        "Two clients with one key.", "KEYS", "peer-keys", listing(_swap_keys), to=CHEAT, of="semi-honest"
    ),
    "peer_keys_bad_signature": Fault(
        "A key that its owner did not sign.", "SIGNATURE", "peer-keys", listing(_other_key), to=CHEAT
    ),
    "peer_keys_bad_digest": Fault(
        "Another digest than that of the list.", "KEYS", "peer-keys", fields(digest=first_bit), to=CHEAT,
        of="semi-honest",
    ),
    "peer_keys_bad_length": Fault(
        "A byte less than the list has.", "KEYS", "peer-keys", fields(adverts=lambda adverts: adverts[:-1]), to=CHEAT
    ),
    "peer_keys_bad_number": Fault(
        "Fewer clients than the threshold.", "THRESHOLD", "peer-keys", listing(_without(2, 3)), to=CHEAT
    ),
    "peer_keys_bad_bitmap": Fault(
        "A bit that stands for nobody.", "MEMBERS", "peer-keys", fields(advertised=to(b"\x1f")), to=CHEAT
    ),
    "peer_keys_bad_phase": Fault(
        "A message out of turn.", "UNEXPECTED", "peer-keys", instead(FetchVector(chunk=0)), to=CHEAT
    ),
    "peer_shares_bad_sharers": Fault(
        "The client itself is not among those who shared.", "MEMBERS", "peer-shares",
        fields(sharers=members(0, 2, 3)), to=CHEAT,
    ),
    "peer_shares_bad_owners": Fault(
        "The shares of one who shared are kept back.", "SHARES", "peer-shares",
        fields(owners=members(0, 1, size=3), packets=lambda packets: packets[: 2 * PACKET_BYTES]), to=CHEAT,
        of="semi-honest",
    ),
    "peer_shares_bad_length": Fault(
        "A byte more than the packets have.", "SHARES", "peer-shares", fields(packets=lambda packets: packets + b"\0"),
        to=CHEAT,
    ),
    "peer_shares_bad_own": Fault(
        "The client's own shares come back changed.", "SHARES", "peer-shares",
        fields(packets=lambda packets: flipped(packets, PACKET_BYTES + 100)), to=CHEAT, of="semi-honest",
    ),
    "peer_shares_bad_signature": Fault(
        "A packet that its owner did not sign.", "SIGNATURE", "peer-shares",
        fields(packets=lambda packets: flipped(packets, 2 * PACKET_BYTES + 100)), to=CHEAT,
    ),
    "peer_shares_bad_signatures": Fault(
        "A signature less than there are packets.", "SIGNATURE", "peer-shares",
        fields(signatures=lambda signatures: signatures[:-64]), to=CHEAT,
    ),
    "peer_complaints_bad_signature": Fault(
        "A complaint that nobody signed.", "SIGNATURE", "peer-complaints", fields(signatures=first_bit), to=CHEAT,
        of="disputed",
    ),
    "peer_complaints_bad_holder": Fault(
        "A complaint of the client itself.", "MEMBERS", "peer-complaints", fields(holders=members(PLACE)), to=CHEAT,
        of="disputed",
    ),
    "peer_complaints_bad_number": Fault(
        "Complaints of more holders than may lie.", "THRESHOLD", "peer-complaints",
        fields(holders=members(0, 2), signatures=lambda signatures: signatures + signatures), to=CHEAT, of="disputed",
    ),
    "unmask_request_bad_answer": Fault(
        "An answer that its owner cannot have given.", "SHARES", "unmask-request", fields(answers=first_bit), to=CHEAT,
        of="disputed",
    ),
    "unmask_request_bad_answers": Fault(
        "A byte more than both shares have.", "SHARES", "unmask-request",
        fields(answers=lambda shares: shares + b"\0"), to=CHEAT, of="disputed",
    ),
    "unmask_request_bad_answered": Fault(
        "An answer to a complaint that the client did not make.", "MEMBERS", "unmask-request",
        fields(answered=members(2)), to=CHEAT, of="disputed",
    ),
    "peer_shares_bad_number": Fault(
        "Fewer sharers than the threshold.", "THRESHOLD", "peer-shares",
        fields(
            sharers=members(0, 1), owners=members(0, 1), packets=lambda packets: packets[: 2 * PACKET_BYTES],
            signatures=lambda signatures: signatures[:128],
        ),
        to=CHEAT,
    ),
    "survivors_bad_own": Fault(
        "The client is told that it dropped out.", "MEMBERS", "survivors", fields(survivors=members(0, 2, 3)), to=CHEAT
    ),
    "survivors_bad_number": Fault(
        "Fewer survivors than the threshold.", "THRESHOLD", "survivors", fields(survivors=members(0, 1)), to=CHEAT
    ),
    "survivors_bad_bitmap": Fault(
        "A bitmap of another length.", "MEMBERS", "survivors", fields(survivors=to(b"\x0f\0")), to=CHEAT
    ),
    "unmask_request_bad_survivors": Fault(
        "Other survivors than those who were signed.", "MEMBERS", "unmask-request",
        fields(survivors=members(0, 1, 2)), to=CHEAT,
    ),
    "unmask_request_bad_signature": Fault(
        "A signature of another than its signer.", "SIGNATURE", "unmask-request", fields(signatures=first_bit),
        to=CHEAT,
    ),
    "unmask_request_bad_number": Fault(
        "Fewer signatures than the threshold.", "THRESHOLD", "unmask-request",
        fields(signers=members(0, 1), signatures=lambda signatures: signatures[:128]), to=CHEAT,
    ),
    "unmask_request_bad_length": Fault(
        "A signature less than there are signers.", "SIGNATURE", "unmask-request",
        fields(signatures=lambda signatures: signatures[:-64]), to=CHEAT,
    ),
    "unmask_request_bad_mode": Fault(
        "Signatures in semi-honest mode.", "SIGNATURE", "unmask-request", fields(signers=members(0, size=3)), to=CHEAT,
        of="semi-honest",
    ),
    "unmask_request_bad_own": Fault(
        "A semi-honest client is told that it dropped out.", "MEMBERS", "unmask-request",
        fields(survivors=members(0, 2, size=3)), to=CHEAT, of="semi-honest",
    ),
    "survivors_bad_fewest": Fault(
        "In a regular graph, fewer survivors than are left when as many drop out as are tolerated.", "THRESHOLD",
        "survivors", fields(survivors=members(0, 1, 2, size=5)), to=CHEAT, of="chosen",
    ),
    "unmask_request_bad_signers": Fault(
        "The signature of one who holds no share of this client.", "MEMBERS", "unmask-request", body(_no_holder),
        to=CHEAT, of="chosen",
    ),
}  # fmt: skip
