"""Vectors of sessions of double-blind adaptation: rounds that are told, lost and gone on with, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from tacit.protocol.adaptation.messages import (
    ADAPTATION_VERSION,
    AdaptationTerms,
    AskSum,
    BeginRound,
    OwnSum,
    RoundBegun,
    SumLost,
)
from tacit.protocol.adaptation.schedule import adaptation_rounds, sum_words
from tacit.protocol.core.codec import Envelope, decode_structure, encode
from tacit.protocol.core.link import NO_SESSION
from tacit.protocol.core.messages import Message
from tacit.protocol.core.primitives import Label, digest
from tacit.protocol.inference.messages import INFERENCE_VERSION, TERMS_LIMIT, AgreeTerms, InferenceHello, StartPass
from tacit.protocol.inference.schedule import RANGE, weight_bytes
from tests.vectors_corpus.adaptation import PROTOCOL, encoded_learning_terms
from tests.vectors_corpus.inference_sessions import DATA_OWNER, MODEL_OWNER, ONE, PATIENCE, SECOND, WEIGHTS, roster
from tests.vectors_corpus.play import Play, ending
from tests.vectors_corpus.primitives import drawn
from tests.vectors_corpus.script import Script

THIRD: Final = "data-3"
BOTH: Final = (DATA_OWNER, SECOND)
THREE: Final = (DATA_OWNER, SECOND, THIRD)
SMALL: Final[dict[str, Any]] = {
    **ONE, "adapters": 0, "rank": 1, "classes": 2, "batch": 1, "cut": 8, "gradient": 30, "most_images": 9,
    "most_batch": 1,
}  # fmt: skip
ENCODED: Final = encoded_learning_terms(**SMALL)
AGREED: Final = digest(Label.INFERENCE_TERMS, ENCODED)
Changes = dict[str, Any]


def small_terms(**changes: Any) -> AdaptationTerms:
    """The terms of these sessions, with other fields."""
    return decode_structure(encoded_learning_terms(**SMALL | changes), AdaptationTerms, limit=TERMS_LIMIT)


TERMS: Final = small_terms()
SUM_BYTES: Final = 8 * sum_words(TERMS.sizes, TERMS.learning)


def begun(about: str, *names: str, terms: Changes | None = None, owner: Changes | None = None, **policy: Any) -> Play:
    """Data owners that have agreed with the model owner and have its masked weights.

    terms: other ones; owner: what is other with the data owners; policy: of the model owner.
    """
    names = names or BOTH
    play = Play(PROTOCOL, "session", about)
    owners = [
        {
            "name": name, "images": 3, "batch": 1, "channels": 1, "side": 1, "purpose": "learning",
            "smallest_cohort": 2, "entropy": drawn(f"{name} entropy", 128), "patience": PATIENCE, **(owner or {}),
        }
        for name in names
    ]  # fmt: skip
    teacher = {
        "terms": encoded_learning_terms(**SMALL | (terms or {})), "entropy": drawn("model-owner entropy", 256),
        "patience": PATIENCE, "rounds": 2, "owners": 3, "smallest_cohort": 2, "colluders": 0, **policy,
    }  # fmt: skip
    play.do("begin adaptation", roster=roster(*names), data_owners=owners, model_owner=teacher)
    for name in names:
        join(play, name, small_terms(**terms or {}))
    return play


def join(play: Play, name: str, terms: AdaptationTerms) -> None:
    """A data owner says hello, and has the masked weights."""
    play.act(name, "hello", party=name)
    play.deliver()
    mask(play, name, terms)
    play.deliver()


def mask(play: Play, name: str, terms: AdaptationTerms = TERMS) -> None:
    """The model owner masks its weights for a data owner."""
    for layer, size in enumerate(weight_bytes(terms.sizes)):
        data = drawn(f"layer {layer}", size)
        play.act(MODEL_OWNER, "mask", party=MODEL_OWNER, layer=layer, data=data, data_owner=name)


def begin(play: Play, name: str, number: int, based: int = 0, done: int = 0, have: int | None = None) -> None:
    """A round begins; have: behind how many batches, if not as many as the data owner says."""
    play.act(name, "begin round", party=name, number=number, based=based, done=done)
    play.deliver()
    if play.steps[-1].expect["state"] == "BEGINNING_ROUND":
        answer = done if have is None else have
        play.act(MODEL_OWNER, "answer round", party=MODEL_OWNER, done=answer, data_owner=name)
        play.deliver()


def session_of(play: Play, name: str) -> bytes:
    """In which a data owner was last told terms."""
    told = [one for one in play.parcels if one.receiver == name and one.kind == "inference-terms"]
    return told[-1].packet.envelope.session


def compute(play: Play, name: str, *, terms: AdaptationTerms = TERMS, refused: bool = False) -> None:
    """A pass of one image. terms: of the session; refused: it is out of range."""
    play.act(name, "ask", party=name)
    play.deliver()
    play.act(MODEL_OWNER, "begin pass", party=MODEL_OWNER, weights=WEIGHTS, data_owner=name)
    play.deliver()
    rounds = adaptation_rounds(terms, 1)
    for step, (operation, *sent) in enumerate(rounds):
        for owner, size in zip((MODEL_OWNER, name), sent, strict=True):
            if size:
                words = drawn(f"{owner} {step}", size)
                if operation == RANGE:
                    words = (refused and owner == name).to_bytes(size, "little")
                more = {"data_owner": name} if owner == MODEL_OWNER else {}
                play.act(owner, "give", party=owner, step=step, data=words, **more)
        play.deliver()
        if refused and operation == RANGE:
            return


def keep(play: Play, name: str, number: int) -> None:
    """A round ends."""
    play.act(name, "keep round", party=name, number=number)
    play.deliver()


def ask(play: Play, name: str, number: int, *survivors: str) -> None:
    """A sum is asked for."""
    play.act(name, "ask sum", party=name, number=number, survivors=survivors)
    play.deliver()


def tell(play: Play, name: str, number: int, *, lost: bool = False) -> None:
    """A sum is told, or that there is none."""
    play.do("survivors", party=MODEL_OWNER, number=number)
    data = None if lost else drawn(f"sum {number}", SUM_BYTES)
    play.act(MODEL_OWNER, "tell sum", party=MODEL_OWNER, number=number, data=data, data_owner=name)
    play.deliver()


def adaptation_round() -> Script:
    play = begun("A round with a batch, and its sum; then a second round.")
    for name in BOTH:
        begin(play, name, 1)
    compute(play, DATA_OWNER)
    compute(play, SECOND, refused=True)
    for name in BOTH:
        keep(play, name, 1)
    for name in BOTH:
        ask(play, name, 1, *BOTH)
    play.refuse("INVALID", "tell sum", party=MODEL_OWNER, number=1, data=bytes(SUM_BYTES - 8))
    for name in BOTH:
        tell(play, name, 1)
    for name in BOTH:
        begin(play, name, 2, based=1)
        keep(play, name, 2)
    ask(play, DATA_OWNER, 2, *BOTH)
    play.refuse("INVALID", "tell sum", party=MODEL_OWNER, number=2, data=bytes(SUM_BYTES))
    ask(play, SECOND, 2, *BOTH)
    for name in BOTH:
        tell(play, name, 2)
        play.act(name, "close", party=name)
        play.deliver()
    return ending(play, "ended")


def adaptation_lost_round() -> Script:
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


def adaptation_late_words() -> Script:
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


def said(play: Play, name: str, number: int, sequence: int, message: Message, **changes: Any) -> Any:
    """The model owner gets what a data owner says that is not played. number: of the session, in the
    order in which the model owner has begun them; changes: fields of the envelope."""
    fields = {
        "session": drawn("model-owner entropy", 256)[32 * number :][:32],
        "round": 0,
        "version": ADAPTATION_VERSION,
    }
    fields |= {"sender": name, "sequence": sequence, "type": message.TYPE}
    frames = encode(message, Envelope(**(fields | changes)))  # type: ignore[arg-type]
    return play.act(MODEL_OWNER, "receive", party=MODEL_OWNER, sender=name, frames=frames)


def agreed_by_hand(play: Play, name: str, session: int, roster_hash: bytes, **changes: Any) -> None:
    """A hello and an agreement of a data owner that is not played."""
    said(play, name, session, 0, InferenceHello(roster=roster_hash), session=NO_SESSION)
    agreement: dict[str, Any] = {"terms": AGREED, "images": 3, "batch": 1} | changes
    said(play, name, session, 0, AgreeTerms(**agreement))


def adaptation_resumed_round() -> Script:
    play = begun("A link is lost in a round; in the next session the model owner has one batch less.", DATA_OWNER)
    roster_hash = bytes.fromhex(play.steps[0].expect)
    begin(play, DATA_OWNER, 1)
    play.act(MODEL_OWNER, "drop", party=MODEL_OWNER, peer=DATA_OWNER)
    play.act(DATA_OWNER, "drop", party=DATA_OWNER, peer=MODEL_OWNER)
    agreed_by_hand(play, DATA_OWNER, 1, roster_hash)
    mask(play, DATA_OWNER)
    said(play, DATA_OWNER, 1, 1, BeginRound(number=1, based=0, done=2, count=0))
    play.refuse("INVALID", "answer round", party=MODEL_OWNER, done=3)
    play.act(MODEL_OWNER, "answer round", party=MODEL_OWNER, done=1)
    return ending(play, "ended", "LEFT")


def check_end(play: Play, code: str, culprit: str) -> None:
    """ValueError unless what was done last has ended a session so."""
    end = {"event": "ended", "code": code, "culprit": culprit}
    if not any(isinstance(step.expect, dict) and end in step.expect["events"] for step in play.steps[-2:]):
        raise ValueError(f"{play.about}: {play.steps[-2:]}")


Refusal = tuple[Callable[[Play, str], None], str]


def _refused(about: str, refusals: list[Refusal], **given: Any) -> Script:
    """What a model owner refuses, each of a data owner of its own."""
    names = tuple(f"{DATA_OWNER}-{number}" for number in range(len(refusals)))
    play = begun(about, *names, **({"owners": 9} | given))
    for name, (act, code) in zip(names, refusals, strict=True):
        act(play, name)
        check_end(play, code, name)
    return play


def begin_round_bad_number() -> Script:
    def counted(play: Play, name: str) -> None:
        said(play, name, 2, 1, BeginRound(number=4, based=3, done=0, count=5))

    return _refused(
        "Rounds that are over, or begin with old parameters, when the sum of round 3 has been told; images that are "
        "stated where all count alike.",
        [
            (lambda play, name: begin(play, name, 3, based=3), "SESSION"),
            (lambda play, name: begin(play, name, 4, based=2), "SESSION"),
            (counted, "SESSION"),
        ],
        opened=1, current=3, survivors=list(BOTH),
    )  # fmt: skip


def begin_round_bad_policy() -> Script:
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


def begin_round_bad_count() -> Script:
    play = begun("Another number of images than was stated before, where data owners count by them.",
                 DATA_OWNER, terms={"least_count": 4}, owner={"count": 5})  # fmt: skip
    begin(play, DATA_OWNER, 1)
    keep(play, DATA_OWNER, 1)
    said(play, DATA_OWNER, 0, 3, BeginRound(number=1, based=0, done=0, count=6))
    return ending(play, "ended", "SESSION")


def keep_round_bad_number() -> Script:
    def twice(play: Play, name: str) -> None:
        begin(play, name, 1)
        keep(play, name, 1)
        keep(play, name, 1)

    def other(play: Play, name: str) -> None:
        begin(play, name, 1)
        keep(play, name, 2)

    return _refused(
        "Another round ends than has begun, and one twice.",
        [(other, "SESSION"), (twice, "SESSION")],
    )


def start_pass_bad_round() -> Script:
    def after(play: Play, name: str) -> None:
        begin(play, name, 1)
        keep(play, name, 1)
        play.act(name, "ask", party=name)
        play.deliver()

    return _refused("A batch after a round, when no other has begun.", [(after, "UNEXPECTED")])


def ask_sum_bad_survivors() -> Script:
    play = Play(PROTOCOL, "session", "Survivors in no order, twice there, or without who says it.")
    names = tuple(f"{DATA_OWNER}-{number}" for number in range(4))
    teacher = {
        "terms": encoded_learning_terms(**SMALL), "entropy": drawn("model-owner entropy", 256), "patience": PATIENCE,
        "rounds": 2, "owners": 9, "smallest_cohort": 2, "colluders": 0,
    }  # fmt: skip
    roster_hash = bytes.fromhex(play.do("begin adaptation", roster=roster(*names), model_owner=teacher))
    lists = [names[1::-1], (names[1], names[1]), (names[0], names[1]), (names[0], names[3], names[2])]
    for number, (name, survivors) in enumerate(zip(names, lists, strict=True)):
        agreed_by_hand(play, name, number, roster_hash)
        mask(play, name)
        said(play, name, number, 1, AskSum(number=1, survivors=survivors))
    return ending(play, "ended", "MEMBERS")


def ask_sum_bad_lists() -> Script:
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
    play.act(THIRD, "ask", party=THIRD)
    play.deliver()
    return ending(play, "ended", "UNEXPECTED")


def adaptation_prediction() -> Script:
    changes = {"purpose": "prediction"}

    def predict(play: Play, name: str) -> None:
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


def agree_terms_bad_learning() -> Script:
    play = Play(PROTOCOL, "session", "Batches of another size than is learned, and images that do not fill them.")
    names = tuple(f"{DATA_OWNER}-{number}" for number in range(2))
    of_two = encoded_learning_terms(**SMALL | {"batch": 2, "most_batch": 2})
    teacher = {
        "terms": of_two, "entropy": drawn("model-owner entropy", 256), "patience": PATIENCE, "rounds": 2, "owners": 9,
        "smallest_cohort": 2, "colluders": 0,
    }  # fmt: skip
    roster_hash = bytes.fromhex(play.do("begin adaptation", roster=roster(*names), model_owner=teacher))
    digested = digest(Label.INFERENCE_TERMS, of_two)
    for number, (images, batch) in enumerate(((2, 1), (3, 2))):
        agreed_by_hand(play, names[number], number, roster_hash, terms=digested, images=images, batch=batch)
    return ending(play, "ended", "POLICY")


def adaptation_terms_bad_policy() -> Script:
    play = Play(PROTOCOL, "session", "Terms that data owners refuse: purpose, batch, cohort, and weights.")
    wishes: tuple[Changes, ...] = (
        {"purpose": "prediction"}, {"batch": 2}, {"smallest_cohort": 3}, {"count": 9},
    )  # fmt: skip
    names = tuple(f"{DATA_OWNER}-{number}" for number in range(len(wishes)))
    owners = [
        {"name": name, "images": 3, "batch": 1, "channels": 1, "side": 1, "purpose": "learning", "smallest_cohort": 2,
         "entropy": drawn(f"{name} entropy"), "patience": PATIENCE, **wish}
        for name, wish in zip(names, wishes, strict=True)
    ]  # fmt: skip
    teacher = {
        "terms": encoded_learning_terms(**SMALL | {"most_batch": 2}),
        "entropy": drawn("model-owner entropy", 256),
        "patience": PATIENCE, "rounds": 2, "owners": 9, "smallest_cohort": 2, "colluders": 0,
    }  # fmt: skip
    play.do("begin adaptation", roster=roster(*names), data_owners=owners, model_owner=teacher)
    for name in names:
        play.act(name, "hello", party=name)
        play.deliver()
    return ending(play, "ended", "POLICY")


def adaptation_bad_version() -> Script:
    play = begun("Who speaks private inference is told the version that is spoken here.", DATA_OWNER)
    said(play, DATA_OWNER, 0, 1, StartPass(weights=WEIGHTS), version=INFERENCE_VERSION, round=1)
    return ending(play, "ended", "VERSION")


def _answered(about: str, kind: str, answers: list[tuple[Message, int | None, str]]) -> Script:
    """What data owners refuse in the place of an answer of this kind. Each of a raw frame of so many bytes, if any."""
    names = tuple(f"{DATA_OWNER}-{number}" for number in range(len(answers)))
    play = begun(about, *names, owners=9)
    for name, (message, size, code) in zip(names, answers, strict=True):
        if kind == "round-begun":
            play.act(name, "begin round", party=name, number=1, based=0, done=2)
            play.deliver()
            play.act(MODEL_OWNER, "answer round", party=MODEL_OWNER, done=0, data_owner=name)
        else:
            ask(play, name, 1)
            play.act(MODEL_OWNER, "tell sum", party=MODEL_OWNER, number=1, data=None, data_owner=name)
        play.deliver(lambda parcel: None)
        envelope = Envelope(
            version=ADAPTATION_VERSION, type=message.TYPE, session=session_of(play, name), round=0,
            sender=MODEL_OWNER, sequence=sum(one.receiver == name for one in play.parcels) - 1,
        )  # fmt: skip
        frames = encode(message, envelope, None if size is None else bytes(size))
        play.act(name, "receive", party=name, sender=MODEL_OWNER, frames=frames)
        check_end(play, code, MODEL_OWNER)
    return play


def round_begun_bad_done() -> Script:
    return _answered(
        "A round that goes on behind batches which the data owner does not have; a sum in the place of an answer.",
        "round-begun",
        [(RoundBegun(done=3), None, "SESSION"), (OwnSum(number=1, chunk=0), SUM_BYTES, "UNEXPECTED")],
    )


def own_sum_bad_form() -> Script:
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


def adaptation_bad_silence() -> Script:
    play = begun("No answer to a round, and none about a sum: data owners' patience ends. The model owner has none.")
    play.act(DATA_OWNER, "begin round", party=DATA_OWNER, number=1, based=0, done=0)
    play.act(SECOND, "ask sum", party=SECOND, number=1, survivors=[])
    for name in BOTH:
        for now in (PATIENCE / 2, PATIENCE):
            play.act(name, "expire", party=name, now=now)
        play.act(MODEL_OWNER, "expire", party=MODEL_OWNER, now=100 * PATIENCE, data_owner=name)
    return ending(play, "ended", "TIMEOUT")


FILES: Final[dict[str, Callable[[], Script]]] = {
    function.__name__: function
    for function in (
        adaptation_round, adaptation_prediction, adaptation_lost_round,
        adaptation_late_words, adaptation_resumed_round,
        begin_round_bad_number, begin_round_bad_policy, begin_round_bad_count, keep_round_bad_number,
        start_pass_bad_round,
        ask_sum_bad_survivors, ask_sum_bad_lists, agree_terms_bad_learning,
        adaptation_terms_bad_policy, adaptation_bad_version, round_begun_bad_done, own_sum_bad_form,
        adaptation_bad_silence,
    )
}  # fmt: skip
"""File name without its ending, and what makes it."""
