"""Vectors of the wire messages and of configurations."""

from __future__ import annotations

from typing import Any, Final

import msgpack

from tacit.protocol.core.errors import DETAIL_LIMIT
from tacit.protocol.core.messages import CHUNK_BYTES
from tacit.protocol.session.messages import MESSAGES
from tests.vectors_corpus.primitives import drawn
from tests.vectors_corpus.script import Script, vectors_of

SESSION: Final = drawn("session")
PAYLOAD: Final = bytes(range(40))


def octets(value: bytes) -> dict[str, bytes]:
    return {"hex": value}


BODIES: Final[dict[str, dict[str, Any]]] = {
    "hello": {"roster": octets(drawn("roster"))},
    "welcome": {"roster": octets(drawn("roster")), "configuration": octets(b"\x80"), "spent": octets(bytes(72))},
    "start-round": {
        "cohort": octets(b"\x1f"),
        "model": {"digest": octets(drawn("model")), "size": 1 << 32},
    },
    "fetch-fixed": {"chunk": 1},
    "fetch": {"chunk": 127},
    "chunk": {"chunk": 128},
    "advertise-keys": {
        "channel_key": octets(drawn("channel")),
        "mask_key": octets(drawn("mask")),
        "choices": octets(bytes([1, 0, 3, 0])),
        "spent": octets(drawn("statement", 72)),
        "signature": octets(drawn("signature", 64)),
    },
    "peer-keys": {
        "advertised": octets(b"\x0f"),
        "digest": octets(drawn("digest")),
        "included": octets(b"\x01"),
        "adverts": octets(drawn("adverts", 64)),
    },
    "share-keys": {
        "seed_commitment": octets(drawn("commitment")),
        "holders": octets(b"\x01"),
        "packets": octets(drawn("packets", 224)),
        "signatures": octets(b""),
    },
    "peer-shares": {
        "sharers": octets(b"\x07"),
        "owners": octets(b"\x01"),
        "packets": octets(drawn("packets", 224)),
        "signatures": octets(drawn("signatures", 64)),
    },
    "masked-input": {"complaints": octets(b"\x00"), "signatures": octets(b"")},
    "fetch-vector": {"chunk": 65536},
    "vector-chunk": {"chunk": 2**31},
    "peer-complaints": {"holders": octets(b"\x02"), "signatures": octets(drawn("signatures", 64))},
    "answer-complaints": {"shares": octets(drawn("shares", 72))},
    "survivors": {"survivors": octets(b"\x07")},
    "confirm-survivors": {"signature": octets(drawn("signature", 64))},
    "unmask-request": {
        "survivors": octets(b"\x07"),
        "signers": octets(b"\x04"),
        "signatures": octets(drawn("signatures", 64)),
        "answered": octets(b"\x01"),
        "answers": octets(drawn("shares", 72)),
    },
    "unmask-shares": {"owners": octets(b"\x01"), "shares": octets(drawn("shares", 36))},
    "end-round": {"code": None, "detail": ""},
    "new-roster": {"roster": octets(drawn("roster", 100)), "signature": octets(drawn("signature", 64))},
    "finish": {},
    "resume": {},
    "abort": {"code": 18, "detail": "zu spät", "culprit": "client-3"},
    "start-key": {"epoch": 0, "members": octets(b"\x1f")},
    "end-key": {"epoch": 128, "code": 18, "detail": "zu spät", "culprit": "client-3"},
    "reencrypt-model": {
        "epoch": 3, "source": "key", "former": 2, "model": {"digest": octets(drawn("model")), "size": 1 << 40},
        "round": 0,
    },
    "keyed-model": {"epoch": 3, "model": {"digest": octets(drawn("model")), "size": 0}},
    "key-commit": {
        "epoch": 2,
        "channel_key": octets(drawn("channel")),
        "commitment": octets(drawn("commitment")),
        "signature": octets(drawn("signature", 64)),
    },
    "peer-key-commits": {"commits": octets(drawn("commits", 256))},
    "key-contribution": {"epoch": 2, "packets": octets(drawn("packets", 112))},
    "peer-key-contributions": {"packets": octets(drawn("packets", 224))},
    "confirm-key": {"epoch": 2, "tag": octets(drawn("tag")), "signature": octets(drawn("signature", 64))},
    "peer-key-confirmations": {"confirmations": octets(drawn("confirmations", 192))},
    "key-accepted": {"epoch": 2},
    "key-complaint": {"epoch": 2, "accused": 2, "channel_private": octets(drawn("channel"))},
}  # fmt: skip
"""A body of every type."""


