"""Transcripts of secure sums in which a client breaks a rule: the server's part, up to its verdict on the client."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from msgspec.structs import replace

from tacit.protocol.core.primitives import PRIME_25519
from tacit.protocol.core.roster import decode_members, encode_members
from tacit.protocol.sum.agreement import complaint_signed, sign_advert
from tacit.protocol.sum.messages import AdvertiseKeys, FetchVector, MaskedInput, ShareKeys
from tacit.protocol.sum.sharing import PACKET_BYTES
from tacit.protocol.sum.states import SumLabel
from tests.vectors_corpus.disputes import sign_packets, signing
from tests.vectors_corpus.faults import (
    CHEAT,
    PLACE,
    Fault,
    HonestSum,
    Reframe,
    body,
    envelope,
    fields,
    first_bit,
    instead,
    members,
    payload,
    to,
)
from tests.vectors_corpus.play import SERVER
from tests.vectors_corpus.primitives import drawn


def advertising(**keys: Callable[[HonestSum, AdvertiseKeys], bytes]) -> Reframe:
    def alter(spoilt: HonestSum, message: AdvertiseKeys) -> AdvertiseKeys:
        chosen = {"channel_key": message.channel_key, "mask_key": message.mask_key, "choices": message.choices}
        chosen |= {name: key(spoilt, message) for name, key in keys.items()}
        return sign_advert(spoilt.agreement, PLACE, signing(CHEAT), **chosen).message()

    return body(alter)


def sharing(**changes: Callable[[bytes], bytes]) -> Reframe:
    def alter(spoilt: HonestSum, message: ShareKeys) -> ShareKeys:
        changed = replace(message, **{name: change(getattr(message, name)) for name, change in changes.items()})
        return signed_shares(spoilt, changed)

    return body(alter)


def signed_shares(spoilt: HonestSum, message: ShareKeys) -> ShareKeys:
    digest = spoilt.said("peer-keys", SERVER, CHEAT).message.digest
    holders = decode_members(message.holders, spoilt.agreement.size)
    whole = replace(message, packets=message.packets[: PACKET_BYTES * len(holders)].ljust(PACKET_BYTES * len(holders)))
    return replace(message, signatures=sign_packets(spoilt.agreement, digest, whole, PLACE, holders))


def complaining(owner: int, *, about: int | None = None) -> Reframe:
    """A complaint of an owner; the signature is over one about another, where that is named."""

    def alter(spoilt: HonestSum, message: MaskedInput) -> MaskedInput:
        agreement = spoilt.agreement
        everybody = spoilt.said("peer-shares", SERVER, CHEAT).message.sharers
        sharing = agreement.sharing_digest(spoilt.said("peer-keys", SERVER, CHEAT).message.digest, everybody)
        parts = complaint_signed(sharing, owner=owner if about is None else about, holder=PLACE)
        signature = signing(CHEAT).sign(SumLabel.SIGN_COMPLAINT, *parts)
        return MaskedInput(complaints=encode_members((owner,), agreement.size), signatures=signature)

    return body(alter)


def _key_of_another(spoilt: HonestSum, message: AdvertiseKeys) -> bytes:
    key: bytes = spoilt.said("advertise-keys", "client-0", SERVER).message.mask_key
    return key


def _first_twice(spoilt: HonestSum, message: AdvertiseKeys) -> bytes:
    return message.choices[:2] + message.choices[:-2]


def _oversized_word(raw: bytes) -> bytes:
    return raw[:3] + (1 << 20).to_bytes(3, "little") + raw[6:]


FAULTS: Final[dict[str, Fault]] = {
    "keys_bad_point": Fault(
        "A mask key of small order.", "KEYS", "advertise-keys",
        advertising(mask_key=lambda spoilt, message: (1).to_bytes(32, "little")),
    ),
    "keys_bad_form": Fault(
        "A channel key that is not canonical.", "KEYS", "advertise-keys",
        advertising(channel_key=lambda spoilt, message: (PRIME_25519 + 9).to_bytes(32, "little")), of="semi-honest",
    ),
    "keys_bad_equal": Fault(
        "One key for both purposes.", "KEYS", "advertise-keys",
        advertising(mask_key=lambda spoilt, message: message.channel_key),
    ),
    "keys_bad_copy": Fault(
        "The mask key of another client.", "KEYS", "advertise-keys", advertising(channel_key=_key_of_another),
        of="semi-honest",
    ),
    "keys_bad_signature": Fault(
        "A signature that does not verify.", "SIGNATURE", "advertise-keys", fields(signature=first_bit)
    ),
    "keys_bad_statement": Fault(
        "A statement of spending, which the configuration has not.", "SIGNATURE", "advertise-keys",
        advertising(spent=lambda spoilt, message: bytes(72)),
    ),
    "keys_bad_mode": Fault(
        "A signature in semi-honest mode.", "SIGNATURE", "advertise-keys", fields(signature=to(bytes(64))),
        of="semi-honest",
    ),
    "keys_bad_choices": Fault(
        "A holder is chosen twice.", "MEMBERS", "advertise-keys", advertising(choices=_first_twice), of="chosen"
    ),
    "keys_bad_sender": Fault(
        "The envelope names another client.", "SENDER", "advertise-keys", envelope(sender="client-2")
    ),
    "keys_bad_session": Fault(
        "A message of another session.", "SESSION", "advertise-keys", envelope(session=drawn("other"))
    ),
    "keys_bad_sequence": Fault(
        "A message is missing before this one.", "SEQUENCE", "advertise-keys", envelope(sequence=1)
    ),
    "keys_bad_version": Fault(
        "Another version of the protocol.", "VERSION", "advertise-keys", envelope(version=1), of="semi-honest"
    ),
    "keys_bad_phase": Fault(
        "A message whose phase has not begun.", "UNEXPECTED", "advertise-keys",
        instead(MaskedInput(complaints=b"\0", signatures=b"")),
    ),
    "keys_bad_direction": Fault(
        "A message that only a server sends.", "UNEXPECTED", "advertise-keys", instead(FetchVector(chunk=0)),
    ),
    "shares_bad_holders": Fault(
        "Shares for fewer holders than all.", "MEMBERS", "share-keys",
        sharing(holders=members(0, 1, size=3), packets=lambda packets: packets[: 2 * PACKET_BYTES]), of="active three",
    ),
    "shares_bad_ring": Fault(
        "Shares for a holder who is no neighbour.", "MEMBERS", "share-keys", fields(holders=members(*range(5), size=5)),
        of="ring",
    ),
    "shares_bad_length": Fault(
        "A byte less than the packets have.", "SHARES", "share-keys", sharing(packets=lambda packets: packets[:-1]),
        of="active three",
    ),
    "shares_bad_signature": Fault(
        "Shares that nobody signed.", "SIGNATURE", "share-keys", fields(packets=first_bit), of="active three"
    ),
    "shares_bad_signatures": Fault(
        "A signature less than there are packets.", "SIGNATURE", "share-keys",
        fields(signatures=lambda signatures: signatures[:-64]), of="active three",
    ),
    "shares_bad_mode": Fault(
        "Signatures in semi-honest mode.", "SIGNATURE", "share-keys", fields(signatures=to(bytes(3 * 64))),
        of="semi-honest",
    ),
    "vector_bad_length": Fault(
        "A vector that is a byte short.", "VECTOR", "masked-input", payload(lambda raw: raw[:-1]), of="active three"
    ),
    "vector_bad_word": Fault(
        "A word that is not in the ring.", "VECTOR", "masked-input", payload(_oversized_word), of="semi-honest"
    ),
    "vector_bad_absence": Fault(
        "No raw frame, though the vector fits one.", "VECTOR", "masked-input", payload(lambda raw: None),
        of="semi-honest",
    ),
    "vector_bad_complaint": Fault(
        "A complaint about shares that were never given.", "MEMBERS", "masked-input",
        fields(complaints=to(encode_members(range(5), 5))), of="ring",
    ),
    "complaint_bad_own": Fault(
        "A complaint of oneself.", "MEMBERS", "masked-input", complaining(PLACE), of="active three"
    ),
    "complaint_bad_signature": Fault(
        "A complaint whose signature is over one of another owner.", "SIGNATURE", "masked-input",
        complaining(0, about=2), of="active three",
    ),
    "complaint_bad_absence": Fault(
        "A complaint that nobody signed.", "SIGNATURE", "masked-input", fields(complaints=members(0, size=3)),
        of="active three",
    ),
    "answers_bad_share": Fault(
        "Another share than the one committed to.", "SHARES", "answer-complaints", fields(shares=first_bit),
        of="disputed",
    ),
    "answers_bad_length": Fault(
        "A byte less than both shares have.", "SHARES", "answer-complaints", fields(shares=lambda shares: shares[:-1]),
        of="disputed",
    ),
    "confirmation_bad_signature": Fault(
        "A signature over other survivors.", "SIGNATURE", "confirm-survivors", fields(signature=first_bit),
        of="active three",
    ),
    "unmasking_bad_owners": Fault(
        "A share less than it holds.", "SHARES", "unmask-shares",
        fields(owners=members(0, 1, size=3), shares=lambda shares: shares[:-36]), of="semi-honest",
    ),
}  # fmt: skip
