"""Computations of private inference without machines: messages, terms, commitments, schedules, keys, material."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any, Final

import msgpack

from tacit.protocol.inference.messages import INFERENCE_MESSAGES, INFERENCE_VERSION, MOST_IMAGES
from tacit.protocol.sum.states import VERSION as FEDERATION_VERSION
from tacit.simulate.conformance.computations import INVALID
from tests.vectors_corpus.messages import PAYLOAD, octets
from tests.vectors_corpus.primitives import drawn
from tests.vectors_corpus.script import Script, vectors_of

SESSION: Final = drawn("session of inference")
PLAIN: Final[dict[str, Any]] = {"forms": [], "prefix": 1, "norm_pre": False, "pooling": "token", "whole": False}
SIZES: Final[dict[str, Any]] = {
    "side": 6, "channels": 2, "patch": 3, "width": 8, "heads": 2, "hidden": 11, "blocks": 2, "classes": 7, **PLAIN,
}  # fmt: skip
FORMS: Final = [{"squarings": 2, "hidden_bits": 16}, {"squarings": 0, "hidden_bits": 20}]
"""Of both blocks of SIZES."""
VIT_SMALL: Final[dict[str, Any]] = SIZES | {
    "side": 224, "channels": 3, "patch": 16, "width": 384, "heads": 6, "hidden": 1536, "blocks": 12, "classes": 1000,
}  # fmt: skip
TERMS: Final[dict[str, Any]] = {
    "sizes": SIZES, "results": {"labels": 0, "bits": 12}, "weights": octets(drawn("weights")),
    "most_images": 3, "most_batch": 2, "audited": 0, "arithmetic": octets(b"scales"),
}  # fmt: skip
_CONTRIBUTION: Final = {"contribution": octets(drawn("contribution"))}
BODIES: Final[dict[str, dict[str, Any]]] = {
    "inference-hello": {"roster": octets(drawn("roster"))},
    "inference-terms": {"roster": octets(drawn("roster")), "terms": octets(b"\x80")},
    "agree-terms": {"terms": octets(drawn("terms")), "images": 1 << 20, "batch": 1},
    "masked-weights": {"layer": 5, "chunk": 128},
    "start-pass": {"weights": octets(drawn("weights"))},
    "audit-commitment": {"commitment": octets(drawn("commitment"))},
    "audit-coin": _CONTRIBUTION,
    "audit-keys": {},
    "pass-started": {"weights": octets(drawn("weights"))},
    "opening": {"step": 27, "chunk": 2**31},
    "close-inference": {},
    "inference-closed": {},
    "dealer-hello": {
        "roster": octets(drawn("roster")), "peer": "model-owner", "terms": octets(drawn("terms")), **_CONTRIBUTION
    },
    "dealer-welcome": _CONTRIBUTION,
    "order-randomness": {"first": 2**63 - 1, "count": 1 << 20, "requests": octets(b"\x90")},
    "randomness": {"number": 2**32, "chunk": 0},
    "dealing-over": {},
    "abort": {"code": 9, "detail": "ein anderes Modell", "culprit": "model-owner"},
}  # fmt: skip
"""A body of every type."""


vectors = vectors_of("private inference")


def _written(script: Script, kind: str, **changes: Any) -> list[bytes]:
    inputs: dict[str, Any] = {"session": SESSION, "round": 1, "sender": "owner", "sequence": 5}
    payload = PAYLOAD if INFERENCE_MESSAGES[kind].PAYLOAD else None
    inputs |= {"type": kind, "body": BODIES[kind], "payload": payload}
    return [bytes.fromhex(frame) for frame in script.do("write message", **inputs | changes)]


@cache
def _frames(kind: str) -> tuple[bytes, ...]:
    return tuple(_written(Script("private inference", ""), kind))


@vectors("A message of every type of private inference, written and read.")
def inference_messages(script: Script) -> None:
    for kind in INFERENCE_MESSAGES:
        frames = _written(script, kind)
        if kind in (
            "agree-terms",
            "close-inference",
            "opening",
            "dealer-hello",
            "order-randomness",
            "randomness",
            "abort",
        ):
            script.do("read message", frames=frames)
    script.do("read message", frames=_written(script, "opening", payload=None))


@vectors("A field that the message does not have.")
def inference_message_bad_field(script: Script) -> None:
    for kind in ("close-inference", "opening", "dealer-hello", "abort"):
        envelope, body, *rest = _frames(kind)
        fields = msgpack.unpackb(body)
        script.refuse("MALFORMED", "read message", frames=[envelope, msgpack.packb(fields | {"more": 0}), *rest])


@vectors("A raw frame behind a message that has none; and a third one behind a message that has one.")
def inference_message_bad_frames(script: Script) -> None:
    for kind in ("start-pass", "order-randomness", "dealing-over", "abort"):
        script.refuse("MALFORMED", "read message", frames=[*_frames(kind), b""])
    script.refuse("MALFORMED", "read message", frames=[*_frames("opening"), b""])
    script.refuse("MALFORMED", "read message", frames=_frames("opening")[:1])


@vectors("Another version than that of private inference, that of a federation among them.")
def inference_message_bad_version(script: Script) -> None:
    envelope, body = _frames("close-inference")
    for version in (0, 1, FEDERATION_VERSION, INFERENCE_VERSION + 1, 255):
        changed = msgpack.packb(msgpack.unpackb(envelope) | {"version": version})
        script.refuse("VERSION", "read message", frames=[changed, body])
    for other in (256, -1, "1", None):
        changed = msgpack.packb(msgpack.unpackb(envelope) | {"version": other})
        script.refuse("MALFORMED", "read message", frames=[changed, body])


@vectors("Numbers and byte strings beyond their bounds.")
def inference_message_bad_value(script: Script) -> None:
    beyond: tuple[tuple[str, dict[str, Any]], ...] = (
        ("inference-hello", {"roster": bytes(31)}), ("agree-terms", {"terms": bytes(33)}),
        ("agree-terms", {"images": 0}), ("agree-terms", {"batch": MOST_IMAGES + 1}),
        ("masked-weights", {"layer": 2**31 + 1}), ("opening", {"step": "1"}),
        ("dealer-hello", {"peer": "p" * 65}), ("dealer-hello", {"contribution": bytes(31)}),
        ("order-randomness", {"first": 2**63}), ("order-randomness", {"count": 0}),
        ("order-randomness", {"count": 2**20 + 1}), ("randomness", {"number": 2**63}),
    )  # fmt: skip
    for kind, changes in beyond:
        envelope, body, *rest = _frames(kind)
        changed = msgpack.packb(msgpack.unpackb(body) | changes)
        script.refuse("MALFORMED", "read message", frames=[envelope, changed, *rest])


@vectors("Messages of a federation on a link of private inference.")
def inference_message_bad_family(script: Script) -> None:
    envelope, body = _frames("close-inference")
    for kind in ("hello", "finish", "fetch", "Opening", ""):
        changed = msgpack.packb(msgpack.unpackb(envelope) | {"type": kind})
        script.refuse("MALFORMED", "read message", frames=[changed, body])


def terms_with(**changes: Any) -> dict[str, Any]:
    sizes = {name: changes.pop(name, size) for name, size in SIZES.items()}
    return TERMS | {"sizes": sizes} | changes


def encoded_terms(**changes: Any) -> bytes:
    written = Script("private inference", "").do("write terms", terms=terms_with(**changes))
    return bytes.fromhex(written["encoding"])


@vectors("Terms, their encoding and their digest; sizes up to the limits.")
def inference_terms(script: Script) -> None:
    for changes in (
        {"side": 128, "patch": 128, "channels": 1, "most_batch": MOST_IMAGES},
        {"side": 31, "patch": 1, "width": 18, "heads": 18, "most_images": MOST_IMAGES, "audited": 2**15},
        {"width": 4096, "heads": 8, "hidden": 16384, "blocks": 5, "classes": 8192, "arithmetic": octets(b""),
         "forms": [*FORMS, *FORMS, {"squarings": 5, "hidden_bits": 24}]},
        {"prefix": 0, "norm_pre": True, "pooling": "mean of normalised"},
    ):  # fmt: skip
        written = script.do("write terms", terms=terms_with(**changes))
        script.do("read terms", encoding=written["encoding"])


_NO_FORMS: Final[tuple[Any, ...]] = (
    {"squarings": 6, "hidden_bits": 16}, {"squarings": -1, "hidden_bits": 16}, {"squarings": 1, "hidden_bits": 15},
    {"squarings": 1, "hidden_bits": 25}, {"squarings": True, "hidden_bits": 16}, {"squarings": 1},
    {"hidden_bits": 16, "squarings": 1}, {"squarings": 1, "hidden_bits": 16, "more": 0}, None,
)  # fmt: skip


@vectors("Terms whose sizes do not fit together or are too large, or that are not in canonical form.")
def inference_terms_bad_sizes(script: Script) -> None:
    honest = msgpack.unpackb(encoded_terms())
    for changes in (
        {"patch": 4}, {"heads": 3}, {"side": 129, "patch": 129, "channels": 1}, {"side": 32, "patch": 1},
        {"side": 31, "patch": 1, "width": 19, "heads": 19}, {"side": 0}, {"channels": 257}, {"blocks": 257},
        {"width": 4096, "heads": 8, "hidden": 16384, "blocks": 6}, {"forms": None},
        {"forms": FORMS[:1]}, {"forms": [*FORMS, FORMS[0]]}, *({"forms": [FORMS[0], form]} for form in _NO_FORMS),
        {"prefix": 0, "side": 3}, {"prefix": 1025}, {"norm_pre": 1}, {"pooling": "max"}, {"whole": 1},
    ):  # fmt: skip
        changed = honest | {"sizes": honest["sizes"] | changes}
        script.refuse("MALFORMED", "read terms", encoding=msgpack.packb(changed))
    for fields in (
        {"input": "known"},
        {"input": "shared"},
        {"results": {"labels": 0, "bits": 0}},
        {"results": {"labels": 1, "bits": 1}},
        {"results": {"labels": 0, "bits": 17}},
        {"weights": bytes(31)},
        {"most_images": 0},
        {"most_batch": 2**20 + 1},
        {"audited": 2**15 + 1},
        {"more": 1},
    ):
        script.refuse("MALFORMED", "read terms", encoding=msgpack.packb(honest | fields))
    script.refuse("MALFORMED", "read terms", encoding=msgpack.packb(dict([*honest.items()][::-1])))
    script.refuse("MALFORMED", "read terms", encoding=msgpack.packb(honest) + b"\0")


@vectors("Commitments to weights: over a salt, and the words and the bias of every layer.")
def inference_commitment(script: Script) -> None:
    layers = [{"words": [1, -2, 3, 2**25, -(2**25), 0], "bias": [2**60, -1, 7]}, {"words": [5], "bias": []}]
    for salt in ("salt", "another salt"):
        script.do("commit to weights", salt=drawn(salt), layers=layers)
    # The parts are framed: what ends one and begins the next matters.
    script.do("commit to weights", salt=drawn("salt"), layers=[layers[0], {"words": [], "bias": [5]}])
    script.do("commit to weights", salt=drawn("salt"), layers=layers[::-1])


@vectors("Keys of streams of material, of both owners.")
def inference_material_keys(script: Script) -> None:
    given = {"session": SESSION, "terms": drawn("terms"), "owner": "data-owner"}
    given |= {"owner_contribution": drawn("own"), "dealer_contribution": drawn("dealer's")}
    for changes in ({}, {"owner": "model-owner"}, {"session": drawn("other session")}, {"terms": drawn("other terms")}):
        script.do("derive material key", **given | changes)
    script.do(
        "derive material key",
        **given | {"owner_contribution": drawn("dealer's"), "dealer_contribution": drawn("own")},
    )


@vectors("Layers, and rounds of passes: several sizes, and a last pass that has the rest.")
def inference_schedule(script: Script) -> None:
    one = dict.fromkeys(SIZES, 1) | PLAIN
    others: tuple[dict[str, Any], ...] = (
        {"prefix": 5, "norm_pre": True},
        {"whole": True},
        *({"prefix": 2, "pooling": pooling} for pooling in ("two tokens", "mean", "mean of normalised", "attention")),
    )
    for sizes in (SIZES, VIT_SMALL | {"blocks": 1}, one, *(SIZES | other for other in others)):
        script.do("layers", sizes=sizes)
    passes: tuple[tuple[dict[str, Any], int, int, int], ...] = (
        (SIZES, 3, 2, 1),
        (SIZES, 3, 2, 2),
        (VIT_SMALL | {"blocks": 1}, 16, 16, 1),
        (SIZES | {"forms": FORMS}, 2, 2, 1),
        (SIZES | {"forms": [{"squarings": 5, "hidden_bits": 24}, {"squarings": 1, "hidden_bits": 17}]}, 1, 1, 1),
        *((SIZES | other, 2, 2, 1) for other in others),
    )
    for sizes, images, batch, number in passes:
        script.do("schedule", sizes=sizes, images=images, batch=batch, number=number)


KEYS: Final = (drawn("key of the model owner"), drawn("key of the data owner"))
WEIGHT: Final = {"type": "Weight", "owner": 0, "shape": [2, 3]}
FIXED: Final = {"type": "Fixed", "owner": 0, "rows": [2, 1], "weight": 0, "weight_shape": [2, 3], "words": 64}
NARROW: Final = {"type": "Narrow", "shape": [2, 2], "bits": 16, "degree": 2, "factor": [2, 1], "words": 64}
MATRIX: Final = {
    "type": "Matrix", "operation": "matmul", "left": [2, 1, 3], "right": [3, 2], "arguments": [], "words": 40
}  # fmt: skip
PRODUCTS: Final[dict[str, Any]] = {
    "type": "Products",
    "operands": [[2, 1, 2], [2], []],
    "products": [
        {"left": 0, "right": 1, "letters": "abc,c->ba"}, {"left": 1, "right": 1, "letters": "a,a->"},
        {"left": 2, "right": 1, "letters": ",a->a"}, {"left": 0, "right": 1, "letters": "abc,b->ac"},
    ],
    "words": 40,
}  # fmt: skip
SCORES: Final = {"type": "Scores", "shape": [2, 3, 2], "words": 32, "queries": 20, "keys": 12}
WAVES: Final = {
    "type": "Waves", "shape": [3], "harmonics": 3, "precision": 10, "words": 43, "bits": 16
}  # fmt: skip
LOOKUP: Final = {"type": "Lookup", "shape": [2], "domain": 29, "index": 3, "slope": 4, "levels": 5, "words": 32}
REQUESTS: Final[tuple[dict[str, Any], ...]] = (
    WEIGHT,
    FIXED,
    FIXED | {"owner": 0, "words": 40, "rows": []},
    NARROW,
    NARROW | {"shape": [1], "bits": 63, "degree": 3, "factor": None},
    NARROW | {"shape": [], "bits": 21, "degree": 16, "factor": [], "words": 57},
    MATRIX,
    MATRIX | {"words": 64},
    SCORES,
    SCORES | {"shape": [1, 3], "words": 64, "queries": 16, "keys": 64},
    WAVES,
    WAVES | {"shape": [1], "precision": 28, "harmonics": 1},
    LOOKUP,
    LOOKUP | {"shape": [1, 1], "domain": 32, "index": 0, "slope": 0, "levels": 16},
    LOOKUP | {"shape": [], "domain": 5, "index": 5, "slope": 0, "levels": 32},
)
"""One of every kind but Products, and more where there is a choice."""
WIDER: Final[tuple[dict[str, Any], ...]] = (
    WAVES | {"shape": [2], "bits": 20},
    WAVES | {"shape": [], "harmonics": 1, "bits": 24},
    LOOKUP | {"shape": [2], "index": 0, "slope": 0, "levels": 7, "words": 64},
)
"""Check waves, and thresholds with words of 64 bits."""


@vectors("What owners draw for requests of every kind, and what the dealer corrects.")
def inference_material(script: Script) -> None:
    for requests in (REQUESTS, WIDER, (PRODUCTS,)):
        encoding = script.do("write requests", requests=requests)
        for rank, key in enumerate(KEYS):
            script.do("draw material", key=key, number=0, requests=encoding, rank=rank)
        script.do("correct material", keys=KEYS, requests=encoding)
    narrow = script.do("write requests", requests=[NARROW])
    script.do("draw material", key=KEYS[1], number=2**64 - 1, requests=narrow, rank=1)


@vectors("Keys of trees, and what both owners compute from them at all places.")
def inference_trees(script: Script) -> None:
    for lookup, places in (
        (LOOKUP, [*range(32)]),
        (LOOKUP | {"shape": [2, 1], "domain": 12, "index": 1, "slope": 9, "levels": 1}, [0, 1]),
        (LOOKUP | {"shape": [2], "index": 0, "levels": 4, "words": 64}, [*range(16)]),
        (
            LOOKUP | {"shape": [1], "index": 0, "levels": 32, "words": 45},
            [0, 1, 2**31 - 1, 2**31, 2**32 - 2, 2**32 - 1],
        ),
    ):
        encoding = script.do("write requests", requests=[lookup])
        (dealt,) = script.do("correct material", keys=KEYS, requests=encoding)
        for rank, key in enumerate(KEYS):
            given = {"requests": encoding, "rank": rank, "correction": dealt["words"], "places": places}
            script.do("evaluate trees", key=key, number=0, **given)


@vectors("The table of cosines and its digest, factors of sums of waves, tables and steps of inverses.")
def inference_waves(script: Script) -> None:
    ends = (0, 1, 2, 16383, 16384, 16385, 32767, 32768, 32769, 49151, 49152, 49153, 65534, 65535)
    script.do("cosines", places=[*ends, *range(3, 65536, 4099)])
    for wave in (
        {"constant": -7, "cosines": [1 << 20, -3], "sines": [5, 77777], "precision": 12, "words": 17},
        {"constant": 1 << 32, "cosines": [1 << 32], "sines": [-(1 << 32)], "precision": 1, "words": 28},
    ):
        script.do("wave factors", wave=wave, places=[*ends, 8192, 24576, 40960])
    for inverse, index, slope in (
        ({"function": "inverse", "unit": 0.75, "offset": 0.0, "scale": 65536.0, "steps": None, "divisor": 1.0}, 4, 4),
        ({"function": "inverse", "unit": 2.0**-9, "offset": 0.0625, "scale": 3e9, "steps": 7, "divisor": 8.0}, 3, 2),
        ({"function": "inverse root", "unit": 1e-3, "offset": 1e-6, "scale": 2.0**40, "steps": None, "divisor": 1.0},
         5, 0),
        ({"function": "inverse root", "unit": 1e-2, "offset": 0.1, "scale": 2.0**40, "steps": 5, "divisor": 0.3}, 3, 1),
        ({"function": "inverse", "unit": 2.0**-100, "offset": 0.0, "scale": 1.0, "steps": None, "divisor": 1.0}, 1, 0),
    ):  # fmt: skip
        script.do("inverse table", inverse=inverse, index=index, slope=slope)
    for low, high, scale in (
        (0, 100, 2.0**20),
        (16, 2**32, 3e15),
        (2**31, 2**32 - 1, 2.0**100),
        (7, 9, 2.0**-100),
        (5, 6, 1.0),
        (9, 3, 1.0),
    ):
        script.do("inverse steps", low=low, high=high, scale=scale)


@vectors("Public numbers beyond their bounds.")
def inference_waves_bad_number(script: Script) -> None:
    wave: dict[str, Any] = {"constant": 0, "cosines": [1, 2], "sines": [3, 4], "precision": 12, "words": 17}
    beyond: tuple[dict[str, Any], ...] = (
        {"sines": [3]}, {"cosines": [], "sines": []}, {"cosines": [0] * 65, "sines": [0] * 65}, {"precision": 0},
        {"precision": 29}, {"words": 0}, {"words": 29}, {"constant": (1 << 32) + 1}, {"sines": [0, -(1 << 32) - 1]},
        {"more": 0},
    )  # fmt: skip
    for changes in beyond:
        script.refuse(INVALID, "wave factors", wave=wave | changes, places=[0])
    inverse: dict[str, Any] = {
        "function": "inverse",
        "unit": 1.0,
        "offset": 0.0,
        "scale": 1.0,
        "steps": None,
        "divisor": 1.0,
    }
    beyond = (
        {"function": "root"}, {"unit": 0.0}, {"unit": 2.0**101}, {"offset": -1.0}, {"scale": -1.0}, {"steps": 0},
        {"steps": 17}, {"divisor": 0.0}, {"more": 0},
    )  # fmt: skip
    for changes in beyond:
        script.refuse(INVALID, "inverse table", inverse=inverse | changes, index=4, slope=0)
    for index, slope in ((0, 0), (15, 0), (4, 17)):
        script.refuse(INVALID, "inverse table", inverse=inverse, index=index, slope=slope)
    steps: dict[str, Any] = {"low": 1, "high": 9, "scale": 1.0}
    for changes in ({"low": -1}, {"high": 2**32 + 1}, {"scale": 0.0}, {"scale": 2.0**101}):
        script.refuse(INVALID, "inverse steps", **steps | changes)


def _no_products() -> Iterator[dict[str, Any]]:
    one = {"left": 0, "right": 1}
    for letters in ("ab,bc", "ab,bc->aC", "ab,bc->a", "ba,ca->bc", "a,bc->abc"):
        yield {"operands": [[2, 3], [3, 2]], "products": [one | {"letters": letters}]}
    yield {"products": [one | {"left": 3, "letters": "abc,c->ba"}]}
    yield {"operands": [[1 << 14], [1 << 14]], "products": [one | {"letters": "a,b->ab"}]}


@vectors("Requests that no dealer meets.")
def inference_material_bad_request(script: Script) -> None:
    for changed in (
        NARROW | {"bits": 1}, NARROW | {"bits": 65}, NARROW | {"degree": 17}, NARROW | {"shape": [1 << 28]},
        NARROW | {"words": 1}, NARROW | {"words": 16}, NARROW | {"bits": 64}, NARROW | {"words": 65},
        NARROW | {"factor": [3, 1]}, NARROW | {"factor": [1, 2, 2]},
        NARROW | {"factor": [2, 0]}, WEIGHT | {"owner": 2}, WEIGHT | {"shape": [6]}, FIXED | {"words": 1},
        MATRIX | {"operation": "mul", "left": [2, 2], "right": [2, 2]}, MATRIX | {"arguments": [["groups", 1]]},
        MATRIX | {"left": [3]}, MATRIX | {"left": [2, 1, 3], "right": [3, 3, 2]}, MATRIX | {"words": 65},
        MATRIX | {"words": 40.0}, SCORES | {"shape": [4]}, SCORES | {"words": 1}, SCORES | {"queries": 0},
        SCORES | {"keys": 65}, SCORES | {"shape": [1 << 14, 1 << 14]}, WAVES | {"harmonics": 0},
        WAVES | {"harmonics": 65}, WAVES | {"precision": 0}, WAVES | {"precision": 29}, WAVES | {"words": 65},
        WAVES | {"bits": 15}, WAVES | {"bits": 25},
        LOOKUP | {"words": 31}, LOOKUP | {"words": 65},
        LOOKUP | {"domain": 0}, LOOKUP | {"domain": 33}, LOOKUP | {"domain": 6}, LOOKUP | {"index": 15},
        LOOKUP | {"slope": 17}, LOOKUP | {"levels": 0}, LOOKUP | {"levels": 33}, LOOKUP | {"shape": [1 << 23]},
        *(PRODUCTS | changes for changes in _no_products()),
        LOOKUP | {"more": 1},
        dict(reversed(NARROW.items())), dict(reversed(LOOKUP.items())),
        {"type": "Table", "shape": [1]}, {"type": "Bit", "shape": [1]},
        {"type": "Shuffle", "owner": 0, "shape": [1], "words": 40}, {},
    ):  # fmt: skip
        script.refuse(INVALID, "read requests", encoding=msgpack.packb([changed]))
    linear = FIXED | {"weight": 1}
    for orders in ([linear], [WEIGHT, linear], [WEIGHT | {"shape": [3, 2]}, FIXED], [WEIGHT, FIXED | {"owner": 1}]):
        encoding = script.do("write requests", requests=orders)
        script.refuse(INVALID, "correct material", keys=KEYS, requests=encoding)