vectors = vectors_of("secure sum")


def _written(script: Script, kind: str, **changes: Any) -> list[bytes]:
    inputs: dict[str, Any] = {"session": SESSION, "round": 1, "sender": "client-1", "sequence": 5}
    payload = PAYLOAD if MESSAGES[kind].PAYLOAD else None
    inputs |= {"type": kind, "body": BODIES[kind], "payload": payload}
    return [bytes.fromhex(frame) for frame in script.do("write message", **inputs | changes)]


def _parts(kind: str) -> tuple[bytes, bytes, list[bytes]]:
    envelope, body, *rest = _written(Script("secure sum", ""), kind)
    return envelope, body, rest


def _items(packed: bytes) -> list[tuple[str, Any]]:
    items: list[tuple[str, Any]] = msgpack.unpackb(packed, object_pairs_hook=list, strict_map_key=False)
    return [(key, _nested(value)) for key, value in items]


def _nested(value: Any) -> Any:
    """A map within a body; a list is one of other values than pairs."""
    pairs = isinstance(value, list) and value and all(isinstance(each, tuple) for each in value)
    return {key: _nested(each) for key, each in value} if pairs else value


def _map(items: list[tuple[Any, Any]]) -> bytes:
    """A msgpack map with these entries in this order, repeated keys and all."""
    packer = msgpack.Packer()
    packed: bytes = packer.pack_map_header(len(items))
    for key, value in items:
        packed += packer.pack(key) + packer.pack(value)
    return packed


def _refuse_bodies(script: Script, kind: str, *bodies: bytes) -> None:
    envelope, _, rest = _parts(kind)
    for body in bodies:
        script.refuse("MALFORMED", "read message", frames=[envelope, body, *rest])


@vectors("A message of every type, written and read.")
def messages(script: Script) -> None:
    for kind in MESSAGES:
        script.do("read message", frames=_written(script, kind))
    script.do("read message", frames=_written(script, "masked-input", payload=None))
    script.do("read message", frames=_written(script, "masked-input", payload=b""))


@vectors("Integers at the borders of the widths that msgpack has for them.")
def messages_integers(script: Script) -> None:
    for number in (0, 127, 128, 255, 256, 65535, 65536, 2**31):
        numbers = dict.fromkeys(("sequence", "link", "received"), number)
        script.do("read message", frames=_written(script, "fetch", body={"chunk": number}, **numbers))


@vectors("Strings and byte strings at the borders of the widths that msgpack has for them.")
def messages_strings(script: Script) -> None:
    for length in (0, 31, 32, 255, 256, DETAIL_LIMIT):
        body = {"code": 3, "detail": "d" * length, "culprit": ""}
        script.do("read message", frames=_written(script, "abort", body=body))
    for length in (0, 255, 256):
        body = {"owners": octets(b""), "shares": octets(bytes(length))}
        script.do("read message", frames=_written(script, "unmask-shares", body=body))


@vectors("A message has two frames or three; a raw frame belongs to some types only and has a limit.")
def message_bad_frames(script: Script) -> None:
    envelope, body, _ = _parts("fetch")
    for frames in ([], [envelope], [envelope, body, b"", b""], [envelope, body, b""], [b"", body], [envelope, b""]):
        script.refuse("MALFORMED", "read message", frames=frames)
    envelope, body, _ = _parts("chunk")
    long = bytes(CHUNK_BYTES + 1)
    script.refuse("MALFORMED", "read message", frames=[envelope, body, long])


