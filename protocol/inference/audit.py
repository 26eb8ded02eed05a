"""Audit of the dealer by sacrifice: both owners open some of its correlated randomness before a pass uses the rest.

When the randomness of a pass has arrived at both owners, a joint coin picks requests. For these each owner reveals the
keys of its streams, computes what the dealer had to send, compares, and discards them. What was discarded is ordered
again and audited in turn, until a coin picks nothing. So the dealer deals every request without knowing whether it will
be used, and a wrong one is found with the probability of being picked, each by itself.

1. The model owner commits to a contribution to the coin. 2. The data owner says its own. 3. The model owner opens its
commitment: neither could choose its contribution after the other's. 4. The data owner reveals its keys. 5. So does the
model owner.

A request is used or revealed, never both (`RequestKeys`). The masks of weights, and what depends on them, are no
candidates: a weight is masked once for the whole session, so its stream is used. The dealer may err there unnoticed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from tacit.protocol.core.errors import LocalProtocolError
from tacit.protocol.core.machine import Output
from tacit.protocol.core.primitives import KEY_BYTES, digest
from tacit.protocol.inference.material import request_key
from tacit.protocol.inference.messages import MOST_AUDITED
from tacit.protocol.inference.states import InferenceLabel

WHOLE: Final = 1 << 16
"""A fraction is so many parts of this."""


def audited_of(fraction: float) -> int:
    """Return a fraction as the terms have it. ValueError outside of 0 ... 0.5."""
    if not 0 <= fraction <= MOST_AUDITED / WHOLE:
        raise ValueError(f"audit_fraction = {fraction}: it is from 0 to {MOST_AUDITED / WHOLE}")
    return round(fraction * WHOLE)


def commitment_of(contribution: bytes) -> bytes:
    return digest(InferenceLabel.AUDIT_COMMITMENT, contribution)


def picked(
    numbers: Sequence[int], *, audited: int, session: bytes, model_owner: bytes, data_owner: bytes
) -> tuple[int, ...]:
    """Return those of the candidates that the coin picks; model_owner, data_owner: both contributions."""

    def coin(number: int) -> int:
        found = digest(InferenceLabel.AUDIT_COIN, session, model_owner, data_owner, number.to_bytes(8, "big"))
        return int.from_bytes(found[:2], "big")

    return tuple(number for number in numbers if coin(number) < audited)


@dataclass(frozen=True)
class Audit:
    numbers: tuple[int, ...]
    """Candidates: requests that have arrived and are not used."""
    contribution: bytes = field(repr=False)
    commitment: bytes = b""
    picked: tuple[int, ...] = ()


@dataclass(frozen=True)
class AuditAsked(Output):
    """To the data owner's shell: the model owner has committed itself; call `audit` when the randomness is here."""


@dataclass(frozen=True)
class AuditPicked(Output):
    """To both shells: the requests that the coin has picked; call `reveal` with their keys, unless there are none."""

    numbers: tuple[int, ...]


@dataclass(frozen=True)
class KeysRevealed(Output):
    """To both shells: the peer's keys of the requests that were picked, in their order."""

    keys: tuple[bytes, ...] = field(repr=False)


class RequestKeys:
    """The keys of an owner's requests in a session. LocalProtocolError for a second use of any.

    Requests are ordered, and then used or revealed. `key`: the owner's key of material.
    """

    def __init__(self, key: bytes) -> None:
        self._key = key
        self._unused: dict[int, bool] = {}
        """Ordered requests that were neither used nor revealed, and whether they may be revealed."""
        self._next = 0

    def order(self, openable: Sequence[bool]) -> int:
        """Note requests, each with whether it may be revealed; return the number of the first."""
        first = self._next
        self._next += len(openable)
        self._unused |= dict(zip(range(first, self._next), openable, strict=True))
        return first

    def use(self, number: int) -> bytes:
        """Return the key of a request, to compute with."""
        return self._taken(number)

    def reveal(self, number: int) -> bytes:
        """Return the key of a request, to be revealed to the peer."""
        if not self._unused.get(number, True):
            raise LocalProtocolError(f"request {number} masks a weight, or depends on such a mask: it stays secret")
        return self._taken(number)

    def _taken(self, number: int) -> bytes:
        if self._unused.pop(number, None) is None:
            raise LocalProtocolError(f"request {number} was not ordered, or was used or revealed before")
        return request_key(self._key, number)


def joined_keys(keys: Sequence[bytes]) -> bytes:
    """Return keys as a message carries them. LocalProtocolError for a key of another length."""
    if any(len(key) != KEY_BYTES for key in keys):
        raise LocalProtocolError(f"a key of a request has {KEY_BYTES} bytes")
    return b"".join(keys)


def split_keys(payload: bytes) -> tuple[bytes, ...]:
    """Return the keys of a message of the right length."""
    return tuple(payload[start : start + KEY_BYTES] for start in range(0, len(payload), KEY_BYTES))
