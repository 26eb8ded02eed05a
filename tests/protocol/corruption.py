"""Every single change of a message, and what those of its envelope and frames lead to."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import msgpack

from tacit.protocol.core.errors import Code
from tacit.simulate.world.world import Parcel

Codes = dict[tuple[str, str], set[Code | None]]
COMMON: Codes = {
    ("envelope", "version"): {Code.VERSION},
    ("envelope", "type"): {Code.MALFORMED, Code.UNEXPECTED, Code.SESSION},
    ("envelope", "session"): {Code.SESSION},
    ("envelope", "round"): {Code.SESSION},
    ("envelope", "sender"): {Code.SENDER},
    ("envelope", "sequence"): {Code.SEQUENCE},
    ("envelope", "link"): {Code.SEQUENCE},
    ("envelope", "received"): {Code.SEQUENCE},
    ("envelope", "unknown"): {Code.MALFORMED},
    ("body", "unknown"): {Code.MALFORMED},
    ("payload", "length"): {Code.VECTOR},
    ("payload", "absence"): {Code.VECTOR},
    ("payload", "content"): {None},
}


def changed(value: Any) -> Any:
    """Another value of the same type."""
    match value:
        case bool() | None:
            raise ValueError(f"no other value of {value!r}")
        case int():
            return value + 1
        case bytes():
            return value[:-1] + bytes([value[-1] ^ 1]) if value else b"\0"
        case dict():
            return {name: changed(each) for name, each in value.items()}
        case list():
            return [each + 1 if isinstance(each, int) else each for each in value[::-1]] if value else ["x"]
        case str():
            return value[:-1] + ("x" if value[-1:] != "x" else "y")
    raise ValueError(f"no other value of {value!r}")


def corruptions(parcel: Parcel, types: Mapping[str, str]) -> list[tuple[str, str, Parcel]]:
    """Part, field, and the changed message. types: what a type is changed into, "opening" by default."""
    found = []
    for place, part in enumerate(("envelope", "body")):
        plain = msgpack.unpackb(parcel.frames[place])
        for name, value in [*plain.items(), ("unknown", 0)]:
            other = types.get(value, "opening") if name == "type" else changed(value)
            frames = list(parcel.frames)
            frames[place] = msgpack.packb(plain | {name: other}, use_bin_type=True)
            found.append((part, name, replace(parcel, frames=tuple(frames))))
    if len(parcel.frames) == 3:
        payload = bytes(parcel.frames[2])
        for name, rest in (("content", (changed(payload),)), ("length", (payload + b"\0",)), ("absence", ())):
            found.append(("payload", name, replace(parcel, frames=(*parcel.frames[:2], *rest))))
    return found
