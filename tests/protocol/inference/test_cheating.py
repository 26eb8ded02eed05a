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
from tacit.protocol.inference.messages import Randomness, StartPass
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
        (REQUEST, InferencePolicy(bits=1), {"results": LABEL}, Code.POLICY, "it tells labels alone; the policy here"),
        (REQUEST, InferencePolicy(labels=2), {"results": LABEL}, Code.POLICY, "the policy here wants 2 or more"),
        (replace(REQUEST, channels=3), InferencePolicy(), {}, Code.MODEL, "here they are 3 x 4 x 4"),
    ]:
        run = world(request, policies={DATA_OWNER: policy}, terms=small_terms(**terms)).run()
        assert run.verdicts() == {(code, MODEL_OWNER)}
        assert words in run.outcome(InferenceEnded, DATA_OWNER)[0].detail
        assert not run.outcome(Agreed)

    for policy in [InferencePolicy(), InferencePolicy(weights=small_terms().weights)]:
        assert world(policies={DATA_OWNER: policy}).run().verdicts() == {(None, "")}


def repeated(run: MemoryInference, parcel: Parcel) -> list[Parcel]:
    return [parcel, altered(parcel, sequence=parcel.packet.envelope.sequence + 1)]


def third_pass(run: MemoryInference, parcel: Parcel) -> list[Parcel]:
    return [altered(parcel, message=StartPass(weights=run.terms.weights), round=3)]


def bad_sizes(run: MemoryInference, parcel: Parcel) -> list[Parcel]:
    encoded = encode_structure(run.terms)
    assert encoded.count(b"\xa4side\x04") == 1
    terms = encoded.replace(b"\xa4side\x04", b"\xa4side\x05")
    return [altered(parcel, message=msgspec.structs.replace(parcel.message, terms=terms))]


CHEATS: list[tuple[str, str, int, Make, Code]] = [
    *(("opening", sender, 1, repeated, Code.UNEXPECTED) for sender in OWNERS),
    ("masked-weights", MODEL_OWNER, 5, repeated, Code.UNEXPECTED),
    ("inference-terms", MODEL_OWNER, 0, bad_sizes, Code.MALFORMED),
    ("close-inference", DATA_OWNER, 0, third_pass, Code.POLICY),
    *(("dealer-hello", owner, 0, repeated, Code.UNEXPECTED) for owner in OWNERS),
    *(("randomness", DEALER, at, repeated, Code.UNEXPECTED) for at in (0, 2)),
    ("dealer-welcome", DEALER, 0, repeated, Code.UNEXPECTED),
]
"""More than a change of one field (test_corruption.py): said twice and correctly numbered, or of what may not be."""


@cases(("kind", "cheat", "at", "make", "code"), CHEATS)
def test_who_cheats_ends_the_session_for_everybody(kind: str, cheat: str, at: int, make: Make, code: Code) -> None:
    run = world()
    run.say_instead(kind, cheat, lambda parcel: make(run, parcel), at=at)
    run.run()
    assert run.verdicts() == {(code, cheat)}
    assert {told.party for told in run.told if isinstance(told.output, InferenceEnded)} >= {DATA_OWNER, MODEL_OWNER}
