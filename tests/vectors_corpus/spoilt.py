"""Transcripts of secure sums that go on, or end, after a rule was broken: what everybody makes of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from msgspec.structs import replace

from tacit.protocol.core.primitives import AgreementKey
from tacit.protocol.sum.messages import ShareKeys
from tacit.protocol.sum.sharing import PACKET_BYTES, seal_shares
from tests.vectors_corpus.faults import CHEAT, PLACE, envelope, setting
from tests.vectors_corpus.play import SERVER, Parcel, Play, ending, faulty_part
from tests.vectors_corpus.primitives import drawn, flipped
from tests.vectors_corpus.rounds import FIRST_DEADLINE, PHASE_SECONDS, begun, sum_terms

HOLDERS: Final = range(3)


def _sharing(about: str, alter: Callable[[ShareKeys], ShareKeys], *, silent_after: bool = False) -> Play:
    """A semi-honest sum of three in which the cheat says `alter` of its ShareKeys; then, perhaps, nothing."""
    play = begun(setting("semi-honest").terms, about)

    def change(parcel: Parcel) -> Sequence[bytes] | None:
        if parcel.sender == CHEAT and parcel.kind == "share-keys":
            return parcel.saying(alter(parcel.message))
        if silent_after and parcel.sender == CHEAT and parcel.kind == "masked-input":
            return None
        return parcel.frames

    play.deliver(change)
    if silent_after:
        play.expire(SERVER, FIRST_DEADLINE)
        play.deliver(change)
    return play


def _sealed(**changes: bytes) -> bytes:
    """Packets of the cheat over other secrets, or with other polynomials, but committed to and sealed by the rules."""
    honest = setting("semi-honest")
    drawn_by_cheat = drawn(f"{CHEAT} entropy", 128)
    secrets = {"channel": drawn_by_cheat[:32], "mask_key": drawn_by_cheat[32:64], "seed": drawn_by_cheat[64:96]}
    secrets |= {"polynomials": drawn_by_cheat[96:]} | changes
    keys = {place: honest.said("advertise-keys", f"client-{place}", SERVER).message.channel_key for place in HOLDERS}
    packets, _ = seal_shares(
        honest.agreement,
        honest.said("peer-keys", SERVER, CHEAT).message.digest,
        owner=PLACE,
        channel=AgreementKey(secrets["channel"]),
        secrets=(secrets["mask_key"], secrets["seed"]),
        holders=keys,
        entropy=lambda length: secrets["polynomials"],
    )
    return packets


def shares_bad_sealing() -> Play:
    def alter(message: ShareKeys) -> ShareKeys:
        return replace(message, packets=flipped(message.packets, 3 * PACKET_BYTES - 1))

    about = "Shares that do not open: their holder complains, and their owner answers."
    return ending(_sharing(about, alter), "sum")


def shares_bad_commitment() -> Play:
    def alter(message: ShareKeys) -> ShareKeys:
        return replace(message, seed_commitment=flipped(message.seed_commitment, 0))

    about = "A client commits to another self-mask seed than it shares; the server finds out at the end."
    return ending(_sharing(about, alter), "aborted", "SECRET")


def shares_bad_polynomial() -> Play:
    def alter(message: ShareKeys) -> ShareKeys:
        other = _sealed(polynomials=drawn("other polynomials"))
        return replace(message, packets=other[:PACKET_BYTES] + message.packets[PACKET_BYTES:])

    about = "Shares that lie on no common polynomial, each as committed to."
    return ending(_sharing(about, alter), "aborted", "SECRET")


def shares_bad_mask_key() -> Play:
    def alter(message: ShareKeys) -> ShareKeys:
        return replace(message, packets=_sealed(mask_key=drawn("other mask key")))

    about = "A client shares another mask key than it advertised, and goes."
    return ending(_sharing(about, alter, silent_after=True), "aborted", "SECRET")


def _unmasking(terms: dict[str, Any], about: str, liar: str, ends: str, code: str | None = None) -> Play:
    """A sum in which a client returns a false share, of the first owner."""
    play = begun(terms, about)

    def change(parcel: Parcel) -> Sequence[bytes]:
        if parcel.sender != liar or parcel.kind != "unmask-shares":
            return parcel.frames
        return parcel.saying(replace(parcel.message, shares=flipped(parcel.message.shares, 0)))

    play.deliver(change)
    return ending(play, ends, code)


def unmasking_bad_share() -> Play:
    about = "A false share among those that a secret is reconstructed from: its holder is out, and the sum is made."
    return _unmasking(sum_terms(3, active=False), about, CHEAT, "sum")


def unmasking_bad_share_unused() -> Play:
    about = "A false share of the last holder, which no secret is reconstructed from: nobody notices, the sum is made."
    return _unmasking(sum_terms(3, active=False), about, "client-2", "sum")


def unmasking_bad_share_few() -> Play:
    about = "A false share where all are needed: its holder is out, and too few are left."
    return _unmasking(sum_terms(3, active=True), about, CHEAT, "aborted", "THRESHOLD")


def round_bad_silence() -> Play:
    about = "One of three active clients never advertises keys: too few are left, and nothing is revealed."
    play = begun(sum_terms(3, active=True), about)
    play.deliver(lambda parcel: None if parcel.sender == CHEAT else parcel.frames)
    play.expire(SERVER, FIRST_DEADLINE)
    play.deliver()
    return ending(play, "aborted", "THRESHOLD")


def server_bad_silence() -> Play:
    about = "The server falls silent after each of its messages in turn; a client waits twice the phase, and gives up."
    play = begun(sum_terms(3, active=True), about)
    # The server's answers reach one client less each time.
    told = {"client-0": ("peer-keys",), "client-1": ("peer-keys", "peer-shares"), "client-2": ()}
    play.deliver(
        lambda parcel: parcel.frames if parcel.sender != SERVER or parcel.kind in told[parcel.receiver] else None
    )
    for name in told:
        play.expire(name, FIRST_DEADLINE + PHASE_SECONDS)
    return ending(play, "aborted", "TIMEOUT")


def unmask_request_bad_repetition() -> Play:
    honest = setting("active")
    parcel = honest.said("unmask-request", SERVER, CHEAT)
    play = faulty_part(honest.play, parcel, parcel.frames, "A second request is refused, and nothing is opened.")
    other = parcel.saying(replace(parcel.message, survivors=b"\x07"))
    for sequence, frames in enumerate((parcel.frames, other), start=4):
        head, *_ = envelope(sequence=sequence)(honest, parcel)
        done = play.give(parcel, (head, *frames[1:]))
        if done is None or done.sends or done.events[0]["code"] != "UNEXPECTED":
            raise ValueError(done)
    return play


def round_repetitions() -> Play:
    """Every message of a client comes twice, numbered on; repetitions and what is late are ignored."""
    play = begun(sum_terms(3, active=False), "A client says everything twice; the server ignores what it heard before.")
    sent = 0

    def change(parcel: Parcel) -> Sequence[bytes]:
        nonlocal sent
        if parcel.receiver == CHEAT:
            # It has said half of what the server has received.
            return envelope(received=sent // 2)(setting("semi-honest"), parcel)
        if parcel.sender != CHEAT:
            return parcel.frames
        first = envelope(sequence=sent)(setting("semi-honest"), parcel)
        play.give(parcel, first)
        sent += 2
        return envelope(sequence=sent - 1)(setting("semi-honest"), parcel)

    play.deliver(change)
    return ending(play, "sum")


PLAYS: Final[tuple[Callable[[], Play], ...]] = (
    shares_bad_sealing, shares_bad_commitment, shares_bad_polynomial, shares_bad_mask_key, unmasking_bad_share,
    unmasking_bad_share_unused, unmasking_bad_share_few, round_bad_silence, server_bad_silence,
    unmask_request_bad_repetition, round_repetitions,
)  # fmt: skip
