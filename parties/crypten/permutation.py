"""Rows of shares in an order that one party knows: two messages, exact, and no products.

Chase, Ghosh, Poburinnaya (ASIACRYPT 2020), with a dealer. The dealer draws an order sigma for the owner, a and b for
the others, and gives the owner D = a[sigma] - b, where [ ] takes rows.

1. The owner wants the order pi. It tells the others rho, for which sigma[rho] = pi. They do not know sigma, which is
   uniform, so rho says nothing about pi. Nor does the dealer learn pi: it never sees rho.
2. The others send m = x_other - a. Their share is b[rho].
3. The owner's share is ((x_owner + m)[sigma] + D)[rho].
"""

from __future__ import annotations

from typing import Any

import torch

from tacit.parties.correlated.material import Permutation, drawn_order
from tacit.parties.crypten.compatibility import crypten
from tacit.parties.crypten.errors import MpcError
from tacit.parties.crypten.provider import Arithmetic
from tacit.parties.crypten.supply import Supply


def permute_rows(supply: Supply, rows: Any, order: torch.Tensor | None, *, owner: int) -> Any:
    """rows[order] of an ArithmeticSharedTensor (rows, ...); only the owner gives the order, int64 (rows,).

    A call of all parties. ValueError at the owner for what is not an order of the rows, MpcError elsewhere.
    """
    communicator = crypten.communicator.get()
    share: torch.Tensor = rows.share
    count = share.shape[0]
    if supply.rank == owner:
        if order is None or not _is_order(order, count):
            raise ValueError(f"an order of {count} rows is a permutation of the numbers from 0 to {count - 1}")
        _, (drawn, difference) = supply.take(Permutation(owner, tuple(share.shape)))
        sigma = drawn_order(drawn)
        rho = communicator.broadcast(torch.argsort(sigma)[order], owner)
        for other in range(len(supply.parties)):
            if other != owner:
                share = share + communicator.recv(torch.empty_like(share), other)
        permuted = (share[sigma] + difference)[rho]
    else:
        _, (a, b) = supply.take(Permutation(owner, tuple(share.shape)))
        rho = communicator.broadcast(torch.empty(count, dtype=torch.int64), owner)
        if not _is_order(rho, count):
            raise MpcError(supply.parties[owner], "permute rows", f"it sent no order of {count} rows")
        communicator.send(share - a, owner)
        permuted = b[rho]
    result = Arithmetic.from_shares(permuted)
    result.encoder = rows.encoder
    return result


def _is_order(order: torch.Tensor, count: int) -> bool:
    return order.shape == (count,) and bool((order.sort().values == torch.arange(count)).all())
