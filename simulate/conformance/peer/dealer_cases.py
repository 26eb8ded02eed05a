"""What our owners do to a live dealer, and what the specification says of it then."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from msgspec import structs

from tacit.protocol.core.errors import Code
from tacit.protocol.core.messages import Abort
from tacit.protocol.inference.dealer import MOST_ORDERS
from tacit.protocol.inference.messages import CloseInference, MaterialHello, MaterialOver, OrderMaterial
from tacit.simulate.conformance.peer.client_cases import PICKLE
from tacit.simulate.conformance.peer.inference_script import (
    BOTH,
    COMPLETES,
    DATA_OWNER,
    MODEL_OWNER,
    OTHER_HASH,
    InferenceCase,
    Scene,
    ends,
    leaving,
    stray,
    wire_faults,
)
from tacit.simulate.conformance.peer.script import Lie, Saying, altered, instead


def _second(lie: Lie) -> Lie:
    """Told in the second order."""
    return instead(OrderMaterial, lambda scene, said: lie(scene, said) if OrderMaterial in scene.former else [said])


def _far_ahead(scene: Scene, said: Saying) -> list[Saying]:
    order = said.message
    assert isinstance(order, OrderMaterial)
    later = [
        replace(said, message=structs.replace(order, first=order.first + number * order.count))
        for number in range(1, MOST_ORDERS + 2)
    ]
    return [said, *later]


def _second_session(scene: Scene, said: Saying) -> list[Saying]:
    """The other session ends at once: nobody comes to it."""
    leaves = Saying(Abort(code=Code.LEFT, detail="it leaves", culprit=scene.own), round=0)
    return [stray(scene.former[MaterialHello]), stray(leaves, sequence=1)]


DEALER_CASES: Final = (
    InferenceCase("honest", "what both order comes, and is right", COMPLETES),
    InferenceCase("other-roster", "holds another roster", ends(Code.ROSTER, DATA_OWNER),
                  altered(MaterialHello, lambda scene, _: {"roster": OTHER_HASH}), witness=DATA_OWNER),
    InferenceCase("other-peer", "comes for a session with somebody else", ends(Code.MEMBERS, DATA_OWNER),
                  altered(MaterialHello, lambda scene, _: {"peer": "somebody-else"}), witness=DATA_OWNER),
    InferenceCase("pickled-hello", "sends a pickle for the body of material-hello", ends(Code.MALFORMED, DATA_OWNER),
                  instead(MaterialHello, lambda scene, said: [replace(said, body=PICKLE)]), witness=DATA_OWNER),
    InferenceCase("other-terms", "comes with other terms than the model owner", ends(Code.POLICY, BOTH),
                  altered(MaterialHello, lambda scene, _: {"terms": OTHER_HASH}), anyone=True),
    InferenceCase("hello-twice", "says hello twice", ends(Code.UNEXPECTED, BOTH),
                  instead(OrderMaterial, lambda scene, said: [scene.former[MaterialHello]])),
    InferenceCase("second-session", "begins another session", ends(Code.SESSION, BOTH),
                  instead(OrderMaterial, _second_session)),
    InferenceCase("former-session", "orders in another session first", COMPLETES,
                  instead(OrderMaterial, lambda scene, said: [stray(said), said])),
    *wire_faults(OrderMaterial),
    InferenceCase("out-of-turn", "closes a session of inference", ends(Code.UNEXPECTED, BOTH),
                  instead(OrderMaterial, lambda scene, said: [Saying(CloseInference(), round=0)])),
    InferenceCase("number-twice", "orders a number twice", ends(Code.SEQUENCE, BOTH),
                  _second(altered(OrderMaterial, lambda scene, _: {"first": 0}))),
    InferenceCase("number-skipped", "leaves out a number", ends(Code.SEQUENCE, BOTH),
                  altered(OrderMaterial, lambda scene, message: {"first": message.first + 1})),
    InferenceCase("other-order", "orders other material than the model owner", ends(Code.POLICY, BOTH),
                  altered(OrderMaterial, lambda scene, message: {"requests": message.requests + b"\0"}), anyone=True),
    InferenceCase("far-ahead", f"orders {MOST_ORDERS + 2} times, which is too far ahead",
                  ends(Code.UNEXPECTED, DATA_OWNER), _second(_far_ahead), act="stops", witness=DATA_OWNER),
    InferenceCase("unreadable-order", "both order what is no request", ends(Code.MALFORMED, BOTH),
                  altered(OrderMaterial, lambda scene, _: {"requests": b"\xc1"}), anyone=True, together=True),
    InferenceCase("miscounted-order", "both count a request too many", ends(Code.MALFORMED, BOTH),
                  _second(altered(OrderMaterial, lambda scene, message: {"count": message.count + 1})),
                  anyone=True, together=True),
    InferenceCase("order-after-over", "orders after it has said that it is done", ends(Code.SEQUENCE, MODEL_OWNER),
                  instead(OrderMaterial, lambda scene, said: [Saying(MaterialOver(), round=0), said]),
                  witness=MODEL_OWNER),
    InferenceCase("silence", "orders nothing, while the model owner waits", ends(Code.TIMEOUT, BOTH),
                  at=OrderMaterial, act="stops"),
    InferenceCase("gone", "closes its link", ends(Code.LEFT, MODEL_OWNER), at=OrderMaterial, act="hangs up"),
    InferenceCase("leaves", "gives up", ends(Code.LOCAL, MODEL_OWNER), leaving(OrderMaterial)),
)  # fmt: skip
"""Our data owner lies, unless it says both."""
