"""Lies of our server that are true elsewhere: what members signed in another round, or for whoever is told otherwise.

Nothing in them is forged: every signature is of the member that it is said to be of. Who checks a signature, and not
what it is over, believes all of them. As all cases against a client, they are of rounds in the complete graph in which
everybody of the roster is.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tacit.protocol.core.primitives import SIGNATURE_BYTES, Label
from tacit.protocol.core.roster import decode_members, encode_members, split_records
from tacit.protocol.sum.agreement import Advert, adverts_digest, sign_advert, split_adverts, survivors_signed
from tacit.protocol.sum.messages import PeerKeys, PeerShares, UnmaskRequest
from tacit.protocol.sum.sharing import PACKET_BYTES
from tacit.simulate.conformance.peer.script import RoundKnowledge, flipped


def former_adverts(stage: RoundKnowledge, message: PeerKeys) -> dict[str, Any]:
    """Another member's keys are those of the round before."""
    adverts, other = _adverts(stage, message), _other(stage)
    return _listed(stage, {**adverts, other: _adverts(stage, stage.former(PeerKeys))[other]})


def adverts_of_another_model(stage: RoundKnowledge, message: PeerKeys) -> dict[str, Any]:
    """Another member signed its keys for the round of a model of its own."""
    adverts, other = _adverts(stage, message), _other(stage)
    agreement, signing = stage.agreed()
    elsewhere, keys = replace(agreement, model=flipped(agreement.model)), adverts[other]
    signed = sign_advert(
        elsewhere,
        other,
        signing[other],
        channel_key=keys.channel_key,
        mask_key=keys.mask_key,
        choices=keys.choices,
    )
    return _listed(stage, {**adverts, other: signed})


def former_shares(stage: RoundKnowledge, message: PeerShares) -> dict[str, Any]:
    """Another member's packet is that of the round before."""
    former, other = stage.former(PeerShares), _other(stage)
    parts = (("packets", PACKET_BYTES), ("signatures", SIGNATURE_BYTES))
    changed = {}
    for name, size in parts:
        now, before = (
            split_records(getattr(said, name), size, decode_members(said.owners, stage.size))
            for said in (message, former)
        )
        changed[name] = b"".join({**now, other: before[other]}.values())
    return changed


def former_signatures(stage: RoundKnowledge, message: UnmaskRequest) -> dict[str, Any]:
    """The survivors were signed in the round before."""
    former = stage.former(UnmaskRequest)
    return {"signers": former.signers, "signatures": former.signatures}


def signatures_of_other_survivors(stage: RoundKnowledge, message: UnmaskRequest) -> dict[str, Any]:
    """All others were told, and have signed, that one of them did not survive."""
    agreement, signing = stage.agreed()
    survivors = encode_members([member for member in range(stage.size) if member != _other(stage)], stage.size)
    sharing = agreement.sharing_digest(stage.latest(PeerKeys).digest, stage.latest(PeerShares).sharers)
    signatures = [
        key.sign(Label.SIGN_SURVIVORS, *survivors_signed(sharing, member, survivors))
        for member, key in sorted(signing.items())
    ]
    return {"signers": encode_members(signing, stage.size), "signatures": b"".join(signatures)}


def _other(stage: RoundKnowledge) -> int:
    """Somebody else than the client that is lied to."""
    return 1 if stage.liar == 0 else 0


def _adverts(stage: RoundKnowledge, message: PeerKeys) -> dict[int, Advert]:
    return split_adverts(stage.agreed()[0], message.adverts, decode_members(message.included, stage.size))


def _listed(stage: RoundKnowledge, adverts: dict[int, Advert]) -> dict[str, Any]:
    """The list of these keys, with the digest of it."""
    records = b"".join(advert.record for _, advert in sorted(adverts.items()))
    return {"adverts": records, "digest": adverts_digest(stage.agreed()[0], adverts)}
