"""Transcripts of sessions of private inference that go well, or end for a reason that is nobody's lie."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from tacit.protocol.core.codec import decode_structure
from tacit.protocol.core.errors import Code
from tacit.protocol.inference.audit import AuditPicked
from tacit.protocol.inference.data_owner import InferenceDataOwner, InferencePolicy, InferenceRequest
from tacit.protocol.inference.messages import TERMS_LIMIT, Terms
from tacit.protocol.inference.quota import Quota
from tacit.protocol.inference.schedule import RANGE, Sizes, pass_rounds, weight_bytes
from tests.vectors_corpus.faults import envelope
from tests.vectors_corpus.inference import encoded_terms
from tests.vectors_corpus.inference_play import DATA_OWNER, DEALER, MODEL_OWNER, PATIENCE, InferencePlay
from tests.vectors_corpus.play import Play, ending
from tests.vectors_corpus.primitives import drawn

SECOND: Final = "data-2"
WITH_DATA_OWNER: Final = f"{MODEL_OWNER}/{DATA_OWNER}"
"""The model owner's machine for the first data owner."""
ONE: Final[dict[str, Any]] = {
    "side": 1, "channels": 1, "patch": 1, "width": 1, "heads": 1, "hidden": 1, "blocks": 1, "classes": 1,
}  # fmt: skip
WEIGHTS: Final = drawn("weights")


def small_terms(**changes: Any) -> Terms:
    """Terms of a model with sizes of 1; changes: other sizes and fields."""
    return decode_structure(encoded_terms(**ONE | changes), Terms, limit=TERMS_LIMIT)


def join(
    play: InferencePlay,
    name: str = DATA_OWNER,
    *,
    bits: int = 0,
    weights: bytes | None = None,
    audited: int = 0,
    **request: int,
) -> None:
    wanted = InferenceRequest(**{"images": 1, "batch": 1, "channels": 1, "side": 1, **request})
    policy = InferencePolicy(bits=bits, weights=weights, audited=audited)
    play.join(InferenceDataOwner, name, request=wanted, policy=policy)


def begun(about: str, *, quota: Quota | None = None, **request: Any) -> InferencePlay:
    play = InferencePlay(about, DATA_OWNER, terms=small_terms(), quota=quota)
    join(play, **request)
    play.deliver()
    return play


def mask(play: InferencePlay) -> None:
    for layer, size in enumerate(weight_bytes(Sizes(**ONE))):
        play.act(WITH_DATA_OWNER, "mask", layer=layer, data=drawn(f"layer {layer}", size))
    play.deliver()


def start_pass(play: InferencePlay, weights: bytes = WEIGHTS, at: float = 0.0) -> None:
    play.act(DATA_OWNER, "ask", at=at)
    play.deliver()
    play.act(WITH_DATA_OWNER, "begin", weights=weights, at=at)
    play.deliver()


def go_through(play: InferencePlay, *, refused_by: str = "", again: str = "") -> None:
    """Go through the rounds of a pass of one image.

    refused_by: whose share of the verdict is not 0; the other's is. again: both shares of the verdict cancel, and all
    words are other.
    """
    for step, (operation, *sent) in enumerate(pass_rounds(Sizes(**ONE), 1)):
        for owner, machine, size in zip((MODEL_OWNER, DATA_OWNER), (WITH_DATA_OWNER, DATA_OWNER), sent, strict=True):
            if size:
                words = drawn(f"{owner} {step}{again}", size)
                if operation == RANGE:
                    words = (owner == refused_by).to_bytes(size, "little")
                if operation == RANGE and again:
                    words = ((owner == MODEL_OWNER) or 2**64 - 1).to_bytes(size, "little")
                play.act(machine, "give", step=step, data=words)
        play.deliver()
        if operation == RANGE and refused_by:
            return


