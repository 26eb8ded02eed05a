"""Outputs of the private-inference machines to their shell, other than messages to send."""

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
    """Both owners have agreed on these terms."""

    peer: str
    session: bytes
    terms: Terms
    digest: bytes
    """Digest of the encoded terms."""
    images: int
    batch: int

    def images_of(self, number: int) -> int:
        """Return the number of images in a pass; passes count from 1."""
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
    """To the model owner's shell: get the correlated randomness of this pass, then call `begin`."""

    number: int


@dataclass(frozen=True)
class Charged(Output):
    """To a shell: persist the peer's use of this side's quota before anything else."""

    peer: str
    spent: Spent


@dataclass(frozen=True)
class PassBegun(Output):
    """To both shells: run these rounds; call `give` for every round in which this side opens something."""

    number: int
    rounds: tuple[Round, ...] = field(repr=False)


@dataclass(frozen=True)
class Opened(Output):
    """To both shells: the peer's opening in a round. Rounds without an opening by the peer are skipped."""

    step: int
    data: bytearray = field(repr=False)


@dataclass(frozen=True)
class PassRefused(Output):
    """To both shells: a value was out of range. The pass is over without a result, and counts as used."""

    number: int


@dataclass(frozen=True)
class MaterialKey(Output):
    """To an owner's shell: the dealer and both owners have joined; the key of this owner's preprocessing streams."""

    key: bytes = field(repr=False)


@dataclass(frozen=True)
class MaterialArrived(Output):
    """To an owner's shell: the corrections of a request, 8 bytes a word."""

    number: int
    data: bytearray = field(repr=False)


@dataclass(frozen=True)
class KeysDealt(Output):
    """To the dealer's shell: both owners have joined; the keys of their streams, the model owner's first."""

    owners: tuple[str, str]
    keys: tuple[bytes, bytes] = field(repr=False)


@dataclass(frozen=True)
class Deal(Output):
    """To the dealer's shell: both owners ordered these requests; call `deliver` for every correction."""

    first: int
    count: int
    requests: bytes


@dataclass(frozen=True)
class InferenceEnded(Output):
    """An exchange is over; code None: regularly. culprit: the party at fault, if any."""

    code: Code | None
    detail: str
    culprit: str = ""
