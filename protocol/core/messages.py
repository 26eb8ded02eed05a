"""What all messages have in common; every protocol keeps its own (the messages.py of its folder).

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
"""Empty in semi-honest mode; its length is checked where it is verified."""
Records = Annotated[bytes, Meta(max_length=BODY_LIMIT)]
Index = Annotated[int, Meta(ge=0, le=2**31)]
Round = Annotated[int, Meta(ge=0, le=2**31)]
Size = Annotated[int, Meta(ge=0, le=2**40)]


SESSION: Final = "SESSION"
"""Phase of what belongs to no round. Each protocol declares the phases of its rounds."""
TRAIN: Final = "TRAIN"
"""Phase of a client's own work in a round, and of what it fetches for it."""


class Message(msgspec.Struct, frozen=True, kw_only=True):
    """Base of all messages. An unknown field is passed over when one is read, and refused as not canonical.

    TYPE is the name on the wire: that of the class, in lower case with hyphens. PHASE is the phase whose traffic it
    counts for (TRAIN outside of rounds for SESSION); PAYLOAD says whether a raw frame may follow the body.
    """

    TYPE: ClassVar[str]
    PHASE: ClassVar[str] = SESSION
    PAYLOAD: ClassVar[bool] = False

    def __init_subclass__(cls) -> None:
        cls.TYPE = re.sub(r"(?<=[a-z])(?=[A-Z])", "-", cls.__name__).lower()


class Abort(Message, frozen=True, kw_only=True):
    """Either way: I end this round (or, outside a round, the session) for this reason."""

    code: Code
    detail: Annotated[str, Meta(max_length=DETAIL_LIMIT)]
    culprit: Annotated[str, Meta(max_length=64)]
    """The member at fault, or empty."""


class Resume(Message, frozen=True, kw_only=True):
    """Either way: there is a new link, whose number is in the envelope with how much was received. Say the rest again.

    The connecting side asks with it, the other answers with the same. It is not one of the numbered messages.
    """


class Blob(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An announcement: there is a byte string to be fetched."""

    digest: Hash
    """Under the label of its kind."""
    size: Size
    """Its length in bytes."""


class Fetch(Message, frozen=True, kw_only=True):
    """Either way: send me this chunk of what you announced last, in this round or, with round 0, outside of rounds."""

    PHASE: ClassVar[str] = TRAIN
    chunk: Index


class Chunk(Message, frozen=True, kw_only=True):
    """Either way: the bytes that were asked for, from chunk * CHUNK_BYTES on, in the raw frame."""

    PHASE: ClassVar[str] = TRAIN
    PAYLOAD: ClassVar[bool] = True
    chunk: Index


def by_type(*kinds: type[Message]) -> dict[str, type[Message]]:
    """Messages by their names on the wire."""
    return {kind.TYPE: kind for kind in kinds}


@dataclass(frozen=True, kw_only=True, eq=False)
class Kinds(Mapping[str, type[Message]]):
    """The messages that are spoken on a link, by their names on the wire, and of which version of what they are.

    Numbers of versions come from one series: none is that of two protocols, so who hears a foreign one can tell.
    """

    protocol: str
    """In words."""
    version: int
    """In every envelope."""
    types: Mapping[str, type[Message]] = field(repr=False)

    def __getitem__(self, name: str) -> type[Message]:
        return self.types[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.types)

    def __len__(self) -> int:
        return len(self.types)
