"""CrypTen's tuples and its truncation, out of the dealer's material.

CrypTen asks its provider for tuples in the middle of every product and comparison. Its own providers either let rank 0
make them, who then can open everything, or draw them from torch's generator, whose outputs tell its state: the owner of
a model knows the masks of its own weights, and with them all masks that follow.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NoReturn

import torch

from tacit.parties.correlated.material import And, AnyRequest, Bit, Product, Square, Truncation, Wraps
from tacit.parties.crypten.compatibility import crypten
from tacit.parties.crypten.errors import MpcError
from tacit.parties.crypten.supply import Supply
from tacit.parties.crypten.truncation import mask, quotient

Arithmetic: Final = crypten.mpc.primitives.ArithmeticSharedTensor
Binary: Final = crypten.mpc.primitives.BinarySharedTensor


class DealtProvider(crypten.mpc.provider.provider.TupleProvider):  # type: ignore[misc]
    """A tuple provider of CrypTen, for two computing parties or more."""

    NAME = "dealt"

    def __init__(self, supply: Supply) -> None:
        super().__init__()
        self._supply = supply

    def generate_additive_triple(
        self, size0: Sequence[int], size1: Sequence[int], op: Any, device: Any = None, **arguments: Any
    ) -> tuple[Any, Any, Any]:
        """Shares of a, b and op(a, b)."""
        named: Any = tuple(
            (name, tuple(value) if isinstance(value, list) else value) for name, value in arguments.items()
        )
        a, b, c = self._take(Product(op, tuple(size0), tuple(size1), named), device)
        return _arithmetic(a), _arithmetic(b), _arithmetic(c)

    def square(self, size: Sequence[int], device: Any = None) -> tuple[Any, Any]:
        """Shares of a and a a."""
        a, c = self._take(Square(tuple(size)), device)
        return _arithmetic(a), _arithmetic(c)

    def generate_binary_triple(
        self, size0: Sequence[int], size1: Sequence[int], device: Any = None
    ) -> tuple[Any, Any, Any]:
        """Shares by exclusive or of a, b and a & b."""
        a, b, c = self._take(And(tuple(size0), tuple(size1)), device)
        return _binary(a), _binary(b), _binary(c)

    def wrap_rng(self, size: Sequence[int], device: Any = None) -> tuple[Any, Any]:
        """Shares of a, and of the wraps of their sum."""
        a, wraps = self._take(Wraps(tuple(size)), device)
        return _arithmetic(a), _arithmetic(wraps)

    def B2A_rng(self, size: Sequence[int], device: Any = None) -> tuple[Any, Any]:
        """Shares of a random bit, additive and by exclusive or."""
        exclusive, additive = self._take(Bit(tuple(size)), device)
        return _arithmetic(additive), _binary(exclusive)

    def truncate(self, share: torch.Tensor, divisor: int) -> torch.Tensor:
        """This party's share of the quotient by a divisor of at least 2, from its share; truncation.py says how."""
        r, low, high = self._take(Truncation(tuple(share.shape), divisor), share.device)
        rank = self._supply.rank
        opened = crypten.communicator.get().all_reduce(mask(share, r, rank=rank, divisor=divisor))
        return quotient(opened, low, high, rank=rank, divisor=divisor)

    def _take(self, request: AnyRequest, device: Any) -> list[torch.Tensor]:
        check_device(device)
        return self._supply.take(request)[1]

    def _refuse(self, *_: Any, **__: Any) -> NoReturn:
        raise MpcError(
            self._supply.parties[self._supply.rank],
            "tuple cache",
            "tuples are used once and never stored; record a plan and announce it",
        )

    trace = trace_once = fill_cache = save_cache = load_cache = _refuse


def check_device(device: Any) -> None:
    """ValueError unless the device is the processor: streams are expanded there."""
    if device is not None and torch.device(device).type != "cpu":
        raise ValueError(f"shares on {device}: the secure computation runs on the processor; call .cpu() first")


def _arithmetic(share: torch.Tensor) -> Any:
    return Arithmetic.from_shares(share, precision=0)


def _binary(share: torch.Tensor) -> Any:
    return Binary.from_shares(share, precision=0)
