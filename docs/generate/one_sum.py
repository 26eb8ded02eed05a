"""A secure sum on one screen: everybody's part in active mode, without state machines, from the keys to the result.

It is no implementation, for it trusts everybody and checks nothing. Vectors fit one chunk, and the graph is complete.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from tacit.protocol.core.machine import Entropy
from tacit.protocol.core.messages import Message
from tacit.protocol.core.primitives import AgreementKey, SigningKey, derive, digest, open_sealed, seal
from tacit.protocol.core.roster import encode_members
from tacit.protocol.sum import messages as say
from tacit.protocol.sum.agreement import Agreement
from tacit.protocol.sum.states import SumLabel
from tacit.secagg.keystream import Mask, Usage, apply_masks
from tacit.secagg.shamir import SHARE_BYTES, decode_share, encode_share, reconstruct, share

Said = tuple[str, str, Message, bytes | None]
"""Sender, receiver, message and raw frame."""


def hold_sum(
    agreement: Agreement,
    signing: Sequence[SigningKey],
    vectors: Sequence[npt.NDArray[Any]],
    entropy: Sequence[Entropy],
    *,
    silent: Collection[int] = (),
) -> tuple[npt.NDArray[Any], list[Said]]:
    """The sum over all members but the silent ones, who send nothing after their shares; and everything that is said.

    signing, vectors, entropy: of every member in the order of the cohort.
    """
    context, threshold, ring = agreement.context, agreement.parameters.threshold, agreement.ring
    names, server, said = agreement.cohort, agreement.server, list[Said]()
    everybody = range(agreement.size)
    survivors = [member for member in everybody if member not in silent]
    all_bits, survivor_bits = (encode_members(members, agreement.size) for members in (everybody, survivors))

    # ADVERTISE_KEYS. Each draws two X25519 keys, and signs the public ones with its Ed25519 key of the roster.
    channel = [AgreementKey(draw(32)) for draw in entropy]
    mask_key = [AgreementKey(draw(32)) for draw in entropy]
    public = [channel[i].public + mask_key[i].public for i in everybody]
    adverts = [public[i] + signing[i].sign(SumLabel.SIGN_ADVERT, context, two(i), public[i]) for i in everybody]
    for i, advert in enumerate(adverts):
        # No round costs of a privacy budget, of which `spent` would be.
        keys = {"channel_key": advert[:32], "mask_key": advert[32:64], "choices": b"", "spent": b""}
        said.append((names[i], server, say.AdvertiseKeys(**keys, signature=advert[64:]), None))
    list_of_keys = digest(SumLabel.ADVERTS, context, all_bits, b"".join(adverts))
    listed = say.PeerKeys(advertised=all_bits, digest=list_of_keys, included=all_bits, adverts=b"".join(adverts))
    said += [(server, names[i], listed, None) for i in everybody]

    # SHARE_KEYS. Each draws a seed, and shares its mask key and its seed: one of both shares for every holder, itself
    # among them, behind a commitment to either, and sealed under a key that owner and holder agree on. Each packet is
    # signed on its own, for a holder that cannot open it may complain, and get the shares from its owner in the clear.
    seeds, packets, signatures = list[bytes](), list[list[bytes]](), list[list[bytes]]()

    def sealing_key(owner: int, holder: int, own: AgreementKey, other: bytes) -> bytes:
        info = list_of_keys + two(owner) + two(holder)
        return derive(own.agree(other), SumLabel.SHARE_CHANNEL, salt=context, info=info)

    for i in everybody:
        seeds.append(entropy[i](32))
        shares = share(
            (mask_key[i].private, seeds[i]), points=np.array(everybody) + 1, threshold=threshold, seed=entropy[i](32)
        )
        packets.append([])
        signatures.append([])
        for j in everybody:
            of_key, of_seed = (encode_share(shares[j, secret]) for secret in range(2))
            committed = digest(SumLabel.KEY_SHARE, context, two(i) + two(j), of_key)
            committed += digest(SumLabel.SEED_SHARE, context, two(i) + two(j), of_seed)
            key = sealing_key(i, j, channel[i], channel[j].public)
            packets[i].append(committed + seal(key, of_key + of_seed, associated=committed))
            parts = (context, list_of_keys, two(i) + two(j), packets[i][j])
            signatures[i].append(signing[i].sign(SumLabel.SIGN_SHARES, *parts))
        rows = {"packets": b"".join(packets[i]), "signatures": b"".join(signatures[i])}
        committed = digest(SumLabel.SEED, context, seeds[i])
        said.append((names[i], server, say.ShareKeys(seed_commitment=committed, holders=all_bits, **rows), None))
    for j in everybody:
        columns = {"packets": b"".join(row[j] for row in packets), "signatures": b"".join(row[j] for row in signatures)}
        said.append((server, names[j], say.PeerShares(sharers=all_bits, owners=all_bits, **columns), None))

    # MASKED_INPUT. Each adds a mask of its own, and one towards every other: added by the later of both, subtracted by
    # the earlier, so that they cancel. All masks depend on who shared.
    sharing = digest(SumLabel.SHARING, context, list_of_keys, all_bits)

    def own_mask(seed: bytes, sign: Literal[1, -1]) -> Mask:
        return Mask(derive(seed, SumLabel.SELF_SEED, salt=sharing), Usage.SELF_MASK, sign)

    def pair_mask(own: AgreementKey, i: int, j: int) -> Mask:
        info = two(min(i, j)) + two(max(i, j))
        seed = derive(own.agree(mask_key[j].public), SumLabel.PAIRWISE_SEED, salt=sharing, info=info)
        return Mask(seed, Usage.PAIRWISE_MASK, 1 if i > j else -1)

    total = np.zeros(agreement.length, ring.word)
    for i in survivors:
        masked = np.array(vectors[i])
        masks = [own_mask(seeds[i], 1), *(pair_mask(mask_key[i], i, j) for j in everybody if j != i)]
        apply_masks(masked, masks, ring)
        nobody = encode_members((), agreement.size)
        said.append((names[i], server, say.MaskedInput(complaints=nobody, signatures=b""), bytes(ring.pack(masked))))
        ring.add_into(total, masked)

    # CONSISTENCY_CHECK. Each signs whose vectors arrived. UNMASK. Whoever sees that enough others signed the same opens
    # of every survivor the share of its seed, and of every other one the share of its mask key: never both.
    said += [(server, names[i], say.Survivors(survivors=survivor_bits), None) for i in survivors]
    signed = [signing[i].sign(SumLabel.SIGN_SURVIVORS, sharing, two(i), survivor_bits) for i in survivors]
    for i, signature in zip(survivors, signed, strict=True):
        said.append((names[i], server, say.ConfirmSurvivors(signature=signature), None))
    signers = encode_members(survivors[:threshold], agreement.size)
    nobody, enough = encode_members((), agreement.size), b"".join(signed[:threshold])
    asked = {"signers": signers, "signatures": enough, "answered": nobody, "answers": b""}
    request = say.UnmaskRequest(survivors=survivor_bits, **asked)
    said += [(server, names[i], request, None) for i in survivors]
    opened: list[list[bytes]] = [[] for _ in everybody]
    for j in survivors:
        for i in everybody:
            key = sealing_key(i, j, channel[j], channel[i].public)
            both = open_sealed(key, packets[i][j][64:], associated=packets[i][j][:64])
            opened[i].append(both[SHARE_BYTES:] if i in survivors else both[:SHARE_BYTES])
        own_shares = b"".join(opened[i][-1] for i in everybody)
        said.append((names[j], server, say.UnmaskShares(owners=all_bits, shares=own_shares), None))

    # The server reconstructs what was opened, and takes off what did not cancel.
    points = np.array(survivors[:threshold]) + 1
    for i in everybody:
        (secret,) = reconstruct(np.array([[decode_share(one)] for one in opened[i][:threshold]]), points)
        left_over = [pair_mask(AgreementKey(secret), i, j) for j in survivors]
        apply_masks(total, [own_mask(secret, -1)] if i in survivors else left_over, ring)
    return total, said


def two(number: int) -> bytes:
    """A member's position on the wire."""
    return number.to_bytes(2, "little")
