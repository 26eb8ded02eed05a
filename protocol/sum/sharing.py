"""Shares of a client's two secrets: made, sealed and checked by clients, reconstructed by the server to remove masks.

Hash commitments to both shares of a holder travel beside them, bound into the sealing as associated data, so that the
fault of a bad share is traced to the owner that made it or the holder that altered it. Holders check both shares on
arrival. The server compares each reconstructed secret with its owner's commitment, and the shares behind it only if
that fails.
"""

from __future__ import annotations

import hmac
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from hashlib import sha256
from itertools import chain, islice
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
    agree_all,
    derive,
    digest,
    framed,
    open_sealed,
    seal,
)
from tacit.protocol.core.roster import split_records
from tacit.protocol.sum.agreement import Agreement, owner_and_holder, pairwise_mask
from tacit.protocol.sum.states import SumLabel
from tacit.secagg.keystream import Mask, Usage, apply_masks
from tacit.secagg.shamir import SHARE_BYTES, reconstruct_each, share
from tacit.secagg.work import WorkKind, work

COMMITMENTS_BYTES: Final = 2 * KEY_BYTES
BOTH_BYTES: Final = 2 * SHARE_BYTES
PACKET_BYTES: Final = COMMITMENTS_BYTES + BOTH_BYTES + TAG_BYTES
"""Bytes of a packet without a statement of spending."""


def packet_bytes(agreement: Agreement) -> int:
    """Bytes of every packet of a sum."""
    return PACKET_BYTES + agreement.statement_bytes


@dataclass(frozen=True)
class HeldShares:
    """The two shares that a holder keeps for an owner. At most one of them ever leaves the holder."""

    key: bytes
    seed: bytes

    @property
    def both(self) -> bytes:
        """Encoding for sealing, and for an owner's answer to a complaint."""
        return self.key + self.seed

    def __repr__(self) -> str:
        return "HeldShares(<secret>)"


def commit_share(label: Label, agreement: Agreement, *, owner: int, holder: int, share: bytes) -> bytes:
    """The commitment to one share: a hash is enough, because a share is 36 bytes of uniform randomness."""
    # A digest of label, context, pair and share, of which all but the last two are framed once for all holders.
    pair, length = owner_and_holder(owner, holder), len(share).to_bytes(8, "little")
    return sha256(b"".join((_framed(label, agreement.context), _PAIR_LENGTH, pair, length, share))).digest()


_framed: Final = lru_cache(maxsize=8)(framed)
_PAIR_LENGTH: Final = (4).to_bytes(8, "little")


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
    """The packets for the holders, in rising order, and the shares in each.

    secrets: mask key and self-mask seed, 32 bytes each; holders: channel public key by member; known: with statements,
    those of holders' spending, by member."""
    members = sorted(holders)
    agree_all([(channel, holders[holder]) for holder in members])
    shares = share(
        secrets,
        points=np.array(members) + 1,
        threshold=agreement.parameters.threshold,
        seed=entropy(KEY_BYTES),
    ).astype("<u2")
    packets, given = [], {}
    for holder, row in zip(members, shares, strict=True):
        both = row.tobytes()
        held = HeldShares(both[:SHARE_BYTES], both[SHARE_BYTES:])
        commitments = commit_share(
            SumLabel.KEY_SHARE, agreement, owner=owner, holder=holder, share=held.key
        ) + commit_share(SumLabel.SEED_SHARE, agreement, owner=owner, holder=holder, share=held.seed)
        key = _channel_key(agreement, adverts_digest, channel, holders[holder], owner=owner, holder=holder)
        statement = (known or {}).get(holder, bytes(agreement.statement_bytes))
        packets.append(commitments + seal(key, both + statement, associated=commitments))
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
    """The holder's shares of an owner, and the owner's statement of the holder's spending, unchecked; refuses a packet
    that does not open or does not match the owner's commitments."""
    commitments, sealed = packet[:COMMITMENTS_BYTES], packet[COMMITMENTS_BYTES:]
    key = _channel_key(agreement, adverts_digest, channel, owner_key, owner=owner, holder=holder)
    opened = open_sealed(key, sealed, associated=commitments)
    both, statement = opened[:BOTH_BYTES], opened[BOTH_BYTES:]
    return read_shares(agreement, packet, both, owner=owner, holder=holder), statement


