"""Transcripts of sessions of double-blind adaptation: rounds that end with a sum, lost rounds, and refusals."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from tacit.protocol.adaptation.data_owner import LearningDataOwner
from tacit.protocol.adaptation.messages import (
    ADAPTATION_VERSION,
    AdaptationTerms,
    AskSum,
    BeginRound,
    ChooseImages,
    CompareKept,
    KeptCompared,
    OwnSum,
    RoundBegun,
    SumLost,
)
from tacit.protocol.adaptation.schedule import adaptation_rounds, sum_words
from tacit.protocol.adaptation.sums import OpeningPolicy
from tacit.protocol.core.codec import Envelope, decode_structure, encode
from tacit.protocol.core.link import NO_SESSION
from tacit.protocol.core.messages import Message
from tacit.protocol.core.primitives import digest
from tacit.protocol.inference.data_owner import InferenceRequest
from tacit.protocol.inference.messages import INFERENCE_VERSION, TERMS_LIMIT, AgreeTerms, InferenceHello, StartPass
from tacit.protocol.inference.schedule import RANGE, backbone_rounds, weight_bytes
from tacit.protocol.inference.states import InferenceLabel
from tests.vectors_corpus.adaptation import encoded_learning_terms
from tests.vectors_corpus.inference_play import BROUGHT, DATA_OWNER, MODEL_OWNER, PATIENCE, InferencePlay, session_of
from tests.vectors_corpus.inference_sessions import ONE, SECOND, WEIGHTS
from tests.vectors_corpus.play import Parcel, Play, ending
from tests.vectors_corpus.primitives import drawn

THIRD: Final = "data-3"
BOTH: Final = (DATA_OWNER, SECOND)
THREE: Final = (DATA_OWNER, SECOND, THIRD)
SMALL: Final[dict[str, Any]] = {
    **ONE, "adapters": 0, "rank": 1, "classes": 2, "batch": 1, "cut": 8, "gradient": 30, "most_images": 9,
    "most_batch": 1,
}  # fmt: skip
ENCODED: Final = encoded_learning_terms(**SMALL)
AGREED: Final = digest(InferenceLabel.INFERENCE_TERMS, ENCODED)
Changes = dict[str, Any]


def small_terms(**changes: Any) -> AdaptationTerms:
    return decode_structure(encoded_learning_terms(**SMALL | changes), AdaptationTerms, limit=TERMS_LIMIT)


TERMS: Final = small_terms()
SUM_BYTES: Final = 8 * sum_words(TERMS.sizes, TERMS.learning)


def opened(
    about: str,
    *names: str,
    terms: Changes | None = None,
    sums: Changes | None = None,
    brought: bool = True,
    **policy: Any,
) -> InferencePlay:
    """A model owner with this policy, which no data owner has greeted. brought: whether the one image of each has
    passed the blocks before."""
    opening = {"rounds": 2, "owners": 3, "smallest_cohort": 2, "colluders": 0, **policy}
    digested = digest(InferenceLabel.INFERENCE_TERMS, encoded_learning_terms(**SMALL | (terms or {})))
    return InferencePlay(
        about,
        *names,
        terms=small_terms(**terms or {}),
        opening=OpeningPolicy(**opening),
        sums=sums,
        kept=digested if brought else None,
    )


def begun(
    about: str, *names: str, terms: Changes | None = None, owner: Changes | None = None, **more: Any
) -> InferencePlay:
    """Data owners that have agreed with the model owner, and have its masked weights if they have images to bring.

    terms: other ones; owner: what is other with the data owners; more: policy of the model owner, and earlier sums.
    """
    play = opened(about, *(names or BOTH), terms=terms, **more)
    for name in names or BOTH:
        join(play, name, **owner or {})
        if play.machines[name].state.name == "AWAIT_WEIGHTS":
            mask(play, name, small_terms(**terms or {}))
        play.deliver()
    return play


def join(play: InferencePlay, name: str, *, batch: int = 1, **changes: Any) -> None:
    given = {"purpose": "learning", "smallest_cohort": 2, "count": 0, "steps": 3, **changes}
    images = given.pop("images", max(batch, 1))
    kept = play.kept_of(name, name)
    request = InferenceRequest(images=images, batch=batch, channels=1, side=1)
    play.join(LearningDataOwner, name, request=request, kept=kept, **given)
    play.deliver()


def mask(play: InferencePlay, name: str, terms: AdaptationTerms = TERMS) -> None:
    for layer, size in enumerate(weight_bytes(terms.sizes)):
        play.act(f"{MODEL_OWNER}/{name}", "mask", layer=layer, data=drawn(f"layer {layer}", size))


def begin(play: InferencePlay, name: str, number: int, based: int = 0, done: int = 0) -> None:
    play.act(name, "begin_round", number=number, based=based, done=done)
    play.deliver()
    machine = f"{MODEL_OWNER}/{name}"
    if play.machines[machine].state.name == "BEGINNING_ROUND":
        play.act(machine, "begin_round", done=done)
        play.deliver()


def compute(
    play: InferencePlay, name: str, *, terms: AdaptationTerms = TERMS, brings: bool = False, refused: bool = False
) -> None:
    """A pass of one image. terms: of the session; brings: it passes the blocks, and is no step; refused: it is a
    prediction out of range."""
    records = [play.kept_of(each, name) for each in (name, MODEL_OWNER)]
    step_on = terms.purpose == "learning" and not brings
    if step_on:
        records[0].use()
        play.act(name, "choose", images=(0,))
    play.act(name, "ask", at=0.0)
    play.deliver()
    if step_on:
        records[1].use()
    play.act(f"{MODEL_OWNER}/{name}", "begin", weights=WEIGHTS, at=0.0)
    play.deliver()
    rounds = backbone_rounds(terms.sizes, 1) if brings else adaptation_rounds(terms, 1)
    for step, (operation, *sent) in enumerate(rounds):
        for owner, size in zip((MODEL_OWNER, name), sent, strict=True):
            if size:
                words = drawn(f"{owner} {step}", size)
                if operation == RANGE:
                    words = (refused and owner == name).to_bytes(size, "little")
                machine = f"{MODEL_OWNER}/{name}" if owner == MODEL_OWNER else name
                play.act(machine, "give", step=step, data=words)
        play.deliver()
        if refused and operation == RANGE:
            return
    if brings:
        for record in records:
            machine = play.machines[name]
            record.add(session=machine.session, number=machine.number, images=1)


def keep(play: InferencePlay, name: str, number: int) -> None:
    play.act(name, "keep_round", number=number)
    play.deliver()


def ask(play: InferencePlay, name: str, number: int, *survivors: str) -> None:
    play.act(name, "ask_sum", number=number, survivors=survivors)
    play.deliver()


def tell(play: InferencePlay, name: str, number: int, *, lost: bool = False) -> None:
    disclose(play, name, number, None if lost else drawn(f"sum {number}", SUM_BYTES))
    play.deliver()


def disclose(play: InferencePlay, name: str, number: int, data: bytes | None) -> None:
    """The model owner has the sum, or None where there is none."""
    reason = ""
    if data is None:
        play.act(f"{MODEL_OWNER}/sums", "give_up", number=number, since=play.now)
        reason = "it is lost"
    play.act(f"{MODEL_OWNER}/{name}", "provide", number=number, data=data, reason=reason)


def adaptation_round() -> Play:
    play = begun("Two images pass the blocks. A round with a batch, and its sum; then a second round.",
                 brought=False, owner={"images": 2})  # fmt: skip
    for name in BOTH:
        for _ in range(2):
            compute(play, name, brings=True)
        begin(play, name, 1)
        compute(play, name)
    for name in BOTH:
        keep(play, name, 1)
    for name in BOTH:
        ask(play, name, 1, *BOTH)
    for name in BOTH:
        tell(play, name, 1)
    for name in BOTH:
        begin(play, name, 2, based=1)
        keep(play, name, 2)
    ask(play, DATA_OWNER, 2, *BOTH)
    ask(play, SECOND, 2, *BOTH)
    for name in BOTH:
        tell(play, name, 2)
        play.act(name, "finish")
        play.deliver()
    return ending(play, "ended")


def adaptation_lost_round() -> Play:
    play = begun(
        "A survivor says nothing: the round is lost, who asks later is told so at once, and what was learned goes into "
        "the next round, from shares that are made fresh. Who was not there is told its sum.",
        *THREE,
    )  # fmt: skip
    for name in THREE:
        begin(play, name, 1)
        keep(play, name, 1)
    ask(play, DATA_OWNER, 1, *THREE)
    tell(play, DATA_OWNER, 1, lost=True)
    ask(play, SECOND, 1, *THREE)
    for name in BOTH:
        begin(play, name, 2, done=1)
        keep(play, name, 2)
    ask(play, THIRD, 2)
    for name in BOTH:
        ask(play, name, 2, *BOTH)
    for name in THREE:
        tell(play, name, 2)
    return play


def adaptation_late_words() -> Play:
    play = begun(
        "Who has no share of a round neither loses it nor holds it up; who names others when it is final is told "
        "nothing; a share of a later round that was begun before is void.",
        *THREE,
    )  # fmt: skip
    ask(play, THIRD, 1, *THREE)
    ask(play, THIRD, 1)
    tell(play, THIRD, 1, lost=True)
    for name in BOTH:
        begin(play, name, 1)
        keep(play, name, 1)
    begin(play, THIRD, 2)
    for name in BOTH:
        ask(play, name, 1, *BOTH)
    tell(play, DATA_OWNER, 1)
    tell(play, SECOND, 1)
    keep(play, THIRD, 2)
    ask(play, THIRD, 2, *THREE)
    ask(play, THIRD, 1, *THREE)
    ask(play, THIRD, 1)
    tell(play, THIRD, 1)
    return play


def adaptation_kept_shares() -> Play:
    play = begun(
        "A session is lost when the data owner has kept a pass that the model owner has not: in the next one the image "
        "passes the blocks again, and not the one before. A use that the model owner has not counted is none too many.",
        DATA_OWNER, brought=False, owner={"images": 2},
    )  # fmt: skip
    compute(play, DATA_OWNER, brings=True)
    machine = play.machines[DATA_OWNER]
    play.kept_of(DATA_OWNER, DATA_OWNER).add(session=machine.session, number=2, images=1)
    play.kept_of(DATA_OWNER, DATA_OWNER).use()
    play.drop(MODEL_OWNER, DATA_OWNER)
    play.drop(DATA_OWNER, MODEL_OWNER)
    join(play, DATA_OWNER, images=2)
    mask(play, DATA_OWNER)
    play.deliver()
    compute(play, DATA_OWNER, brings=True)
    begin(play, DATA_OWNER, 1)
    compute(play, DATA_OWNER)
    play.act(DATA_OWNER, "finish")
    play.deliver()
    return ending(play, "ended")


def compare_kept_bad_state() -> Play:
    cases: tuple[tuple[str, Changes, str], ...] = (
        ("more images than are agreed on", {"images": 2}, "SESSION"),
        ("other passes", {"chain": bytes(32)}, "SESSION"),
        ("uses that are two too many", {"uses": 2}, "SESSION"),
        ("more steps than are allowed", {"steps": 4}, "POLICY"),
    )
    names = tuple(f"{DATA_OWNER}-{number}" for number in range(len(cases)))
    play = opened("Kept shares of " + ", ".join(about for about, *_ in cases) + ".", *names, owners=9, steps=3)
    for name, (_, changes, code) in zip(names, cases, strict=True):
        agreed_by_hand(play, name, kept=changes)
        check_end(play, code, name)
    return play


def kept_compared_bad_state() -> Play:
    names = tuple(f"{DATA_OWNER}-{number}" for number in range(3))
    play = opened("A model owner that goes on behind other images, other passes, or more uses.", *names, owners=9)
    other: tuple[Changes, ...] = ({"images": 2}, {"chain": bytes(32)}, {"uses": 1})
    for name, changes in zip(names, other, strict=True):
        given: Changes = {"images": 1, "chain": BROUGHT[1], "uses": 0} | changes
        request = InferenceRequest(images=1, batch=1, channels=1, side=1)
        kept = play.kept_of(name, name)
        more: Changes = {"purpose": "learning", "smallest_cohort": 2, "count": 0, "steps": 3, "kept": kept}
        play.join(LearningDataOwner, name, request=request, **more)
        play.deliver(lambda parcel: None if parcel.kind == "kept-compared" else parcel.frames)
        answered(play, name, KeptCompared(**given))
        check_end(play, "SESSION", MODEL_OWNER)
    return play


def choose_images_bad_choice() -> Play:
    def before(play: InferencePlay, name: str) -> None:
        play.act(name, "choose", images=(0,))
        play.deliver()

    def beyond(play: InferencePlay, name: str) -> None:
        begin(play, name, 1)
        said(play, name, 3, ChooseImages(images=(1,)))

    def many(play: InferencePlay, name: str) -> None:
        begin(play, name, 1)
        said(play, name, 3, ChooseImages(images=(0, 0)))

    def none(play: InferencePlay, name: str) -> None:
        begin(play, name, 1)
        said(play, name, 3, StartPass(weights=WEIGHTS), round=1)

    return _refused(
        "Images that are chosen outside of a round, that are not kept, or not as many as a batch has; none.",
        [(before, "UNEXPECTED"), (beyond, "SESSION"), (many, "SESSION"), (none, "UNEXPECTED")],
    )


def said(
    play: InferencePlay, name: str, sequence: int, message: Message, *, session: bytes | None = None, **changes: Any
) -> None:
    """The model owner gets what a data owner says that is not played. changes: fields of the envelope."""
    named = play.machines[f"{MODEL_OWNER}/{name}"].session if session is None else session
    fields: dict[str, Any] = {"session": named, "round": 0, "version": ADAPTATION_VERSION}
    fields |= {"sender": name, "sequence": sequence, "type": message.TYPE}
    frames = tuple(bytes(frame) for frame in encode(message, Envelope(**(fields | changes))))
    play.give(Parcel(len(play.parcels), name, MODEL_OWNER, frames, play.kinds))


def agreed_by_hand(play: InferencePlay, name: str, **changes: Any) -> None:
    """A hello and an agreement of a data owner that is not played."""
    said(play, name, 0, InferenceHello(roster=play.roster.hash), session=NO_SESSION)
    compared: Changes = {"images": 1, "chain": BROUGHT[1], "uses": 0, "steps": 3} | changes.pop("kept", {})
    agreement: dict[str, Any] = {"terms": AGREED, "images": 1, "batch": 1} | changes
    said(play, name, 0, AgreeTerms(**agreement))
    said(play, name, 1, CompareKept(**compared))


def adaptation_resumed_round() -> Play:
    play = begun("A link is lost in a round; in the next session the model owner has one batch less.", DATA_OWNER)
    begin(play, DATA_OWNER, 1)
    play.drop(MODEL_OWNER, DATA_OWNER)
    play.drop(DATA_OWNER, MODEL_OWNER)
    agreed_by_hand(play, DATA_OWNER)
    said(play, DATA_OWNER, 2, BeginRound(number=1, based=0, done=2, count=0))
    play.act(f"{MODEL_OWNER}/{DATA_OWNER}", "begin_round", done=1)
    return ending(play, "ended", "LEFT")


def check_end(play: InferencePlay, code: str, culprit: str) -> None:
    """ValueError unless what was done last has ended a session so."""
    if play.ended()[-1][1:] != (code, culprit) and (code, culprit) not in [one[1:] for one in play.ended()[-2:]]:
        raise ValueError(f"{play.about}: {play.ended()}")


Refusal = tuple[Callable[[InferencePlay, str], None], str]


def _refused(about: str, refusals: list[Refusal], **given: Any) -> Play:
    """What a model owner refuses, each of a data owner of its own."""
    names = tuple(f"{DATA_OWNER}-{number}" for number in range(len(refusals)))
    play = begun(about, *names, **({"owners": 9} | given))
    for name, (act, code) in zip(names, refusals, strict=True):
        act(play, name)
        check_end(play, code, name)
    return play


def begin_round_bad_number() -> Play:
    def counted(play: InferencePlay, name: str) -> None:
        said(play, name, 2, BeginRound(number=4, based=3, done=0, count=5))

    return _refused(
        "Rounds that are over, or begin with old parameters, when the sum of round 3 has been told; images that are "
        "stated where all count alike.",
        [
            (lambda play, name: begin(play, name, 3, based=3), "SESSION"),
            (lambda play, name: begin(play, name, 4, based=2), "SESSION"),
            (counted, "SESSION"),
        ],
        sums={"opened": 1, "current": 3, "survivors": BOTH},
    )  # fmt: skip


def begin_round_bad_policy() -> Play:
    play = begun("One data owner too many, and one who only asks for a sum; then one round more than may be.",
                 *THREE, "data-4", rounds=1, owners=2)  # fmt: skip
    for name in BOTH:
        begin(play, name, 1)
        keep(play, name, 1)
    begin(play, THIRD, 1)
    check_end(play, "POLICY", THIRD)
    ask(play, "data-4", 1)
    check_end(play, "POLICY", "data-4")
    for name in BOTH:
        ask(play, name, 1, *BOTH)
    for name in BOTH:
        tell(play, name, 1)
        begin(play, name, 2, based=1)
    return ending(play, "ended", "POLICY")


def begin_round_bad_count() -> Play:
    play = begun("Another number of images than was stated before, where data owners count by them.",
                 DATA_OWNER, terms={"least_count": 4}, owner={"count": 5})  # fmt: skip
    begin(play, DATA_OWNER, 1)
    keep(play, DATA_OWNER, 1)
    said(play, DATA_OWNER, 4, BeginRound(number=1, based=0, done=0, count=6))
    return ending(play, "ended", "SESSION")


def keep_round_bad_number() -> Play:
    def twice(play: InferencePlay, name: str) -> None:
        begin(play, name, 1)
        keep(play, name, 1)
        keep(play, name, 1)

    def other(play: InferencePlay, name: str) -> None:
        begin(play, name, 1)
        keep(play, name, 2)

    return _refused(
        "Another round ends than has begun, and one twice.",
        [(other, "SESSION"), (twice, "SESSION")],
    )


def start_pass_bad_round() -> Play:
    def after(play: InferencePlay, name: str) -> None:
        begin(play, name, 1)
        keep(play, name, 1)
        play.act(name, "choose", images=(0,))
        play.deliver()

    return _refused("A batch after a round, when no other has begun.", [(after, "UNEXPECTED")])


def ask_sum_bad_survivors() -> Play:
    names = tuple(f"{DATA_OWNER}-{number}" for number in range(4))
    play = opened("Survivors in no order, twice there, or without who says it.", *names, owners=9)
    lists = [names[1::-1], (names[1], names[1]), (names[0], names[1]), (names[0], names[3], names[2])]
    for name, survivors in zip(names, lists, strict=True):
        agreed_by_hand(play, name)
        said(play, name, 2, AskSum(number=1, survivors=survivors))
    return ending(play, "ended", "MEMBERS")


def ask_sum_bad_lists() -> Play:
    play = begun("Two lists of survivors cost the round, and too few of them the next.", *THREE, colluders=1)
    for name in THREE:
        begin(play, name, 1)
        keep(play, name, 1)
    ask(play, DATA_OWNER, 1, *THREE)
    ask(play, SECOND, 1, DATA_OWNER, SECOND, "data-4")
    for name in BOTH:
        tell(play, name, 1, lost=True)
        begin(play, name, 2)
        keep(play, name, 2)
    ask(play, DATA_OWNER, 2, *BOTH)
    tell(play, DATA_OWNER, 2, lost=True)
    play.act(THIRD, "choose", images=(0,))
    play.deliver()
    return ending(play, "ended", "UNEXPECTED")


def adaptation_prediction() -> Play:
    changes = {"purpose": "prediction"}

    def predict(play: InferencePlay, name: str) -> None:
        compute(play, name, terms=small_terms(**changes))
        begin(play, name, 1)

    return _refused(
        "A prediction; and such a session has no rounds, and no sums.",
        [
            (predict, "UNEXPECTED"),
            (lambda play, name: ask(play, name, 1), "UNEXPECTED"),
        ],
        terms=changes, owner={"purpose": "prediction"},
    )  # fmt: skip


def agree_terms_bad_learning() -> Play:
    names = (DATA_OWNER,)
    changes = {"batch": 2, "most_batch": 2}
    about = "Batches of another size than is learned."
    play = opened(about, *names, terms=changes, owners=9)
    digested = digest(InferenceLabel.INFERENCE_TERMS, encoded_learning_terms(**SMALL | changes))
    for name, (images, batch) in zip(names, ((2, 1),), strict=True):
        agreed_by_hand(play, name, terms=digested, images=images, batch=batch)
    return ending(play, "ended", "POLICY")


def adaptation_terms_bad_policy() -> Play:
    requests: tuple[Changes, ...] = (
        {"purpose": "prediction"}, {"batch": 2}, {"smallest_cohort": 3}, {"count": 9},
    )  # fmt: skip
    names = tuple(f"{DATA_OWNER}-{number}" for number in range(len(requests)))
    about = "Terms that data owners refuse: purpose, batch, cohort, and weights."
    play = opened(about, *names, terms={"most_batch": 2}, owners=9)
    for name, request in zip(names, requests, strict=True):
        join(play, name, **request)
    return ending(play, "ended", "POLICY")


def adaptation_bad_version() -> Play:
    play = begun("Who speaks private inference is told the version that is spoken here.", DATA_OWNER)
    said(play, DATA_OWNER, 2, StartPass(weights=WEIGHTS), version=INFERENCE_VERSION, round=1)
    return ending(play, "ended", "VERSION")


def answered(play: InferencePlay, name: str, message: Message, size: int | None = None) -> None:
    """A data owner gets this in the place of the last message of the model owner, which is lost."""
    envelope = Envelope(
        version=ADAPTATION_VERSION, type=message.TYPE, session=session_of(name), round=0,
        sender=MODEL_OWNER, sequence=sum(one.receiver == name for one in play.parcels) - 1,
    )  # fmt: skip
    frames = encode(message, envelope, None if size is None else bytes(size))
    play.give(Parcel(len(play.parcels), MODEL_OWNER, name, tuple(map(bytes, frames)), play.kinds))


def _answered(about: str, kind: str, answers: list[tuple[Message, int | None, str]]) -> Play:
    """What data owners refuse in the place of an answer of this kind. Each of a raw frame of so many bytes, if any."""
    names = tuple(f"{DATA_OWNER}-{number}" for number in range(len(answers)))
    play = begun(about, *names, owners=9)
    for name, (message, size, code) in zip(names, answers, strict=True):
        if kind == "round-begun":
            play.act(name, "begin_round", number=1, based=0, done=2)
            play.deliver()
            play.act(f"{MODEL_OWNER}/{name}", "begin_round", done=0)
        else:
            ask(play, name, 1)
            disclose(play, name, 1, None)
        play.deliver(lambda parcel: None)
        answered(play, name, message, size)
        check_end(play, code, MODEL_OWNER)
    return play


def round_begun_bad_done() -> Play:
    return _answered(
        "A round that goes on behind batches which the data owner does not have; a sum in the place of an answer.",
        "round-begun",
        [(RoundBegun(done=3), None, "SESSION"), (OwnSum(number=1, chunk=0), SUM_BYTES, "UNEXPECTED")],
    )


def own_sum_bad_form() -> Play:
    return _answered(
        "Sums of another round, chunk or length, and lost rounds that were not asked about, or for no reason.",
        "own-sum",
        [
            (OwnSum(number=2, chunk=0), SUM_BYTES, "UNEXPECTED"),
            (OwnSum(number=1, chunk=1), SUM_BYTES, "UNEXPECTED"),
            (OwnSum(number=1, chunk=0), SUM_BYTES - 8, "VECTOR"),
            (OwnSum(number=1, chunk=0), None, "VECTOR"),
            (SumLost(number=2, detail="late"), None, "SESSION"),
            (SumLost(number=1, detail=""), None, "SESSION"),
        ],
    )


def adaptation_bad_silence() -> Play:
    play = begun("No answer to a round, and none about a sum: data owners' patience ends. The model owner has none.")
    play.act(DATA_OWNER, "begin_round", number=1, based=0, done=0)
    play.act(SECOND, "ask_sum", number=1, survivors=())
    for name in BOTH:
        for now in (PATIENCE / 2, PATIENCE):
            play.expire(name, now)
        play.expire(f"{MODEL_OWNER}/{name}", 100 * PATIENCE)
    return ending(play, "ended", "TIMEOUT")


PLAYS: Final[tuple[Callable[[], Play], ...]] = (
    adaptation_round, adaptation_kept_shares, adaptation_lost_round, adaptation_late_words, adaptation_resumed_round,
    adaptation_bad_silence,
)  # fmt: skip
REFUSALS: Final[tuple[Callable[[], Play], ...]] = (
    adaptation_prediction, begin_round_bad_number, begin_round_bad_policy, begin_round_bad_count, keep_round_bad_number,
    compare_kept_bad_state, kept_compared_bad_state, choose_images_bad_choice, start_pass_bad_round,
    ask_sum_bad_survivors, ask_sum_bad_lists, agree_terms_bad_learning,
    adaptation_terms_bad_policy, adaptation_bad_version, round_begun_bad_done, own_sum_bad_form,
)  # fmt: skip