def at_dealer(play: InferencePlay, *owners: str) -> None:
    for owner in owners or (DATA_OWNER, MODEL_OWNER):
        play.come_to_dealer(owner)
    play.deliver()


def order(
    play: InferencePlay, owner: str, requests: bytes, count: int, *corrections: tuple[int, int],
    data_owner: str = DATA_OWNER,
) -> None:  # fmt: skip
    """Order material. corrections: number and bytes of those that come to this owner."""
    name = f"{owner}/{DEALER}/{data_owner}"
    play.act(name, "order", requests=requests, count=count, corrections=list(corrections))


def deal(play: InferencePlay, owner: str, number: int, size: int, data_owner: str = DATA_OWNER) -> None:
    play.act(f"{DEALER}/{data_owner}", "deliver", owner=owner, number=number, data=_words(f"correction {number}", size))


def _words(name: str, size: int) -> bytes:
    return drawn(name, size) if size <= 4096 else bytes(size)


def start_pass_bad_number() -> Play:
    play = begun(
        "An image in one pass, with a dealer; the data owner then says that it begins another pass.",
        batch=3,
    )  # fmt: skip
    at_dealer(play)
    for owner, own in ((MODEL_OWNER, (6, 24)), (DATA_OWNER, (7, 16))):
        order(play, owner, b"masks", 6)
        order(play, owner, b"pass", 2, own)
    play.deliver()
    mask(play)
    deal(play, MODEL_OWNER, 6, 24)
    deal(play, DATA_OWNER, 7, 16)
    play.deliver()
    start_pass(play)
    go_through(play)
    said = [parcel for parcel in play.parcels if (parcel.sender, parcel.receiver) == (DATA_OWNER, MODEL_OWNER)]
    asked = play.said("start-pass", DATA_OWNER, MODEL_OWNER)
    play.give(asked, envelope(round=2, sequence=len(said) - 1)(None, asked))
    play.give_up(f"{MODEL_OWNER}/{DEALER}/{DATA_OWNER}", Code.POLICY, DATA_OWNER)
    play.deliver()
    return ending(play, "ended", "POLICY")


def opening_bad_range() -> Play:
    play = begun(
        "Three passes: the first is out of range, and over for both before its result; the second is in range, with "
        "words that are not 0; of the third, which is out of range, the result is told all the same.",
        batch=1, images=3,
    )  # fmt: skip
    mask(play)
    start_pass(play)
    go_through(play, refused_by=MODEL_OWNER)
    start_pass(play)
    go_through(play, again=" again")
    start_pass(play)
    go_through(play, refused_by=DATA_OWNER)
    said = [parcel for parcel in play.parcels if (parcel.sender, parcel.receiver) == (MODEL_OWNER, DATA_OWNER)]
    result = [parcel for parcel in said if parcel.kind == "opening"][-1]
    play.give(result, envelope(sequence=len(said))(None, result))
    return ending(play, "ended", "UNEXPECTED")


def start_pass_bad_quota() -> Play:
    play = begun(
        "A quota of one image a day: a pass that is refused, one on the next day that is in range, and then one too "
        "many, although the clock has gone back by a second.",
        images=3, quota=Quota(used=1, refused=1),
    )  # fmt: skip
    mask(play)
    start_pass(play, at=86400.0)
    go_through(play, refused_by=DATA_OWNER)
    start_pass(play, at=172800.0)
    go_through(play)
    start_pass(play, at=172799.0)
    return ending(play, "ended", "POLICY")


