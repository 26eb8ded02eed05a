"""Small Python objects that CrypTen exchanges, as a tree of plain values: the place of its pickle.

An object is None, a bool, a 64-bit integer, a finite float, a str, bytes, a torch.Size, a tensor, or a list, tuple or
dict (with str keys) of these. Every node is written as [kind, content]; of a tensor only dtype and shape stand in the
tree, the numbers follow as arrays of their own.
"""

from collections.abc import Callable, Sequence
from math import prod
from typing import Any, Final

import msgspec
import numpy as np
import torch

TENSOR_BYTES: Final = 1 << 30
"""What the tensors of one object may have in all."""

_DTYPES: Final = {str(dtype).removeprefix("torch."): dtype for dtype in (torch.int64, torch.float32, torch.float64)}


class Tree(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An encoded object."""

    root: list[Any]


def encode(value: object) -> tuple[Tree, list[torch.Tensor]]:
    """The tree of an object, and its tensors. TypeError for any other kind of object."""
    tensors: list[torch.Tensor] = []

    def node(value: object) -> list[Any]:
        match value:
            case None | bool() | int() | float() | str() | bytes():
                return ["value", value]
            case torch.Size():
                return ["size", list(value)]
            case list() | tuple():
                return ["list" if isinstance(value, list) else "tuple", [node(item) for item in value]]
            case dict() if all(isinstance(key, str) for key in value):
                return ["dict", [[key, node(item)] for key, item in value.items()]]
            case torch.Tensor() if value.dtype in _DTYPES.values():
                tensors.append(value)
                return ["tensor", [str(value.dtype).removeprefix("torch."), list(value.shape)]]
        raise TypeError(
            f"a {type(value).__name__} cannot go to another party, only plain values and tensors: "
            "build models on every party, and share their tensors"
        )

    return Tree(node(value)), tensors


def expected(tree: Tree) -> list[tuple[torch.dtype, tuple[int, ...]]]:
    """Dtypes and shapes of the tensors of a received tree, in order. ValueError for a tree that encode() does not
    write, or whose tensors are too large."""
    tensors: list[tuple[torch.dtype, tuple[int, ...]]] = []
    _build(tree.root, lambda dtype, shape: tensors.append((dtype, shape)))
    size = sum(dtype.itemsize * prod(shape) for dtype, shape in tensors)
    if size > TENSOR_BYTES:
        raise ValueError(f"tensors of {size} bytes; at most {TENSOR_BYTES} are accepted")
    return tensors


def decode(tree: Tree, arrays: Sequence[np.ndarray[Any, np.dtype[Any]]]) -> Any:
    """The object of a tree that expected() has accepted, with the arrays that it announced."""
    rest = iter(arrays)
    return _build(tree.root, lambda dtype, shape: torch.from_numpy(next(rest)))


def _build(node: Any, tensor: Callable[[torch.dtype, tuple[int, ...]], Any]) -> Any:
    match node:
        case ["value", (None | bool() | int() | float() | str() | bytes()) as value]:
            return value
        case ["size", list(sizes)] if _are_sizes(sizes):
            return torch.Size(sizes)
        case ["list", list(items)]:
            return [_build(item, tensor) for item in items]
        case ["tuple", list(items)]:
            return tuple(_build(item, tensor) for item in items)
        case ["dict", list(pairs)] if all(type(pair) is list and len(pair) == 2 for pair in pairs):
            if not all(type(key) is str for key, _ in pairs):
                raise ValueError("a dict has a key that is not a string")
            return {key: _build(value, tensor) for key, value in pairs}
        case ["tensor", [str(dtype), list(sizes)]] if dtype in _DTYPES and _are_sizes(sizes):
            return tensor(_DTYPES[dtype], tuple(sizes))
    raise ValueError(f"not an encoded object: {str(node)[:80]}")


def _are_sizes(values: list[Any]) -> bool:
    return all(type(value) is int and value >= 0 for value in values)
