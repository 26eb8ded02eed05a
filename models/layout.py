"""The flat form in which a model travels: its floating-point state as one float32 vector.

A layout lists the name and shape of every parameter and every floating-point buffer in the order of `state_dict()`.
The vector is the concatenation of these tensors, each in row-major order. Two parties that hold the same layout mean
the same coordinate by the same index, so the digest of the layout belongs into everything they agree upon.

Torch is imported by what touches a model alone, so that reading a configuration stays quick.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated

import msgspec
import numpy as np
import numpy.typing as npt
from msgspec import Meta

if TYPE_CHECKING:
    import torch
    from torch import nn

_DOMAIN = b"tacit/layout/v1\x00"

Flat = npt.NDArray[np.float32]
Dimension = Annotated[int, Meta(ge=0, le=2**32 - 1)]


class LayoutEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One tensor: its name in the state dictionary and its shape."""

    name: Annotated[str, Meta(min_length=1, max_length=1024)]
    shape: Annotated[tuple[Dimension, ...], Meta(max_length=16)]

    @property
    def size(self) -> int:
        """Number of coordinates; 1 for a scalar."""
        return math.prod(self.shape)


class Layout(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Names and shapes of a model's floating-point state, in order. Raises ValueError if a name occurs twice."""

    entries: tuple[LayoutEntry, ...]

    def __post_init__(self) -> None:
        names: set[str] = set()
        for entry in self.entries:
            if entry.name in names:
                raise ValueError(f"layout: two tensors are called {entry.name!r}; names must differ")
            names.add(entry.name)

    @classmethod
    def of(cls, model: nn.Module) -> Layout:
        """The layout of `model`.

        Integer counters of batch normalisation (`num_batches_tracked`) are left out: they steer nothing while the
        momentum is set, and a sum of counters means nothing. ValueError names other state that is not float32.
        """
        return cls(tuple(LayoutEntry(name, tuple(tensor.shape)) for name, tensor in _floating_state(model).items()))

    @property
    def size(self) -> int:
        """Number of coordinates of the flat vector."""
        return sum(self.tensor_sizes)

    @property
    def tensor_sizes(self) -> tuple[int, ...]:
        """Number of coordinates of every tensor, in order."""
        return tuple(entry.size for entry in self.entries)

    def difference(self, other: Layout) -> str | None:
        """The first way in which `other` departs from this layout, in words, or None where the two are equal."""
        theirs = {entry.name: entry.shape for entry in other.entries}
        for entry in self.entries:
            if entry.name not in theirs:
                return f"tensor {entry.name!r} is missing"
            if theirs[entry.name] != entry.shape:
                return f"tensor {entry.name!r} has shape {list(theirs[entry.name])}, expected {list(entry.shape)}"
        ours = {entry.name for entry in self.entries}
        for name in theirs:
            if name not in ours:
                return f"tensor {name!r} is not part of this model"
        return None if self == other else "the same tensors stand in another order"

    def flatten(self, model: nn.Module) -> Flat:
        """A copy of the model's state: float32 [size], in host memory. Raises ValueError for another architecture."""
        return self.concatenate({name: tensor.detach().cpu().numpy() for name, tensor in self._state(model).items()})

    def concatenate(self, tensors: Mapping[str, Flat]) -> Flat:
        """The tensors of this layout's names as one float32 [size]; a name that is absent contributes zeros."""
        flat = np.zeros(self.size, dtype=np.float32)
        for name, part in self.split(flat).items():
            if name in tensors:
                part[...] = tensors[name]
        return flat

    def split(self, flat: Flat) -> dict[str, Flat]:
        """Views into `flat` with the names and shapes of the tensors. ValueError for a wrong dtype or length."""
        if flat.dtype != np.float32 or flat.shape != (self.size,):
            raise ValueError(f"flat model is {flat.dtype} {list(flat.shape)}, expected float32 [{self.size}]")
        parts: dict[str, Flat] = {}
        offset = 0
        for entry in self.entries:
            parts[entry.name] = flat[offset : offset + entry.size].reshape(entry.shape)
            offset += entry.size
        return parts

    def load_into(self, model: nn.Module, flat: Flat) -> None:
        """Overwrite the model's state by `flat`, float32 [size]. Changes nothing where it raises.

        ValueError for a wrong dtype or shape, a value that is not finite (naming its tensor), or another architecture.
        """
        import torch

        parts = self.split(flat)
        self.check_finite(flat)
        state = self._state(model)
        with torch.no_grad():
            for name, part in parts.items():
                state[name].copy_(torch.tensor(part))

    def mend_variances(self, flat: Flat) -> None:
        """Raise the running variances of batch normalisation below zero to zero, in `flat`, float32 [size], itself.

        Noise and rounding can push them there, and their root is then not a number.
        """
        for name, part in self.split(flat).items():
            if name.rpartition(".")[2] == "running_var":
                np.maximum(part, 0.0, out=part)

    def check_finite(self, flat: Flat) -> None:
        """Raise ValueError, naming the first tensor concerned, if a coordinate is infinite or not a number."""
        if np.isfinite(flat).all():
            return
        for name, part in self.split(flat).items():
            if not np.isfinite(part).all():
                raise ValueError(f"tensor {name!r} holds a value that is not finite; training may have diverged")

    def digest(self) -> bytes:
        """SHA-256 (32 bytes) of names and shapes, encoded as in docs/spec/encoding.md."""
        encoding = bytearray(_DOMAIN + _u32(len(self.entries)))
        for entry in self.entries:
            name = entry.name.encode()
            encoding += _u32(len(name)) + name + _u32(len(entry.shape)) + b"".join(map(_u32, entry.shape))
        return hashlib.sha256(encoding).digest()

    def _state(self, model: nn.Module) -> dict[str, torch.Tensor]:
        difference = self.difference(Layout.of(model))
        if difference is not None:
            raise ValueError(f"the model does not fit the layout: {difference}")
        return _floating_state(model)


def _floating_state(model: nn.Module) -> dict[str, torch.Tensor]:
    import torch

    state: dict[str, torch.Tensor] = {}
    for name, tensor in model.state_dict().items():
        if name.rpartition(".")[2] == "num_batches_tracked":
            continue
        if not isinstance(tensor, torch.Tensor) or tensor.dtype != torch.float32:
            kind = tensor.dtype if isinstance(tensor, torch.Tensor) else type(tensor).__name__
            raise ValueError(f"state {name!r} is {kind}; only float32 tensors can be aggregated (try model.float())")
        state[name] = tensor
    return state


def _u32(number: int) -> bytes:
    return number.to_bytes(4, "big")
