"""Common parts of all messages; every protocol declares its own (the messages.py of its folder).

A message is the body of one multipart message; arrays travel in a raw frame behind it (see codec.py), never inside.
Sets of members are bitmaps (roster.py). Records of fixed size that belong to the members of a set are one byte string
in the rising order of the members, so that their number and their owners cannot be stated twice.

A client's messages belong to a phase; a server's message opens the next one.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Annotated, ClassVar, Final

import msgspec
from msgspec import Meta

from tacit.protocol.core.errors import DETAIL_LIMIT, Code

LARGEST_COHORT: Final = 10_000
BODY_LIMIT: Final = 8 << 20
"""Longest body in bytes."""
CHUNK_BYTES: Final = 1 << 20
"""Longest raw frame in bytes. Models and vectors that are longer travel in several chunks."""

Hash = Annotated[bytes, Meta(min_length=32, max_length=32)]
Bitmap = Annotated[bytes, Meta(max_length=(LARGEST_COHORT + 7) // 8)]
Signature = Annotated[bytes, Meta(max_length=64)]
"""Empty in semi-honest mode; its length is checked at verification."""
Records = Annotated[bytes, Meta(max_length=BODY_LIMIT)]
Index = Annotated[int, Meta(ge=0, le=2**31)]
Round = Annotated[int, Meta(ge=0, le=2**31)]
Size = Annotated[int, Meta(ge=0, le=2**40)]


SESSION: Final = "SESSION"
"""Phase of messages outside of rounds. Each protocol declares the phases of its rounds."""
TRAIN: Final = "TRAIN"
"""Phase of a client's own work in a round, and of its downloads."""


class Message(msgspec.Struct, frozen=True, kw_only=True):
    """Base of all messages. Decoding skips an unknown field, and then refuses the body as not canonical.

    TYPE is the name on the wire: that of the class, in lower case with hyphens. PHASE is the phase to which its traffic
    is counted (TRAIN outside of rounds as SESSION); PAYLOAD says whether a raw frame may follow the body."""

    TYPE: ClassVar[str]
    PHASE: ClassVar[str] = SESSION
    PAYLOAD: ClassVar[bool] = False

    def __init_subclass__(cls) -> None:
        cls.TYPE = re.sub(r"(?<=[a-z])(?=[A-Z])", "-", cls.__name__).lower()


class Abort(Message, frozen=True, kw_only=True):
    """Either way: the sender ends this round (or, outside a round, the session) for this reason."""

    code: Code
    detail: Annotated[str, Meta(max_length=DETAIL_LIMIT)]
    culprit: Annotated[str, Meta(max_length=64)]
    """The member at fault, or empty."""


class Resume(Message, frozen=True, kw_only=True):
    """Either way: there is a new link; the envelope has its number and the number of received messages. Repeat the
    rest.

    The connecting side asks with it, the other answers with the same. It is not one of the numbered messages."""


class Blob(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An announcement of a byte string to fetch."""

    digest: Hash
    """Digest under the label of its kind."""
    size: Size
    """Its length in bytes."""


class Fetch(Message, frozen=True, kw_only=True):
    """Either way: request this chunk of the last announcement, in this round or, with round 0, outside of rounds."""

    PHASE: ClassVar[str] = TRAIN
    chunk: Index


class Chunk(Message, frozen=True, kw_only=True):
    """Either way: the requested bytes, from chunk * CHUNK_BYTES on, in the raw frame."""

    PHASE: ClassVar[str] = TRAIN
    PAYLOAD: ClassVar[bool] = True
    chunk: Index


def by_type(*kinds: type[Message]) -> dict[str, type[Message]]:
    """Messages by their names on the wire."""
    return {kind.TYPE: kind for kind in kinds}


@dataclass(frozen=True, kw_only=True, eq=False)
class Kinds(Mapping[str, type[Message]]):
    """The messages of a link's protocol, by their names on the wire, and its version.

    Version numbers come from one series: no two protocols share one, so that a foreign one is identified."""

    protocol: str
    """Name of the protocol, in words."""
    version: int
    """Version in every envelope."""
    types: Mapping[str, type[Message]] = field(repr=False)

    def __getitem__(self, name: str) -> type[Message]:
        return self.types[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.types)

    def __len__(self) -> int:
        return len(self.types)
