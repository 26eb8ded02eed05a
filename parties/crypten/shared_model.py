"""An MPC-friendly model (tacit.models.friendly) on shares: its owner's weights, another's images; and permutations.

Every party builds the model with the same architecture and intervals; weights other than the owner's are ignored. The
weight of a linear layer is masked once for the session and costs one message per product (linear.py); the rest (biases,
norms, positions) is shared like an input. The other parties learn the architecture and the calibrated intervals, which
are public constants of the computation.

`permute_rows` puts rows of shares in an order that one party knows: two messages, exact, and no products (Chase, Ghosh,
Poburinnaya, ASIACRYPT 2020, with a dealer). The dealer draws an order sigma for the owner, a and b for the others, and
gives the owner D = a[sigma] - b, where [ ] takes rows.

1. The owner wants the order pi. It sends the others rho, for which sigma[rho] = pi. They do not know sigma, which is
   uniform, so rho says nothing about pi. Nor does the dealer learn pi: it never sees rho.
2. The others send m = x_other - a. Their share is b[rho].
3. The owner's share is ((x_owner + m)[sigma] + D)[rho].
"""

from __future__ import annotations

from typing import Any, Final

import torch

from tacit.models.friendly.polynomials import ActivationError, Gauge, Interval
from tacit.models.friendly.transformer import FriendlyTransformer, LinearLayer, Projection, with_parameters
from tacit.parties.correlated.material import Permutation, drawn_order
from tacit.parties.crypten.compatibility import crypten
from tacit.parties.crypten.computation import Computation
from tacit.parties.crypten.errors import MpcError
from tacit.parties.crypten.linear import FixedWeight, FixedWeights
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


LARGEST_BOUND: Final = 2.0**12
"""Intervals may reach this far: a product of two such values is within the 2^30 that a truncation takes, with room for
what the inverse of a small divisor adds."""


def share_model(
    model: FriendlyTransformer, computation: Computation, *, owner: int, check: bool = False
) -> FriendlyTransformer:
    """The model for shared rows of patches (FriendlyTransformer.patches), to be called under crypten.no_grad().

    A call of all parties; `owner` is the rank whose weights count. check: compare every gauge with its interval, which
    tells all parties one bit for each, and raise ActivationError if one is left. Raises as check_shareable does.
    """
    check_shareable(model)
    linear = {f"{path}.weight" for path, part in model.named_modules() if isinstance(part, LinearLayer | Projection)}

    def share(name: str, tensor: torch.Tensor) -> Any:
        if name in linear:
            matrix = tensor.reshape(tensor.shape[0], -1).transpose(0, 1)
            shape = (matrix.shape[0], matrix.shape[1])
            handle = computation.weights.mask(_rounded(matrix) if rank == owner else None, shape, owner=owner)
            return _Product(computation.weights, handle)
        return crypten.cryptensor(_rounded(tensor) if rank == owner else torch.zeros_like(tensor), src=owner)

    rank = crypten.communicator.get().get_rank()
    shared = with_parameters(model, share)
    for part in shared.modules():
        if isinstance(part, Gauge) and check:
            part.watch = _compare
    return shared


class _Product:
    """Multiplies by a weight that was masked beforehand."""

    def __init__(self, weights: FixedWeights, handle: FixedWeight) -> None:
        self._weights = weights
        self._handle = handle

    def __call__(self, x: Any) -> Any:
        result = x.shallow_copy()
        result._tensor = self._weights.multiply(x._tensor, self._handle)
        return result


def _compare(name: str, values: Any, interval: Interval) -> None:
    inside = (values - interval.low) * (interval.high - values)
    if (inside < 0).sum().gt(0).get_plain_text().item():
        raise ActivationError(
            f"{name}: a shared value is beyond the calibrated interval from {interval.low:.6g} to {interval.high:.6g}; "
            "calibrate on data like these, or with a larger margin"
        )


def _rounded(tensor: torch.Tensor) -> torch.Tensor:
    """To the nearest fixed-point number; CrypTen would round towards zero."""
    scale: int = 1 << crypten.cfg.encoder.precision_bits
    return (tensor.double() * scale).round() / scale


def check_shareable(model: FriendlyTransformer) -> None:
    """ValueError for a model that shares cannot compute: one that is not calibrated, whose functions are not all
    polynomials, which reach beyond LARGEST_BOUND, or whose weights are not finite."""
    for name, tensor in model.named_parameters():
        if not bool(tensor.isfinite().all()):
            raise ValueError(f"{name} holds a value that is not finite")
    for part in model.modules():
        for name in ("degree", "steps", "quadratic"):
            if (value := getattr(part, name, 1)) in (None, False):
                raise ValueError(
                    f"{type(part).__name__} is computed exactly ({name} is {value}), which shares cannot be"
                )
    for part in model.modules():
        if not isinstance(part, Gauge) or not part.binding:
            continue
        if (interval := part.interval) is None:
            raise ValueError(f"{part.name} is not calibrated; calibrate the model in the clear first")
        if (largest := max(map(abs, interval))) > LARGEST_BOUND:
            raise ValueError(
                f"{part.name}: values up to {largest:.6g} are too large for fixed-point numbers, which take "
                f"{LARGEST_BOUND:g}; distil with a smaller largest_score"
            )
