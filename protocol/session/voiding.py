"""Contributing a second time to the same model, and when that is safe.

A server that restarts a round after it has the masked vectors, and leaves one client out the second time, would learn
that client's update by subtraction. So a client keeps a journal, and refuses a model that it contributed to before,
unless the earlier round provably ended before anybody could open its sum: unmasking takes `threshold` of the sharers,
so promises never to unmask it from more than sharers - threshold of them settle it, and of as many more as may promise
and open it all the same, the corrupt ones. The client's own promise counts.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from itertools import accumulate
from typing import Final

from tacit.protocol.core.errors import Code, RemoteProtocolError
from tacit.protocol.core.messages import BODY_LIMIT
from tacit.protocol.core.primitives import Label, SigningKey, verify
from tacit.protocol.core.roster import Roster
from tacit.protocol.session.messages import MOST_PROMISES, Promise, VoidedRound, VoidRound
from tacit.protocol.sum.results import Contribution

LARGEST_PROOFS: Final = BODY_LIMIT // 256
"""Promises in one StartRound, so that it fits a body: a promise takes less than 256 bytes."""


def promises_needed(sharers: int, threshold: int, corrupt: int) -> int:
    """How many sharers must promise, so that fewer than `threshold` are left that would open the sum."""
    return min(sharers - threshold + 1 + corrupt, sharers)


def promise(contribution: Contribution, name: str, signing: SigningKey) -> VoidRound:
    """The promise of a client that did not, and now never will, unmask this round."""
    signature = signing.sign(Label.SIGN_VOID, *_signed(contribution.session, contribution.round, name))
    return VoidRound(session=contribution.session, round=contribution.round, signature=signature)


def check_promise(roster: Roster, name: str, message: VoidRound | VoidedRound, signature: bytes) -> None:
    """Refuse a promise that the member did not sign."""
    signed = _signed(message.session, message.round, name)
    verify(roster.member(name).signing_public, signature, Label.SIGN_VOID, *signed)


class Promises:
    """The promises that a server was given: of every member the latest MOST_PROMISES."""

    def __init__(self) -> None:
        self._signatures: dict[str, dict[tuple[bytes, int], bytes]] = {}

    def add(self, name: str, message: VoidRound) -> None:
        """Keep a promise that `check_promise` admitted."""
        own = self._signatures.setdefault(name, {})
        own.pop((message.session, message.round), None)
        own[message.session, message.round] = message.signature
        if len(own) > MOST_PROMISES:
            del own[next(iter(own))]

    def count(self, session: bytes, round: int, members: Collection[str]) -> int:
        """How many of these members promised never to open this round."""
        return sum((session, round) in self._signatures.get(name, {}) for name in members)

    def proofs(self) -> tuple[VoidedRound, ...]:
        """All promises by round; of too many those of the rounds with the most, so that no member fills the list."""
        rounds: dict[tuple[bytes, int], list[Promise]] = {}
        for name, own in sorted(self._signatures.items()):
            for where, signature in own.items():
                rounds.setdefault(where, []).append(Promise(member=name, signature=signature))
        most = sorted(rounds.items(), key=lambda item: len(item[1]), reverse=True)[:MOST_PROMISES]
        totals = accumulate(len(given) for _, given in most)
        return tuple(
            VoidedRound(session=session, round=round, promises=tuple(given))
            for ((session, round), given), total in zip(most, totals, strict=True)
            if total <= LARGEST_PROOFS
        )


def check_model_is_fresh(
    roster: Roster, journal: Iterable[Contribution], model: bytes, voided: Iterable[VoidedRound]
) -> None:
    """Refuse a model that this client's journal has, unless each earlier round is shown to be void."""
    proofs: dict[tuple[bytes, int], VoidedRound] = {}
    for proof in voided:
        members = {given.member for given in proof.promises}
        if (proof.session, proof.round) in proofs or len(members) < len(proof.promises):
            raise RemoteProtocolError(Code.REPEATED_MODEL, "a void round, or a promise for it, is listed twice")
        proofs[proof.session, proof.round] = proof
    for earlier in journal:
        if earlier.model != model:
            continue
        shown = proofs.get((earlier.session, earlier.round))
        if earlier.unmasked or shown is None:
            raise RemoteProtocolError(
                Code.REPEATED_MODEL,
                f"this client already contributed to an update of this model, in round {earlier.round}",
            )
        _check_proof(roster, earlier, shown)


def _check_proof(roster: Roster, earlier: Contribution, proof: VoidedRound) -> None:
    needed = promises_needed(len(earlier.sharers), earlier.threshold, earlier.corrupt)
    # Others may promise what they like, and a server cannot know the sharers of a former session: not counted.
    counted = {*earlier.sharers} & {*roster.clients}
    promises = {given.member: given.signature for given in proof.promises if given.member in counted}
    if len(promises) < needed:
        raise RemoteProtocolError(
            Code.REPEATED_MODEL,
            f"{len(promises)} clients promise never to open round {earlier.round}; {needed} are needed",
        )
    for name, signature in promises.items():
        check_promise(roster, name, proof, signature)


def _signed(session: bytes, round: int, name: str) -> tuple[bytes, bytes, bytes]:
    return session, round.to_bytes(4, "little"), name.encode()
