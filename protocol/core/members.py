"""Sets of members as bitmaps over the cohort.

The cohort of a round is a tuple of roster names; inside the round a member is its position there. A set of members is
sent as ceil(n/8) bytes, bit i (least significant first) for member i, unused bits zero. So a set has one encoding, no
duplicates and no foreigners, and of two sets one of which is defined as the rest of the other only one is ever sent:
nobody can be listed as alive and dropped in one message.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator

import numpy as np

from tacit.protocol.core.errors import Code, RemoteProtocolError


def encode_members(members: Iterable[int], size: int) -> bytes:
    """The bitmap, ceil(size/8) bytes, of member positions within 0..size-1 (IndexError outside)."""
    bits = np.zeros(size, np.uint8)
    chosen = np.fromiter(members, np.int64)
    if chosen.size and chosen.min() < 0:
        raise IndexError(f"member {chosen.min()} is negative")
    bits[chosen] = 1
    return np.packbits(bits, bitorder="little").tobytes()


class Members:
    """A set of members as it was sent: for sets that may be the whole cohort, which a client compares but never lists.

    Refuses a bitmap of another length or with bits beyond `size`.
    """

    __slots__ = ("_bits", "_size", "bitmap")

    def __init__(self, bitmap: bytes, size: int) -> None:
        if len(bitmap) != (size + 7) // 8:
            raise RemoteProtocolError(
                Code.MEMBERS, f"a set of {size} members has {(size + 7) // 8} bytes, not {len(bitmap)}"
            )
        self.bitmap = bitmap
        self._bits = int.from_bytes(bitmap, "little")
        self._size = size
        if self._bits >> size:
            raise RemoteProtocolError(
                Code.MEMBERS, f"a set of members has bits beyond the {size} members of the cohort"
            )

    def __contains__(self, member: object) -> bool:
        return isinstance(member, int) and member >= 0 and bool(self._bits >> member & 1)

    def __iter__(self) -> Iterator[int]:
        bits = np.unpackbits(np.frombuffer(self.bitmap, np.uint8), bitorder="little")
        return iter(np.flatnonzero(bits).tolist())

    def __len__(self) -> int:
        return self._bits.bit_count()

    def __le__(self, other: Members) -> bool:
        return not self._bits & ~other._bits

    def cuts(self, group: Members) -> bool:
        """Whether some of the group are in this set, and others are not."""
        return self._bits & group._bits not in (0, group._bits)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Members) and (self.bitmap, self._size) == (other.bitmap, other._size)

    def __hash__(self) -> int:
        return hash((self.bitmap, self._size))


def decode_members(bitmap: bytes, size: int) -> tuple[int, ...]:
    """Positions in rising order. Refuses a bitmap of another length or with bits beyond `size`."""
    return tuple(Members(bitmap, size))


def split_records(records: bytes, size: int, members: Collection[int], code: Code = Code.SHARES) -> dict[int, bytes]:
    """The record of each of these members; refuses any other number of bytes."""
    if len(records) != size * len(members):
        raise RemoteProtocolError(code, f"{len(members)} records have {size * len(members)} bytes, not {len(records)}")
    return {member: records[place * size : (place + 1) * size] for place, member in enumerate(members)}