@vectors("An integer in a longer form than it needs, or outside its bounds.")
def message_bad_integer(script: Script) -> None:
    prefix = _map([("chunk", 5)])[:-1]
    for integer in ("cc05", "cd0005", "ce00000005", "cf0000000000000005", "d005", "d10005", "ff", "d0ff"):
        _refuse_bodies(script, "fetch", prefix + bytes.fromhex(integer))
    for number in (2**31 + 1, 2**64 - 1, -1):
        _refuse_bodies(script, "fetch", _map([("chunk", number)]))


@vectors("A value of another type than the field has.")
def message_bad_type(script: Script) -> None:
    wrong: tuple[Any, ...] = (True, None, "5", b"5", 5.0, [5], {}, msgpack.ExtType(1, b"5"), msgpack.Timestamp(5))
    for value in wrong:
        _refuse_bodies(script, "fetch", _map([("chunk", value)]))
    for value in (False, None, "x" * 32, 5, list(bytes(32)), msgpack.ExtType(1, bytes(32))):
        items = _items(_parts("hello")[1])
        _refuse_bodies(script, "hello", _map([("roster", value), *items[1:]]))
    for value in (b"detail", 5, None):
        _refuse_bodies(script, "abort", _map([("code", 3), ("detail", value), ("culprit", "")]))


@vectors("A field that the message does not have.")
def message_bad_extra_field(script: Script) -> None:
    for kind in MESSAGES:
        _refuse_bodies(script, kind, _map([*_items(_parts(kind)[1]), ("more", 0)]))


@vectors("A field that is missing.")
def message_bad_missing_field(script: Script) -> None:
    for kind in MESSAGES:
        if items := _items(_parts(kind)[1]):
            _refuse_bodies(script, kind, _map(items[:-1]))


@vectors("A field that comes twice.")
def message_bad_duplicate_key(script: Script) -> None:
    for kind in MESSAGES:
        if items := _items(_parts(kind)[1]):
            _refuse_bodies(script, kind, _map([*items, items[0]]))


@vectors("Fields in another order than their own.")
def message_bad_order(script: Script) -> None:
    for kind in MESSAGES:
        if len(items := _items(_parts(kind)[1])) > 1:
            _refuse_bodies(script, kind, _map(items[::-1]))


@vectors("Bytes behind the body, or a body that stops short.")
def message_bad_trailing_bytes(script: Script) -> None:
    for kind in MESSAGES:
        body = _parts(kind)[1]
        _refuse_bodies(script, kind, body + b"\0", body[:-1])
    _refuse_bodies(script, "finish", b"\x80\x80", b"\x80\xc0", b"")


@vectors("Lengths of maps, strings and byte strings in a longer form than they need.")
def message_bad_width(script: Script) -> None:
    body = _map([("chunk", 5)])
    _refuse_bodies(script, "fetch", b"\xde\0\1" + body[1:], b"\xdf\0\0\0\1" + body[1:])
    _refuse_bodies(script, "fetch", b"\x81\xd9\5" + body[2:], b"\x81\xda\0\5" + body[2:])
    survivors = _map([("survivors", b"\7")])
    start = survivors[: survivors.index(b"\xc4")]
    _refuse_bodies(script, "survivors", start + b"\xc5\0\1\7", start + b"\xc6\0\0\0\1\7", start + b"\xa1\7")


