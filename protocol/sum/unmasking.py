"""What the server does with the opened shares: reconstruct secrets, check them, and take the masks off the sum.

For every survivor its self-mask seed is reconstructed, for every client that shared but sent no vector its mask key.
Each is compared with what its owner committed to (the hash of the seed; the advertised public key), so that a client
who shared something else is named. All secrets that have the same holders are reconstructed by one matrix product.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

import numpy as np
import numpy.typing as npt

from tacit.protocol.core.errors import Code, RemoteProtocolError
from tacit.protocol.core.primitives import AgreementKey, Label, derive, digest
from tacit.protocol.sum.agreement import Agreement
from tacit.protocol.sum.sharing import shares_array
from tacit.protocol.sum.transcript import pairwise_mask
from tacit.secagg.keystream import Mask, Usage, apply_masks
from tacit.secagg.shamir import reconstruct, reconstruct_each
from tacit.secagg.work import WorkKind, work

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
    if digest(Label.SEED, agreement.context, seed) != commitment:
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
        yield Mask(derive(seed, Label.SELF_SEED, salt=sharing), Usage.SELF_MASK, -1)
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
