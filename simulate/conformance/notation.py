"""Notation of values in the JSON of vectors.

Byte strings are lower-case hex. A long one of zeros is `00*LENGTH`; any other long one in a machine's output is
represented by its hash, `sha256(HASH)`. Structures are objects, sets and tuples are lists, and codes are their names.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from tacit.protocol.core.errors import Code

LONGEST: Final = 4096
"""Bytes of the longest literal byte string."""
MOST_ZEROS: Final = 1 << 24
PATTERN: Final = r"^(([0-9a-f]{2})*|00\*[0-9]{1,8}|sha256\([0-9a-f]{64}\))$"

_HEX: Final = re.compile(r"([0-9a-f]{2})*")
_ZEROS: Final = re.compile(r"00\*([0-9]{1,8})")


class VectorError(ValueError):
    """A vector that cannot be replayed: invalid notation, or a reference to something missing."""


class _PlainBytes(type):
    def __instancecheck__(cls, value: object) -> bool:
        return isinstance(value, bytes)


class Octets(bytes, metaclass=_PlainBytes):
    """Annotation of a byte string in the inputs of vectors: written as above, and read as plain bytes."""


def octets(text: str) -> bytes:
    """Return the byte string behind a text. VectorError for invalid text, and for a hash."""
    if rule := _ZEROS.fullmatch(text):
        if int(rule[1]) > MOST_ZEROS:
            raise VectorError(f"{text}: at most {MOST_ZEROS} bytes")
        return bytes(int(rule[1]))
    if not _HEX.fullmatch(text):
        raise VectorError(f"{text[:80]!r} is neither lower-case hex nor 00*LENGTH")
    return bytes.fromhex(text)


def written(data: bytes | bytearray | memoryview) -> str:
    if len(data) <= LONGEST:
        return bytes(data).hex()
    return f"sha256({hashlib.sha256(data).hexdigest()})" if any(data) else f"00*{len(data)}"


def plain(value: Any) -> Any:
    """Return a result, or an input, in JSON types. TypeError for values that cannot occur in a vector."""
    if isinstance(value, bytes | bytearray | memoryview):
        return written(value)
    if isinstance(value, msgspec.Struct):
        return plain(msgspec.structs.asdict(value))
    if isinstance(value, Mapping):
        return {key: plain(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [plain(part) for part in value]
    if isinstance(value, Code):
        return value.name
    if value is None or type(value) in (bool, int, float, str):
        return value
    raise TypeError(f"{type(value).__name__} has no place in a vector")


def to_hex(value: Any) -> Any:
    """Return a value of plain types with every byte string as {"hex": ...}: for values that also have text."""
    if isinstance(value, bytes | bytearray | memoryview):
        return {"hex": written(value)}
    if isinstance(value, Mapping):
        return {key: to_hex(part) for key, part in value.items()}
    return [to_hex(part) for part in value] if isinstance(value, list | tuple) else value


def from_hex(value: Any) -> Any:
    if isinstance(value, Mapping):
        return octets(value["hex"]) if value.keys() == {"hex"} else {key: from_hex(part) for key, part in value.items()}
    return [from_hex(part) for part in value] if isinstance(value, list) else value


def octets_hook(kind: type[Any], value: Any) -> Any:
    """Let msgspec decode values annotated as Octets."""
    if kind is Octets and isinstance(value, str):
        return octets(value)
    raise VectorError(f"expected {kind.__name__}, got {value!r}")
