"""What both ends of a secure sum compute alike: pairwise masks, and what the signatures cover."""

from __future__ import annotations

from tacit.protocol.core.primitives import AgreementKey, Label, derive
from tacit.protocol.sum.agreement import Agreement
from tacit.secagg.keystream import Mask, Usage


def pairwise_mask(own: AgreementKey, other: bytes, sharing: bytes, member: int, peer: int) -> Mask:
    """The mask of `member` towards `peer`: the later one adds, the earlier one subtracts, so that the pair cancels."""
    low, high = sorted((member, peer))
    info = low.to_bytes(2, "little") + high.to_bytes(2, "little")
    seed = derive(own.agree(other), Label.PAIRWISE_SEED, salt=sharing, info=info)
    return Mask(seed, Usage.PAIRWISE_MASK, 1 if member > peer else -1)


def owner_and_holder(owner: int, holder: int) -> bytes:
    """Both as one part."""
    return owner.to_bytes(2, "little") + holder.to_bytes(2, "little")


def packet_signed(agreement: Agreement, adverts: bytes, *, owner: int, holder: int, packet: bytes) -> tuple[bytes, ...]:
    """What an owner's signature over the packet of one holder covers."""
    return agreement.context, adverts, owner_and_holder(owner, holder), packet


def complaint_signed(sharing: bytes, *, owner: int, holder: int) -> tuple[bytes, ...]:
    """What a holder's signature over its complaint of an owner covers."""
    return sharing, owner_and_holder(owner, holder)


def survivors_signed(sharing: bytes, member: int, survivors: bytes) -> tuple[bytes, ...]:
    """What a signature over the bitmap of survivors covers."""
    return sharing, member.to_bytes(2, "little"), survivors
