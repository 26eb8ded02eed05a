"""Messages to frames and back (docs/spec/encoding.md).

Decoding takes two steps, because a machine decides from the envelope's type whether the message is legal in its state
before it parses the body. Only canonical encodings are accepted: bytes are decoded strictly, encoded again and
compared. Type and length of a value are checked against its field before it is built, so that no body costs more memory
than a few times its length.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Annotated, Any, Final, TypeVar

import msgspec
from msgspec import Meta, inspect

from tacit.protocol.core.errors import DETAIL_LIMIT, Code, RemoteProtocolError
from tacit.protocol.core.messages import BODY_LIMIT, CHUNK_BYTES, Hash, Index, Kinds, Message, Round
from tacit.secagg.work import WorkKind, work

ENVELOPE_LIMIT: Final = 512
Frame = bytes | memoryview
Reader = Callable[[type, Any], Any]
T = TypeVar("T")


class Envelope(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Sender, type, session and round of a message, and its number."""

    version: Annotated[int, Meta(ge=0, le=255)]
    type: Annotated[str, Meta(max_length=32)]
    session: Hash
    """Drawn by the server at its start; all zero in a client's Hello."""
    round: Round
    """0 outside a round."""
    sender: Annotated[str, Meta(max_length=64)]
    sequence: Index
    """Counts the sender's messages to this receiver, from 0 with every Hello."""
    link: Index = 0
    """Number of the link that it was sent on: rises with every Resume."""
    received: Index = 0
    """Number of the receiver's messages that the sender has received."""


@dataclass(slots=True)
class Packet:
    """A received message whose envelope is decoded and whose body is not."""

    envelope: Envelope
    body: Frame = field(repr=False)
    payload: Frame | None = field(repr=False)
    kind: type[Message] = field(repr=False)
    size: int = 0
    """Bytes of all its frames."""
    _message: Message | None = field(default=None, init=False, repr=False)

    @work(WorkKind.SERIALISATION)
    def parse(self) -> Message:
        """Parse the body as a message, once; refuses all but its canonical encoding."""
        if self._message is None:
            self._message = decode_structure(self.body, self.kind, limit=BODY_LIMIT)
        return self._message


def encode_structure(value: msgspec.Struct) -> bytes:
    """The canonical encoding: a msgpack map in the order of the fields, integers and lengths in their shortest form."""
    if _holds_floats(type(value)):
        _refuse_non_finite(value)
    return msgspec.msgpack.encode(value)


def decode_structure(data: Frame, kind: type[T], *, limit: int, read: Reader | None = None) -> T:
    """The structure whose canonical encoding is `data`; refuses all other bytes with Code.MALFORMED.

    read: makes the values of types that msgspec does not know, from msgpack's."""
    structure: Any = kind
    decoder, longest = _decoder(structure, read)
    if len(data) > limit or len(data) > longest:
        most = min(limit, longest)
        raise RemoteProtocolError(Code.MALFORMED, f"{kind.__name__} has {len(data)} bytes; at most {most} are accepted")
    try:
        value: T = decoder.decode(data)
        canonical = encode_structure(value)  # type: ignore[arg-type]
    except (ValueError, TypeError, OverflowError, RecursionError, msgspec.MsgspecError) as error:
        reason = next(iter(str(error)[:DETAIL_LIMIT].splitlines()), type(error).__name__)
        raise RemoteProtocolError(Code.MALFORMED, f"{kind.__name__} is malformed: {reason}") from None
    if canonical != data:
        raise RemoteProtocolError(Code.MALFORMED, f"{kind.__name__} is not in its canonical encoding")
    return value


@cache
def _decoder(kind: Any, read: Reader | None) -> tuple[msgspec.msgpack.Decoder[Any], float]:
    """The decoder of a structure, and the bytes of its longest encoding."""
    return msgspec.msgpack.Decoder(kind, dec_hook=read), longest_encoding(kind)


@cache
def longest_encoding(kind: type[Any]) -> float:
    """No canonical encoding of the structure has more bytes than this; infinite for one with fields of any length."""
    return _longest(inspect.type_info(kind))


