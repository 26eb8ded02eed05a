"""What both owners of private inference meet alike: wrong openings, and wrong words of the dealer."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from tacit.protocol.core.errors import Code
from tacit.protocol.inference.messages import Material, MaterialWelcome, Opening, OrderMaterial
from tacit.simulate.conformance.peer.inference_script import (
    BOTH,
    COMPLETES,
    DEALER,
    InferenceCase,
    Scene,
    all_openings,
    chunk_faults,
    ends,
    leaving,
    stray,
    wire_faults,
)
from tacit.simulate.conformance.peer.script import Saying, instead


def _unasked(scene: Scene, said: Saying) -> list[Saying]:
    return [said, Saying(Material(number=1 << 40, chunk=0), round=0, payload=bytes(8))]


OPENING_CASES: Final = (
    *chunk_faults(Opening, "step", prefix="opening-"),
    InferenceCase("opening-early", "opens all at once, before it can know what it depends on",
                  ends(Code.UNEXPECTED, BOTH), instead(Opening, all_openings), act="stops"),
    InferenceCase("silence", "says nothing more where an opening is due", ends(Code.TIMEOUT, BOTH),
                  at=Opening, act="stops"),
    InferenceCase("gone", "closes its link in the middle of a pass", ends(Code.LEFT, DEALER),
                  at=Opening, act="hangs up"),
    InferenceCase("leaves", "gives up in the middle of a pass", ends(Code.LOCAL, DEALER), leaving(Opening)),
)  # fmt: skip
"""Of the other owner, in the rounds of a pass."""
WELCOME_CASES: Final = (
    InferenceCase("dealer-former-session", "the dealer says something of another session first", COMPLETES,
                  instead(MaterialWelcome, lambda scene, said: [stray(said), said])),
    *wire_faults(MaterialWelcome, prefix="dealer-", who=DEALER),
    InferenceCase("dealer-twice", "the dealer welcomes twice, correctly numbered", ends(Code.UNEXPECTED, BOTH),
                  instead(MaterialWelcome, lambda scene, said: [said, said])),
    InferenceCase("dealer-unasked", "the dealer sends what nobody ordered", ends(Code.UNEXPECTED, BOTH),
                  instead(MaterialWelcome, _unasked)),
    InferenceCase("dealer-out-of-turn", "the dealer orders material", ends(Code.UNEXPECTED, BOTH),
                  instead(MaterialWelcome, lambda scene, said: [
                      replace(said, message=OrderMaterial(first=0, count=1, requests=b""))])),
)  # fmt: skip
"""Of the dealer, before it deals anything."""