@vectors("Byte strings, strings and lists shorter or longer than their fields allow.")
def message_bad_length(script: Script) -> None:
    for length in (0, 31, 33):
        _refuse_bodies(script, "hello", _map([("roster", bytes(length))]))
    _refuse_bodies(script, "abort", _map([("code", 3), ("detail", "d" * (DETAIL_LIMIT + 1)), ("culprit", "")]))
    _refuse_bodies(script, "abort", _map([("code", 3), ("detail", ""), ("culprit", "c" * 65)]))
    _refuse_bodies(script, "confirm-survivors", _map([("signature", bytes(65))]))
    _refuse_bodies(script, "survivors", _map([("survivors", bytes(1251))]))


@vectors("Text that is not UTF-8.")
def message_bad_text(script: Script) -> None:
    for text in ("ff", "c080", "eda080"):
        raw = bytes.fromhex(text)
        body = b"\x83\xa4code\x03\xa6detail" + bytes([0xA0 + len(raw)]) + raw + b"\xa7culprit\xa0"
        _refuse_bodies(script, "abort", body)


@vectors("Numbers that are no code.")
def message_bad_code(script: Script) -> None:
    for code in (0, 21, 255, -1):
        _refuse_bodies(script, "abort", _map([("code", code), ("detail", ""), ("culprit", "")]))
    _refuse_bodies(script, "abort", _map([("code", None), ("detail", ""), ("culprit", "")]))
    _refuse_bodies(script, "end-round", _map([("code", 0), ("detail", "")]))


def _refuse_envelope(script: Script, code: str, **changes: Any) -> None:
    envelope, body, _ = _parts("fetch")
    items = [(key, changes.get(key, value)) for key, value in _items(envelope)]
    script.refuse(code, "read message", frames=[_map(items), body])


@vectors("Another version of the protocol.")
def envelope_bad_version(script: Script) -> None:
    for version in (0, 1, 127, 255):
        _refuse_envelope(script, "VERSION", version=version)
    for other in (256, -1, "1", None):
        _refuse_envelope(script, "MALFORMED", version=other)


@vectors("Envelopes with an unknown type, or with fields beyond their bounds.")
def envelope_bad_field(script: Script) -> None:
    for changes in (
        {"type": "fetch-models"}, {"type": ""}, {"type": "Fetch-Model"}, {"session": bytes(31)}, {"session": b""},
        {"session": "0" * 32}, {"round": -1}, {"round": 2**31 + 1}, {"sender": "s" * 65}, {"sender": b"client-1"},
        {"sequence": -1}, {"sequence": 2**31 + 1}, {"sequence": 1.0},
    ):  # fmt: skip
        _refuse_envelope(script, "MALFORMED", **changes)
    envelope, body, _ = _parts("fetch")
    items = _items(envelope)
    for others in (items[::-1], [*items, ("more", 0)], [*items, items[0]], items[:-1]):
        script.refuse("MALFORMED", "read message", frames=[_map(others), body])
    script.refuse("MALFORMED", "read message", frames=[envelope + b"\0", body])


NO_FIXED_PART: Final = {"digest": octets(bytes(32)), "size": 0}
CONFIGURATION: Final[dict[str, Any]] = {
    "mode": "active", "graph": "auto", "colluders": 1, "dropout": 0.05, "threshold": 0, "clients": 5, "clip": 1.0,
    "value_bits": 16, "max_weight": 100, "train_seconds": 60.0, "phase_seconds": 5.0, "scheme": "fedavg",
    "min_contributors": 0, "group_key": False, "rekey_every": 0, "encrypted": False, "initial_model": "server",
    "single_vectors": False, "spending": False, "ring_bits": 32, "form": "scalar", "tensor_sizes": [4, 2],
    "metrics": ["correct", "samples"],
    "state": {"type": "float32", "count": 6}, "layout": octets(drawn("layout")), "fixed": NO_FIXED_PART,
    "task": octets(b"opaque"),
}  # fmt: skip
POLICY: Final[dict[str, Any]] = {
    "modes": ["active"], "schemes": ["fedavg"], "least_contributors": 2, "least_corrupt": 0.33, "largest_clip": 1.0,
}  # fmt: skip


