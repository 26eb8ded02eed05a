"""Computations of double-blind adaptation without machines: messages, terms, schedules and lengths of sums, zeros."""

from __future__ import annotations

from typing import Any, Final

import msgpack

from tacit.protocol.adaptation.messages import ADAPTATION_MESSAGES, ADAPTATION_VERSION
from tacit.protocol.inference.messages import INFERENCE_VERSION
from tests.vectors_corpus.inference import BODIES as INFERENCE_BODIES
from tests.vectors_corpus.inference import FORMS, PLAIN, SIZES, terms_with
from tests.vectors_corpus.messages import PAYLOAD, octets
from tests.vectors_corpus.primitives import drawn
from tests.vectors_corpus.script import Script, vectors_of

PROTOCOL: Final = "double-blind adaptation"
BODIES: Final[dict[str, dict[str, Any]]] = {
    **{kind: body for kind, body in INFERENCE_BODIES.items() if kind in ADAPTATION_MESSAGES},
    "compare-kept": {"images": 2**31, "chain": octets(drawn("chain")), "uses": 4, "steps": 2**20},
    "kept-compared": {"images": 3, "chain": octets(drawn("chain")), "uses": 2**31},
    "choose-images": {"images": [2**31, 0, 0, 7]},
    "begin-round": {"number": 1, "based": 0, "done": 2**31, "count": 40},
    "round-begun": {"done": 3},
    "keep-round": {"number": 2**31, "secret": octets(drawn("secret"))},
    "ask-sum": {"number": 2, "survivors": ["data", "data-2", "n" * 64]},
    "own-sum": {"number": 2, "chunk": 1},
    "sum-lost": {"number": 2, "detail": "zu wenige"},
}
"""A body of every type."""
LEARNING: Final = {"adapters": 2, "rank": 3, "classes": 4, "batch": 5, "cut": 7, "gradient": 35}


def _written(script: Script, kind: str) -> list[bytes]:
    payload = PAYLOAD if ADAPTATION_MESSAGES[kind].PAYLOAD else None
    inputs: dict[str, Any] = {"session": drawn("session"), "round": 0, "sender": "owner", "sequence": 5}
    written = script.do("write message", **inputs, type=kind, body=BODIES[kind], payload=payload)
    return [bytes.fromhex(frame) for frame in written]


vectors = vectors_of(PROTOCOL)


@vectors("A message of every type of double-blind adaptation, written and read.")
def adaptation_messages(script: Script) -> None:
    for kind in ADAPTATION_MESSAGES:
        script.do("read message", frames=_written(script, kind))


@vectors("Numbers, names and byte strings beyond their bounds, other fields, and raw frames where none is.")
def adaptation_message_bad_value(script: Script) -> None:
    for kind, changes in (
        ("compare-kept", {"chain": bytes(31)}), ("compare-kept", {"steps": 0}), ("compare-kept", {"steps": 2**20 + 1}),
        ("kept-compared", {"images": -1}), ("choose-images", {"images": [-1]}),
        ("choose-images", {"images": [0] * 1025}),
        ("begin-round", {"number": 0}), ("begin-round", {"number": 2**31 + 1}), ("begin-round", {"based": -1}),
        ("begin-round", {"count": -1}),
        ("round-begun", {"done": None}), ("keep-round", {"secret": bytes(31)}), ("keep-round", {"number": 0}),
        ("ask-sum", {"survivors": ["n" * 65]}), ("ask-sum", {"survivors": "data"}), ("ask-sum", {"number": "1"}),
        ("own-sum", {"chunk": 2**31 + 1}), ("sum-lost", {"detail": "d" * 301}), ("sum-lost", {"more": 0}),
    ):  # fmt: skip
        envelope, body, *rest = _written(Script(PROTOCOL, ""), kind)
        changed = msgpack.packb(msgpack.unpackb(body) | changes)
        script.refuse("MALFORMED", "read message", frames=[envelope, changed, *rest])
    for kind in ("keep-round", "sum-lost"):
        script.refuse("MALFORMED", "read message", frames=[*_written(Script(PROTOCOL, ""), kind), b""])


