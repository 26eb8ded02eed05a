"""What the machines of private inference tell the shell around them, beside the messages to send."""

from __future__ import annotations

from dataclasses import dataclass, field

from tacit.protocol.core.codec import Frame
from tacit.protocol.core.errors import Code
from tacit.protocol.core.machine import Output
from tacit.protocol.inference.messages import Terms
from tacit.protocol.inference.quota import Spent
from tacit.protocol.inference.schedule import Round


@dataclass(frozen=True)
class Agreed(Output):
    """Both owners go by these terms."""

    peer: str
    session: bytes
    terms: Terms
    digest: bytes
    """Of the encoded terms."""
    images: int
    batch: int

    def images_of(self, number: int) -> int:
        """How many images the pass of this number has, from 1."""
        return min(self.batch, self.images - (number - 1) * self.batch)

    @property
    def passes(self) -> int:
        return -(-self.images // self.batch)


@dataclass(frozen=True)
class MaskedLayer(Output):
    """To the data owner's shell: the masked weights of a layer, 8 bytes a word."""

    layer: int
    data: Frame | bytearray = field(repr=False)


@dataclass(frozen=True)
class PassAsked(Output):
    """To the model owner's shell: have the material of this pass, and call `begin`."""

    number: int


@dataclass(frozen=True)
class Charged(Output):
    """To a shell: have it on the disk that the peer has used so much of this side's quota, before anything else."""

    peer: str
    spent: Spent


@dataclass(frozen=True)
class PassBegun(Output):
    """To both: go through these rounds; call `give` for every one that this side has something to open in."""

    number: int
    rounds: tuple[Round, ...] = field(repr=False)


@dataclass(frozen=True)
class Opened(Output):
    """To both: what the peer opens in a round. Rounds in which it opens nothing are left out."""

    step: int
    data: bytearray = field(repr=False)


@dataclass(frozen=True)
class PassRefused(Output):
    """To both: a value of this pass was out of range. It is over, nobody is told its result, and it counts as used."""

    number: int


@dataclass(frozen=True)
class MaterialKey(Output):
    """To an owner's shell: the dealer and the other owner are there; the key of this owner's streams of material."""

    key: bytes = field(repr=False)


@dataclass(frozen=True)
class MaterialArrived(Output):
    """To an owner's shell: the corrections of a request, 8 bytes a word."""

    number: int
    data: bytearray = field(repr=False)


@dataclass(frozen=True)
class KeysDealt(Output):
    """To the dealer's shell: both owners are there; the keys of their streams, the model owner's first."""

    owners: tuple[str, str]
    keys: tuple[bytes, bytes] = field(repr=False)


@dataclass(frozen=True)
class Deal(Output):
    """To the dealer's shell: both owners want this; call `deliver` for every correction."""

    first: int
    count: int
    requests: bytes


@dataclass(frozen=True)
class InferenceEnded(Output):
    """An exchange is over; code None if it came to its regular end. culprit: the party at fault, where one is."""

    code: Code | None
    detail: str
    culprit: str = ""
