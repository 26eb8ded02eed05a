"""What a data owner and a model owner that adapt a model refuse of each other, each through the public way in."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from tacit.protocol.adaptation.data_owner import adaptation_terms
from tacit.protocol.adaptation.kept import KeptRecord
from tacit.protocol.adaptation.messages import (
    ADAPTATION_MESSAGES,
    ADAPTATION_VERSION,
    AskSum,
    BeginRound,
    ChooseImages,
    CompareKept,
    KeepRound,
    OwnSum,
    RoundBegun,
    SumLost,
)
from tacit.protocol.adaptation.states import RoundAnswered, SumTold
from tacit.protocol.adaptation.sums import OpeningPolicy
from tacit.protocol.core.codec import decode
from tacit.protocol.core.errors import Code, LocalProtocolError
from tacit.protocol.core.messages import Message
from tacit.protocol.inference.data_owner import InferenceRequest
from tacit.protocol.inference.messages import (
    INFERENCE_MESSAGES,
    INFERENCE_VERSION,
    AgreeTerms,
    DealingOver,
    InferenceHello,
    StartPass,
)
from tacit.protocol.inference.quota import Quota
from tacit.protocol.inference.results import InferenceEnded
from tacit.protocol.inference.states import InferenceState
from tacit.protocol.sum.states import VERSION
from tacit.simulate.world.adaptation import PASS, MemoryAdaptation, learning_terms, round_plan, whole_round
from tacit.simulate.world.inference import MODEL_OWNER, MemoryInference, data_owner_names, small_terms
from tacit.simulate.world.world import Parcel, altered, written
from tests.cases import cases

(DATA_OWNER,) = data_owner_names(1)
THREE = data_owner_names(3)
ALONE = OpeningPolicy(rounds=2, owners=1, smallest_cohort=1, colluders=0)
PREDICTION = learning_terms(purpose="prediction")


def world(*plan: Any, **given: Any) -> MemoryAdaptation:
    return MemoryAdaptation({DATA_OWNER: plan or round_plan(1, [DATA_OWNER])}, **({"opening": ALONE} | given))


def refused(run: MemoryAdaptation, code: Code, words: str, culprit: str) -> None:
    """The session with the first data owner ends with this verdict, on both sides."""
    for party in (MODEL_OWNER, DATA_OWNER):
        ended = run.ended(party)
        assert ended is not None
        assert (ended.code, ended.culprit) == (code, culprit), ended
        assert words in ended.detail, ended


@cases(
    ("plan", "code", "words"),
    [
        ([PASS], Code.UNEXPECTED, "it chooses images where no step of learning is due"),
        ([("keep_round", (1,))], Code.SESSION, "it ends round 1 where it has begun none"),
        (
            [("begin_round", (1, 0, 0)), ("keep_round", (2,))],
            Code.SESSION,
            "it ends round 2 where it has begun 1",
        ),
        (
            [("begin_round", (1, 0, 0)), ("keep_round", (1,)), ("keep_round", (1,))],
            Code.SESSION,
            "it ends round 1 where it has begun none",
        ),
        (
            [("begin_round", (1, 0, 0)), ("keep_round", (1,)), PASS],
            Code.UNEXPECTED,
            "it chooses images where no step of learning is due",
        ),
        ([("begin_round", (1, 7, 0))], Code.SESSION, "it begins with the parameters of round 7, and those of round 0"),
        ([*round_plan(1, [DATA_OWNER]), ("begin_round", (1, 1, 0))], Code.SESSION, "round 1 is over"),
        (
            [*round_plan(2, [DATA_OWNER]), ("begin_round", (3, 0, 0))],
            Code.SESSION,
            "it begins with the parameters of round 0, and those of round 2 are the last",
        ),
        (
            [*round_plan(1, [DATA_OWNER]), *round_plan(2, [DATA_OWNER], based=1), ("begin_round", (3, 2, 0))],
            Code.POLICY,
            "the model owner opens 2 rounds, and all of them are open: ask it for more",
        ),
        ([("ask_sum", (1, ("other",)))], Code.MEMBERS, "it names survivors that are in no order, or without itself"),
    ],
)
def test_what_a_model_owner_refuses_of_rounds(plan: list[Any], code: Code, words: str) -> None:
    refused(world(*plan).run(), code, words, DATA_OWNER)


@cases("call", [("begin_round", (1, 0, 0)), ("ask_sum", (1, ()))])
def test_a_session_of_predictions_has_no_rounds(call: Any) -> None:
    run = world(call, terms=PREDICTION, purposes={DATA_OWNER: "prediction"}).run()
    refused(run, Code.UNEXPECTED, "it asks for a round of learning in a session of predictions", DATA_OWNER)


@cases(
    ("terms", "purpose", "smallest", "code", "words"),
    [
        ({"purpose": "prediction"}, "learning", 2, Code.POLICY, "it offers prediction; here learning is wanted"),
        ({}, "prediction", 2, Code.POLICY, "it offers learning; here prediction is wanted"),
        ({"batch": 2, "most_batch": 2}, "learning", 2, Code.POLICY, "it learns by batches of 2 images; here they have"),
        ({}, "learning", 3, Code.POLICY, "it opens sums of 2 data owners; the policy here wants 3 or more"),
    ],
)
def test_terms_that_a_data_owner_refuses(
    terms: dict[str, Any], purpose: Any, smallest: int, code: Code, words: str
) -> None:
    given: dict[str, Any] = {"purposes": {DATA_OWNER: purpose}, "smallest_cohort": smallest}
    refused(world(terms=learning_terms(**terms), **given).run(), code, words, MODEL_OWNER)


@cases(
    ("least", "count", "words"),
    [
        (5, 0, "data owners count by their images with it; the policy here is that they count alike"),
        (0, 5, "data owners count alike with it; the policy here is that they count by their images"),
    ],
)
def test_both_policies_have_to_count_images(least: int, count: int, words: str) -> None:
    run = world(terms=learning_terms(least_count=least), counts={DATA_OWNER: count})
    refused(run.run(), Code.POLICY, words, MODEL_OWNER)


@cases(
    ("least", "said", "words"),
    [
        (0, 7, "it says that it has 7 images, where data owners count alike, and say 0"),
        (5, 0, "it says that it has 0 images, where data owners count by how many they have"),
    ],
)
def test_images_that_are_stated_where_they_do_not_count_or_the_other_way_round(
    least: int, said: int, words: str
) -> None:
    run = world(terms=learning_terms(least_count=least), counts={DATA_OWNER: 9 if least else 0})

    def other(parcel: Parcel) -> list[Parcel]:
        assert isinstance(parcel.message, BeginRound)
        return [altered(parcel, message=msgspec.structs.replace(parcel.message, count=said))]

    run.say_instead("begin-round", DATA_OWNER, other)
    refused(run.run(), Code.SESSION, words, DATA_OWNER)


def test_batches_of_another_size_are_refused() -> None:
    run = world(terms=learning_terms(batch=2))
    run.inference_requests[DATA_OWNER] = InferenceRequest(images=2, batch=2, channels=1, side=4)

    def other(parcel: Parcel) -> list[Parcel]:
        assert isinstance(parcel.message, AgreeTerms)
        return [altered(parcel, message=msgspec.structs.replace(parcel.message, batch=1))]

    run.say_instead("agree-terms", DATA_OWNER, other)
    words = "it wants to learn 1 images at a time; batches have 2"
    refused(run.run(), Code.POLICY, words, DATA_OWNER)


CHOICE = ChooseImages(images=(0,))


@cases(
    ("said", "words", "code"),
    [
        (CHOICE, "it chooses images where no step of learning is due", Code.UNEXPECTED),
        (ChooseImages(images=(1,)), "it chooses (1,): a step takes 1 of 1 images", Code.SESSION),
        (ChooseImages(images=(0, 0)), "it chooses (0, 0): a step takes 1", Code.SESSION),
    ],
)
def test_images_that_cannot_be_chosen(said: ChooseImages, words: str, code: Code) -> None:
    """Before a round has begun; an image that is not there; and more than a batch has."""
    run = world(brought=True)
    kind = "begin-round" if said is CHOICE else "choose-images"
    run.say_instead(kind, DATA_OWNER, lambda parcel: [altered(parcel, message=said)])
    refused(run.run(), code, words, DATA_OWNER)


def test_images_are_chosen_for_steps_and_for_each_anew() -> None:
    run = world(("begin_round", (1, 0, 0)), PASS, PASS, brought=True)
    seen = 0

    def once(parcel: Parcel) -> list[Parcel]:
        nonlocal seen
        seen += parcel.kind == "choose-images"
        if seen < 2 or parcel.kind != "choose-images":
            return [parcel]
        return [altered(parcel, message=StartPass(weights=bytes(range(32))), round=2)]

    run.hook = once
    refused(run.run(), Code.UNEXPECTED, "it asks for a step before it has chosen images", DATA_OWNER)
    run = world()
    run.say_instead("start-pass", DATA_OWNER, lambda parcel: [altered(parcel, message=CHOICE, round=0)])
    refused(run.run(), Code.UNEXPECTED, "it chooses images where no step of learning is due", DATA_OWNER)


def test_a_shell_chooses_images_for_steps_and_for_no_other_pass() -> None:
    run = world()
    run.idle.add(DATA_OWNER)
    run.start()
    assert run.advance(lambda: run.owners[DATA_OWNER].machine.state is InferenceState.IDLE)
    machine: Any = run.owners[DATA_OWNER].machine
    machine.choose((0,), 0.0)
    with pytest.raises(LocalProtocolError, match="images are chosen for a step, and for no other pass"):
        machine.ask(0.0, 0.0)
    for images in ((), (0, 0), (1,)):
        with pytest.raises(LocalProtocolError, match="a step takes 1 of 1 images"):
            machine.choose(images, 0.0)


Restored = Callable[[KeptRecord], object]


def _older(record: KeptRecord) -> None:
    record.last, record.before = (1, bytes(32)), (0, bytes(32))


@cases(
    ("owner", "restore", "culprit", "words"),
    [
        (DATA_OWNER, lambda record: setattr(record, "uses", 3), DATA_OWNER, "it counts 3 uses of kept shares, here"),
        (MODEL_OWNER, lambda record: setattr(record, "uses", 3), DATA_OWNER, "it counts 5 uses of kept shares, here"),
        (MODEL_OWNER, lambda record: setattr(record, "uses", 6), DATA_OWNER, "it counts 5 uses of kept shares, here"),
        (DATA_OWNER, _older, DATA_OWNER, "it keeps other shares of 1 images than here"),
        (MODEL_OWNER, _older, MODEL_OWNER, "it goes on behind 1 images and 5 uses of kept shares"),
    ],
)
def test_an_owner_that_was_restored_from_an_older_state_is_noticed(
    owner: str, restore: Restored, culprit: str, words: str
) -> None:
    run = world(brought=True, request=InferenceRequest(images=3, batch=1, channels=1, side=4))
    for each in (DATA_OWNER, MODEL_OWNER):
        record = run.kept_of(each, DATA_OWNER)
        record.uses = 5
        record.add(bytes(32), 2, 1)
        record.add(bytes(32), 3, 1)
    restore(run.kept_of(owner, DATA_OWNER))
    refused(run.run(), Code.SESSION, words, culprit)


def test_images_beyond_those_of_the_agreement_are_not_kept() -> None:
    run = world(brought=True)
    more = CompareKept(images=2, chain=bytes(32), uses=0, steps=1)
    run.say_instead("compare-kept", DATA_OWNER, lambda parcel: [altered(parcel, message=more)])
    refused(run.run(), Code.SESSION, "it keeps shares of 2 images, and has 1", DATA_OWNER)


def test_more_steps_than_the_policy_allows_are_refused() -> None:
    run = world(opening=replace(ALONE, steps=1))
    more = CompareKept(images=0, chain=bytes(32), uses=0, steps=2)
    run.say_instead("compare-kept", DATA_OWNER, lambda parcel: [altered(parcel, message=more)])
    refused(run.run(), Code.POLICY, "it wants to take 2 steps, and the policy allows 1", DATA_OWNER)


def test_images_are_charged_to_the_quota_when_they_pass_the_blocks() -> None:
    run = world(request=InferenceRequest(images=2, batch=1, channels=1, side=4))
    run.quota = Quota(used=1)
    refused(run.run(), Code.POLICY, "the quota: 1 images a day", DATA_OWNER)


@cases(
    ("plan", "kind", "message", "payload", "code", "words"),
    [
        (("begin_round", (1, 0, 2)), "round-begun", RoundBegun(done=3), None, Code.SESSION,
         "it goes on behind batch 3 of a round of which 2 are done"),
        (None, "own-sum", OwnSum(number=2, chunk=0), bytes(8), Code.UNEXPECTED, "chunk 0 of the sum of round 2"),
        (None, "own-sum", OwnSum(number=1, chunk=1), bytes(8), Code.UNEXPECTED, "chunk 1 of the sum of round 1"),
        (None, "own-sum", OwnSum(number=1, chunk=0), bytes(8), Code.VECTOR, "has 8 bytes; 264 are due"),
        (None, "own-sum", OwnSum(number=1, chunk=0), bytes(272), Code.VECTOR, "has 272 bytes; 264 are due"),
        (None, "own-sum", OwnSum(number=1, chunk=0), b"", Code.VECTOR, "has 0 bytes; 264 are due"),
        (None, "own-sum", SumLost(number=2, detail="late"), None, Code.SESSION,
         "it gives up round 2 where the sum of 1 is due"),
        (None, "own-sum", SumLost(number=1, detail=""), None, Code.SESSION, "is due, and a reason"),
    ],
)  # fmt: skip
def test_what_a_data_owner_refuses_of_rounds(
    plan: Any, kind: str, message: Message, payload: bytes | None, code: Code, words: str
) -> None:
    run = world(*([plan] if plan else []))
    run.say_instead(kind, MODEL_OWNER, lambda parcel: [altered(parcel, message=message, payload=payload)])
    refused(run.run(), code, words, MODEL_OWNER)
    assert run.outcome(SumTold) == []
    assert len(run.outcome(RoundAnswered)) == (kind != "round-begun")


def test_a_sum_for_nothing_that_was_asked_is_refused() -> None:
    run = world(("begin_round", (1, 0, 0)))
    sum_of_nothing = OwnSum(number=1, chunk=0)
    run.say_instead(
        "round-begun", MODEL_OWNER, lambda parcel: [altered(parcel, message=sum_of_nothing, payload=bytes(264))]
    )
    refused(run.run(), Code.UNEXPECTED, "own-sum is not expected in state AWAIT_ROUND", MODEL_OWNER)


def test_a_message_to_the_dealer_is_refused_by_the_model_owner() -> None:
    run = world()
    run.idle.add(DATA_OWNER)
    run.start()
    run.advance()
    session = run.session(DATA_OWNER)
    fields: dict[str, Any] = {"session": session, "round": 0, "sequence": 1, "version": ADAPTATION_VERSION}
    parcel = written(DATA_OWNER, MODEL_OWNER, DealingOver(), kinds=INFERENCE_MESSAGES, **fields)
    run.put(parcel)
    run.settle()
    refused(run, Code.MALFORMED, "dealing-over", DATA_OWNER)


@cases(("version", "spoken"), [(INFERENCE_VERSION, "private inference"), (VERSION, "a federation")])
def test_a_data_owner_of_another_protocol_is_told_so_by_name(version: int, spoken: str) -> None:
    run = world()
    run.start()
    hello = InferenceHello(roster=run.roster.hash)
    parcel = run.forge(DATA_OWNER, MODEL_OWNER, hello, version=version, session=bytes(32), sequence=0)
    ((_, (told, ended)),) = run.service.feed(DATA_OWNER, parcel.frames, run.now)
    assert (ended.code, ended.culprit) == (Code.VERSION, DATA_OWNER)  # type: ignore[union-attr]
    assert f"protocol version {version}, here {ADAPTATION_VERSION}" in ended.detail  # type: ignore[union-attr]
    assert decode(told.frames, ADAPTATION_MESSAGES).parse().code is Code.VERSION  # type: ignore[union-attr]


def test_who_adapts_is_refused_by_name_at_a_model_owner_of_private_inference() -> None:
    run = MemoryInference({DATA_OWNER: InferenceRequest(images=1, batch=1, channels=1, side=4)}, terms=small_terms())
    run.start()
    hello = InferenceHello(roster=run.roster.hash)
    parcel = run.forge(DATA_OWNER, MODEL_OWNER, hello, version=ADAPTATION_VERSION, session=bytes(32), sequence=0)
    ((_, (told, ended)),) = run.service.feed(DATA_OWNER, parcel.frames, run.now)
    assert (ended.code, ended.culprit) == (Code.VERSION, DATA_OWNER)  # type: ignore[union-attr]
    assert f"protocol version {ADAPTATION_VERSION}, here {INFERENCE_VERSION}" in ended.detail  # type: ignore[union-attr]
    assert decode(told.frames, INFERENCE_MESSAGES).parse().code is Code.VERSION  # type: ignore[union-attr]


def test_owners_beyond_the_policy_are_refused() -> None:
    opening = OpeningPolicy(rounds=2, owners=2, smallest_cohort=2, colluders=0)
    run = whole_round(3, opening=opening).run()
    codes = {name: run.ended(MODEL_OWNER, data_owner=name) for name in THREE}
    late = [name for name, ended in codes.items() if ended is not None and ended.code is Code.POLICY]
    assert len(late) == 1
    assert "lets 2 data owners learn, and as many do" in codes[late[0]].detail  # type: ignore[union-attr]


@cases(
    ("call", "words"),
    [
        (lambda machine: machine.provide(2, None, 0.0, "late"), "the sum of round 2 where that of 1 was asked for"),
        (lambda machine: machine.provide(1, None, 0.0), "there is no sum of round 1, for no reason"),
        (lambda machine: machine.provide(1, bytes(264), 0.0), "264 are due, and against it speaks: None"),
        (lambda machine: machine.provide(1, bytes(256), 0.0), "256 bytes as the sum of round 1; 264 are due"),
        (lambda machine: machine.begin_round(0, 0.0), "cannot begin a round of learning in state SUMMING"),
    ],
)
def test_what_a_shell_must_not_say_of_sums(call: Callable[[Any], object], words: str) -> None:
    run = world(("ask_sum", (1, ())), brought=True)
    run.idle.add(MODEL_OWNER)
    run.start()
    run.advance()
    machine = run.served[DATA_OWNER].machine
    assert machine.state is InferenceState.SUMMING
    with pytest.raises(LocalProtocolError, match=words):
        call(machine)
    assert machine.state is InferenceState.SUMMING


@cases("done", [-1, 3])
def test_a_round_goes_on_behind_batches_that_both_have(done: int) -> None:
    run = world(("begin_round", (1, 0, 2)), brought=True)
    run.idle.add(MODEL_OWNER)
    run.start()
    run.advance()
    with pytest.raises(LocalProtocolError, match=f"round 1 cannot go on behind {done} of 2 batches"):
        run.served[DATA_OWNER].machine.begin_round(done, 0.0)  # type: ignore[union-attr]


def test_terms_of_private_inference_are_of_no_session_that_adapts() -> None:
    with pytest.raises(LocalProtocolError, match="of no session that adapts a model"):
        adaptation_terms(small_terms())
    run = world()
    offered = msgspec.msgpack.encode(small_terms())

    def other(parcel: Parcel) -> list[Parcel]:
        return [altered(parcel, message=msgspec.structs.replace(parcel.message, terms=offered))]

    run.say_instead("inference-terms", MODEL_OWNER, other)
    assert (Code.MALFORMED, MODEL_OWNER) in run.run().verdicts()


def test_the_secret_of_zeros_is_in_no_text() -> None:
    run = world().run()
    (kept,) = (parcel.message for parcel in run.log if isinstance(parcel.message, KeepRound))
    assert repr(kept) == "KeepRound(number=1, <secret>)"
    for text in (*map(repr, run.told), *map(repr, run.log)):
        assert repr(kept.secret)[2:-1] not in text
        assert kept.secret.hex() not in text


def test_no_ending_tells_more_than_fits_a_message() -> None:
    names = tuple(sorted(f"{number:03d}{'n' * 61}" for number in range(9)))
    plan = (("begin_round", (1, 0, 0)), ("keep_round", (1,)), ("ask_sum", (1, tuple(sorted((*names, DATA_OWNER))))))
    run = world(*plan).run()
    (told,) = run.outcome(SumTold)
    assert told.data is None
    assert told.reason.startswith("no word on who survived from ")
    assert len(told.reason) == 300
    assert {ended.code for ended in run.outcome(InferenceEnded)} == {None}


def test_messages_of_rounds_are_of_no_pass() -> None:
    for kind in (BeginRound, KeepRound, AskSum):
        run = world()
        run.say_instead(kind.TYPE, DATA_OWNER, lambda parcel: [altered(parcel, round=1)])
        refused(run.run(), Code.SESSION, f"{kind.TYPE} of pass 1 where 0 is due", DATA_OWNER)


def test_terms_with_adapters_at_some_blocks_only_are_refused() -> None:
    for adapters, blocks in ((1, 2), (3, 2), (2, 1)):
        with pytest.raises(ValueError, match=f"{adapters} adapters beside {blocks} blocks"):
            learning_terms(adapters=adapters, blocks=blocks)
    assert [learning_terms(adapters=adapters, blocks=2).learning.adapters for adapters in (0, 2)] == [0, 2]
