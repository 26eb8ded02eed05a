"""Transcripts of secure sums with complaints: owners that answer them, and owners that are out."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Final

import msgspec

from tacit.protocol.core.primitives import SigningKey
from tacit.protocol.core.roster import split_records
from tacit.protocol.sum.agreement import Agreement, packet_signed
from tacit.protocol.sum.messages import ShareKeys
from tacit.protocol.sum.sharing import PACKET_BYTES
from tacit.protocol.sum.states import SumLabel
from tests.vectors_corpus.play import SERVER, Parcel, Play, ending
from tests.vectors_corpus.primitives import drawn, flipped
from tests.vectors_corpus.rounds import PHASE_SECONDS, agreement_of, begun, sum_terms

SEALED: Final = 70
"""A place in a packet where its owner does not seal what it committed to, but knows that."""
COMMITTED: Final = 0
"""A place where it commits to something else."""


def signing(name: str) -> SigningKey:
    return SigningKey(drawn(f"{name} signing"))


def sign_packets(agreement: Agreement, digest: bytes, message: ShareKeys, owner: int, holders: Sequence[int]) -> bytes:
    """The owner's signatures over its packets for these holders, whatever they are."""
    parts = (
        packet_signed(agreement, digest, owner=owner, holder=holder, packet=packet)
        for holder, packet in split_records(message.packets, PACKET_BYTES, holders).items()
    )
    return b"".join(signing(agreement.cohort[owner]).sign(SumLabel.SIGN_SHARES, *one) for one in parts)


def disputed(
    terms: dict[str, Any], about: str, spoilt: Mapping[int, Collection[int]], place: int = SEALED, *, silent: int = -1
) -> Play:
    """A sum in a complete graph in which owners spoil their packets for these holders, and one may not answer them."""
    play, agreement = begun(terms, about), agreement_of(terms)
    everybody = range(agreement.size)

    def change(parcel: Parcel) -> Sequence[bytes] | None:
        owner = agreement.places.get(parcel.sender, -1)
        if parcel.kind == "answer-complaints" and owner == silent:
            return None
        if parcel.kind != "share-keys" or owner not in spoilt:
            return parcel.frames
        message, packets = parcel.message, parcel.message.packets
        for holder in spoilt[owner]:
            packets = flipped(packets, holder * PACKET_BYTES + place)
        changed = msgspec.structs.replace(message, packets=packets)
        if agreement.active:
            told = (one for one in play.parcels if (one.kind, one.receiver) == ("peer-keys", parcel.sender))
            signatures = sign_packets(agreement, next(told).message.digest, changed, owner, everybody)
            changed = msgspec.structs.replace(changed, signatures=signatures)
        return parcel.saying(changed)

    play.deliver(change)
    if silent >= 0:
        play.expire(SERVER, PHASE_SECONDS)
        play.deliver(change)
    return play


def complaints_answered() -> Play:
    about = "Two clients send each other shares that do not open; both complain, both answer, and nothing is lost."
    return ending(disputed(sum_terms(4, active=True), about, {0: (1,), 1: (0,)}), "sum")


def complaints_semi_honest() -> Play:
    about = "Semi-honest: two holders complain of one owner, which answers both."
    return ending(disputed(sum_terms(5, active=False), about, {1: (0, 3)}), "sum")


def complaints_bad_commitment() -> Play:
    about = "An owner committed to another share than it gave; its answer is proof, and without it too few hold shares."
    return ending(disputed(sum_terms(4, active=True), about, {1: (0,)}, COMMITTED), "aborted", "SHARES")


def complaints_bad_commitment_survived() -> Play:
    about = "The same among seven, of whom enough are left: the sum is made, and has the vector of who is out."
    return ending(disputed(sum_terms(7, active=True), about, {1: (0,)}, COMMITTED), "sum")


def complaints_bad_number() -> Play:
    about = "More holders than may lie complain of one owner: it is out before it is asked."
    return ending(disputed(sum_terms(4, active=True), about, {1: (0, 2)}), "aborted", "SHARES")


def complaints_bad_silence() -> Play:
    about = "An accused does not answer in time: it is out, and nobody is to blame that too few hold shares of it."
    return ending(disputed(sum_terms(4, active=True), about, {1: (0,)}, silent=1), "aborted", "SHARES")


PLAYS: Final[tuple[Callable[[], Play], ...]] = (
    complaints_answered, complaints_semi_honest, complaints_bad_commitment, complaints_bad_commitment_survived,
    complaints_bad_number, complaints_bad_silence,
)  # fmt: skip
