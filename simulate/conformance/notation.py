"""How vectors write values in JSON.

Byte strings are lower-case hex. A long one would only make a file long, so as an input it may be named by a rule,
`shake256(SEED, LENGTH)` with the seed in hex, and as a result of more than LONGEST bytes it is named by its hash,
`sha256(HASH)`. Structures are objects, sets and tuples are lists, and codes
are their names.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from tacit.protocol.core.errors import Code

LONGEST: Final = 4096
"""Bytes of the longest result that is written out."""
MOST_OCTETS: Final = 1 << 24
"""Bytes of the longest input that a rule may name."""
PATTERN: Final = r"^(([0-9a-f]{2})*|shake256\(([0-9a-f]{2})*,[0-9]{1,8}\)|sha256\([0-9a-f]{64}\))$"

_HEX: Final = re.compile(r"([0-9a-f]{2})*")
_SHAKE: Final = re.compile(r"shake256\(((?:[0-9a-f]{2})*),([0-9]{1,8})\)")


class VectorError(ValueError):
    """A vector that nobody can replay: it is not in this notation, or speaks of what is not there."""


class _PlainBytes(type):
    def __instancecheck__(cls, value: object) -> bool:
        return isinstance(value, bytes)


class Octets(bytes, metaclass=_PlainBytes):
    """The annotation of a byte string in the inputs of vectors: it is written as above, and read as plain bytes."""


def octets(text: str) -> bytes:
    """The byte string that a text stands for; VectorError where it stands for none."""
    if rule := _SHAKE.fullmatch(text):
        if int(rule[2]) > MOST_OCTETS:
            raise VectorError(f"{text}: at most {MOST_OCTETS} bytes")
        return hashlib.shake_256(bytes.fromhex(rule[1])).digest(int(rule[2]))
    if not _HEX.fullmatch(text):
        raise VectorError(f"{text[:80]!r} is neither lower-case hex nor shake256(SEED,LENGTH)")
    return bytes.fromhex(text)


def plain(value: Any, *, longest: int = LONGEST) -> Any:
    """A result, or an input, as JSON has it. TypeError for what has no place in a vector.

    longest: bytes of the longest byte string that is written out.
    """
    if isinstance(value, bytes | bytearray | memoryview):
        long = len(value) > longest
        return f"sha256({hashlib.sha256(value).hexdigest()})" if long else bytes(value).hex()
    if isinstance(value, msgspec.Struct):
        return plain(msgspec.structs.asdict(value), longest=longest)
    if isinstance(value, Mapping):
        return {key: plain(part, longest=longest) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [plain(part, longest=longest) for part in value]
    if isinstance(value, Code):
        return value.name
    if value is None or type(value) in (bool, int, float, str):
        return value
    raise TypeError(f"{type(value).__name__} has no place in a vector")


def to_hex(value: Any) -> Any:
    """The value, of plain types, with every byte string as {"hex": ...}: for values that have text as well."""
    if isinstance(value, bytes | bytearray | memoryview):
        return {"hex": bytes(value).hex()}
    if isinstance(value, Mapping):
        return {key: to_hex(part) for key, part in value.items()}
    return [to_hex(part) for part in value] if isinstance(value, list | tuple) else value


def from_hex(value: Any) -> Any:
    """The inverse of `to_hex`."""
    if isinstance(value, Mapping):
        return octets(value["hex"]) if value.keys() == {"hex"} else {key: from_hex(part) for key, part in value.items()}
    return [from_hex(part) for part in value] if isinstance(value, list) else value


def octets_hook(kind: type[Any], value: Any) -> Any:
    """Lets msgspec read what is annotated as Octets."""
    if kind is Octets and isinstance(value, str):
        return octets(value)
    raise VectorError(f"expected {kind.__name__}, got {value!r}")
