"""Rows of shares in a secret order of the model owner: one round, exact, and no products.

Share translation with a dealer (Chase, Ghosh, Poburinnaya, ASIACRYPT 2020). The dealer draws an order sigma for the
model owner, a and b for the data owner, and gives the model owner D = a[sigma] - b, where [ ] takes rows.

1. The model owner wants the order pi. It tells the data owner rho, for which sigma[rho] = pi. The data owner does not
   know sigma, which is uniform, so rho says nothing about pi. Nor does the dealer learn pi: it never sees rho.
2. At the same time the data owner tells x_d - a. Its share is b[rho].
3. The model owner's share is ((x_m + x_d - a)[sigma] + D)[rho].
"""

from __future__ import annotations

import os

import torch

from tacit.parties.correlated.material import drawn_order
from tacit.parties.correlated.streams import Keystream
from tacit.parties.inference.material import Shuffle
from tacit.parties.inference.operations import DATA, MODEL, Communication, Party, Program
from tacit.protocol.adaptation.schedule import ROW
from tacit.protocol.core.errors import Code, RemoteProtocolError
from tacit.protocol.core.primitives import KEY_BYTES


def secret_order(rows: int) -> torch.Tensor:
    """A fresh uniformly random order, int64 [rows], that nobody else knows."""
    return drawn_order(Keystream(os.urandom(KEY_BYTES)).draw((rows,)))


def checked_order(words: torch.Tensor, rows: int) -> torch.Tensor:
    """An order of so many rows as the model owner told it, of whose words the lowest ROW bits count.
    RemoteProtocolError (MALFORMED) for what is none."""
    order = words & ((1 << ROW) - 1)
    if not order.sort().values.equal(torch.arange(rows, device=order.device)):
        raise RemoteProtocolError(
            Code.MALFORMED, f"it told an order of {rows} rows that does not have each of them once"
        )
    return order


class ShuffledRows:
    """One use, for shares [rows, ...] of this shape modulo 2^ring. order: at the model owner, int64 [rows]."""

    def __init__(self, party: Party, shape: tuple[int, ...], ring: int, order: torch.Tensor | None) -> None:
        self._party, self._shape, self._ring, self._order = party, shape, ring, order
        request = Shuffle(MODEL, shape, ring)
        self._free, self._dependent = party.supplied([request]).take(request)

    def run(self, share: torch.Tensor) -> Program[torch.Tensor]:
        """The share of the rows in that order. RemoteProtocolError at the data owner for an order that is none."""
        rows, ring = self._shape[0], self._ring
        if self._party.rank == DATA:
            sent = ((share - self._free, ring),)
            (told,) = yield Communication("shuffle", sent, (((rows,), ROW),))
            return self._dependent[checked_order(told.to(self._party.device), rows)]
        assert self._order is not None
        sigma = drawn_order(self._free)
        rho = torch.argsort(sigma)[self._order.to(self._party.device)]
        (masked,) = yield Communication("shuffle", ((rho, ROW),), ((self._shape, ring),))
        return ((share + masked.to(self._party.device))[sigma] + self._dependent)[rho]
