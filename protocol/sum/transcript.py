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


def shares_signed(
    agreement: Agreement, adverts: bytes, member: int, seed_commitment: bytes, holders: bytes, packets: bytes
) -> tuple[bytes, ...]:
    """What a signature over ShareKeys covers."""
    return agreement.context, adverts, member.to_bytes(2, "little"), seed_commitment, holders, packets


def survivors_signed(sharing: bytes, member: int, survivors: bytes) -> tuple[bytes, ...]:
    """What a signature over the bitmap of survivors covers."""
    return sharing, member.to_bytes(2, "little"), survivors
