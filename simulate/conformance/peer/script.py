"""Common parts of both sides of the kit: alterable messages, cases, verdicts, and updates to sum up."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, NoReturn, TypeVar

import msgspec
import numpy as np
import numpy.typing as npt
from msgspec import structs

from tacit.parties.runs.results import Column, Result, Table, prose
from tacit.protocol.core.codec import ENVELOPE_LIMIT, Envelope, Frame, Packet, decode_structure, encode_structure
from tacit.protocol.core.errors import RemoteProtocolError
from tacit.protocol.core.link import Link
from tacit.protocol.core.messages import Message
from tacit.protocol.core.primitives import SigningKey
from tacit.protocol.sum.agreement import Agreement
from tacit.protocol.sum.configuration import Configuration
from tacit.protocol.sum.messages import PeerComplaints
from tacit.secagg.packing import WeightForm
from tacit.secagg.ring import Words
from tacit.simulate.world.world import Parcel

M = TypeVar("M", bound=Message)
FEWEST_CLIENTS: Final = 4
"""Three of these are a cohort and a threshold when one is out."""
PICKLE: Final = pickle.dumps({"a": [1, 2.0, "three"]})
"""Harmless; a receiver that unpickles network data does not notice that it is no message."""


class PeerError(Exception):
    """The kit cannot be set up or lost the party under test; the message gives the remedy."""


@dataclass(frozen=True)
class Saying:
    message: Message
    round: int
    payload: Frame | None = field(default=None, repr=False)
    body: bytes | None = None
    """Bytes sent in place of the encoded message."""
    envelope: Mapping[str, Any] = field(default_factory=dict)
    """Altered fields of the envelope."""
    times: int = 1
    """Number of times that these very frames are sent."""
    received: int = 0
    """Number of messages received from the live party; optional for a lie."""

    def frames(self, link: Link) -> list[Frame]:
        """Return the frames, numbered by the link as for an honest message."""
        envelope, body, *payload = link.frames(self.message, round=self.round, payload=self.payload)
        true = decode_structure(envelope, Envelope, limit=ENVELOPE_LIMIT)
        envelope = encode_structure(structs.replace(true, **{"received": self.received, **self.envelope}))
        return [envelope, body if self.body is None else self.body, *payload]


def saying(packet: Packet) -> Saying:
    return Saying(packet.parse(), packet.envelope.round, packet.payload, received=packet.envelope.received)


def with_received(parcel: Parcel, received: int) -> Parcel:
    """Return the live party's message as it would be without our lies, which our machines do not know of."""
    try:
        envelope = structs.replace(parcel.packet.envelope, received=received)
    except RemoteProtocolError:
        return parcel
    return replace(parcel, frames=(encode_structure(envelope), *parcel.frames[1:]))


def _nothing_agreed() -> NoReturn:
    raise ValueError("only our server knows what a round agrees upon")


@dataclass(frozen=True)
class RoundKnowledge:
    """Knowledge of a round for a lie. Where our side is the server, all clients of the roster are in it."""

    size: int
    liar: int
    """Position in the cohort of the client that is lied to, or that lies."""
    threshold: int = 0
    parameters: int = 0
    """Parameters of the model; like the threshold, only where our side proposes the configuration."""
    complaint: Callable[[], PeerComplaints] | None = None
    """Makes our client's complaint against the client that is lied to, once vectors are masked."""
    agreed: Callable[[], tuple[Agreement, Mapping[int, SigningKey]]] = _nothing_agreed
    """Current round, and our clients' signing keys by position, where our side is the server."""
    told: dict[type[Message], list[Any]] = field(default_factory=dict)
    """Our server's last two honest messages to the client, by kind."""

    def latest(self, kind: type[M]) -> M:
        said: M = self.told[kind][-1]
        return said

    def former(self, kind: type[M]) -> M:
        """Return the one from the previous round, which may belong to another session."""
        said: M = self.told[kind][-2]
        return said


Lie = Callable[[Any, Saying], Sequence[Saying]]
"""Maps its knowledge (RoundKnowledge, or the Scene of private inference) and the message due to the messages sent."""


def honest(stage: object, said: Saying) -> Sequence[Saying]:
    return [said]


def instead(kind: type[Message], change: Callable[[Any, Saying], Sequence[Saying]]) -> Lie:
    """Replace a message of this kind."""
    return lambda stage, said: change(stage, said) if isinstance(said.message, kind) else [said]


