"""Cases of double-blind adaptation: our parties' actions against a live one, and the specified reactions.

As in private inference (inference_cases.py): one lie, and a session that ends for all its parties, with the right code.
In an honest case the live party completes a training round, up to its sum. A model owner reveals no sum of one data
owner alone, so where a sum is due another data owner of ours trains in the same round.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

import msgpack

from tacit.protocol.adaptation.messages import (
    AskSum,
    BeginRound,
    ChooseImages,
    CompareKept,
    KeepRound,
    KeptCompared,
    OwnSum,
    RoundBegun,
    SumLost,
)
from tacit.protocol.core.errors import Code
from tacit.protocol.core.messages import CHUNK_BYTES
from tacit.protocol.inference.messages import (
    INFERENCE_VERSION,
    MOST_IMAGES,
    AgreeTerms,
    CloseInference,
    InferenceHello,
    InferenceTerms,
    MaskedWeights,
    Opening,
    PassStarted,
    StartPass,
)
from tacit.simulate.conformance.peer.inference_cases import (
    BOTH,
    COMPLETES,
    DATA_OWNER,
    MATERIAL_CASES,
    MODEL_OWNER,
    OPENING_CASES,
    OTHER_HASH,
    WELCOME_CASES,
    WELCOME_ENDINGS,
    InferenceCase,
    Scene,
    astray,
    chunk_faults,
    ending,
    ends,
    following,
    offering,
    replaced_later,
    wider,
    wire_faults,
)
from tacit.simulate.conformance.peer.script import Lie, Saying, altered, carried, enveloped, instead, pickled, repeated

SUM, NO_SUM, ASKS = "tells the sum", "tells no sum", "asks for the sum"
STRANGER: Final = "zzz"
"""A name that is no data owner, and sorts after all of them."""


class SharedRound(InferenceCase):
    """One script, in which another data owner of ours trains in the same round, and asks for its sum."""


@dataclass(frozen=True)
class OtherLearning(InferenceCase):
    """One script with more to train than the accompanying scales allow."""

    rank: int = 0
    classes: int = 0


def _next_pass(scene: Scene, said: Saying) -> list[Saying]:
    last = scene.former[StartPass]
    return [replace(last, round=last.round + 1)]


def _round_over(scene: Scene, said: Saying) -> list[Saying]:
    """Repeat the round, from the parameters of its sum."""
    begun = scene.former[BeginRound]
    assert isinstance(begun.message, BeginRound)
    return list(altered(BeginRound, based=begun.message.number)(scene, begun))


def _going_on(result: str, *cases: InferenceCase) -> tuple[InferenceCase, ...]:
    """Return the same cases in training sessions that continue: that is the result."""
    return tuple(
        replace(case, expected=f"{result}, {COMPLETES}") if case.expected == COMPLETES else case for case in cases
    )


IMAGE_CASES: Final = (
    ending("image-size", "opens patches of larger images", Code.VECTOR, BOTH,
           carried(Opening, payload=lambda payload: bytes(2 * len(payload)))),
    ending("opening-oversized", "opens more in a frame than a chunk has", Code.MALFORMED, BOTH,
           carried(Opening, payload=bytes(CHUNK_BYTES + 1))),
)  # fmt: skip
ADAPTED_MODEL_OWNER_CASES: Final = (
    SharedRound("honest", "a round of one batch, up to its sum, which another data owner shares",
                f"{SUM}, {COMPLETES}"),
    ending("other-roster", "holds another roster", Code.ROSTER, DATA_OWNER, altered(InferenceHello, roster=OTHER_HASH)),
    ending("pickled-hello", "sends a pickle for the body of inference-hello", Code.MALFORMED, DATA_OWNER,
           pickled(InferenceHello)),
    ending("other-protocol", "says hello in private inference", Code.VERSION, DATA_OWNER,
           enveloped(InferenceHello, version=INFERENCE_VERSION)),
    ending("other-terms", "agrees to other terms than were offered", Code.POLICY, DATA_OWNER,
           altered(AgreeTerms, terms=OTHER_HASH)),
    ending("smaller-batch", "wants to learn by smaller batches", Code.POLICY, DATA_OWNER,
           altered(AgreeTerms, batch=lambda batch: batch - 1)),
    ending("more-images", "wants more images than are offered", Code.POLICY, DATA_OWNER,
           altered(AgreeTerms, lambda scene, message: {"images": MOST_IMAGES - MOST_IMAGES % message.batch})),
    ending("other-session", "writes another session into begin-round", Code.SESSION, BOTH, astray(BeginRound)),
    *wire_faults(BeginRound),
    ending("other-parameters", "begins with parameters of a round that was not told", Code.SESSION, BOTH,
           altered(BeginRound, based=following)),
    ending("other-count", "states images where nobody counts by them, or the other way round", Code.SESSION, BOTH,
           altered(BeginRound, count=lambda count: 0 if count else 7)),
    ending("other-model", "asks for another model than was agreed on", Code.MODEL, BOTH,
           altered(StartPass, weights=OTHER_HASH)),
    ending("kept-beyond", "keeps shares of more images than it has", Code.SESSION, DATA_OWNER,
           altered(CompareKept, images=MOST_IMAGES)),
    ending("choice-beyond", "chooses an image that it does not have", Code.SESSION, BOTH,
           altered(ChooseImages, images=lambda images: (*images[:-1], MOST_IMAGES))),
    ending("choice-short", "chooses fewer images than a batch has", Code.SESSION, BOTH,
           altered(ChooseImages, images=lambda images: images[:-1] or (0, 0))),
    ending("choice-early", "chooses images before they have passed the blocks", Code.UNEXPECTED, BOTH,
           instead(StartPass, lambda scene, said: [Saying(ChooseImages(images=(0,)), round=0)])),
    ending("step-without-choice", "asks for a step and chooses no images", Code.UNEXPECTED, BOTH,
           instead(KeepRound, _next_pass)),
    ending("keeps-other-round", "ends another round than it has begun", Code.SESSION, BOTH,
           altered(KeepRound, number=following)),
    ending("keeps-early", "ends a round in the middle of a batch", Code.UNEXPECTED, BOTH,
           instead(Opening, lambda scene, said: [Saying(KeepRound(number=1, secret=OTHER_HASH), round=0)])),
    ending("pass-without-round", "asks for a batch when it has ended the round", Code.UNEXPECTED, BOTH,
           instead(AskSum, _next_pass)),
    ending("survivors-disordered", "names survivors in another order", Code.MEMBERS, BOTH,
           altered(AskSum, survivors=lambda names: (STRANGER, *names))),
    ending("survivors-without-it", "names survivors without itself", Code.MEMBERS, BOTH,
           altered(AskSum, survivors=(STRANGER,))),
    SharedRound("other-survivors", "names a survivor more than the other data owner", f"{NO_SUM}, {COMPLETES}",
                altered(AskSum, survivors=lambda names: (*names, STRANGER))),
    InferenceCase("alone", "asks for the sum of its own share alone", f"{NO_SUM}, {COMPLETES}"),
    SharedRound("round-over", "begins a round whose sum was told", f"{ends(Code.SESSION, BOTH)}, {SUM}",
                instead(CloseInference, _round_over)),
    *IMAGE_CASES,
    *OPENING_CASES,
    *_going_on(NO_SUM, *WELCOME_CASES),
    *MATERIAL_CASES,
)  # fmt: skip
"""Actions of our data owner and our dealer against a live model owner. By default our data owner's."""


