"""Randomness that repeats: one seed, and a stream of its own for every party and purpose; members with keys from it.

So what one party draws does not depend on when the others draw. For memory only, never for a network.
"""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import shake_256
from itertools import count
from random import Random

from tacit.protocol.core.machine import Entropy
from tacit.protocol.core.primitives import KEY_BYTES, SigningKey
from tacit.protocol.core.roster import Member, Role, Roster


class Streams:
    """The streams of one seed."""

    def __init__(self, seed: bytes) -> None:
        self._seed = seed
        self._streams: dict[str, Entropy] = {}

    def of(self, name: str) -> Entropy:
        """The stream of this name, which goes on where it was: n -> the next n bytes."""
        return self._streams.setdefault(name, self._stream(name))

    def random(self, name: str) -> Random:
        """A generator that follows from the seed and the name alone."""
        return Random(self._stream(name)(32))

    def _stream(self, name: str) -> Entropy:
        prefix, counter = len(name).to_bytes(8, "little") + name.encode() + self._seed, count()
        return lambda length: shake_256(prefix + next(counter).to_bytes(8, "little")).digest(length)


def new_members(
    roles: Mapping[str, Role], streams: Streams, groups: Mapping[str, int] | None = None
) -> tuple[Roster, dict[str, SigningKey]]:
    """A roster of these members, and their keys. groups: numbers of the clients' groups, where they are in any."""
    signing = {name: SigningKey(streams.of(f"{name} signing")(KEY_BYTES)) for name in roles}
    curve = {name: streams.of(f"{name} curve")(KEY_BYTES) for name in roles}
    members = (
        Member(
            name=name,
            role=role,
            curve_public=curve[name],
            signing_public=signing[name].public,
            group=(groups or {}).get(name, 0),
        )
        for name, role in roles.items()
    )
    return Roster(tuple(members)), signing
