"""The part of the model that a client has for itself (FedSplit, FedCG): it never leaves it, and replaces the server's.

It starts as the server's first model and is whatever the client's last training made of it, in memory only.
"""

from __future__ import annotations

from tacit.models.layout import Flat, Layout


class LocalPart:
    """The tensors of these names."""

    def __init__(self, layout: Layout, names: frozenset[str]) -> None:
        self._layout = layout
        self.names = names
        self._own: dict[str, Flat] = {}

    def merge(self, model: Flat) -> Flat:
        """The server's model, float32 [size], with this client's part in it: the model of this client."""
        merged = model.copy()
        parts = self._layout.split(merged)
        for name, own in self._own.items():
            parts[name][...] = own
        return merged

    def keep(self, trained: Flat) -> None:
        """Take this part of the trained model, float32 [size]."""
        self._own = {name: part.copy() for name, part in self._layout.split(trained).items() if name in self.names}
