"""Counts the most bytes that tensors take at one moment, exactly: every storage from its first operation to its end."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class TensorMemory(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts within a `with` block, on all devices; what an operation takes and gives back in itself is not seen."""

    def __init__(self, weights: Iterable[torch.Tensor]) -> None:
        """weights: tensors that are there before."""
        super().__init__()  # type: ignore[no-untyped-call]
        self.peak = 0
        """The most bytes so far."""
        self._now = 0
        self._alive: dict[int, weakref.ref[torch.UntypedStorage]] = {}
        for tensor in weights:
            self._note(tensor)

    def __torch_dispatch__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Called for every operation."""
        results = func(*args, **(kwargs or {}))
        for leaf in tree_leaves((args, kwargs, results)):
            if isinstance(leaf, torch.Tensor):
                self._note(leaf)
        return results

    def _note(self, tensor: torch.Tensor) -> None:
        storage = tensor.untyped_storage()
        key, size = id(storage), storage.nbytes()
        if key in self._alive:
            return

        def gone(_: weakref.ref[torch.UntypedStorage]) -> None:
            del self._alive[key]
            self._now -= size

        self._alive[key] = weakref.ref(storage, gone)
        self._now += size
        self.peak = max(self.peak, self._now)