def _learning(**sizes: int) -> Lie:
    def change(scene: Scene, message: InferenceTerms) -> dict[str, bytes]:
        terms = msgpack.unpackb(message.terms)
        learning = {name: terms["learning"][name] + more for name, more in sizes.items()}
        return {"terms": msgpack.packb({**terms, "learning": {**terms["learning"], **learning}})}

    return altered(InferenceTerms, change)


def _lost(further: int = 0, detail: str = "it is lost") -> Lie:
    def lost(scene: Scene, said: Saying) -> list[Saying]:
        assert isinstance(said.message, OwnSum)
        return [Saying(SumLost(number=said.message.number + further, detail=detail), round=0)]

    return instead(OwnSum, lost)


def _sum_early(scene: Scene, said: Saying) -> list[Saying]:
    return [Saying(OwnSum(number=1, chunk=0), round=0, payload=bytes(8))]


ADAPTED_DATA_OWNER_CASES: Final = (
    InferenceCase("honest", "a round of learning, up to its sum", f"{ASKS}, {COMPLETES}"),
    ending("other-roster", "holds another roster", Code.ROSTER, MODEL_OWNER,
           altered(InferenceTerms, roster=OTHER_HASH)),
    ending("terms-trailing", "sends a byte too much in the terms", Code.MALFORMED, MODEL_OWNER,
           altered(InferenceTerms, terms=lambda terms: terms + b"\0")),
    ending("terms-some-blocks", "offers adapters at some blocks only", Code.MALFORMED, MODEL_OWNER,
           _learning(adapters=1)),
    OtherLearning("terms-rank", "offers adapters of a higher rank than its scales are for", ends(Code.MODEL, BOTH),
                  rank=1),
    OtherLearning("terms-classes", "offers a head of more classes than its scales are for", ends(Code.MODEL, BOTH),
                  classes=1),
    ending("terms-wider", "offers a model for larger images", Code.MODEL, MODEL_OWNER, altered(InferenceTerms, wider)),
    ending("terms-purpose", "offers predictions", Code.POLICY, MODEL_OWNER, offering({}, purpose="prediction")),
    ending("terms-reveal", "offers to reveal outputs of blocks, which no terms can say", Code.MALFORMED, MODEL_OWNER,
           offering({}, reveal="all")),
    ending("terms-batch", "offers to learn by larger batches", Code.POLICY, MODEL_OWNER, _learning(batch=1)),
    ending("terms-counts", "counts data owners by their images", Code.POLICY, MODEL_OWNER,
           offering({}, least_count=1)),
    ending("terms-cohort", "opens sums of two data owners", Code.POLICY, MODEL_OWNER, offering({}, smallest_cohort=2)),
    ending("other-session", "writes another session into masked-weights", Code.SESSION, BOTH, astray(MaskedWeights)),
    *chunk_faults(MaskedWeights, "layer", prefix="weights-"),
    # Whether it has said hello to the dealer by then is open: once it has agreed on terms, says the specification.
    ending("kept-ahead", "goes on behind images that nobody keeps", Code.SESSION, MODEL_OWNER,
           altered(KeptCompared, images=1), witness=MODEL_OWNER),
    *wire_faults(RoundBegun),
    ending("sum-early", "tells a sum where a round is to begin", Code.UNEXPECTED, BOTH,
           instead(RoundBegun, _sum_early)),
    ending("begun-ahead", "goes on behind a batch that nobody has", Code.SESSION, BOTH,
           altered(RoundBegun, done=following)),
    ending("other-model", "starts a pass with another model than agreed", Code.MODEL, BOTH,
           altered(PassStarted, weights=OTHER_HASH)),
    ending("model-replaced", "starts the second pass with another model", Code.MODEL, BOTH, replaced_later),
    ending("started-twice", "starts a pass twice", Code.UNEXPECTED, BOTH, repeated(PassStarted)),
    *IMAGE_CASES,
    *OPENING_CASES,
    *chunk_faults(OwnSum, "number", prefix="sum-"),
    InferenceCase("sum-lost", "says that the round is lost", f"{ASKS}, {COMPLETES}", _lost()),
    ending("sum-lost-other", "says that another round is lost", Code.SESSION, BOTH, _lost(1)),
    ending("sum-lost-silently", "says that the round is lost, and not why", Code.SESSION, BOTH, _lost(detail="")),
    *_going_on(ASKS, *WELCOME_CASES),
    *WELCOME_ENDINGS,
)  # fmt: skip
"""Actions of our model owner and our dealer against a live data owner. By default our model owner's."""
