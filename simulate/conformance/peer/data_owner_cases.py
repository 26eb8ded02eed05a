"""What our model owner and our dealer do to a live data owner, and what the specification says of it then."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

import msgpack

from tacit.protocol.core.errors import Code
from tacit.protocol.inference.messages import InferenceTerms, MaskedWeights, MaterialWelcome, PassStarted
from tacit.protocol.inference.schedule import LARGEST_PIXELS
from tacit.simulate.conformance.peer.inference_script import (
    BOTH,
    COMPLETES,
    MODEL_OWNER,
    OTHER_HASH,
    InferenceCase,
    Scene,
    chunk_faults,
    ends,
    leaving,
    stray,
    wire_faults,
)
from tacit.simulate.conformance.peer.owner_cases import OPENING_CASES, WELCOME_CASES
from tacit.simulate.conformance.peer.script import Lie, Saying, altered, instead


def _offering(sizes: Mapping[str, int], **fields: Any) -> Lie:
    """Other sizes and other fields in the terms, whether they fit together or not."""

    def change(scene: Scene, message: InferenceTerms) -> dict[str, bytes]:
        terms = msgpack.unpackb(message.terms)
        return {"terms": msgpack.packb({**terms, **fields, "sizes": {**terms["sizes"], **sizes}})}

    return altered(InferenceTerms, change)


def _wider(scene: Scene, message: InferenceTerms) -> dict[str, bytes]:
    """Images with one patch more along an edge."""
    terms = msgpack.unpackb(message.terms)
    sizes = terms["sizes"]
    return {"terms": msgpack.packb({**terms, "sizes": {**sizes, "side": sizes["side"] + sizes["patch"]}})}


def _later(scene: Scene, said: Saying) -> list[Saying]:
    return [said.changed(weights=OTHER_HASH) if said.round > 1 else said]


DATA_OWNER_CASES: Final = (
    InferenceCase("honest", "a whole session", COMPLETES),
    InferenceCase("other-roster", "holds another roster", ends(Code.ROSTER, MODEL_OWNER),
                  altered(InferenceTerms, lambda scene, _: {"roster": OTHER_HASH})),
    InferenceCase("terms-trailing", "sends a byte too much in the terms", ends(Code.MALFORMED, MODEL_OWNER),
                  altered(InferenceTerms, lambda scene, message: {"terms": message.terms + b"\0"})),
    InferenceCase("terms-uneven", "offers sizes that do not fit together", ends(Code.MALFORMED, MODEL_OWNER),
                  _offering({"patch": 2, "side": 5})),
    InferenceCase("terms-huge", "offers a model beyond the limits", ends(Code.MALFORMED, MODEL_OWNER),
                  _offering({"patch": 128, "side": 128, "channels": 1 + LARGEST_PIXELS // 128**2})),
    InferenceCase("terms-wider", "offers a model for larger images", ends(Code.MODEL, MODEL_OWNER),
                  altered(InferenceTerms, _wider)),
    InferenceCase("terms-few", "offers to compute one image", ends(Code.POLICY, MODEL_OWNER),
                  _offering({}, most_images=1, most_batch=1)),
    InferenceCase("terms-out-of-turn", "starts a pass where terms are due", ends(Code.UNEXPECTED, MODEL_OWNER),
                  instead(InferenceTerms, lambda scene, said: [
                      replace(said, message=PassStarted(weights=OTHER_HASH))])),
    InferenceCase("former-session", "says something of a former session before the terms", COMPLETES,
                  instead(InferenceTerms, lambda scene, said: [stray(said, sequence=7), said])),
    InferenceCase("other-session", "writes another session into masked-weights", ends(Code.SESSION, BOTH),
                  instead(MaskedWeights, lambda scene, said: [stray(said)])),
    *wire_faults(MaskedWeights),
    *chunk_faults(MaskedWeights, "layer", prefix="weights-"),
    InferenceCase("out-of-turn", "starts a pass where masked weights are due", ends(Code.UNEXPECTED, BOTH),
                  instead(MaskedWeights, lambda scene, said: [
                      Saying(PassStarted(weights=OTHER_HASH), round=0)])),
    InferenceCase("other-model", "starts a pass with another model than agreed", ends(Code.MODEL, BOTH),
                  altered(PassStarted, lambda scene, _: {"weights": OTHER_HASH})),
    InferenceCase("model-replaced", "starts the second pass with another model", ends(Code.MODEL, BOTH),
                  instead(PassStarted, _later)),
    InferenceCase("started-twice", "starts a pass twice", ends(Code.UNEXPECTED, BOTH),
                  instead(PassStarted, lambda scene, said: [said, said])),
    *OPENING_CASES,
    *WELCOME_CASES,
    InferenceCase("dealer-refuses", "the dealer gives up", ends(Code.LOCAL, MODEL_OWNER), leaving(MaterialWelcome)),
    InferenceCase("dealer-silence", "the dealer never welcomes", ends(Code.TIMEOUT, BOTH),
                  at=MaterialWelcome, act="stops"),
    InferenceCase("dealer-gone", "the dealer closes its link", ends(Code.LEFT, MODEL_OWNER),
                  at=MaterialWelcome, act="hangs up"),
)  # fmt: skip
"""What is not the dealer's is our model owner's."""
