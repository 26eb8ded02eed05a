"""Shares of a client's two secrets: made, sealed and checked by clients, reconstructed by the server to remove masks.

Hash commitments to both shares of a holder travel beside them, bound into the sealing as associated data, so that a bad
share is blamed on the owner that made it or the holder that altered it. The server compares each reconstructed secret
with what its owner committed to. All secrets that have the same holders are reconstructed by one matrix product.
"""

from __future__ import annotations

import hmac
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final

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
from tacit.protocol.sum.agreement import Agreement, owner_and_holder, pairwise_mask
from tacit.protocol.sum.spending import NOTHING_SPENT, STATEMENT_BYTES
from tacit.protocol.sum.states import SumLabel
from tacit.secagg.keystream import Mask, Usage, apply_masks
from tacit.secagg.shamir import SHARE_BYTES, reconstruct, reconstruct_each, share
from tacit.secagg.work import WorkKind, work

COMMITMENTS_BYTES: Final = 2 * KEY_BYTES
BOTH_BYTES: Final = 2 * SHARE_BYTES
PACKET_BYTES: Final = COMMITMENTS_BYTES + BOTH_BYTES + STATEMENT_BYTES + TAG_BYTES


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
    known: Mapping[int, bytes] | None = None,
) -> tuple[bytes, dict[int, HeldShares]]:
    """The packets for the holders, in rising order, and what each of them holds.

    secrets: mask key and self-mask seed, 32 bytes each; holders: channel public key by member; known: statements of
    holders' spending, by member.
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
            SumLabel.KEY_SHARE, agreement, owner=owner, holder=holder, share=held.key
        ) + commit_share(SumLabel.SEED_SHARE, agreement, owner=owner, holder=holder, share=held.seed)
        key = _channel_key(agreement, adverts_digest, channel, holders[holder], owner=owner, holder=holder)
        told = (known or {}).get(holder, NOTHING_SPENT)
        packets.append(commitments + seal(key, held.both + told, associated=commitments))
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
) -> tuple[HeldShares, bytes]:
    """The holder's shares of an owner, and what this one knows of its spending, unchecked; refuses what does not open
    or is not what the owner committed to."""
    commitments, sealed = packet[:COMMITMENTS_BYTES], packet[COMMITMENTS_BYTES:]
    key = _channel_key(agreement, adverts_digest, channel, owner_key, owner=owner, holder=holder)
    opened = open_sealed(key, sealed, associated=commitments)
    both, told = opened[:BOTH_BYTES], opened[BOTH_BYTES:]
    return read_shares(agreement, packet, both, owner=owner, holder=holder), told


def read_shares(agreement: Agreement, packet: bytes, both: bytes, *, owner: int, holder: int) -> HeldShares:
    """The two shares in 72 bytes; refuses others than committed to in the packet."""
    held = HeldShares(both[:SHARE_BYTES], both[SHARE_BYTES:])
    check_share(SumLabel.KEY_SHARE, agreement, packet, owner=owner, holder=holder, share=held.key)
    check_share(SumLabel.SEED_SHARE, agreement, packet, owner=owner, holder=holder, share=held.seed)
    return held


def check_share(label: Label, agreement: Agreement, packet: bytes, *, owner: int, holder: int, share: bytes) -> None:
    start = 0 if label is SumLabel.KEY_SHARE else KEY_BYTES
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
        SumLabel.SHARE_CHANNEL,
        salt=agreement.context,
        info=adverts_digest + owner_and_holder(owner, holder),
    )


MASKS_AT_ONCE = 256
"""Masks taken off in one pass over the sum: many, so that blocks stay in the cache; few, to bound the seeds held."""


@work(WorkKind.RECONSTRUCTION)
def open_secrets(agreement: Agreement, shares: Mapping[int, Mapping[int, bytes]]) -> dict[int, bytes]:
    """The 32-byte secrets by owner.

    shares: for each owner the returned shares (36 bytes, checked against their commitments) by holder; at least the
    threshold of them. Refuses, naming the owner, shares that are no points of a polynomial over a 32-byte secret.
    """
    threshold = agreement.parameters.threshold
    owners = sorted(shares)
    if not owners:
        return {}
    holders = {owner: tuple(sorted(shares[owner]))[:threshold] for owner in owners}
    points = np.array([holders[owner] for owner in owners]) + 1
    try:
        secrets = _reconstruct(owners, holders, points, shares)
    except ValueError:
        secrets = []
        for position, owner in enumerate(owners):
            try:
                secrets += _reconstruct([owner], holders, points[position : position + 1], shares)
            except ValueError:
                raise RemoteProtocolError(
                    Code.SECRET, "its shares do not reconstruct to a secret", culprit=agreement.cohort[owner]
                ) from None
    return dict(zip(owners, secrets, strict=True))


def check_seed(agreement: Agreement, owner: int, seed: bytes, commitment: bytes) -> None:
    """Refuse a reconstructed self-mask seed that its owner did not commit to."""
    if digest(SumLabel.SEED, agreement.context, seed) != commitment:
        raise RemoteProtocolError(
            Code.SECRET, "it shared another self-mask seed than it committed to", culprit=agreement.cohort[owner]
        )


def check_mask_key(agreement: Agreement, owner: int, private: bytes, public: bytes) -> AgreementKey:
    """The reconstructed mask key; refused if it is not the one its owner advertised."""
    key = AgreementKey(private)
    if key.public != public:
        raise RemoteProtocolError(
            Code.SECRET, "it shared another mask key than it advertised", culprit=agreement.cohort[owner]
        )
    return key


def remove_masks(
    agreement: Agreement,
    total: npt.NDArray[Any],
    *,
    sharing: bytes,
    seeds: Mapping[int, bytes],
    keys: Mapping[int, AgreementKey],
    survivors: Sequence[int],
    peers: Callable[[int], tuple[int, ...]],
    public_keys: Callable[[int], bytes],
) -> int:
    """Take the self masks of the survivors and their masks towards the dropped off the sum, in place; returns how many.

    seeds: self-mask seed by survivor; keys: mask key by dropped client; peers, public_keys: of any client.
    """
    masks = _masks(sharing, seeds, keys, set(survivors), peers, public_keys)
    count = 0
    while batch := list(islice(masks, MASKS_AT_ONCE)):
        apply_masks(total, batch, agreement.ring)
        count += len(batch)
    return count


def _masks(
    sharing: bytes,
    seeds: Mapping[int, bytes],
    keys: Mapping[int, AgreementKey],
    survivors: set[int],
    peers: Callable[[int], tuple[int, ...]],
    public_keys: Callable[[int], bytes],
) -> Iterator[Mask]:
    for seed in seeds.values():
        yield Mask(derive(seed, SumLabel.SELF_SEED, salt=sharing), Usage.SELF_MASK, -1)
    for dropped, key in keys.items():
        for survivor in peers(dropped):
            if survivor in survivors:
                # The mask of the dropped client towards the survivor is the opposite of the one to be removed.
                yield pairwise_mask(key, public_keys(survivor), sharing, dropped, survivor)


def _reconstruct(
    owners: list[int],
    holders: Mapping[int, tuple[int, ...]],
    points: npt.NDArray[np.int64],
    shares: Mapping[int, Mapping[int, bytes]],
) -> list[bytes]:
    joined = b"".join(shares[owner][holder] for owner in owners for holder in holders[owner])
    elements = shares_array(joined).reshape(len(owners), points.shape[1], -1)
    if (points == points[0]).all():
        return reconstruct(np.ascontiguousarray(elements.transpose(1, 0, 2)), points[0])
    return reconstruct_each(elements, points)
