"""What our data owner and our dealer do to a live model owner, and what the specification says of it then."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from tacit.protocol.core.errors import Code
from tacit.protocol.inference.messages import (
    MOST_IMAGES,
    AgreeTerms,
    CloseInference,
    InferenceHello,
    Material,
    Opening,
    StartPass,
)
from tacit.simulate.conformance.peer.client_cases import PICKLE
from tacit.simulate.conformance.peer.inference_script import (
    BOTH,
    COMPLETES,
    DATA_OWNER,
    DEALER,
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
from tacit.simulate.conformance.peer.script import Saying, altered, enveloped, instead


def _pass_too_many(scene: Scene, said: Saying) -> list[Saying]:
    last = scene.former[StartPass]
    return [replace(last, round=last.round + 1)]


MODEL_OWNER_CASES: Final = (
    InferenceCase("honest", "a whole session of two passes", COMPLETES),
    InferenceCase("other-roster", "holds another roster", ends(Code.ROSTER, DATA_OWNER),
                  altered(InferenceHello, lambda scene, _: {"roster": OTHER_HASH})),
    InferenceCase("pickled-hello", "sends a pickle for the body of inference-hello", ends(Code.MALFORMED, DATA_OWNER),
                  instead(InferenceHello, lambda scene, said: [replace(said, body=PICKLE)])),
    InferenceCase("unreadable-hello", "writes version 0 into inference-hello", ends(Code.VERSION, DATA_OWNER),
                  enveloped(InferenceHello, version=0)),
    InferenceCase("hello-again", "says hello again in the middle of a session",
                  f"{ends(Code.LEFT, DEALER)}, {COMPLETES}", at=StartPass, act="begins again"),
    InferenceCase("other-terms", "agrees to other terms than were offered", ends(Code.POLICY, DATA_OWNER),
                  altered(AgreeTerms, lambda scene, _: {"terms": OTHER_HASH})),
    InferenceCase("more-images", "wants more images than are offered", ends(Code.POLICY, DATA_OWNER),
                  altered(AgreeTerms, lambda scene, _: {"images": MOST_IMAGES})),
    InferenceCase("larger-batch", "wants more images in a pass than it has", ends(Code.POLICY, DATA_OWNER),
                  altered(AgreeTerms, lambda scene, message: {"batch": message.images + 1})),
    InferenceCase("other-session", "writes another session into start-pass", ends(Code.SESSION, BOTH),
                  instead(StartPass, lambda scene, said: [stray(said)])),
    *wire_faults(StartPass),
    InferenceCase("other-model", "asks for another model than was agreed on", ends(Code.MODEL, BOTH),
                  altered(StartPass, lambda scene, _: {"weights": OTHER_HASH})),
    InferenceCase("pass-too-many", "asks for a pass more than was agreed on", ends(Code.POLICY, BOTH),
                  instead(CloseInference, _pass_too_many)),
    InferenceCase("out-of-turn", "opens something where no pass has begun", ends(Code.UNEXPECTED, BOTH),
                  instead(StartPass, lambda scene, said: [
                      Saying(Opening(step=0, chunk=0), said.round - 1, payload=bytes(8))])),
    InferenceCase("closes-early", "closes in the middle of a pass", ends(Code.UNEXPECTED, BOTH),
                  instead(Opening, lambda scene, said: [Saying(CloseInference(), round=0)])),
    *OPENING_CASES,
    *WELCOME_CASES,
    *chunk_faults(Material, "number", prefix="material-", who=DEALER),
    InferenceCase("dealer-refuses", "the dealer gives up", ends(Code.LOCAL, DATA_OWNER), leaving(Material)),
    InferenceCase("dealer-silence", "the dealer does not send what was ordered", ends(Code.TIMEOUT, BOTH),
                  at=Material, act="stops"),
    InferenceCase("dealer-gone", "the dealer closes its link", ends(Code.LEFT, DATA_OWNER),
                  at=Material, act="hangs up"),
)  # fmt: skip
"""What is not the dealer's is our data owner's."""
