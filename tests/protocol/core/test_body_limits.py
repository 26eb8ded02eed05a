"""No body of any message costs more than a few times its own length, whatever is in it; a long one is not looked at."""

import tracemalloc
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from msgspec import inspect

from tacit.protocol.adaptation.messages import ADAPTATION_MESSAGES
from tacit.protocol.core.codec import Packet, encode_structure, longest_encoding
from tacit.protocol.core.errors import Code, RemoteProtocolError
from tacit.protocol.core.messages import BODY_LIMIT, Message
from tacit.protocol.inference.messages import INFERENCE_MESSAGES
from tacit.protocol.session.messages import MESSAGES
from tests.cases import cases

TIMES, ROOM = 8, 64 << 10
KINDS = [*dict.fromkeys([*MESSAGES.values(), *INFERENCE_MESSAGES.values(), *ADAPTATION_MESSAGES.values()])]
WIDE = "\N{GRINNING FACE}".encode()


def text(length: int) -> bytes:
    """A string of so many bytes, of which Python needs four for each: one of its characters is wide."""
    return b"\xdb" + length.to_bytes(4, "big") + WIDE + b"y" * (length - len(WIDE))


FILLERS = {
    "empty maps": lambda size: b"\xdd" + size.to_bytes(4, "big") + b"\x80" * size,
    "nested maps": lambda size: b"\xdd" + (size // 3).to_bytes(4, "big") + b"\x81\x01\x80" * (size // 3),
    "deep maps": lambda size: b"\x81\x01" * (size // 2) + b"\x01",
    "deep arrays": lambda size: b"\x91" * size + b"\x01",
    "small integers": lambda size: b"\xdd" + size.to_bytes(4, "big") + b"\x01" * size,
    "large integers": lambda size: b"\xdd" + (size // 9).to_bytes(4, "big") + (b"\xcf" + b"\xff" * 8) * (size // 9),
    "floats": lambda size: b"\xdd" + (size // 9).to_bytes(4, "big") + (b"\xcb" + bytes(8)) * (size // 9),
    "empty strings": lambda size: b"\xdd" + size.to_bytes(4, "big") + b"\xa0" * size,
    "wide text": text,
    "bytes": lambda size: b"\xc6" + size.to_bytes(4, "big") + bytes(size),
    "extension": lambda size: b"\xc9" + size.to_bytes(4, "big") + b"\x05" + bytes(size),
    "more than there is": lambda size: b"\xdd\xff\xff\xff\xff" + b"\x80" * size,
}  # fmt: skip


def packet(kind: type[Message], body: bytes) -> Packet:
    envelope: Any = type("AnyEnvelope", (), {"type": kind.TYPE})()
    return Packet(envelope, memoryview(body), None, kind)


def parsed(kind: type[Message], body: bytes) -> Message | RemoteProtocolError:
    try:
        return packet(kind, body).parse()
    except RemoteProtocolError as error:
        return error


def cost(kind: type[Message], body: bytes) -> int:
    return min(peak(kind, body) for _ in range(2))  # The first time, tables of the interpreter may grow.


def peak(kind: type[Message], body: bytes) -> int:
    tracemalloc.start()
    try:
        parsed(kind, body)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def fields(kind: type[Message]) -> list[inspect.Field]:
    info: Any = inspect.type_info(kind)
    return list(info.fields)


def key(name: str) -> bytes:
    return bytes([0xA0 + len(name)]) + name.encode()


def encoded_fields(message: Message) -> list[bytes]:
    return [key(name) + msgspec.msgpack.encode(getattr(message, name)) for name in message.__struct_fields__]


def bodies(kind: type[Message], plain: Message, filler: bytes) -> Iterator[bytes]:
    """The filler as the body, in the place of each field, as a key of each, behind the last, and behind the whole."""
    parts = encoded_fields(plain)
    yield filler
    for place, name in enumerate(plain.__struct_fields__):
        header = bytes([0x80 + len(parts)])
        yield header + b"".join([*parts[:place], key(name) + filler, *parts[place + 1 :]])
        yield header + b"".join([*parts[:place], filler + b"\x01", *parts[place + 1 :]])
    yield bytes([0x81 + len(parts)]) + b"".join([*parts, b"\xa5other", filler])
    yield b"".join([bytes([0x80 + len(parts)]), *parts, filler])


def largest(kind: type[Message], plain: Message) -> Message:
    """A message whose byte strings are as long as they may be together."""
    long = [field for field in fields(kind) if isinstance(field.type, inspect.BytesType)]
    each = {field.name: min(field.type.max_length or 0, BODY_LIMIT - 10_000) for field in long}  # type: ignore[union-attr]
    while sum(each.values()) > BODY_LIMIT - 10_000:
        name = max(each, key=lambda one: each[one])
        each[name] = each[name] // 2
    values = {name: getattr(plain, name) for name in plain.__struct_fields__}
    return kind(**(values | {name: bytes(length) for name, length in each.items()}))


@cases("filler", FILLERS)
@cases("kind", KINDS)
def test_no_body_costs_more_than_a_few_times_its_length(kind: type[Message], filler: str, plain_message: Any) -> None:
    plain = plain_message(kind)
    size = int(min(longest_encoding(kind), 1 << 18))
    for body in bodies(kind, plain, FILLERS[filler](max(size - 200, 8))):
        assert cost(kind, body) <= TIMES * len(body) + ROOM


@cases("kind", KINDS)
def test_the_largest_message_costs_no_more(kind: type[Message], plain_message: Any) -> None:
    message = largest(kind, plain_message(kind))
    body = encode_structure(message)
    assert len(body) <= min(longest_encoding(kind), BODY_LIMIT)
    assert parsed(kind, body) == message
    assert cost(kind, body) <= TIMES * len(body) + ROOM


@cases("kind", KINDS)
def test_a_body_longer_than_any_of_its_type_is_not_looked_at(kind: type[Message]) -> None:
    body = b"\x80" * (int(min(longest_encoding(kind), BODY_LIMIT)) + 1)
    refused = parsed(kind, body)
    assert isinstance(refused, RemoteProtocolError)
    assert (refused.code, "bytes; at most" in refused.detail) == (Code.MALFORMED, True)
    assert cost(kind, body) <= ROOM


@settings(max_examples=100, deadline=None)
@given(st.sampled_from(KINDS), st.binary(max_size=4000))
@example(MESSAGES["share-keys"], b"\x84\xafseed_commitment\xdd\x00\x00\xff\xff" + b"\x80" * 60_000)
def test_random_bodies_cost_no_more(kind: type[Message], body: bytes) -> None:
    assert cost(kind, body) <= TIMES * len(body) + ROOM


@pytest.mark.exhaustive
@cases("filler", FILLERS)
@cases("kind", KINDS)
def test_bodies_of_eight_mebibytes(kind: type[Message], filler: str, plain_message: Any) -> None:
    size = int(min(longest_encoding(kind), BODY_LIMIT))
    plain = plain_message(kind)
    for body in bodies(kind, plain, FILLERS[filler](max(size - 200, 8))):
        assert cost(kind, body) <= TIMES * len(body) + ROOM
