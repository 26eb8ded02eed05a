"""A wire that alters messages on their way: mutated bytes, mutated fields in an envelope that the link accepts,
repetitions, losses, messages of earlier, and messages of the wrong kind."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from random import Random
from typing import Any

import msgspec

from tacit.protocol.core.codec import ENVELOPE_LIMIT, Envelope, decode_structure, encode_structure
from tacit.simulate.world.world import Parcel, World

MOST_MESSAGES = 2_000
"""Of one run, which has 100 to 600 without faults: more means that it does not end."""


class Wire:
    """Alters what is under way in a world, and counts it as "altered".

    rates: of messages that are altered, for one run; seldom enough that some runs get far, often enough that most meet
    a fault."""

    def __init__(
        self,
        world: World[Parcel],
        random: Random,
        mutate: Callable,
        outcomes: Counter[str],
        *,
        rates: Sequence[float] = (0.01, 0.05, 0.3),
    ) -> None:
        self.world, self.random, self.mutate, self.outcomes = world, random, mutate, outcomes
        self.valid: list[Sequence[Any]] = []
        self.rate = random.choice(rates)
        world.hook = self.alter

    def alter(self, parcel: Parcel) -> list[Parcel]:
        random = self.random
        assert len(self.world.log) < MOST_MESSAGES
        self.valid.append(parcel.frames)
        if random.random() >= self.rate:
            return [parcel]
        others = self.valid[-30:]
        match random.randrange(6):
            case 0:
                altered = [replace(parcel, frames=tuple(self.mutate(random, parcel.frames, others)))]
            case 1 | 2:
                body = self.mutate(random, parcel.frames[1:], [frames[1:] for frames in others])
                altered = [replace(parcel, frames=(parcel.frames[0], *body))]
            case 3:
                other = random.choice(others)
                altered = [replace(parcel, frames=(self.renamed(parcel.frames[0], other[0]), *other[1:]))]
            case 4:
                altered = [parcel, replace(parcel, frames=random.choice(others))]
            case _:
                altered = []
        self.outcomes["altered"] += 1
        return altered

    @staticmethod
    def renamed(head: Any, other: Any) -> bytes:
        """The envelope as another message's type has it, so that the link lets it through."""
        kinds = [decode_structure(frame, Envelope, limit=ENVELOPE_LIMIT) for frame in (head, other)]
        return encode_structure(msgspec.structs.replace(kinds[0], type=kinds[1].type))