def altered(
    kind: type[Message], change: Callable[[Any, Any], Mapping[str, Any]] = lambda stage, message: {}, /, **fields: Any
) -> Lie:
    """Alter fields of a message of this kind: by `change`, and by these values, or functions of the old values."""

    def alter(stage: Any, said: Saying) -> list[Saying]:
        old = said.message
        given = {name: new(getattr(old, name)) if callable(new) else new for name, new in fields.items()}
        return [replace(said, message=structs.replace(old, **change(stage, old), **given))]

    return instead(kind, alter)


def carried(kind: type[Message], **fields: Any) -> Lie:
    """Send a message of this kind in another way: fields of Saying, or functions of the old values."""

    def alter(stage: Any, said: Saying) -> list[Saying]:
        return [
            replace(said, **{name: new(getattr(said, name)) if callable(new) else new for name, new in fields.items()})
        ]

    return instead(kind, alter)


def enveloped(kind: type[Message], **fields: Any) -> Lie:
    return carried(kind, envelope=fields)


def pickled(kind: type[Message]) -> Lie:
    return carried(kind, body=PICKLE)


def repeated(kind: type[Message], times: int = 2) -> Lie:
    return instead(kind, lambda stage, said: [said] * times)


def shortened(data: Frame, by: int = 1) -> bytes:
    return bytes(data)[:-by]


def flipped(data: bytes, position: int = -1) -> bytes:
    position %= len(data)
    return data[:position] + bytes([data[position] ^ 1]) + data[position + 1 :]


@dataclass(frozen=True)
class Case:
    """One script. does: our side's action; expected: a conforming party's reaction, in the words of the verdict."""

    name: str
    does: str
    expected: str
    lie: Lie = honest
    joins: bool = False
    alone: bool = False
    """Whether our other clients are silent until the client has refused: it receives the model alone."""


class PeerVerdict(msgspec.Struct, frozen=True, kw_only=True):
    """Verdict on the live party in one case."""

    case: str
    expected: str
    seen: str
    passed: bool
    """Whether `seen` is `expected`, word for word."""


class PeerVerdicts(Result, frozen=True, kw_only=True, tag="tacit.peer.2"):
    """Verdicts on a live party in all played cases."""

    cases: list[PeerVerdict]

    @property
    def failed(self) -> list[PeerVerdict]:
        return [verdict for verdict in self.cases if not verdict.passed]

    def view(self) -> Iterator[Table | str]:
        yield Table(
            columns=(Column("case"), Column("expected", prose), Column("seen", prose), Column("verdict")),
            rows=[(one.case, one.expected, one.seen, "passed" if one.passed else "FAILED") for one in self.cases],
            flagged=[number for number, one in enumerate(self.cases) if not one.passed],
        )
        failed = self.failed
        yield f"{len(self.cases)} cases: {f'{len(failed)} failed' if failed else 'all passed'}"


def verdict(case: Case, seen: str) -> PeerVerdict:
    return PeerVerdict(case=case.name, expected=case.expected, seen=seen, passed=seen == case.expected)


@dataclass(frozen=True)
class DrawnUpdate:
    """An update of one of our clients: the words to be masked, and the values and weights in them."""

    words: Words = field(repr=False)
    values: npt.NDArray[np.float64] = field(repr=False)
    weights: npt.NDArray[np.int64] = field(repr=False)


def draw_update(configuration: Configuration) -> DrawnUpdate:
    """Draw a random update that the configuration admits: values of at most a tenth of the clip, with weight 1."""
    packing = configuration.packing()
    generator = np.random.default_rng(list(os.urandom(32)))
    bound = configuration.clip / 10
    values = generator.uniform(-bound, bound, packing.values_length).astype(np.float32).astype(np.float64)
    shape = {WeightForm.SCALAR: (), WeightForm.TENSOR: (len(configuration.tensor_sizes),)}
    weights = np.ones(shape.get(configuration.form, values.shape), np.int64)
    encoded = packing.encode(values, weights, dict.fromkeys(configuration.metrics, 1), generator)
    return DrawnUpdate(encoded.words, values, weights)


def draw_model(configuration: Configuration) -> bytes:
    """Draw a new model: little-endian float32 bytes."""
    generator = np.random.default_rng(list(os.urandom(32)))
    return generator.normal(0, 0.02, configuration.state.count).astype("<f4").tobytes()
