"""State of an owner in a training round, and the common adapters and head on disk.

The file is safetensors, float64, with the round whose common parameters it holds. It is written atomically. Nothing in
it is ever unpickled.

A lost session loses no training: both owners keep their shares, and resume behind the last batch that both have
finished. One may have finished one batch more than the other, so each keeps the previous state too.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
import torch
from safetensors import SafetensorError, deserialize
from safetensors.numpy import save as serialise

from tacit.models.adapters.parallel import AdapterParameters
from tacit.models.checkpoint import metadata_of
from tacit.models.file_system import FILES, replace_file
from tacit.parties.adaptation.fixed_point import PARAMETER
from tacit.parties.adaptation.step import ParameterShares, flat
from tacit.parties.correlated.material import Keystream
from tacit.parties.inference.operations import DATA
from tacit.parties.inference.ring import WORD_BITS
from tacit.protocol.adaptation.schedule import COUNTED
from tacit.protocol.inference.schedule import PLACE

_ROUND: Final = "round"
_REFUSED: Final = "refused"


class Common(NamedTuple):
    parameters: AdapterParameters
    round: int
    refused: int = 0
    """Sum of the data owners' shares of the number of refused batches over the rounds so far: a random word until the
    model owner reveals its own share, with the last round."""


def save(path: Path, parameters: AdapterParameters, *, round: int, refused: int = 0) -> None:
    """Write them durably. OSError."""
    tensors = {name: tensor.detach().double().numpy() for name, tensor in parameters.tensors.items()}
    # A tensor, since several metadata are written in no order.
    tensors[_REFUSED] = np.array([refused], np.int64)
    replace_file(path, serialise(tensors, metadata={_ROUND: str(round)}))


def load(path: Path, like: AdapterParameters) -> Common:
    """Load parameters of the same shapes. FileNotFoundError; ValueError for an invalid file or other shapes."""
    content = FILES.read(path)
    try:
        found = dict(deserialize(content))  # type: ignore[no-untyped-call]
        number = int(metadata_of(content)[_ROUND])
        (refused,) = np.frombuffer(found[_REFUSED]["data"], "<i8")
    except (SafetensorError, KeyError, ValueError) as error:
        raise ValueError(f"{path} holds no adapters: {error}") from error
    tensors = {}
    for name, tensor in like.tensors.items():
        part = found.get(name)
        if part is None or part["dtype"] != "F64" or tuple(part["shape"]) != tuple(tensor.shape):
            raise ValueError(f"{path} holds adapters of another model: {name} is not a float64 {tuple(tensor.shape)}")
        values = np.frombuffer(part["data"], "<f8").reshape(part["shape"]).astype(np.float64)
        if not np.isfinite(values).all():
            raise ValueError(f"{path}: {name} has a value that is not finite")
        tensors[name] = torch.from_numpy(values)
    return Common(AdapterParameters(**tensors), number, int(refused))


COUNT_BITS: Final = WORD_BITS - PLACE
"""Bits below a count modulo 2^PLACE that extend it to one modulo 2^64."""


@dataclass(frozen=True, repr=False)
class Learnt:
    parameters: ParameterShares
    loss: torch.Tensor
    """Sum over all images of batches in range, see Stepped."""
    correct: torch.Tensor
    """Number of correctly classified images among them, modulo 2^PLACE."""
    refused: torch.Tensor

    @classmethod
    def nothing(cls, parameters: ParameterShares) -> Learnt:
        zero = torch.zeros((), dtype=torch.int64)
        return cls(parameters, zero, zero, zero)

    def then(
        self, parameters: ParameterShares, *, loss: torch.Tensor, correct: torch.Tensor, refused: torch.Tensor
    ) -> Learnt:
        return replace(
            self,
            parameters=parameters,
            loss=self.loss + loss.cpu(),
            correct=self.correct + correct.cpu(),
            refused=self.refused + refused.cpu(),
        )

    def words(self, weight: int, rank: int) -> torch.Tensor:
        """Words that this owner's share adds to its sum: int64 [n], modulo 2^64, the parameters times the weight of the
        data owner, and the counts in COUNTED."""
        known = torch.tensor(weight if rank == DATA else 0)
        counted = torch.stack([self.loss, self.correct << COUNT_BITS, self.refused, known])
        return torch.cat([weight * flat(self.parameters).cpu(), counted])


@dataclass(frozen=True)
class Counted:
    """Statistics of a round from the sums over all owners, before its steps. They do not disclose the number of batches
    out of range, whose loss and correct answers count as zero."""

    loss: float
    accuracy: float
    images: int
    weight: int = 1
    """Total weight of all owners, the divisor of the sum of their parameters."""

    @classmethod
    def of(cls, words: torch.Tensor, *, classes: int, images: int) -> Counted:
        """Decode the last words of both owners' sums together, int64 [COUNTS]. images: of all steps of these owners."""
        loss, correct, _, weight = words.tolist()
        return cls(loss / (2.0 ** (2 * PARAMETER) * classes * images), (correct >> COUNT_BITS) / images, images, weight)


class Standing:
    def __init__(self) -> None:
        self.number = 0
        """Number of the round; 0 before the first."""
        self.done = 0
        """Finished batches."""
        self._learnt: dict[int, Learnt] = {}
        """The last two states, by the number of finished batches."""

    def begin(self, number: int, first: ParameterShares) -> None:
        if number != self.number:
            self.number, self.done = number, 0
            self._learnt = {0: Learnt.nothing(first)}
            self._first = self._learnt[0]

    def latest(self, most: int) -> int:
        """Largest number of finished batches that it can resume from, not above this one."""
        return max((done for done in (0, *self._learnt) if done <= most), default=0)

    def resume(self, done: int) -> None:
        """Resume behind so many batches. KeyError if it cannot."""
        self._learnt = {done: self._first if not done else self._learnt[done]}
        self.done = done

    @property
    def learnt(self) -> Learnt:
        return self._learnt[self.done]

    def add(self, learnt: Learnt) -> None:
        self._learnt = {self.done: self.learnt, self.done + 1: learnt}
        self.done += 1


def zeros(secret: bytes, like: torch.Tensor) -> torch.Tensor:
    """Random words of this shape that both owners derive from a shared secret: the model owner adds them to its share
    of a round, and the data owner subtracts them."""
    return Keystream(secret).draw(like.shape)


COUNTS: int = len(COUNTED)
