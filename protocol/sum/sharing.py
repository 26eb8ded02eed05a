"""What a client does with its two secrets: share them, seal the shares, commit to them; and the holder's counterpart.

The two secrets are the private mask key (opened if its owner drops out) and the self-mask seed (opened if it survives).
Each holder gets one share of either, sealed together under a key between owner and holder. Beside them travel hash
commitments to both shares, bound into the sealing as associated data: the holder checks them on receipt, the server
when a share is returned, so that a bad share names the one who made it or the one who bent it. The owner signs each of
these packets: one that is signed and that its holder cannot use is its own work, and it answers for it.
"""

from __future__ import annotations

import hmac
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from tacit.protocol.core.errors import Code, RemoteProtocolError
from tacit.protocol.core.machine import Entropy
from tacit.protocol.core.primitives import (
    KEY_BYTES,
    TAG_BYTES,
    AgreementKey,
    Label,
    derive,
    digest,
    open_sealed,
    seal,
)
from tacit.protocol.sum.agreement import Agreement
from tacit.protocol.sum.transcript import owner_and_holder
from tacit.secagg.shamir import SHARE_BYTES, share
from tacit.secagg.work import WorkKind, work

COMMITMENTS_BYTES: Final = 2 * KEY_BYTES
BOTH_BYTES: Final = 2 * SHARE_BYTES
PACKET_BYTES: Final = COMMITMENTS_BYTES + BOTH_BYTES + TAG_BYTES


@dataclass(frozen=True)
class HeldShares:
    """The two shares that a holder keeps for an owner. At most one of them ever leaves the holder."""

    key: bytes
    seed: bytes

    @property
    def both(self) -> bytes:
        """As they are sealed, and as an owner answers a complaint."""
        return self.key + self.seed

    def __repr__(self) -> str:
        return "HeldShares(<secret>)"


def commit_share(label: Label, agreement: Agreement, *, owner: int, holder: int, share: bytes) -> bytes:
    """The commitment to one share: a hash is enough, because a share is 36 bytes of uniform randomness."""
    return digest(label, agreement.context, owner_and_holder(owner, holder), share)


@work(WorkKind.SHARING)
def seal_shares(
    agreement: Agreement,
    adverts_digest: bytes,
    *,
    owner: int,
    channel: AgreementKey,
    secrets: tuple[bytes, bytes],
    holders: dict[int, bytes],
    entropy: Entropy,
) -> tuple[bytes, dict[int, HeldShares]]:
    """The packets for the holders, in rising order, and what each of them holds.

    secrets: mask key and self-mask seed, 32 bytes each; holders: channel public key by member.
    """
    members = sorted(holders)
    shares = share(
        secrets,
        points=np.array(members) + 1,
        threshold=agreement.parameters.threshold,
        seed=entropy(KEY_BYTES),
    ).astype("<u2")
    packets, given = [], {}
    for position, holder in enumerate(members):
        held = HeldShares(*(part.tobytes() for part in shares[position]))
        commitments = commit_share(
            Label.KEY_SHARE, agreement, owner=owner, holder=holder, share=held.key
        ) + commit_share(Label.SEED_SHARE, agreement, owner=owner, holder=holder, share=held.seed)
        key = _channel_key(agreement, adverts_digest, channel, holders[holder], owner=owner, holder=holder)
        packets.append(commitments + seal(key, held.both, associated=commitments))
        given[holder] = held
    return b"".join(packets), given


@work(WorkKind.SHARING)
def open_packet(
    agreement: Agreement,
    adverts_digest: bytes,
    packet: bytes,
    *,
    owner: int,
    holder: int,
    channel: AgreementKey,
    owner_key: bytes,
) -> HeldShares:
    """The holder's shares of an owner; refuses what does not open or is not what the owner committed to."""
    commitments, sealed = packet[:COMMITMENTS_BYTES], packet[COMMITMENTS_BYTES:]
    key = _channel_key(agreement, adverts_digest, channel, owner_key, owner=owner, holder=holder)
    return read_shares(agreement, packet, open_sealed(key, sealed, associated=commitments), owner=owner, holder=holder)


def read_shares(agreement: Agreement, packet: bytes, both: bytes, *, owner: int, holder: int) -> HeldShares:
    """The two shares in 72 bytes; refuses others than committed to in the packet."""
    held = HeldShares(both[:SHARE_BYTES], both[SHARE_BYTES:])
    check_share(Label.KEY_SHARE, agreement, packet, owner=owner, holder=holder, share=held.key)
    check_share(Label.SEED_SHARE, agreement, packet, owner=owner, holder=holder, share=held.seed)
    return held


def check_share(label: Label, agreement: Agreement, packet: bytes, *, owner: int, holder: int, share: bytes) -> None:
    """Refuse a share that is not the one committed to in the packet."""
    start = 0 if label is Label.KEY_SHARE else KEY_BYTES
    expected = commit_share(label, agreement, owner=owner, holder=holder, share=share)
    if not hmac.compare_digest(expected, packet[start : start + KEY_BYTES]):
        raise RemoteProtocolError(
            Code.SHARES, f"the share of {agreement.cohort[owner]} is not the one that it committed to"
        )


def shares_array(shares: bytes) -> npt.NDArray[np.uint16]:
    """Concatenated shares as field elements [count, 18]."""
    return np.frombuffer(shares, "<u2").astype(np.uint16).reshape(-1, SHARE_BYTES // 2)


def _channel_key(
    agreement: Agreement, adverts_digest: bytes, own: AgreementKey, other: bytes, *, owner: int, holder: int
) -> bytes:
    return derive(
        own.agree(other),
        Label.SHARE_CHANNEL,
        salt=agreement.context,
        info=adverts_digest + owner_and_holder(owner, holder),
    )
