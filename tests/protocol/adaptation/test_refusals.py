"""What a data owner and a model owner that adapt a model refuse of each other and of their shells.

Most refusals are in transcripts (tests/vectors_corpus/adaptation_sessions.py), which the independent verifier replays;
these are the others.
"""

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from tacit.protocol.adaptation.data_owner import adaptation_terms
from tacit.protocol.adaptation.kept import KeptRecord
from tacit.protocol.adaptation.messages import (
    ADAPTATION_MESSAGES,
    ADAPTATION_VERSION,
    KeepRound,
)
from tacit.protocol.adaptation.states import SumTold
from tacit.protocol.adaptation.sums import OpeningPolicy
from tacit.protocol.core.codec import decode
from tacit.protocol.core.errors import Code, LocalProtocolError
from tacit.protocol.inference.data_owner import InferenceRequest
from tacit.protocol.inference.messages import (
    INFERENCE_MESSAGES,
    INFERENCE_VERSION,
    DealingOver,
    InferenceHello,
    StartPass,
)
from tacit.protocol.inference.quota import Quota
from tacit.protocol.inference.results import InferenceEnded
from tacit.protocol.inference.states import InferenceState
from tacit.protocol.sum.states import VERSION
from tacit.simulate.world.adaptation import PASS, MemoryAdaptation, round_plan
from tacit.simulate.world.inference import MODEL_OWNER, MemoryInference, data_owner_names, small_terms
from tacit.simulate.world.world import Parcel, altered, written
from tests.cases import cases

(DATA_OWNER,) = data_owner_names(1)
ALONE = OpeningPolicy(rounds=2, owners=1, smallest_cohort=1, colluders=0)


def world(*plan: Any, **given: Any) -> MemoryAdaptation:
    return MemoryAdaptation({DATA_OWNER: plan or round_plan(1, [DATA_OWNER])}, **({"opening": ALONE} | given))


def refused(run: MemoryAdaptation, code: Code, words: str, culprit: str) -> None:
    """The session with the first data owner ends with this verdict, on both sides."""
    for party in (MODEL_OWNER, DATA_OWNER):
        ended = run.ended(party)
        assert ended is not None
        assert (ended.code, ended.culprit) == (code, culprit), ended
        assert words in ended.detail, ended


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


def test_images_are_charged_to_the_quota_when_they_pass_the_blocks() -> None:
    run = world(request=InferenceRequest(images=2, batch=1, channels=1, side=4))
    run.quota = Quota(used=1)
    refused(run.run(), Code.POLICY, "the quota: 1 images a day", DATA_OWNER)


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
