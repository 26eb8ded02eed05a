"""Transcripts of secure sums in which one message breaks a rule.

Each is the part of the party that gets the message: an honest sum up to there, then the message, and the verdict.
The changed message is rightly signed where the fault is not the signature, so that no other check can find it first.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from tacit.protocol.core.codec import Envelope, encode_structure
from tacit.protocol.core.messages import Message
from tacit.protocol.core.roster import encode_members
from tacit.protocol.sum.agreement import Agreement
from tests.vectors_corpus.disputes import disputed
from tests.vectors_corpus.play import SERVER, Parcel, Play, faulty_part
from tests.vectors_corpus.primitives import flipped
from tests.vectors_corpus.rounds import GROUPED, agreement_of, played, sum_terms

CHEAT: Final = "client-1"
"""Who sends the changed message where a client does; also the client that a lying server speaks to."""
PLACE: Final = 1
SETTINGS: Final[dict[str, dict[str, Any]]] = {
    "active": {"clients": 4, "active": True, "ring_bits": 20},
    "disputed": {"clients": 4, "active": True, "ring_bits": 20},
    "active three": {"clients": 3, "active": True, "ring_bits": 20},
    "semi-honest": {"clients": 3, "active": False, "ring_bits": 20},
    "chosen": {"clients": 5, "active": True, "regular": (2, 2)},
    "ring": {"clients": 5, "active": False, "regular": (2, 2)},
    "groups": {"clients": 6, "active": True, "ring_bits": 20, **GROUPED},
    "groups semi-honest": {"clients": 6, "active": False, "ring_bits": 20, **GROUPED},
}


@dataclass(frozen=True)
class HonestSum:
    terms: dict[str, Any]
    play: Play

    @property
    def agreement(self) -> Agreement:
        return agreement_of(self.terms)

    def said(self, kind: str, sender: str, receiver: str) -> Parcel:
        return self.play.said(kind, sender, receiver)


@cache
def setting(name: str) -> HonestSum:
    terms = sum_terms(**SETTINGS[name])
    # In one setting two clients, of whom one is the cheat, complain of each other, and answer.
    return HonestSum(
        terms, disputed(terms, "", {0: (PLACE,), PLACE: (0,)}) if name == "disputed" else played(terms, "")
    )


Alter = Callable[[Any, Any], Message]
Reframe = Callable[[Any, Parcel], "tuple[bytes, ...]"]
"""The frames in the place of a message, from the setting and the message."""


@dataclass(frozen=True)
class Fault:
    """One broken rule: what is told to whom instead of the honest message of this kind, and the code for it."""

    about: str
    code: str
    kind: str
    frames: Reframe
    to: str = SERVER
    of: str = "active"
    """The honest sum."""

    def part(self) -> Play:
        """The part of the receiver; ValueError where it does not say what it should."""
        spoilt = setting(self.of)
        parcel = spoilt.said(self.kind, SERVER if self.to == CHEAT else CHEAT, self.to)
        part = faulty_part(spoilt.play, parcel, self.frames(spoilt, parcel), self.about)
        named = (
            {"event": "client-dropped", "member": CHEAT}
            if self.to == SERVER
            else {"event": "aborted", "culprit": SERVER}
        )
        return having(part, named | {"code": self.code})


def having(part: Play, expected: dict[str, Any]) -> Play:
    """The play; ValueError unless its last input led to such an event."""
    if not any(expected.items() <= event.items() for event in part.events()):
        raise ValueError(f"{part.about}: {part.events()}")
    return part


def body(alter: Alter) -> Reframe:
    return lambda spoilt, parcel: parcel.saying(alter(spoilt, parcel.message))


def fields(**changes: Callable[[bytes], bytes]) -> Reframe:
    return body(
        lambda spoilt, message: replace(
            message, **{name: change(getattr(message, name)) for name, change in changes.items()}
        )
    )


def envelope(**changes: Any) -> Reframe:
    def reframe(spoilt: Any, parcel: Parcel) -> tuple[bytes, ...]:
        old = msgspec.structs.asdict(msgspec.msgpack.decode(parcel.frames[0], type=Envelope))
        return (encode_structure(Envelope(**old | changes)), *parcel.frames[1:])

    return reframe


def instead(message: Message) -> Reframe:
    """A message of another type, which is due at another time."""

    def reframe(spoilt: Any, parcel: Parcel) -> tuple[bytes, ...]:
        head, *_ = envelope(type=message.TYPE)(spoilt, parcel)
        return (head, encode_structure(message))

    return reframe


def payload(change: Callable[[bytes], bytes | None]) -> Reframe:
    def reframe(spoilt: Any, parcel: Parcel) -> tuple[bytes, ...]:
        raw = change(parcel.frames[2])
        return parcel.frames[:2] if raw is None else (*parcel.frames[:2], raw)

    return reframe


def first_bit(data: bytes) -> bytes:
    return flipped(data, 0)


def to(value: bytes) -> Callable[[bytes], bytes]:
    return lambda old: value


def members(*chosen: int, size: int = 4) -> Callable[[bytes], bytes]:
    return to(encode_members(chosen, size))
