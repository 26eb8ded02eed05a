"""Audit of the dealer by sacrifice: both owners open some of its correlated randomness before a pass uses the rest.

When the randomness of a pass has arrived at both owners, a joint coin picks requests. For each picked request both
owners reveal the keys of their streams, recompute the dealer's correction, compare, and discard the request. The
discarded requests are ordered again and audited in turn, until a coin picks none. The dealer therefore does not know
which requests will be used, and each wrong one is caught independently with the probability of being picked.

1. The model owner commits to its contribution to the coin. 2. The data owner sends its contribution. 3. The model owner
opens its commitment, so neither side chose its contribution after seeing the other's. 4. The data owner reveals its
keys. 5. The model owner reveals its keys.

A request is used or revealed, never both (`RequestKeys`). Weight masks, and requests that depend on them, are not
audited: a weight is masked once for the whole session, so its stream is in use. The dealer may err there unnoticed.
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
"""Denominator of audit fractions."""


def audited_of(fraction: float) -> int:
    """Return a fraction in units of 1/WHOLE. Raises ValueError outside of 0 ... 0.5."""
    if not 0 <= fraction <= MOST_AUDITED / WHOLE:
        raise ValueError(f"audit_fraction = {fraction}: it is from 0 to {MOST_AUDITED / WHOLE}")
    return round(fraction * WHOLE)


def commitment_of(contribution: bytes) -> bytes:
    return digest(InferenceLabel.AUDIT_COMMITMENT, contribution)


def picked(
    numbers: Sequence[int], *, audited: int, session: bytes, model_owner: bytes, data_owner: bytes
) -> tuple[int, ...]:
    """Return the candidates that the coin picks; model_owner, data_owner: their contributions to the coin."""

    def coin(number: int) -> int:
        found = digest(InferenceLabel.AUDIT_COIN, session, model_owner, data_owner, number.to_bytes(8, "big"))
        return int.from_bytes(found[:2], "big")

    return tuple(number for number in numbers if coin(number) < audited)


@dataclass(frozen=True)
class Audit:
    numbers: tuple[int, ...]
    """Candidates: requests that have arrived and are unused."""
    contribution: bytes = field(repr=False)
    commitment: bytes = b""
    picked: tuple[int, ...] = ()


@dataclass(frozen=True)
class AuditAsked(Output):
    """To the data owner's shell: the model owner has committed; call `audit` once the randomness has arrived."""


@dataclass(frozen=True)
class AuditPicked(Output):
    """To both shells: the requests that the coin picked; call `reveal` with their keys, unless there are none."""

    numbers: tuple[int, ...]


@dataclass(frozen=True)
class KeysRevealed(Output):
    """To both shells: the peer's keys of the picked requests, in order."""

    keys: tuple[bytes, ...] = field(repr=False)


class RequestKeys:
    """Keys of an owner's requests in a session. Raises LocalProtocolError on a second use of any.

    Each request is ordered, then used or revealed. `key`: the owner's preprocessing key.
    """

    def __init__(self, key: bytes) -> None:
        self._key = key
        self._unused: dict[int, bool] = {}
        """Ordered requests that are neither used nor revealed, and whether each may be revealed."""
        self._next = 0

    def order(self, openable: Sequence[bool]) -> int:
        """Register requests, each with whether it may be revealed; return the number of the first."""
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
    """Concatenate keys for a message. Raises LocalProtocolError for a key of the wrong length."""
    if any(len(key) != KEY_BYTES for key in keys):
        raise LocalProtocolError(f"a key of a request has {KEY_BYTES} bytes")
    return b"".join(keys)


def split_keys(payload: bytes) -> tuple[bytes, ...]:
    """Split the payload of a message of the right length into keys."""
    return tuple(payload[start : start + KEY_BYTES] for start in range(0, len(payload), KEY_BYTES))