def start_pass_bad_limit() -> Play:
    play = InferencePlay(
        "A limit of the data owner: one refused pass a day. Of a session of three, the first is refused, one on the "
        "next day is in range, the third is refused; of another session it begins none on that day.",
        DATA_OWNER, terms=small_terms(),
    )  # fmt: skip
    policy = InferencePolicy(quota=Quota(used=3, refused=1))
    request = InferenceRequest(images=3, batch=1, channels=1, side=1)
    play.join(InferenceDataOwner, DATA_OWNER, request=request, policy=policy)
    play.deliver()
    mask(play)
    start_pass(play, at=86400.0)
    go_through(play, refused_by=MODEL_OWNER)
    start_pass(play, at=172800.0)
    go_through(play)
    start_pass(play, at=172800.0)
    go_through(play, refused_by=MODEL_OWNER)
    play.act(DATA_OWNER, "finish")
    play.deliver()
    play.join(InferenceDataOwner, DATA_OWNER, request=request, policy=policy)
    play.deliver()
    mask(play)
    play.act(DATA_OWNER, "ask", at=172800.0)
    play.deliver()
    return ending(play, "ended", "POLICY")


HALF: Final = 1 << 15


def auditing(about: str) -> InferencePlay:
    """A session in which half of what the dealer deals is audited, up to the first pass that is asked for."""
    play = InferencePlay(about, DATA_OWNER, terms=small_terms(audited=HALF))
    join(play, audited=HALF)
    play.deliver()
    mask(play)
    play.act(DATA_OWNER, "ask", at=0.0)
    play.deliver()
    return play


def flip(play: InferencePlay, numbers: Sequence[int]) -> tuple[int, ...]:
    """Flip the coin over these requests; the numbers that it picks."""
    for name in (WITH_DATA_OWNER, DATA_OWNER):
        play.act(name, "audit", contribution=drawn(f"coin {name} {numbers[0]}"), numbers=list(numbers))
        play.deliver()
    return [output.numbers for _, output in play.outputs if isinstance(output, AuditPicked)][-1]


def reveal(play: InferencePlay, picked: Sequence[int]) -> None:
    for name in (DATA_OWNER, WITH_DATA_OWNER):
        play.act(name, "reveal", keys=[drawn(f"key of {number} of {name}") for number in picked])
        play.deliver()


def inference_audit() -> Play:
    play = auditing("Half of the requests are audited, and those that took their places, until a coin picks none.")
    numbers: tuple[int, ...] = tuple(range(6, 14))
    last = numbers[-1]
    while picked := flip(play, numbers):
        reveal(play, picked)
        numbers = tuple(range(last + 1, last + 1 + len(picked)))
        last = numbers[-1]
    play.act(WITH_DATA_OWNER, "begin", weights=WEIGHTS, at=0.0)
    play.deliver()
    go_through(play)
    play.act(DATA_OWNER, "finish")
    play.deliver()
    return ending(play, "ended")


def inference_early_end() -> Play:
    play = begun("The data owner closes before any pass.")
    mask(play)
    play.act(DATA_OWNER, "finish")
    play.deliver()
    return ending(play, "ended")


def inference_two_data_owners() -> Play:
    large: dict[str, Any] = {"side": 128, "patch": 128, "width": 9, "classes": 65536}
    both = (DATA_OWNER, SECOND)
    play = InferencePlay(
        "Two data owners at once; weights and material in chunks; one data owner comes again, without memory.",
        *both, terms=small_terms(**large),
    )  # fmt: skip
    join(play, side=128)
    join(play, SECOND, side=128, weights=WEIGHTS)
    play.deliver()
    for owner, name in ((DATA_OWNER, DATA_OWNER), (SECOND, SECOND), (MODEL_OWNER, DATA_OWNER), (MODEL_OWNER, SECOND)):
        play.come_to_dealer(owner, name)
    play.deliver()
    play.act(f"{MODEL_OWNER}/{SECOND}", "mask", layer=0, data=bytes(5 * 128**2 * 9))
    dealt = 2**20 + 8
    order(play, SECOND, b"requests", 3, (2, dealt), data_owner=SECOND)
    order(play, MODEL_OWNER, b"requests", 3, data_owner=SECOND)
    play.deliver()
    deal(play, SECOND, 2, dealt, SECOND)
    play.deliver()
    play.give(play.said("inference-hello", SECOND, MODEL_OWNER))
    play.give_up(f"{MODEL_OWNER}/{DEALER}/{SECOND}", Code.LEFT, SECOND)
    # The data owner's machine is still the old one: no message of the new session is for it.
    play.deliver(lambda parcel: None if parcel.kind == "inference-terms" else parcel.frames)
    for owner in (DATA_OWNER, MODEL_OWNER):
        play.act(f"{owner}/{DEALER}/{DATA_OWNER}", "finish")
    play.deliver()
    return ending(ending(play, "ended"), "ended", "LEFT")