def encoded(**changes: Any) -> bytes:
    written = Script("secure sum", "").do("write configuration", configuration=CONFIGURATION | changes)
    return bytes.fromhex(written["encoding"])


@vectors("Configurations, their hashes, and policies that accept them.")
def configuration(script: Script) -> None:
    accepted: tuple[dict[str, Any], ...] = (
        {}, {"mode": "semi-honest", "scheme": "fedsgd", "colluders": 2, "dropout": 0.1 + 0.2}, {"clip": 1e-300},
        {"scheme": "statistics", "max_weight": 1, "tensor_sizes": [], "metrics": ["pixels", "sum-0", "squares-0"],
         "state": {"type": "float32", "count": 0}},
        {"state": {"type": "uint64", "count": 8}},
        {"group_key": True, "rekey_every": 100_000},
        {"mode": "none", "colluders": 0, "form": "tensor", "single_vectors": True},
        {"spending": True},
        {"encrypted": True, "group_key": True, "initial_model": "clients"},
        {"encrypted": True, "group_key": True, "form": "coordinate", "max_weight": 1, "min_contributors": 2},
        {"form": "tensor", "min_contributors": 2},
    )  # fmt: skip
    for changes in accepted:
        written = script.do("write configuration", configuration=CONFIGURATION | changes)
        policy = POLICY | {"modes": ["semi-honest", "active", "none"], "schemes": ["fedavg", "fedsgd", "statistics"]}
        script.do("read configuration", encoding=written["encoding"], policy=policy, clients=5)


@vectors("Configurations below what a client accepts, or whose sums could wrap.")
def configuration_bad_policy(script: Script) -> None:
    below: tuple[dict[str, Any], ...] = (
        {"mode": "semi-honest"}, {"scheme": "fedsgd"}, {"scheme": "statistics"}, {"clip": 1.0000001},
        {"colluders": 0}, {"dropout": 0.6}, {"ring_bits": 18}, {"clients": 10_000, "ring_bits": 24},
        {"tensor_sizes": [], "metrics": []}, {"tensor_sizes": [], "form": "tensor"}, {"metrics": ["a", "a"]},
        {"state": {"type": "float32", "count": 2**40}}, {"mode": "none"}, {"form": "coordinate", "min_contributors": 1},
        {"form": "coordinate"}, {"form": "tensor", "min_contributors": 1},
    )  # fmt: skip
    for changes in below:
        script.refuse("POLICY", "read configuration", encoding=encoded(**changes), policy=POLICY, clients=5)


@vectors("Configurations that are not in canonical form, or have values outside their bounds.")
def configuration_bad_encoding(script: Script) -> None:
    honest = encoded()
    items = _items(honest)

    def with_value(name: str, value: Any) -> bytes:
        return _map([(key, value if key == name else old) for key, old in items])

    for changed in (
        honest[:-1], honest + b"\0", _map(items[::-1]), _map([*items, ("more", 0)]), _map(items[1:]),
        with_value("mode", "passive"), with_value("graph", "star"), with_value("form", "matrix"),
        with_value("dropout", 1.0), with_value("dropout", float("nan")), with_value("clip", float("inf")),
        with_value("clip", 0.0), with_value("clip", 1), with_value("threshold", 10_001), with_value("clients", 0),
        with_value("value_bits", 33), with_value("ring_bits", 7), with_value("tensor_sizes", [0]),
        with_value("state", {"count": 6, "type": "float16"}), with_value("state", {"count": -1, "type": "float32"}),
        with_value("layout", bytes(31)), with_value("phase_seconds", 0.0), with_value("train_seconds", 86_401.0),
        with_value("encrypted", True), with_value("single_vectors", True), with_value("spending", 1),
        with_value("group_key", 1), with_value("group_key", None), with_value("rekey_every", 100_001),
        with_value("initial_model", "key"),
    ):  # fmt: skip
        script.refuse("MALFORMED", "read configuration", encoding=changed, policy=POLICY, clients=5)
