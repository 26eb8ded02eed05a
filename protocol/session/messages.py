"""The messages of a federation's session, around the secure sums and the group keys within it."""

from __future__ import annotations

from typing import Annotated, ClassVar, Final

from msgspec import Meta

from tacit.protocol.core.errors import DETAIL_LIMIT, Code
from tacit.protocol.core.messages import (
    BODY_LIMIT,
    Abort,
    Bitmap,
    Blob,
    Chunk,
    Fetch,
    Hash,
    Index,
    Kinds,
    Message,
    Resume,
    Signature,
    by_type,
)
from tacit.protocol.group_key.messages import GROUP_KEY_MESSAGES
from tacit.protocol.sum.messages import SUM_MESSAGES
from tacit.protocol.sum.spending import Spent
from tacit.protocol.sum.states import VERSION, Phase


class Hello(Message, frozen=True, kw_only=True):
    """Client to server: begin a conversation with this roster."""

    roster: Hash
    """Hash of the roster that the client received out of band."""


class Welcome(Message, frozen=True, kw_only=True):
    """Server to client: the session (in the envelope) and its configuration."""

    roster: Hash
    configuration: Annotated[bytes, Meta(max_length=BODY_LIMIT)]
    """Canonical encoding of a Configuration; its hash enters every signature and every mask."""
    spent: Spent
    """The highest statement of this client's spending that the server has; zeros if none, empty without `spending`."""


class StartRound(Message, frozen=True, kw_only=True):
    """Server to client: take part in this round (its number is in the envelope), from this model."""

    PHASE: ClassVar[Phase] = Phase.TRAIN
    cohort: Bitmap
    """The selected clients, over the clients of the roster in its order."""
    model: Blob
    """Initial state of the round, in the form that the configuration declares, under the label of models."""


class FetchFixed(Message, frozen=True, kw_only=True):
    """Client to server: send this chunk of the fixed tensors, which the configuration announces."""

    PHASE: ClassVar[Phase] = Phase.TRAIN
    chunk: Index


class EndRound(Message, frozen=True, kw_only=True):
    """Server to client: the round is over; without a code if its sum was applied, else with the reason."""

    code: Code | None
    detail: Annotated[str, Meta(max_length=DETAIL_LIMIT)]


class NewRoster(Message, frozen=True, kw_only=True):
    """Server to client: there is a later version of the roster. This session is over, or this client is in none; the
    next session uses it."""

    roster: Annotated[bytes, Meta(max_length=BODY_LIMIT)]
    """Encoding of the roster, as it is hashed."""
    signature: Signature
    """Signature of the roster's operator."""


class Finish(Message, frozen=True, kw_only=True):
    """Server to client: no more rounds."""


MESSAGES: Final = Kinds(
    protocol="a federation",
    version=VERSION,
    types=by_type(
        Hello, Welcome, StartRound, FetchFixed, EndRound, NewRoster, Finish, Fetch, Chunk, Abort, Resume,
    )
    | SUM_MESSAGES
    | GROUP_KEY_MESSAGES,
)  # fmt: skip
"""Every message that the parties of a session exchange."""
