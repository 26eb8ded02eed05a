"""Vectors of sessions of private inference that go well, or end for a reason that is nobody's lie."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from tacit.protocol.core.primitives import SigningKey
from tacit.protocol.inference.schedule import RANGE, Sizes, pass_rounds, weight_bytes
from tests.vectors_corpus.faults import envelope
from tests.vectors_corpus.inference import encoded_terms
from tests.vectors_corpus.play import Parcel, Play, ending
from tests.vectors_corpus.primitives import drawn
from tests.vectors_corpus.script import Script

MODEL_OWNER: Final = "model"
DATA_OWNER: Final = "data"
SECOND: Final = "data-2"
DEALER: Final = "dealer"
PATIENCE: Final = 60.0
ONE: Final[dict[str, Any]] = {
    "side": 1, "channels": 1, "patch": 1, "width": 1, "heads": 1, "hidden": 1, "blocks": 1, "classes": 1,
}  # fmt: skip
WEIGHTS: Final = drawn("weights")
_RESULT: Final = len(pass_rounds(Sizes(**ONE), 1)) - 1
Changes = dict[str, Any]


def roster(*data_owners: str) -> list[Changes]:
    """The model owner, these data owners, and the dealer."""
    roles = {MODEL_OWNER: "server", **dict.fromkeys(data_owners, "client"), DEALER: "dealer"}
    return [
        {
            "name": name, "role": role, "curve_public": drawn(f"{name} curve"),
            "signing_public": SigningKey(drawn(f"{name} signing")).public,
        }
        for name, role in roles.items()
    ]  # fmt: skip


def data_owner(name: str = DATA_OWNER, **changes: Any) -> Changes:
    """A data owner with one image."""
    return {
        "name": name, "images": 1, "batch": 1, "channels": 1, "side": 1,
        "weights": None, "entropy": drawn(f"{name} entropy"), "patience": PATIENCE,
    } | changes  # fmt: skip


def model_owner(sessions: int = 1, *, quota: Changes | None = None, **terms: Any) -> Changes:
    """The model owner. sessions: for how many it can draw; terms: of a model with sizes of 1."""
    encoded = encoded_terms(**ONE | terms)
    given = {"terms": encoded, "entropy": drawn("model-owner entropy", 64 * sessions), "patience": PATIENCE}
    return given | (quota or {})


def dealer(sessions: int = 1, **changes: Any) -> Changes:
    """The dealer."""
    return {"entropy": drawn("dealer entropy", 64 * sessions), "patience": PATIENCE} | changes


def begun(about: str, *, with_dealer: bool = False, batch: int = 1, images: int = 1, **owner: Any) -> Play:
    """One session in which both owners have agreed."""
    play = Play("private inference", "session", about)
    parties: Changes = {"dealer": dealer()} if with_dealer else {}
    parties |= {"data_owners": [data_owner(batch=batch, images=images)], "model_owner": model_owner(**owner)}
    play.do("begin inference", roster=roster(DATA_OWNER), **parties)
    play.act(DATA_OWNER, "hello", party=DATA_OWNER)
    play.deliver()
    return play


def mask(play: Play) -> None:
    """Mask all layers."""
    for layer, size in enumerate(weight_bytes(Sizes(**ONE))):
        play.act(MODEL_OWNER, "mask", party=MODEL_OWNER, layer=layer, data=_words(f"layer {layer}", size))
    play.deliver()


def start_pass(play: Play, weights: bytes = WEIGHTS, **more: Any) -> None:
    """Ask for a pass, and begin it."""
    play.act(DATA_OWNER, "ask", party=DATA_OWNER)
    play.deliver()
    play.act(MODEL_OWNER, "begin pass", party=MODEL_OWNER, weights=weights, **more)
    play.deliver()


def go_through(play: Play, *, refused_by: str = "") -> None:
    """Go through the rounds of a pass of one image. refused_by: whose word about the range is not 0; the other's is."""
    for step, (operation, *sent) in enumerate(pass_rounds(Sizes(**ONE), 1)):
        for owner, size in zip((MODEL_OWNER, DATA_OWNER), sent, strict=True):
            if size:
                words = _words(f"{owner} {step}", size)
                if operation == RANGE:
                    words = (owner == refused_by).to_bytes(size, "little")
                play.act(owner, "give", party=owner, step=step, data=words)
        play.deliver()
        if operation == RANGE and refused_by:
            return


