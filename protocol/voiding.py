"""Contributing a second time to the same model, and when that is safe.

A server that restarts a round after it has the masked vectors, and leaves one client out the second time, would learn
that client's update by subtraction. So a client keeps a journal, and refuses a model that it contributed to before,
unless the earlier round provably ended before anybody could open its sum: unmasking takes `threshold` of the sharers,
so promises never to unmask it from more than sharers - threshold of them settle it. The client's own
promise counts.
"""

from __future__ import annotations

from collections.abc import Iterable

from tacit.protocol.aggregation_results import Contribution
from tacit.protocol.errors import Code, RemoteProtocolError
from tacit.protocol.messages import VoidedRound, VoidRound
from tacit.protocol.primitives import Label, SigningKey, verify
from tacit.protocol.roster import Roster


def promise(contribution: Contribution, name: str, signing: SigningKey) -> VoidRound:
    """The promise of a client that did not, and now never will, unmask this round."""
    signature = signing.sign(Label.SIGN_VOID, *_signed(contribution.session, contribution.round, name))
    return VoidRound(session=contribution.session, round=contribution.round, signature=signature)


def check_promise(roster: Roster, name: str, message: VoidRound | VoidedRound, signature: bytes) -> None:
    """Refuse a promise that the member did not sign."""
    signed = _signed(message.session, message.round, name)
    verify(roster.member(name).signing_public, signature, Label.SIGN_VOID, *signed)


def check_model_is_fresh(
    roster: Roster, journal: Iterable[Contribution], model: bytes, voided: Iterable[VoidedRound]
) -> None:
    """Refuse a model that this client's journal has, unless each earlier round is shown to be void."""
    proofs = {(proof.session, proof.round): proof for proof in voided}
    for earlier in journal:
        if earlier.model != model:
            continue
        where = f"round {earlier.round} of an earlier start" if earlier.unmasked else f"round {earlier.round}"
        proof = proofs.get((earlier.session, earlier.round))
        if earlier.unmasked or proof is None:
            raise RemoteProtocolError(
                Code.REPEATED_MODEL, f"this client already contributed to an update of this model, in {where}"
            )
        _check_proof(roster, earlier, proof)


def _check_proof(roster: Roster, earlier: Contribution, proof: VoidedRound) -> None:
    needed = len(earlier.sharers) - earlier.threshold + 1
    members = {given.member for given in proof.promises}
    if len(members) != len(proof.promises) or not members <= set(earlier.sharers):
        raise RemoteProtocolError(Code.MEMBERS, "promises twice, or of clients who had not shared in that round")
    if len(members) < needed:
        raise RemoteProtocolError(
            Code.REPEATED_MODEL,
            f"{len(members)} clients promise never to open round {earlier.round}; {needed} are needed",
        )
    for given in proof.promises:
        check_promise(roster, given.member, proof, given.signature)


def _signed(session: bytes, round: int, name: str) -> tuple[bytes, bytes, bytes]:
    return session, round.to_bytes(4, "little"), name.encode()