def dealer_bad_link() -> Play:
    play = begun("The dealer is gone: the data owner notices, and tells the model owner.")
    at_dealer(play, DATA_OWNER)
    play.drop(DATA_OWNER, DEALER)
    play.give_up(DATA_OWNER, Code.LEFT, DEALER)
    play.deliver()
    return ending(play, "ended", "LEFT")


def data_owner_bad_link() -> Play:
    play = begun("A data owner is gone: the model owner and the dealer notice, and the dealer tells.")
    at_dealer(play)
    for party in (MODEL_OWNER, DEALER):
        play.drop(party, DATA_OWNER)
    play.deliver()
    return ending(play, "ended", "LEFT")


def dealer_bad_silence() -> Play:
    play = begun("No welcome, and no material: the patience of both owners towards the dealer ends.")
    at_dealer(play, DATA_OWNER)
    play.now = PATIENCE / 2
    play.come_to_dealer(MODEL_OWNER)
    play.deliver(lambda parcel: None if parcel.receiver == DATA_OWNER else parcel.frames)
    order(play, MODEL_OWNER, b"requests", 1, (0, 8))
    for party, now in ((DATA_OWNER, PATIENCE), (MODEL_OWNER, PATIENCE), (MODEL_OWNER, 1.5 * PATIENCE)):
        play.expire(f"{party}/{DEALER}/{DATA_OWNER}", now)
    return ending(play, "ended", "TIMEOUT")


def material_hello_bad_silence() -> Play:
    play = begun("The model owner never comes to the dealer, which names it to the data owner.")
    at_dealer(play, DATA_OWNER)
    play.expire(f"{DEALER}/{DATA_OWNER}", PATIENCE)
    return ending(play, "ended", "TIMEOUT")


def order_material_bad_silence() -> Play:
    play = begun("The data owner does not order what the model owner has ordered; the dealer names it.")
    at_dealer(play)
    play.now = 1.0
    order(play, MODEL_OWNER, b"requests", 1)
    play.deliver()
    for now in (PATIENCE, PATIENCE + 1):
        play.expire(f"{DEALER}/{DATA_OWNER}", now)
    return ending(play, "ended", "TIMEOUT")


def agree_terms_bad_silence() -> Play:
    play = InferencePlay(
        "No agreement comes, and no terms: both owners' patience ends.", DATA_OWNER, terms=small_terms()
    )
    join(play)
    play.deliver(lambda parcel: None if parcel.receiver == DATA_OWNER else parcel.frames)
    for name in (DATA_OWNER, WITH_DATA_OWNER):
        play.expire(name, PATIENCE)
    return ending(play, "ended", "TIMEOUT")


def pass_started_bad_replacement() -> Play:
    play = begun("The model has been replaced before the pass: its owner ends the session, and names itself.")
    mask(play)
    start_pass(play, drawn("new weights"))
    return ending(play, "ended", "MODEL")


PLAYS: Final[tuple[Callable[[], Play], ...]] = (
    start_pass_bad_number, opening_bad_range, start_pass_bad_quota, start_pass_bad_limit, inference_audit,
    inference_early_end, inference_two_data_owners, dealer_bad_link, data_owner_bad_link, dealer_bad_silence,
    material_hello_bad_silence, order_material_bad_silence, agree_terms_bad_silence, pass_started_bad_replacement,
)  # fmt: skip