def _longest(kind: inspect.Type) -> float:
    match kind:
        case inspect.NoneType() | inspect.BoolType():
            return 1
        case inspect.IntType() | inspect.FloatType() | inspect.EnumType():
            return 9
        case inspect.BytesType(max_length=int(most)):
            return 5 + most
        case inspect.StrType(max_length=int(most)):
            return 5 + 4 * most
        case inspect.LiteralType(values=values):
            return max(5 + len(str(value).encode()) for value in values)
        case inspect.VarTupleType(item_type=item, max_length=int(most)):
            return 5 + most * _longest(item)
        case inspect.UnionType(types=types):
            return max(map(_longest, types))
        case inspect.StructType(fields=fields):
            return 5 + sum(5 + len(field.encode_name.encode()) + _longest(field.type) for field in fields)
    return math.inf


@cache
def _holds_floats(kind: type[Any]) -> bool:
    """Whether floats may be in the structure. Most messages have none, and need no walk."""
    return _floats_in(inspect.type_info(kind))


def _floats_in(kind: inspect.Type) -> bool:
    match kind:
        case inspect.StructType(fields=fields):
            return any(_floats_in(field.type) for field in fields)
        case inspect.VarTupleType(item_type=item):
            return _floats_in(item)
        case inspect.UnionType(types=types):
            return any(map(_floats_in, types))
    none = inspect.NoneType | inspect.BoolType | inspect.IntType | inspect.EnumType
    return not isinstance(kind, none | inspect.BytesType | inspect.StrType | inspect.LiteralType)


def _refuse_non_finite(value: Any) -> None:
    if isinstance(value, int | bytes | str):
        return
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError("a number is not finite")
    if isinstance(value, msgspec.Struct):
        value = [getattr(value, name) for name in value.__struct_fields__]
    elif isinstance(value, dict):
        value = value.values()
    elif not isinstance(value, list | tuple):
        return
    for part in value:
        _refuse_non_finite(part)


@work(WorkKind.SERIALISATION)
def encode(message: Message, envelope: Envelope, payload: Frame | None = None) -> list[Frame]:
    frames: list[Frame] = [encode_structure(envelope), encode_structure(message)]
    return frames if payload is None else [*frames, payload]


@work(WorkKind.SERIALISATION)
def decode(frames: Sequence[Frame], kinds: Kinds) -> Packet:
    """Check the frames and decode the envelope; kinds: the protocol of the link."""
    if not 2 <= len(frames) <= 3:
        raise RemoteProtocolError(Code.MALFORMED, f"a message has 2 or 3 frames, not {len(frames)}")
    try:
        envelope = decode_structure(frames[0], Envelope, limit=ENVELOPE_LIMIT)
    except RemoteProtocolError:
        _check_version(_loose_version(frames[0]), kinds)  # Another version may have another envelope.
        raise
    _check_version(envelope.version, kinds)
    kind = kinds.types.get(envelope.type)
    if kind is None:
        raise RemoteProtocolError(Code.MALFORMED, f"unknown message type {envelope.type!r}")
    payload = frames[2] if len(frames) == 3 else None
    if payload is not None and not kind.PAYLOAD:
        raise RemoteProtocolError(Code.MALFORMED, f"{envelope.type} carries no raw frame")
    if payload is not None and len(payload) > CHUNK_BYTES:
        raise RemoteProtocolError(
            Code.MALFORMED, f"a raw frame of {len(payload)} bytes; at most {CHUNK_BYTES} are accepted"
        )
    return Packet(envelope, frames[1], payload, kind, sum(map(len, frames)))


def _check_version(version: int | None, kinds: Kinds) -> None:
    if version not in (None, kinds.version):
        here = f"{kinds.version} of {kinds.protocol}"
        raise RemoteProtocolError(
            Code.VERSION, f"protocol version {version}, here {here}: install the same release on both sides"
        )


def _loose_version(envelope: Frame) -> int | None:
    """The version in an envelope of any form; None if it has none."""
    try:
        loose = msgspec.msgpack.decode(envelope) if len(envelope) <= ENVELOPE_LIMIT else None
    except (ValueError, TypeError, RecursionError, msgspec.MsgspecError):
        return None
    version = loose.get("version") if isinstance(loose, dict) else None
    return version if type(version) is int and 0 <= version <= 255 else None
