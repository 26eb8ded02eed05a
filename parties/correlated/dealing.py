"""The dealer's side of a session: from the keys of all parties to the correction of every request.

Requests are numbered in the order of the program, and number n expands stream n of every party's key (streams.py). The
mask of a fixed weight is asked for once (`Weight`) and named by later requests (`Linear`) by its number.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch

from tacit.parties.correlated.material import Linear, Request, Weight, check, correct
from tacit.parties.correlated.streams import Keystream


class RequestError(ValueError):
    """A request that cannot be met; the message says which and why."""


class Dealing:
    """What the dealer knows of one session; keys: 32 bytes for each party, in the order of the ranks."""

    def __init__(self, keys: Sequence[bytes]) -> None:
        self._keys = keys
        self._weights: dict[int, Weight] = {}

    def correction(self, request: Request, number: int) -> Iterator[torch.Tensor]:
        """The receiver's shares of the dependent words, one after the other; none for the mask of a weight, which is
        noted once they are asked for. RequestError."""
        mask = None
        try:
            check(request, len(self._keys))
            if isinstance(request, Weight):
                self._weights[number] = request
            elif isinstance(request, Linear):
                mask = self._mask(request)
            yield from correct(request, [Keystream(key, number) for key in self._keys], mask)
        except (ValueError, RuntimeError) as error:
            raise RequestError(str(error)) from error

    def _mask(self, request: Linear) -> torch.Tensor:
        # Expanded again every time: weights are many, and the product takes longer.
        if self._weights.get(request.weight) != Weight(owner=request.owner, shape=request.weight_shape):
            raise RequestError(f"{request}: request {request.weight} was not for the mask of such a weight")
        return Keystream(self._keys[request.owner], request.weight).draw(request.weight_shape)
