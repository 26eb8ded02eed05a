"""Mutations of frames, and the budget: small and the same every time in the suite, large and random in `make fuzz`."""

from collections import Counter
from collections.abc import Callable, Sequence
from random import Random
from typing import Any

import msgpack
import pytest
from hypothesis import settings

from tacit.protocol.core.codec import Frame

PARTS = {"fuzz": 1, "minute": 15}
"""What part of its many examples a test is given under a profile of hypothesis."""

for profile in PARTS:
    settings.register_profile(profile, deadline=None, database=None, print_blob=True)

Frames = Sequence[Frame]
Mutate = Callable[[Random, Frames, Sequence[Frames]], list[Frame]]

HEADERS = [
    bytes.fromhex(text) for text in ("ddffffffff", "dfffffffff", "c6ffffffff", "dbffffffff", "c9ffffffff05", "c1")
]
"""Arrays, maps, bytes, strings and extensions said to have 2**32 - 1 parts, and the byte that means nothing."""

LARGEST = 2**64 - 1
"""The largest integer that MessagePack has."""

ODD_VALUES: list[Any] = [
    None, True, -1, 0, 2**31 + 1, 2**63, 2**64 - 1, 0.5, float("nan"), float("inf"), "", "\0", "x" * 400, b"",
    bytes(31), bytes(33), bytes(5000), [], [[]], {}, {"": {}}, msgpack.ExtType(5, b""), msgpack.Timestamp(1),
]  # fmt: skip


def change_fields(random: Random, data: bytes) -> bytes:
    """A map with one field of another type or value, removed, added, renamed, or in another place."""
    try:
        fields = list(msgpack.unpackb(data, strict_map_key=False).items())
    except (ValueError, TypeError, AttributeError, msgpack.UnpackException):
        return data
    place = random.randrange(len(fields) + 1)
    name, value = fields.pop(place) if place < len(fields) else ("other", 0)
    match random.randrange(6):
        case 0:
            fields.insert(place, (name, random.choice(ODD_VALUES)))
        case 1 if isinstance(value, bytes) and value:
            at = random.randrange(len(value))
            fields.insert(place, (name, value[:at] + bytes([value[at] ^ 1 << random.randrange(8)]) + value[at + 1 :]))
        case 2 if isinstance(value, int):
            fields.insert(place, (name, min(value + random.choice((-1, 1, 255)), LARGEST)))
        case 3:
            fields.insert(place, (f"{name}s", value))
        case 4:
            fields.append((name, value))
    packed: bytes = msgpack.packb(dict(fields))
    return packed


def change_bytes(random: Random, data: bytes, other: bytes) -> bytes:
    """The bytes with one place changed; `other` is a frame of another message."""
    start = random.randrange(len(data) + 1)
    stop = random.randint(start, min(len(data), start + 40))
    match random.randrange(7):
        case 0 if data:
            at = random.randrange(len(data))
            return data[:at] + bytes([data[at] ^ 1 << random.randrange(8)]) + data[at + 1 :]
        case 1:
            return data[:start]
        case 2:
            return data[:start] + data[stop:]
        case 3:
            return data[:start] + other[start:]
        case 4:
            return data[:start] + random.choice(HEADERS) + data[stop:]
        case 5:
            return data[:start] + b"\x91" * random.choice((1, 100, 3000)) + data[start:]
    return random.randbytes(random.randrange(200))


def change_frames(random: Random, frames: Frames, others: Sequence[Frames]) -> list[Frame]:
    """A message with one to three mutations; `others` are messages to take parts from."""
    changed = [bytes(frame) for frame in frames]
    for _ in range(random.choice((1, 1, 2, 3))):
        donor = [bytes(frame) for frame in random.choice(others)]
        place = random.randrange(len(changed)) if changed else 0
        match random.randrange(10):
            case 0:
                del changed[place : place + 1]
            case 1:
                changed.insert(place, random.choice(donor))
            case 2:
                changed[place : place + 1] = donor[place : place + 1]
            case 3 | 4 | 5 if changed:
                changed[place] = change_bytes(random, changed[place], random.choice(donor))
            case _ if changed:
                changed[place] = change_fields(random, changed[place])
    return list(changed)


@pytest.fixture(scope="session")
def mutate() -> Mutate:
    return change_frames


@pytest.fixture
def budget(request: pytest.FixtureRequest) -> Callable[[int, int], settings]:
    """budget(few, many): few examples, always the same; in `make fuzz` many, at random, or a part of them."""
    part = PARTS.get(request.config.getoption("--hypothesis-profile"))

    def budget(few: int, many: int) -> settings:
        if part is not None:
            return settings(max_examples=many // part)
        return settings(max_examples=few, derandomize=True, deadline=None)

    return budget


@pytest.fixture
def tell(request: pytest.FixtureRequest) -> Callable[[str, Counter[str], float, int], None]:
    """tell(what, outcomes, seconds, peak bytes) on the screen, when pytest shows it."""

    def tell(what: str, outcomes: Counter[str], seconds: float, peak: int) -> None:
        counts = ", ".join(f"{name} {count:,}" for name, count in outcomes.most_common())
        print(f"\n{what}: {outcomes.total():,} in {seconds:.0f} s, {peak / 1e6:.1f} MB at most; {counts}")

    return tell