@vectors("Types of federations and of private inference alone, and versions of others.")
def adaptation_message_bad_family(script: Script) -> None:
    envelope, body = _written(Script(PROTOCOL, ""), "close-inference")
    for kind in ("hello", "order-randomness", "dealer-hello", "randomness", "Own-sum"):
        changed = msgpack.packb(msgpack.unpackb(envelope) | {"type": kind})
        script.refuse("MALFORMED", "read message", frames=[changed, body])
    for version in (0, 2, INFERENCE_VERSION, ADAPTATION_VERSION + 1):
        changed = msgpack.packb(msgpack.unpackb(envelope) | {"version": version})
        script.refuse("VERSION", "read message", frames=[changed, body])


def learning_terms(**changes: Any) -> dict[str, Any]:
    """Terms with other sizes, and other fields of what is learned."""
    learning = {name: changes.pop(name, value) for name, value in LEARNING.items()}
    own = {"purpose": "learning", "learning": learning, "rounds": 2, "smallest_cohort": 2, "least_count": 0}
    own |= {name: changes.pop(name) for name in own if name in changes}
    return terms_with(**changes) | own


def encoded_learning_terms(**changes: Any) -> bytes:
    written = Script(PROTOCOL, "").do("write terms", terms=learning_terms(**changes))
    return bytes.fromhex(written["encoding"])


@vectors("Terms of both purposes, and their encoding and digest.")
def adaptation_terms(script: Script) -> None:
    for changes in (
        {},
        {"purpose": "prediction", "adapters": 0, "forms": FORMS},
        {"rounds": 1 << 20, "cut": 38, "gradient": 64, "least_count": 2**31},
    ):
        written = script.do("write terms", terms=learning_terms(**changes))
        script.do("read terms", encoding=written["encoding"])


@vectors("Numbers beyond bounds, adapters at some blocks, fields that are missing, terms of private inference.")
def adaptation_terms_bad_value(script: Script) -> None:
    honest = msgpack.unpackb(encoded_learning_terms())
    for name, value in (
        ("adapters", 257),
        ("adapters", 1),
        ("rank", 0),
        ("classes", 1),
        ("batch", 0),
        ("cut", 39),
        ("gradient", 65),
    ):
        changed = honest | {"learning": honest["learning"] | {name: value}}
        script.refuse("MALFORMED", "read terms", encoding=msgpack.packb(changed))
    for fields in (
        {"purpose": "other"},
        {"reveal": "none"},
        {"rounds": 0},
        {"smallest_cohort": 1},
        {"least_count": -1},
        {"learning": None},
        {"more": 0},
    ):
        script.refuse("MALFORMED", "read terms", encoding=msgpack.packb(honest | fields))
    for missing in (("purpose",), ("purpose", "learning", "rounds", "smallest_cohort")):
        rest = {name: value for name, value in honest.items() if name not in missing}
        script.refuse("MALFORMED", "read terms", encoding=msgpack.packb(rest))


@vectors("Rounds of steps of learning and of predictions, and words of a sum, for several sizes.")
def adaptation_schedule(script: Script) -> None:
    one = dict.fromkeys(SIZES, 1) | PLAIN | {"adapters": 1, "rank": 1, "classes": 2}
    predicts: dict[str, Any] = {"purpose": "prediction"}
    cases: tuple[tuple[dict[str, Any], int], ...] = (
        ({}, 5),
        ({"adapters": 0, "cut": 38, "gradient": 1}, 1),
        (one, 2),
        ({"blocks": 4, "adapters": 4}, 3),
        ({"forms": FORMS}, 2),
        (predicts, 3),
        (predicts | {"adapters": 0, "classes": 200, "results": {"labels": 2, "bits": 0}}, 1),
    )
    for changes, images in cases:
        script.do("schedule", terms=learning_terms(**changes), images=images)


@vectors("Zeros of a round: what a model owner adds, and a data owner subtracts.")
def adaptation_zeros(script: Script) -> None:
    for name, words in (("secret", 7), ("other secret", 7), ("secret", 1)):
        script.do("draw zeros", secret=drawn(name), words=words)


@vectors("Weights of data owners by the images that they state, and without.")
def adaptation_weights(script: Script) -> None:
    for count, least in ((0, 0), (7, 0), (1, 9), (9, 9), (10, 9), (17, 9), (18, 9), (2**31, 9), (2**31, 2**31)):
        script.do("weigh", count=count, least_count=least)
