"""The public keys of a round: their records, their signatures, and the digest over all of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tacit.protocol.core.errors import Code, RemoteProtocolError
from tacit.protocol.core.members import encode_members, split_records
from tacit.protocol.core.primitives import (
    KEY_BYTES,
    SIGNATURE_BYTES,
    Label,
    SigningKey,
    check_public_key,
    digest,
)
from tacit.protocol.sum.agreement import Agreement
from tacit.protocol.sum.messages import AdvertiseKeys
from tacit.protocol.sum.neighbourhood import read_choices


@dataclass(frozen=True)
class Advert:
    """The keys of one member for one round."""

    channel_key: bytes
    mask_key: bytes
    choices: bytes
    signature: bytes

    @property
    def record(self) -> bytes:
        """Fixed-size encoding within a list of adverts."""
        return self.channel_key + self.mask_key + self.choices + self.signature

    def message(self) -> AdvertiseKeys:
        """The advert as its owner sends it."""
        return AdvertiseKeys(
            channel_key=self.channel_key, mask_key=self.mask_key, choices=self.choices, signature=self.signature
        )


def sign_advert(
    agreement: Agreement, member: int, signing: SigningKey, *, channel_key: bytes, mask_key: bytes, choices: bytes
) -> Advert:
    """An advert; signed in active mode."""
    signature = b""
    if agreement.active:
        signature = signing.sign(Label.SIGN_ADVERT, *_signed_parts(agreement, member, channel_key + mask_key + choices))
    return Advert(channel_key, mask_key, choices, signature)


def check_advert(agreement: Agreement, member: int, message: AdvertiseKeys) -> tuple[Advert, tuple[int, ...]]:
    """The advert and the holders it names; refuses invalid keys, choices, or signature."""
    advert = Advert(message.channel_key, message.mask_key, message.choices, message.signature)
    check_public_key(advert.channel_key)
    check_public_key(advert.mask_key)
    choices = read_choices(agreement, member, advert.choices)
    parts = _signed_parts(agreement, member, advert.channel_key + advert.mask_key + advert.choices)
    agreement.check_signature(member, advert.signature, Label.SIGN_ADVERT, *parts)
    return advert, choices


def record_bytes(agreement: Agreement) -> int:
    """Length of every advert record of this agreement."""
    choices = 2 * agreement.parameters.neighbours if agreement.regular and agreement.active else 0
    return 2 * KEY_BYTES + choices + (SIGNATURE_BYTES if agreement.active else 0)


def split_adverts(agreement: Agreement, records: bytes, members: tuple[int, ...]) -> dict[int, Advert]:
    """The adverts of these members, unchecked; refuses any other length."""
    size = record_bytes(agreement)
    choices_end = size - (SIGNATURE_BYTES if agreement.active else 0)
    return {
        member: Advert(
            record[:KEY_BYTES],
            record[KEY_BYTES : 2 * KEY_BYTES],
            record[2 * KEY_BYTES : choices_end],
            record[choices_end:],
        )
        for member, record in split_records(records, size, members, Code.KEYS).items()
    }


def refuse_equal_keys(adverts: Mapping[int, Advert]) -> None:
    """Refuse a list in which any two public keys are equal."""
    keys = [key for advert in adverts.values() for key in (advert.channel_key, advert.mask_key)]
    if len(set(keys)) != len(keys):
        raise RemoteProtocolError(Code.KEYS, "two public keys of the round are equal")


def adverts_digest(agreement: Agreement, adverts: Mapping[int, Advert]) -> bytes:
    """32 bytes over who advertised and what."""
    members = sorted(adverts)
    return digest(
        Label.ADVERTS,
        agreement.context,
        encode_members(members, agreement.size),
        b"".join(adverts[member].record for member in members),
    )


def _signed_parts(agreement: Agreement, member: int, body: bytes) -> tuple[bytes, bytes, bytes]:
    return agreement.context, member.to_bytes(2, "little"), body
