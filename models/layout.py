"""Transport form of a model: one float32 vector that is summed, and fixed bytes.

A tensor of `state_dict()` is *trained*; *averaged*, a floating-point buffer; *local*, with a value of its own at every
client once it has trained; or *fixed*. The vector holds the first two, in order; the fixed part has the initial values
of local buffers. Only functions that touch a model import torch, so that reading a configuration stays quick.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec
import numpy as np
import numpy.typing as npt
from msgspec import Meta

if TYPE_CHECKING:
    import torch
    from torch import nn

_DOMAIN = b"tacit/layout/v2\x00"

Flat = npt.NDArray[np.float32]
Dimension = Annotated[int, Meta(ge=0, le=2**32 - 1)]
Part = Literal["trained", "averaged", "local", "fixed"]
Buffers = Literal["averaged", "local", "fixed"]


class LayoutEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One tensor: its name in the state dictionary, its shape, its part, and its type."""

    name: Annotated[str, Meta(min_length=1, max_length=1024)]
    shape: Annotated[tuple[Dimension, ...], Meta(max_length=16)]
    part: Part = "trained"
    dtype: Annotated[str, Meta(max_length=32)] = "float32"

    @property
    def size(self) -> int:
        return math.prod(self.shape)


class Layout(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Names and shapes of a model's state, in order. Raises ValueError if a name occurs twice.

    entries: tensors of the vector; fixed: all others, including local ones.
    """

    entries: tuple[LayoutEntry, ...]
    fixed: tuple[LayoutEntry, ...] = ()

    def __post_init__(self) -> None:
        names: set[str] = set()
        for entry in (*self.entries, *self.fixed):
            if entry.name in names:
                raise ValueError(f"layout: two tensors are called {entry.name!r}; names must differ")
            names.add(entry.name)

    @classmethod
    def of(cls, model: nn.Module) -> Layout:
        """Return the layout of the whole floating-point state of `model`, as a checkpoint has it.

        It omits integer counters of batch normalisation (`num_batches_tracked`), which have no effect while the
        momentum is set. Raises ValueError, naming it, for other state that is not float32.
        """
        return cls(tuple(LayoutEntry(name, tuple(tensor.shape)) for name, tensor in _floating_state(model).items()))

    @classmethod
    def summed(cls, model: nn.Module, *, buffers: Buffers = "averaged") -> Layout:
        """Return the layout of `model` in a federation: parameters that require gradients are trained, others fixed.

        buffers: the part for float32 buffers. Counters are omitted as above. ValueError names a trained parameter that
        is not float32, or reports a model without any.
        """
        parameters = dict(model.named_parameters(remove_duplicate=False))
        entries: list[LayoutEntry] = []
        fixed: list[LayoutEntry] = []
        for name, tensor in _state(model).items():
            kind, shape = str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape)
            if name in parameters and parameters[name].requires_grad:
                if kind != "float32":
                    raise ValueError(f"parameter {name!r} is {kind}; only float32 is trained (try model.float())")
                if not tensor.numel():
                    raise ValueError(f"parameter {name!r} is empty ({list(shape)}); leave it out of the model")
                entries.append(LayoutEntry(name, shape))
            elif name not in parameters and kind == "float32" and tensor.numel():
                (entries if buffers == "averaged" else fixed).append(LayoutEntry(name, shape, buffers))
            else:
                fixed.append(LayoutEntry(name, shape, "fixed", kind))
        if not any(entry.part == "trained" for entry in entries):
            raise ValueError("no parameter of the model requires a gradient; there is nothing to train")
        return cls(tuple(entries), tuple(fixed))

    @property
    def size(self) -> int:
        return sum(self.tensor_sizes)

    @property
    def tensor_sizes(self) -> tuple[int, ...]:
        return tuple(entry.size for entry in self.entries)

    def difference(self, other: Layout) -> str | None:
        """Describe the first difference of `other` from this layout in words; None if they are equal."""
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
        return (
            None
            if list(theirs) == [entry.name for entry in self.entries]
            else "the same tensors stand in another order"
        )

    def flatten(self, model: nn.Module) -> Flat:
        """Copy the model's state: float32 [size], in host memory. Raises ValueError for another architecture."""
        state = self._state(model)
        return self.concatenate({entry.name: state[entry.name].detach().cpu().numpy() for entry in self.entries})

    def concatenate(self, tensors: Mapping[str, Flat]) -> Flat:
        """Concatenate the tensors of this layout's names into one float32 [size]; a missing name contributes zeros."""
        flat = np.zeros(self.size, dtype=np.float32)
        for name, part in self.split(flat).items():
            if name in tensors:
                part[...] = tensors[name]
        return flat

    def split(self, flat: Flat) -> dict[str, Flat]:
        """Return views into `flat` with the names and shapes of the tensors. ValueError for a wrong dtype or length."""
        if flat.dtype != np.float32 or flat.shape != (self.size,):
            raise ValueError(f"flat model is {flat.dtype} {list(flat.shape)}, expected float32 [{self.size}]")
        parts: dict[str, Flat] = {}
        offset = 0
        for entry in self.entries:
            parts[entry.name] = flat[offset : offset + entry.size].reshape(entry.shape)
            offset += entry.size
        return parts

    def load_into(self, model: nn.Module, flat: Flat) -> None:
        """Overwrite the model's state by `flat`, float32 [size]. Changes nothing if it raises.

        ValueError for a wrong dtype or shape, a value that is not finite (naming its tensor), or another architecture.
        """
        import torch

        parts = self.split(flat)
        self.check_finite(flat)
        state = self._state(model)
        with torch.no_grad():
            for name, part in parts.items():
                state[name].copy_(torch.tensor(part))

    def check_finite(self, flat: Flat) -> None:
        """Raise ValueError, naming the first such tensor, if a coordinate is infinite or not a number."""
        if np.isfinite(flat).all():
            return
        for name, part in self.split(flat).items():
            if not np.isfinite(part).all():
                raise ValueError(f"tensor {name!r} holds a value that is not finite; training may have diverged")

    def fixed_bytes(self, model: nn.Module) -> bytes:
        """Encode the tensors of the fixed part one after the other, in row-major order and little-endian. Raises
        ValueError, naming the tensor, for a value that is not finite."""
        import torch

        state = _state(model)
        parts = {entry.name: state[entry.name].detach().cpu().contiguous().reshape(-1) for entry in self.fixed}
        for name, part in parts.items():
            _check_fixed(name, part)
        return b"".join(part.view(torch.uint8).numpy().tobytes() for part in parts.values())

    def fixed_size(self, model: nn.Module) -> int:
        state = _state(model)
        return sum(state[entry.name].nbytes for entry in self.fixed)

    def load_fixed(self, model: nn.Module, data: bytes) -> None:
        """Overwrite the fixed part of the model's state. Changes nothing if it raises.

        Raises ValueError for another length, or a value that is not finite (naming its tensor).
        """
        import torch

        if len(data) != (expected := self.fixed_size(model)):
            raise ValueError(f"the fixed part has {len(data)} bytes, and the model's has {expected}")
        state, offset = _state(model), 0
        parts: dict[str, torch.Tensor] = {}
        for entry in self.fixed:
            tensor, size = state[entry.name], state[entry.name].nbytes
            if size:
                raw = torch.frombuffer(bytearray(data[offset : offset + size]), dtype=tensor.dtype)
                parts[entry.name] = raw.reshape(tensor.shape)
                _check_fixed(entry.name, raw)
            offset += size
        with torch.no_grad():
            for name, part in parts.items():
                state[name].copy_(part)

    def local(self, model: nn.Module) -> dict[str, Flat]:
        state = _state(model)
        return {entry.name: state[entry.name].cpu().numpy().copy() for entry in self.fixed if entry.part == "local"}

    def load_local(self, model: nn.Module, buffers: Mapping[str, npt.NDArray[Any]]) -> None:
        import torch

        state = _state(model)
        for name in self.local(model):
            state[name].copy_(torch.tensor(buffers[name]))

    def digest(self) -> bytes:
        """SHA-256 (32 bytes) of all tensors, encoded as in docs/spec/encoding.md."""
        encoding = bytearray(_DOMAIN)
        for entries in (self.entries, self.fixed):
            encoding += _u32(len(entries))
            for entry in entries:
                encoding += _text(entry.name) + _text(entry.part) + _text(entry.dtype)
                encoding += _u32(len(entry.shape)) + b"".join(map(_u32, entry.shape))
        return hashlib.sha256(encoding).digest()

    def _state(self, model: nn.Module) -> dict[str, torch.Tensor]:
        """Return the tensors of the vector. Raises ValueError if the model lacks them."""
        state, fixed = _state(model), {entry.name for entry in self.fixed}
        # A checkpoint has no fixed part, and leaves out state that is not float32.
        found = {name: tensor for name, tensor in state.items() if tensor.dtype.is_floating_point and name not in fixed}
        difference = self.difference(
            Layout(tuple(LayoutEntry(name, tuple(tensor.shape)) for name, tensor in found.items()))
        )
        if difference is not None:
            raise ValueError(f"the model does not fit the layout: {difference}")
        return state


def _state(model: nn.Module) -> dict[str, torch.Tensor]:
    """Return all tensors except counters of batch normalisation. ValueError for state that is no tensor."""
    import torch

    state: dict[str, torch.Tensor] = {}
    for name, tensor in model.state_dict().items():
        if name.rpartition(".")[2] == "num_batches_tracked":
            continue
        if not isinstance(tensor, torch.Tensor):
            raise ValueError(f"state {name!r} is {type(tensor).__name__}; only tensors can be sent")
        if problem := _problem(tensor):
            raise ValueError(f"state {name!r} {problem}")
        state[name] = tensor
    return state


def _problem(tensor: torch.Tensor) -> str:
    """Explain why a tensor cannot be set, with the remedy; "" if it can."""
    import torch
    from torch.nn.parameter import is_lazy

    if is_lazy(tensor):
        return "has no values yet: call the model once on an input, where it is made"
    if tensor.is_complex() or tensor.is_quantized or tensor.layout is not torch.strided:
        return f"is {str(tensor.dtype).removeprefix('torch.')} of layout {tensor.layout}; expected a dense, real tensor"
    if any(stride == 0 and size > 1 for stride, size in zip(tensor.stride(), tensor.shape, strict=True)):
        return f"is expanded to {list(tensor.shape)} from fewer values: make it with .clone()"
    return ""


def _floating_state(model: nn.Module) -> dict[str, torch.Tensor]:
    import torch

    state: dict[str, torch.Tensor] = {}
    for name, tensor in _state(model).items():
        if not tensor.dtype.is_floating_point:
            continue
        if tensor.dtype != torch.float32:
            raise ValueError(f"state {name!r} is {tensor.dtype}; only float32 tensors can be saved (try model.float())")
        state[name] = tensor
    return state


def _check_fixed(name: str, tensor: torch.Tensor) -> None:
    if tensor.dtype.is_floating_point and not tensor.isfinite().all():
        raise ValueError(
            f"tensor {name!r} of the fixed part holds a value that is not finite; give the server weights that are "
            "finite, and keep a mask of infinities in a buffer with persistent=False"
        )


def _text(text: str) -> bytes:
    encoded = text.encode()
    return _u32(len(encoded)) + encoded


def _u32(number: int) -> bytes:
    return number.to_bytes(4, "big")
