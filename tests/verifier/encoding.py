"""Canonical msgpack, by the type that is expected: docs/spec/encoding.md. Whatever else arrives is MALFORMED.

A type reads its one encoding from a `Reader` and writes it; so a longer form of the same value is never recognised.
"""

import math
import struct
from collections.abc import Callable
from typing import Any

from constants import Refused, require

MALFORMED = "MALFORMED"


class Reader:
    """A byte string that is read from the front."""

    def __init__(self, data: bytes) -> None:
        self.data, self.position = data, 0

    def take(self, count: int) -> bytes:
        require(self.position + count <= len(self.data), MALFORMED)
        self.position += count
        return self.data[self.position - count : self.position]

    def number(self, size: int) -> int:
        return int.from_bytes(self.take(size), "big")

    def length(self, tags: dict[int, int], fixed: int | None = None, fixed_below: int = 0) -> int:
        """A length: in the tag itself from `fixed` on, or in the bytes that the tag announces; the shortest form."""
        tag = self.number(1)
        if fixed is not None and fixed <= tag < fixed + fixed_below:
            return tag - fixed
        require(tag in tags, MALFORMED)
        found = self.number(tags[tag])
        smaller = [size for size in tags.values() if size < tags[tag]]
        require(found >= (256 ** max(smaller) if smaller else fixed_below), MALFORMED)
        return found


def write_length(length: int, tags: dict[int, int], fixed: int | None = None, fixed_below: int = 0) -> bytes:
    if fixed is not None and length < fixed_below:
        return bytes([fixed + length])
    tag, size = next((tag, size) for tag, size in tags.items() if length < 256**size)
    return bytes([tag]) + length.to_bytes(size, "big")


INTEGER = {0xCC: 1, 0xCD: 2, 0xCE: 4, 0xCF: 8}
BINARY = {0xC4: 1, 0xC5: 2, 0xC6: 4}
STRING = {0xD9: 1, 0xDA: 2}
ARRAY = {0xDC: 2, 0xDD: 4}
MAP = {0xDE: 2}


class Integer:
    def __init__(self, low: int, high: int) -> None:
        self.low, self.high = low, high

    def read(self, reader: Reader) -> int:
        found = reader.length(INTEGER, 0x00, 128)
        require(self.low <= found <= self.high, MALFORMED)
        return found

    def write(self, value: int) -> bytes:
        return write_length(value, INTEGER, 0x00, 128)


class Listed(Integer):
    """An integer out of a list, or nil where that is said."""

    def __init__(self, numbers: Any, or_nil: bool = False) -> None:
        super().__init__(0, 255)
        self.numbers, self.or_nil = numbers, or_nil

    def read(self, reader: Reader) -> Any:
        if self.or_nil and reader.data[reader.position : reader.position + 1] == b"\xc0":
            reader.take(1)
            return None
        found = super().read(reader)
        require(found in self.numbers, MALFORMED)
        return found

    def write(self, value: Any) -> bytes:
        return b"\xc0" if value is None else super().write(value)


class Boolean:
    def read(self, reader: Reader) -> bool:
        found = reader.take(1)
        require(found in (b"\xc2", b"\xc3"), MALFORMED)
        return found == b"\xc3"

    def write(self, value: bool) -> bytes:
        return b"\xc3" if value else b"\xc2"


class Real:
    def __init__(self, accepts: Callable[[float], bool]) -> None:
        self.accepts = accepts

    def read(self, reader: Reader) -> float:
        require(reader.take(1) == b"\xcb", MALFORMED)
        (found,) = struct.unpack(">d", reader.take(8))
        require(math.isfinite(found) and self.accepts(found), MALFORMED)
        return float(found)

    def write(self, value: float) -> bytes:
        return b"\xcb" + struct.pack(">d", value)


class Binary:
    def __init__(self, most: int, least: int = 0) -> None:
        self.least, self.most = least, most

    def read(self, reader: Reader) -> bytes:
        length = reader.length(BINARY)
        require(self.least <= length <= self.most, MALFORMED)
        return reader.take(length)

    def write(self, value: bytes) -> bytes:
        return write_length(len(value), BINARY) + value


class Text:
    def __init__(self, most: int, choices: tuple[str, ...] | None = None) -> None:
        self.most, self.choices = most, choices

    def read(self, reader: Reader) -> str:
        encoded = reader.take(reader.length(STRING, 0xA0, 32))
        try:
            found = encoded.decode("utf-8")
        except UnicodeDecodeError:
            raise Refused(MALFORMED) from None
        require(len(found) <= self.most and (self.choices is None or found in self.choices), MALFORMED)
        return found

    def write(self, value: str) -> bytes:
        encoded = value.encode("utf-8")
        return write_length(len(encoded), STRING, 0xA0, 32) + encoded


def choice(*choices: str) -> Text:
    return Text(64, choices)


class Array:
    def __init__(self, most: int, item: Any) -> None:
        self.most, self.item = most, item

    def read(self, reader: Reader) -> list[Any]:
        length = reader.length(ARRAY, 0x90, 16)
        require(length <= self.most, MALFORMED)
        return [self.item.read(reader) for _ in range(length)]

    def write(self, value: list[Any]) -> bytes:
        return write_length(len(value), ARRAY, 0x90, 16) + b"".join(self.item.write(item) for item in value)


class Map:
    """All fields, in this order."""

    def __init__(self, **fields: Any) -> None:
        self.fields = fields

    def read(self, reader: Reader) -> dict[str, Any]:
        require(reader.length(MAP, 0x80, 16) == len(self.fields), MALFORMED)
        found = {}
        for name, kind in self.fields.items():
            require(Text(64).read(reader) == name, MALFORMED)
            found[name] = kind.read(reader)
        return found

    def write(self, value: dict[str, Any]) -> bytes:
        encoded = write_length(len(self.fields), MAP, 0x80, 16)
        for name, kind in self.fields.items():
            encoded += Text(64).write(name) + kind.write(value[name])
        return encoded


def decode(kind: Map, data: bytes, limit: int) -> dict[str, Any]:
    require(len(data) <= limit, MALFORMED)
    reader = Reader(data)
    found = kind.read(reader)
    require(reader.position == len(data), MALFORMED)
    return found


def write_members(members: list[int], size: int) -> bytes:
    """The bitmap of a set of members of `size`."""
    bitmap = bytearray((size + 7) // 8)
    for member in members:
        bitmap[member // 8] |= 1 << (member % 8)
    return bytes(bitmap)


def read_members(bitmap: bytes, size: int) -> list[int]:
    require(len(bitmap) == (size + 7) // 8, "MEMBERS")
    members = [member for member in range(8 * len(bitmap)) if bitmap[member // 8] >> (member % 8) & 1]
    require(all(member < size for member in members), "MEMBERS")
    return members
