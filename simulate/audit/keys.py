"""The keys of an encrypted model, round by round: what a member had, and what it keeps when it is removed.

Members agree on a key before the first round, and again when it is renewed; one of them then sends the server the model
under the new key. A member that was removed at that moment has the key before. Together with a server it has more: the
model before, which it can decrypt, and the same model under the new key.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from tacit.models.layout import Flat
from tacit.models.model_encryption import ModelKey
from tacit.parties.protections.encryption import GroupModel
from tacit.protocol.core.codec import decode
from tacit.protocol.core.messages import Chunk
from tacit.protocol.group_key.messages import KeyedModel
from tacit.protocol.session.messages import MESSAGES
from tacit.simulate.federation.recording import HeardMessage, HeldKey, OpenedSum, Record


@dataclass(frozen=True, kw_only=True)
class FormerKey:
    """The key before the one of a round, and the model under either when the key was renewed."""

    key: ModelKey = field(repr=False)
    before: Flat = field(repr=False)
    after: Flat = field(repr=False)


@dataclass(frozen=True, kw_only=True)
class Sealed:
    """How the model of a round is encrypted, as far as an adversary knows it."""

    first: Flat | None = field(repr=False)
    """The first model of the run under the key of this round; None if it was renewed since."""
    key: ModelKey | None = field(repr=False)
    """Of this round, where a member is there."""
    former: FormerKey | None = field(repr=False)


class Renewals:
    """Goes from round to round."""

    def __init__(self) -> None:
        self._last: Sealed | None = None

    def round(self, before: Flat, model: Flat, key: ModelKey | None, *, given: bool) -> Sealed:
        """The next round. before: the server's own model after the last one; model: that of this round; given: whether
        a member sent it."""
        last = self._last
        if last is None:
            last = Sealed(first=model, key=key, former=None)
        elif given:
            former = None if last.key is None else FormerKey(key=last.key, before=before, after=model)
            last = Sealed(first=None, key=key, former=former)
        self._last = last
        return last


def model_keys(records: Iterable[Record], group: GroupModel | None) -> dict[int, ModelKey]:
    """The keys that a client held, by round; none of a model that is not encrypted."""
    if group is None:
        return {}
    return {record.round: group.key(record.key) for record in records if isinstance(record, HeldKey)}


def given_models(records: Iterable[Record]) -> dict[int, bytes]:
    """The models that members gave a server, little-endian float32, by the round that was opened next."""
    given, chunks = dict[int, bytes](), dict[int, bytes]()
    for record in records:
        if isinstance(record, OpenedSum) and chunks:
            given[record.round] = b"".join(chunks[chunk] for chunk in sorted(chunks))
            chunks = {}
        if not isinstance(record, HeardMessage):
            continue
        packet = decode([memoryview(frame) for frame in record.frames], MESSAGES)
        if packet.kind is KeyedModel:
            chunks = {}
        elif packet.kind is Chunk and packet.payload is not None:
            said = packet.parse()
            assert isinstance(said, Chunk)
            chunks[said.chunk] = bytes(packet.payload)
    return given