def at_dealer(play: Play, *owners: str) -> None:
    """Come to the dealer."""
    for owner in owners or (DATA_OWNER, MODEL_OWNER):
        play.act(owner, "hello to dealer", party=owner)
    play.deliver()


def order(play: Play, owner: str, requests: bytes, count: int, *corrections: tuple[int, int], **more: Any) -> None:
    """Order material. corrections: number and bytes of those that come to this owner."""
    expected = [{"number": number, "bytes": size} for number, size in corrections]
    given = {"requests": requests, "count": count, "corrections": expected}
    play.act(owner, "order", party=owner, **given, **more)


def deal(play: Play, owner: str, number: int, size: int, session: str = DATA_OWNER) -> None:
    """Deliver corrections."""
    data = _words(f"correction {number}", size)
    play.act(DEALER, "deliver", party=DEALER, data_owner=session, owner=owner, number=number, data=data)


def _words(name: str, size: int) -> bytes | str:
    """What stands for words; a long one is named by a rule."""
    return drawn(name, size) if size <= 4096 else f"shake256({name.encode().hex()},{size})"


def start_pass_bad_number() -> Script:
    """All five exchanges, and every round of a pass."""
    play = begun(
        "An image in one pass, with a dealer; the data owner then says that it begins another pass.",
        with_dealer=True, batch=3,
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
    play.refuse("INVALID", "ask", party=DATA_OWNER)
    said = [parcel for parcel in play.parcels if (parcel.sender, parcel.receiver) == (DATA_OWNER, MODEL_OWNER)]
    asked = next(parcel for parcel in said if parcel.kind == "start-pass")
    play.give(asked, envelope(round=2, sequence=len(said) - 1)(None, asked))
    play.act(MODEL_OWNER, "give up", party=MODEL_OWNER, peer=DEALER, code="POLICY", culprit=DATA_OWNER)
    play.deliver()
    return ending(play, "ended", "POLICY")


def opening_bad_range() -> Script:
    play = begun(
        "Three passes: the first is out of range, and over for both before its result; the second is in range, with "
        "words that are not 0; of the third, which is out of range, the result is told all the same.",
        batch=1, images=3,
    )  # fmt: skip
    mask(play)
    start_pass(play)
    go_through(play, refused_by=MODEL_OWNER)
    play.refuse("INVALID", "give", party=MODEL_OWNER, step=_RESULT, data=_words("result", 6))
    start_pass(play)
    for step, (operation, *sent) in enumerate(pass_rounds(Sizes(**ONE), 1)):
        for owner, size in zip((MODEL_OWNER, DATA_OWNER), sent, strict=True):
            if size:
                words = _words(f"{owner} {step} again", size)
                if operation == RANGE:
                    words = ((owner == MODEL_OWNER) or 2**64 - 1).to_bytes(size, "little")
                play.act(owner, "give", party=owner, step=step, data=words)
        play.deliver()
    start_pass(play)
    go_through(play, refused_by=DATA_OWNER)
    said = [parcel for parcel in play.parcels if (parcel.sender, parcel.receiver) == (MODEL_OWNER, DATA_OWNER)]
    result = [parcel for parcel in said if parcel.kind == "opening"][-1]
    play.give(result, envelope(sequence=len(said))(None, result))
    return ending(play, "ended", "UNEXPECTED")


def start_pass_bad_quota() -> Script:
    play = begun(
        "A quota of one image a day: a pass that is refused, one on the next day that is in range, and then one too "
        "many, although the clock has gone back by a second.",
        images=3, quota={"images_a_day": 1, "refused_a_day": 1},
    )  # fmt: skip
    mask(play)
    start_pass(play, at=86400.0)
    go_through(play, refused_by=DATA_OWNER)
    start_pass(play, at=172800.0)
    go_through(play)
    start_pass(play, at=172799.0)
    return ending(play, "ended", "POLICY")


def inference_early_end() -> Script:
    play = begun("The data owner closes before any pass.")
    mask(play)
    play.act(DATA_OWNER, "close", party=DATA_OWNER)
    play.deliver()
    return ending(play, "ended")


def inference_two_data_owners() -> Script:
    play = Play(
        "private inference", "session",
        "Two data owners at once; weights and material in chunks; one data owner comes again, without memory.",
    )  # fmt: skip
    both = (DATA_OWNER, SECOND)
    large: Changes = {"side": 128, "patch": 128, "width": 9, "classes": 65536}
    owners = [data_owner(side=128), data_owner(SECOND, side=128, weights=WEIGHTS)]
    play.do(
        "begin inference", roster=roster(*both), data_owners=owners, model_owner=model_owner(3, **large),
        dealer=dealer(2),
    )  # fmt: skip
    for name in both:
        play.act(name, "hello", party=name)
    play.deliver()
    at_dealer(play, *both)
    for name in both:
        play.act(MODEL_OWNER, "hello to dealer", party=MODEL_OWNER, data_owner=name)
    play.deliver()
    words = _words("layer 0", 8 * 128**2 * 9)
    play.act(MODEL_OWNER, "mask", party=MODEL_OWNER, layer=0, data=words, data_owner=SECOND)
    dealt = 2**20 + 8
    order(play, SECOND, b"requests", 3, (2, dealt))
    order(play, MODEL_OWNER, b"requests", 3, data_owner=SECOND)
    play.deliver()
    deal(play, SECOND, 2, dealt, SECOND)
    play.deliver()
    play.give(parcel_of(play, "inference-hello", SECOND, MODEL_OWNER))
    play.act(MODEL_OWNER, "give up", party=MODEL_OWNER, peer=DEALER, data_owner=SECOND, code="LEFT", culprit=SECOND)
    # The data owner's machine is still the old one: no message of the new session is for it.
    play.deliver(lambda parcel: None if parcel.kind == "inference-terms" else parcel.frames)
    for owner in (DATA_OWNER, MODEL_OWNER):
        play.act(owner, "order no more", party=owner)
    play.deliver()
    return ending(ending(play, "ended"), "ended", "LEFT")


def dealer_bad_link() -> Script:
    play = begun("The dealer is gone: the data owner notices, and tells the model owner.", with_dealer=True)
    at_dealer(play, DATA_OWNER)
    play.act(DATA_OWNER, "drop", party=DATA_OWNER, peer=DEALER)
    play.act(DATA_OWNER, "give up", party=DATA_OWNER, peer=MODEL_OWNER, code="LEFT", culprit=DEALER)
    play.deliver()
    return ending(play, "ended", "LEFT")


def data_owner_bad_link() -> Script:
    play = begun("A data owner is gone: the model owner and the dealer notice, and the dealer tells.", with_dealer=True)
    at_dealer(play)
    for party in (MODEL_OWNER, DEALER):
        play.act(party, "drop", party=party, peer=DATA_OWNER)
    play.deliver()
    return ending(play, "ended", "LEFT")


def dealer_bad_silence() -> Script:
    play = begun("No welcome, and no material: the patience of both owners towards the dealer ends.", with_dealer=True)
    at_dealer(play, DATA_OWNER)
    play.now = PATIENCE / 2
    play.act(MODEL_OWNER, "hello to dealer", party=MODEL_OWNER, now=play.now)
    play.deliver(lambda parcel: None if parcel.receiver == DATA_OWNER else parcel.frames)
    order(play, MODEL_OWNER, b"requests", 1, (0, 8), now=play.now)
    for party, now in ((DATA_OWNER, PATIENCE), (MODEL_OWNER, PATIENCE), (MODEL_OWNER, 1.5 * PATIENCE)):
        play.act(party, "expire", party=party, peer=DEALER, now=now)
    return ending(play, "ended", "TIMEOUT")


def material_hello_bad_silence() -> Script:
    play = begun("The model owner never comes to the dealer, which names it to the data owner.", with_dealer=True)
    at_dealer(play, DATA_OWNER)
    play.act(DEALER, "expire", party=DEALER, peer=DATA_OWNER, now=PATIENCE)
    return ending(part(play, DEALER), "ended", "TIMEOUT")


def order_material_bad_silence() -> Script:
    play = begun(
        "The data owner does not order what the model owner has ordered; the dealer names it.", with_dealer=True
    )
    at_dealer(play)
    play.now = 1.0
    order(play, MODEL_OWNER, b"requests", 1, now=play.now)
    play.deliver()
    for now in (PATIENCE, PATIENCE + 1):
        play.act(DEALER, "expire", party=DEALER, peer=DATA_OWNER, now=now)
    return ending(part(play, DEALER), "ended", "TIMEOUT")


def agree_terms_bad_silence() -> Script:
    play = Play("private inference", "session", "No agreement comes, and no terms: both owners' patience ends.")
    play.do("begin inference", roster=roster(DATA_OWNER), data_owners=[data_owner()], model_owner=model_owner())
    play.act(DATA_OWNER, "hello", party=DATA_OWNER)
    play.deliver(lambda parcel: None if parcel.receiver == DATA_OWNER else parcel.frames)
    for party, peer in ((DATA_OWNER, MODEL_OWNER), (MODEL_OWNER, DATA_OWNER)):
        play.act(party, "expire", party=party, peer=peer, now=PATIENCE)
    return ending(play, "ended", "TIMEOUT")


def pass_started_bad_replacement() -> Script:
    play = begun("The model has been replaced before the pass: its owner ends the session, and names itself.")
    mask(play)
    start_pass(play, drawn("new weights"))
    return ending(part(play, MODEL_OWNER), "ended", "MODEL")


def part(play: Play, party: str) -> Play:
    """What one party did in a play: the same inputs for it, with the frames written out."""
    alone = Play(play.protocol, play.level, play.about)
    begin = play.steps[0].inputs
    kept = {DATA_OWNER: "data_owners", MODEL_OWNER: "model_owner", DEALER: "dealer"}[party]
    alone.do("begin inference", roster=begin["roster"], **{kept: begin[kept]})
    for step in play.steps[1:]:
        inputs = dict(step.inputs)
        if inputs["party"] == party:
            if (number := inputs.pop("message", None)) is not None:
                inputs["frames"] = play.parcels[number].frames
            alone.act(party, step.do, **inputs)
    return alone


def parcel_of(play: Play, kind: str, sender: str, receiver: str, number: int = 0) -> Parcel:
    """One of the messages of this kind on that link."""
    found = [one for one in play.parcels if (one.sender, one.receiver, one.kind) == (sender, receiver, kind)]
    return found[number]


FILES: Final[dict[str, Callable[[], Script]]] = {
    function.__name__: function
    for function in (
        start_pass_bad_number, opening_bad_range, start_pass_bad_quota,
        inference_early_end,
        inference_two_data_owners, dealer_bad_link,
        data_owner_bad_link, dealer_bad_silence, material_hello_bad_silence, order_material_bad_silence,
        agree_terms_bad_silence, pass_started_bad_replacement,
    )
}  # fmt: skip
"""File name without its ending, and what makes it."""
