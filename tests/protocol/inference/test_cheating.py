"""Parties of private inference that cheat, fail or want more than agreed, each as the others meet it.

Whoever notices ends the session with a code and the culprit, and tells why; then everybody ends, with the same verdict.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import msgspec

from tacit.protocol.core.codec import encode_structure
from tacit.protocol.core.errors import Code
from tacit.protocol.core.messages import CHUNK_BYTES
from tacit.protocol.inference.data_owner import InferencePolicy, InferenceRequest
from tacit.protocol.inference.messages import ORDER_LIMIT, Randomness, StartPass
from tacit.protocol.inference.results import (
    Agreed,
    InferenceEnded,
    KeysDealt,
    MaskedLayer,
    MaterialKey,
    Opened,
)
from tacit.protocol.inference.schedule import RANGE, Results, pass_rounds, weight_bytes
from tacit.simulate.world.inference import (
    DEALER,
    MODEL_OWNER,
    MemoryInference,
    content,
    data_owner_names,
    small_terms,
)
from tacit.simulate.world.world import Parcel, altered
from tests.cases import cases

(DATA_OWNER,) = data_owner_names(1)
OWNERS = (MODEL_OWNER, DATA_OWNER)
LABEL = Results(labels=1, bits=0)
REQUEST = InferenceRequest(images=3, batch=2, channels=1, side=4)
OTHER = b"\xff" * 32
Make = Callable[[MemoryInference, Parcel], list[Parcel]]


def world(request: InferenceRequest = REQUEST, **given: Any) -> MemoryInference:
    return MemoryInference({DATA_OWNER: request}, **given)


@cases(("images", "batch", "passes"), [(1, 1, [1]), (1, 2, [1]), (2, 2, [2]), (3, 2, [2, 1])])
def test_a_session_without_faults(images: int, batch: int, passes: list[int]) -> None:
    terms = small_terms()
    run = world(InferenceRequest(images=images, batch=batch, channels=1, side=4), terms=terms).run()
    assert run.verdicts() == {(None, "")}
    ours, theirs = run.outcome(Agreed)
    assert replace(ours, peer="") == replace(theirs, peer="")
    assert [ours.images_of(number + 1) for number in range(ours.passes)] == passes
    assert [(layer.layer, bytes(layer.data)) for layer in run.outcome(MaskedLayer, DATA_OWNER)] == [
        (layer, content(size, "masked", DATA_OWNER, layer)) for layer, size in enumerate(weight_bytes(terms.sizes))
    ]
    for party, peer, column in ((DATA_OWNER, MODEL_OWNER, 1), (MODEL_OWNER, DATA_OWNER, 2)):
        assert [(opened.step, bytes(opened.data)) for opened in run.outcome(Opened, party)] == [
            (
                step,
                bytes(8) if each[0] == RANGE else content(each[column], "opening", peer, DATA_OWNER, number, step),
            )
            for number, count in enumerate(passes, 1)
            for step, each in enumerate(pass_rounds(terms.sizes, count))
            if each[column]
        ]
    (dealt,) = run.outcome(KeysDealt)
    assert dict(zip(dealt.owners, dealt.keys, strict=True)) == {
        party: run.outcome(MaterialKey, party)[0].key for party in (MODEL_OWNER, DATA_OWNER)
    }
    assert dealt.keys[0] != dealt.keys[1]


def test_what_is_longer_than_a_chunk_comes_in_chunks() -> None:
    terms = small_terms(side=16, patch=16, channels=2, width=512, hidden=384)
    request = InferenceRequest(images=1, batch=1, channels=2, side=16)
    big = 2 * CHUNK_BYTES + 5
    run = world(request, terms=terms, requests=((big, CHUNK_BYTES), (0, CHUNK_BYTES + 1))).run()
    assert run.verdicts() == {(None, "")}
    assert max(weight_bytes(terms.sizes)) > 5 * CHUNK_BYTES
    assert [bytes(each.data) for each in run.outcome(MaskedLayer)] == [
        content(size, "masked", DATA_OWNER, layer) for layer, size in enumerate(weight_bytes(terms.sizes))
    ]
    chunks = [parcel.message for parcel in run.log if parcel.packet.kind is Randomness]
    assert [
        (message.number, message.chunk) for message in chunks if isinstance(message, Randomness)
    ] == [(6, 0), (6, 1), (6, 2), (6, 0), (7, 0), (7, 1)]  # fmt: skip


def test_terms_that_the_policy_names_are_accepted_and_others_are_not() -> None:
    for request, policy, terms, code, words in [
        (
            REQUEST,
            InferencePolicy(weights=OTHER),
            {},
            Code.MODEL,
            "another model than the policy here names",
        ),
        (
            REQUEST,
            InferencePolicy(bits=13),
            {},
            Code.POLICY,
            "fractional bits; the policy here wants logits of at least 13",
        ),
        (
            REQUEST,
            InferencePolicy(bits=1),
            {"results": LABEL},
            Code.POLICY,
            "it tells labels alone; the policy here",
        ),
        (
            REQUEST,
            InferencePolicy(labels=2),
            {"results": LABEL},
            Code.POLICY,
            "it tells the best 1 labels alone; the policy here wants 2 or more",
        ),
        (replace(REQUEST, side=8), InferencePolicy(), {}, Code.MODEL, "images of 1 x 4 x 4; here they are 1 x 8 x 8"),
        (replace(REQUEST, channels=3), InferencePolicy(), {}, Code.MODEL, "here they are 3 x 4 x 4"),
        (replace(REQUEST, images=4), InferencePolicy(), {}, Code.POLICY, "at most 3 images, 2 at a time; here 4"),
        (replace(REQUEST, batch=3), InferencePolicy(), {}, Code.POLICY, "3 at a time"),
    ]:
        run = world(request, policies={DATA_OWNER: policy}, terms=small_terms(**terms)).run()
        assert run.verdicts() == {(code, MODEL_OWNER)}
        assert words in run.outcome(InferenceEnded, DATA_OWNER)[0].detail
        assert not run.outcome(Agreed)

    for policy in [InferencePolicy(), InferencePolicy(weights=small_terms().weights)]:
        assert world(policies={DATA_OWNER: policy}).run().verdicts() == {(None, "")}


def fields(**changes: Any) -> Make:
    return lambda run, parcel: [altered(parcel, message=msgspec.structs.replace(parcel.message, **changes))]


def shifted(**changes: int) -> Make:
    def make(run: MemoryInference, parcel: Parcel) -> list[Parcel]:
        moved = {name: getattr(parcel.message, name) + change for name, change in changes.items()}
        return fields(**moved)(run, parcel)

    return make


def envelope(**changes: Any) -> Make:
    return lambda run, parcel: [altered(parcel, **changes)]


def payload(change: Callable[[bytes], bytes]) -> Make:
    return lambda run, parcel: [altered(parcel, payload=change(bytes(parcel.packet.payload or b"")))]


def bare(run: MemoryInference, parcel: Parcel) -> list[Parcel]:
    return [replace(parcel, frames=parcel.frames[:2])]


def repeated(run: MemoryInference, parcel: Parcel) -> list[Parcel]:
    return [parcel, altered(parcel, sequence=parcel.packet.envelope.sequence + 1)]


def renumbered_pass(run: MemoryInference, parcel: Parcel) -> list[Parcel]:
    return [altered(parcel, round=parcel.packet.envelope.round + 1)]


def third_pass(run: MemoryInference, parcel: Parcel) -> list[Parcel]:
    return [altered(parcel, message=StartPass(weights=run.terms.weights), round=3)]


def bad_sizes(run: MemoryInference, parcel: Parcel) -> list[Parcel]:
    encoded = encode_structure(run.terms)
    assert encoded.count(b"\xa4side\x04") == 1
    return fields(terms=encoded.replace(b"\xa4side\x04", b"\xa4side\x05"))(run, parcel)


CHUNKS: list[tuple[str, Make, Code]] = [
    ("of another chunk", shifted(chunk=1), Code.UNEXPECTED),
    ("a byte too short", payload(lambda data: data[:-1]), Code.VECTOR),
    ("a byte too long", payload(lambda data: data + b"\0"), Code.VECTOR),
    ("empty", payload(lambda data: b""), Code.VECTOR),
    ("without a payload", bare, Code.VECTOR),
    ("a second time", repeated, Code.UNEXPECTED),
]
LINK: list[tuple[str, Make, Code]] = [
    ("of another session", envelope(session=OTHER), Code.SESSION),
    ("of another sender", envelope(sender="data-owner-1"), Code.SENDER),
    ("of another version", envelope(version=1), Code.VERSION),
    ("of another pass", renumbered_pass, Code.SESSION),
    ("twice", lambda run, parcel: [parcel, parcel], Code.SEQUENCE),
    ("too early in number", envelope(sequence=0), Code.SEQUENCE),
]
CHEATS: list[tuple[str, str, str, int, Make, Code]] = [
    *(("opening", sender, name, 1, make, code)
      for sender in OWNERS for name, make, code in CHUNKS + LINK),
    *(("masked-weights", MODEL_OWNER, name, 5, make, code) for name, make, code in CHUNKS + LINK),
    *(("opening", sender, "of another round", 1, shifted(step=1), Code.UNEXPECTED)
      for sender in OWNERS),
    ("masked-weights", MODEL_OWNER, "of another layer", 1, shifted(layer=1), Code.UNEXPECTED),
    ("inference-terms", MODEL_OWNER, "with another roster", 0, fields(roster=OTHER), Code.ROSTER),
    ("inference-terms", MODEL_OWNER, "that are none", 0, fields(terms=b"\xc1"), Code.MALFORMED),
    ("inference-terms", MODEL_OWNER, "with impossible sizes", 0, bad_sizes, Code.MALFORMED),
    ("pass-started", MODEL_OWNER, "with another model", 0, fields(weights=OTHER), Code.MODEL),
    ("pass-started", MODEL_OWNER, "with another model", 1, fields(weights=OTHER), Code.MODEL),
    ("pass-started", MODEL_OWNER, "of another pass", 1, renumbered_pass, Code.SESSION),
    ("inference-hello", DATA_OWNER, "with another roster", 0, fields(roster=OTHER), Code.ROSTER),
    ("inference-hello", DATA_OWNER, "in a session", 0, envelope(session=OTHER), Code.SESSION),
    ("agree-terms", DATA_OWNER, "to others", 0, fields(terms=OTHER), Code.POLICY),
    ("agree-terms", DATA_OWNER, "for too many images", 0, fields(images=4), Code.POLICY),
    ("agree-terms", DATA_OWNER, "for too many at a time", 0, fields(batch=3), Code.POLICY),
    ("agree-terms", DATA_OWNER, "for more at a time than there are", 0, fields(images=1), Code.POLICY),
    ("agree-terms", DATA_OWNER, "for no image", 0, fields(images=0), Code.MALFORMED),
    ("agree-terms", DATA_OWNER, "for none at a time", 0, fields(batch=0), Code.MALFORMED),
    ("start-pass", DATA_OWNER, "of another model", 0, fields(weights=OTHER), Code.MODEL),
    ("start-pass", DATA_OWNER, "of another model", 1, fields(weights=OTHER), Code.MODEL),
    ("start-pass", DATA_OWNER, "of a later pass", 0, renumbered_pass, Code.SESSION),
    ("close-inference", DATA_OWNER, "which begins a pass too many", 0, third_pass, Code.POLICY),
    ("dealer-hello", DATA_OWNER, "with another roster", 0, fields(roster=OTHER), Code.ROSTER),
    *(("dealer-hello", owner, "for another peer", 0, fields(peer=DEALER), Code.MEMBERS)
      for owner in OWNERS),
    *(("dealer-hello", owner, "a second time", 0, repeated, Code.UNEXPECTED) for owner in OWNERS),
    *(("order-randomness", owner, name, 1, make, code) for owner in OWNERS for name, make, code in LINK
      if name != "of another session"),
    *(("order-randomness", owner, "of a number that was ordered", 1, shifted(first=-1), Code.SEQUENCE)
      for owner in OWNERS),
    *(("order-randomness", owner, "of a later number", 1, shifted(first=1), Code.SEQUENCE)
      for owner in OWNERS),
    *(("order-randomness", owner, "of nothing", 0, fields(count=0), Code.MALFORMED) for owner in OWNERS),
    *(("order-randomness", owner, "too long", 0, fields(requests=bytes(ORDER_LIMIT + 1)), Code.MALFORMED)
      for owner in OWNERS),
    *(("randomness", DEALER, name, 0, make, code) for name, make, code in CHUNKS),
    *(("randomness", DEALER, name, 2, make, code) for name, make, code in CHUNKS + LINK
      if name != "of another session"),
    ("randomness", DEALER, "of another request", 0, shifted(number=1), Code.UNEXPECTED),
    ("randomness", DEALER, "of a former request", 2, shifted(number=-2), Code.UNEXPECTED),
    ("dealer-welcome", DEALER, "twice over", 0, repeated, Code.UNEXPECTED),
]  # fmt: skip


@cases(
    ("kind", "cheat", "at", "make", "code"),
    [(kind, cheat, at, make, code)
     for kind, cheat, name, at, make, code in CHEATS],
)  # fmt: skip
def test_who_cheats_ends_the_session_for_everybody(kind: str, cheat: str, at: int, make: Make, code: Code) -> None:
    run = world()
    run.say_instead(kind, cheat, lambda parcel: make(run, parcel), at=at)
    run.run()
    assert run.verdicts() == {(code, cheat)}
    assert {told.party for told in run.told if isinstance(told.output, InferenceEnded)} >= {DATA_OWNER, MODEL_OWNER}
