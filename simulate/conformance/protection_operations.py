"""Operations on what clients do to an update before it is summed: coordinated weights, model encryption.

They come from the parties' protections, which are imported when one of them is performed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Final, Literal

import msgspec
import numpy as np
from msgspec import Meta

from tacit.protocol.group_key.agreement import GroupKey
from tacit.protocol.group_key.holder import Reencrypt
from tacit.simulate.conformance.notation import Octets
from tacit.simulate.conformance.operations import Operations

if TYPE_CHECKING:
    from tacit.models.layout import Layout
    from tacit.parties.protections.encryption import GroupModel

Matrix = Literal["orthogonal", "gaussian"]
DECIMALS: Final = 5
"""Of the numbers of an encrypted model: machines differ in the last bits of logarithms and cosines."""


class Tensor(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """One tensor of a model."""

    name: str
    shape: tuple[Annotated[int, Meta(ge=1, le=4096)], ...]


class KeyInput(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A group key, and whose it is."""

    key: Octets
    transcript: Octets
    members: tuple[str, ...]

    def group_key(self) -> GroupKey:
        """The same for the parties."""
        return GroupKey(0, self.key, self.members, self.transcript)


def coordinate(
    *,
    group: KeyInput,
    member: str,
    round: int,
    tensors: tuple[Tensor, ...],
    zero_probability: float,
    layers: dict[str, float],
    min_contributors: int,
    survivors: int,
) -> list[int]:
    """The coordinated binary weights of a member in a round; `layers` as name of a tensor to its probability.

    survivors: of the smallest sum that is opened.
    """
    from tacit.parties.protections.binary_weights import CoordinatedBinaryWeights
    from tacit.parties.protections.sides import Group

    protection = CoordinatedBinaryWeights(
        zero_probability=zero_probability, layers=layers, min_contributors=min_contributors
    )
    drawn = protection.agreed(_layout(tensors), round, Group(group.group_key(), member), survivors=survivors)
    bits: list[int] = drawn.astype(int).tolist()
    return bits


def encrypt_model(*, group: KeyInput, tensors: tuple[Tensor, ...], matrix: Matrix, model: Octets) -> list[float]:
    """The numbers of a model, given as little-endian float32, under a group key, rounded to five decimals."""
    encrypted = _model(tensors, matrix).reencrypt(Reencrypt("server", group.group_key(), None, bytes(model)))
    return [round(number, DECIMALS) for number in np.frombuffer(encrypted, "<f4").astype(np.float64).tolist()]


def first_embeddings(*, group: KeyInput, tensors: tuple[Tensor, ...]) -> bytes:
    """The embeddings of the model that clients begin with, before it is encrypted; all other tensors are zero."""
    return _model(tensors, "orthogonal").initial(group.group_key()).astype("<f4").tobytes()


def _model(tensors: tuple[Tensor, ...], matrix: Matrix) -> GroupModel:
    from tacit.parties.protections.encryption import Encryption, GroupModel

    layout = _layout(tensors)
    return GroupModel(layout, Encryption(matrix=matrix), lambda seed: np.zeros(layout.size, np.float32))


def _layout(tensors: tuple[Tensor, ...]) -> Layout:
    from tacit.models.layout import Layout, LayoutEntry

    return Layout(tuple(LayoutEntry(tensor.name, tensor.shape) for tensor in tensors))


PROTECTIONS: Final[Operations] = {
    "coordinated weights": coordinate,
    "encrypt model": encrypt_model,
    "first embeddings": first_embeddings,
}
"""By the names that vectors use."""