def read_shares(agreement: Agreement, packet: bytes, both: bytes, *, owner: int, holder: int) -> HeldShares:
    """The two shares in 72 bytes; refuses shares that do not match the packet's commitments."""
    held = HeldShares(both[:SHARE_BYTES], both[SHARE_BYTES:])
    for label, part in ((SumLabel.KEY_SHARE, held.key), (SumLabel.SEED_SHARE, held.seed)):
        if not is_committed(label, agreement, packet, owner=owner, holder=holder, share=part):
            raise RemoteProtocolError(
                Code.SHARES, f"the share of {agreement.cohort[owner]} is not the one that it committed to"
            )
    return held


def is_committed(label: Label, agreement: Agreement, packet: bytes, *, owner: int, holder: int, share: bytes) -> bool:
    """Whether the owner committed to this share in the packet."""
    start = 0 if label is SumLabel.KEY_SHARE else KEY_BYTES
    expected = commit_share(label, agreement, owner=owner, holder=holder, share=share)
    return hmac.compare_digest(expected, packet[start : start + KEY_BYTES])


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


MASKS_AT_ONCE = 1024
"""Masks removed in one pass over the sum: many, so that blocks stay in the cache; few, to bound the seeds held."""


@dataclass(frozen=True)
class Returned:
    """Shares that a holder returned: one for each of these owners, in their order."""

    owners: tuple[int, ...]
    shares: bytes

    def each(self) -> Iterator[tuple[int, bytes]]:
        """Owners and their shares."""
        return iter(split_records(self.shares, SHARE_BYTES, self.owners).items())

    def __repr__(self) -> str:
        return "Returned(<secret>)"


@work(WorkKind.RECONSTRUCTION)
def open_secrets(agreement: Agreement, returned: Mapping[int, Returned]) -> dict[int, bytes | None]:
    """The 32-byte secret of every owner with a threshold of shares; None if the shares are inconsistent.

    returned: by holder, unchecked. Of more shares than the threshold those of the first holders are used."""
    threshold, in_order = agreement.parameters.threshold, sorted(returned.items())
    places, counts = [holder for holder, _ in in_order], [len(given.owners) for _, given in in_order]
    holders = np.repeat(np.array(places, np.int64), np.array(counts, np.int64))
    owners = np.fromiter(chain.from_iterable(given.owners for _, given in in_order), np.int64)
    order = np.argsort(owners, kind="stable")
    known, first, count = np.unique(owners[order], return_index=True, return_counts=True)
    rows = order[first[count >= threshold, np.newaxis] + np.arange(threshold)]
    shares = shares_array(b"".join(given.shares for _, given in in_order))[rows]
    points = holders[rows] + 1
    try:
        secrets: list[bytes | None] = [*reconstruct_each(shares, points)]
    except ValueError:
        secrets = [_secret(*one) for one in zip(shares, points, strict=True)]
    return dict(zip(known[count >= threshold].tolist(), secrets, strict=True))


def _secret(shares: npt.NDArray[np.uint16], points: npt.NDArray[np.int64]) -> bytes | None:
    try:
        return reconstruct_each(shares[np.newaxis], points[np.newaxis])[0]
    except ValueError:
        return None


def check_seed(agreement: Agreement, seed: bytes, commitment: bytes) -> bytes:
    """The reconstructed self-mask seed; refused if its owner did not commit to it."""
    if digest(SumLabel.SEED, agreement.context, seed) != commitment:
        raise RemoteProtocolError(Code.SECRET, "it shared another self-mask seed than it committed to")
    return seed


def check_mask_key(private: bytes, public: bytes) -> AgreementKey:
    """The reconstructed mask key; refused if it is not the one its owner advertised."""
    key = AgreementKey(private)
    if key.public != public:
        raise RemoteProtocolError(Code.SECRET, "it shared another mask key than it advertised")
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
    """Remove the self masks of the survivors and their masks towards the dropped from the sum, in place; returns how
    many.

    seeds: self-mask seed by survivor; keys: mask key by dropped client; peers, public_keys: of any client."""
    alive = set(survivors)
    pairs = [(dropped, peer) for dropped in keys for peer in peers(dropped) if peer in alive]
    agree_all([(keys[dropped], public_keys(peer)) for dropped, peer in pairs])
    own = (Mask(derive(seed, SumLabel.SELF_SEED, salt=sharing), Usage.SELF_MASK, -1) for seed in seeds.values())
    # The mask of the dropped client towards the survivor is the opposite of the one to be removed.
    mutual = (pairwise_mask(keys[dropped], public_keys(peer), sharing, dropped, peer) for dropped, peer in pairs)
    masks = chain(own, mutual)
    while batch := list(islice(masks, MASKS_AT_ONCE)):
        apply_masks(total, batch, agreement.ring)
    return len(seeds) + len(pairs)
