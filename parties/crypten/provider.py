"""CrypTen's provider of tuples and its truncation, both from the dealer's correlated randomness.

CrypTen asks its provider for tuples in the middle of every product and comparison. Its own providers either let rank 0
make them, who then can open everything, or draw them from torch's generator, whose outputs disclose its state: the
owner of a model knows the masks of its own weights, and with them all masks that follow.

CrypTen lets two parties divide their own shares by a public integer. That fails for a value x with probability |x| /
2^64, and then by 2^64 / d, not by a rounding. Here one value is opened instead (Escudero et al., ePrint 2020/338,
section 5.1, for any divisor d and not only powers of two), and the result is never wrong by more than one last bit.
With B = d floor(2^62 / d), x + B is not negative for every x >= -B.

1. The dealer deals a mask r, uniform over the words, and for both values h of a bit u_h = -floor(r_h / d), where r_0 is
   r as a signed word and r_1 is r with its highest bit turned over.
2. The parties open c = x + B + r. The mask hides x.
3. y = floor((c mod 2^63) / d) + u_h - B / d, where h is the highest bit of c.

Let r' and c' be r and c without their highest bits. x + B < 2^63, so c' = x + B + r' - 2^63 w, and the carry w is the
exclusive or of both highest bits. Hence r_h = r' - 2^63 w, and x + B = c' - r_h as integers. One quotient is rounded
down, the other up, so y is floor(x / d) or floor(x / d) + 1: the greater one with a probability equal to the part of
the last bit that is cut off, up to d / 2^62, so that y has the mean x / d.

Valid for -B <= x < 2^62, in particular for |x| <= 2^62 - d; outside, the result is wrong by a multiple of 2^63 / d.
Which of the two values comes out depends on r: what is hidden is x given a quotient rounded at random, not given the
exact one (see ePrint 2024/1127).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NoReturn

import torch

from tacit.parties.correlated.material import (
    LARGEST_DIVISOR,
    And,
    AnyRequest,
    Bit,
    Product,
    Square,
    Truncation,
    Wraps,
    floor_quotient,
)
from tacit.parties.crypten.compatibility import crypten
from tacit.parties.crypten.errors import MpcError
from tacit.parties.crypten.supply import Supply

_WITHOUT_SIGN: Final = (1 << 63) - 1


def offset(divisor: int) -> int:
    """B, the multiple of the divisor that is added to make every value positive."""
    return LARGEST_DIVISOR // divisor * divisor


def mask(share: torch.Tensor, words: torch.Tensor, *, rank: int, divisor: int) -> torch.Tensor:
    """This party's share of c, from its shares of x and r (int64, same shape)."""
    masked = share + words
    return masked.add_(offset(divisor)) if rank == 0 else masked


def quotient(opened: torch.Tensor, low: torch.Tensor, high: torch.Tensor, *, rank: int, divisor: int) -> torch.Tensor:
    """This party's share of y, from the opened c and its shares of u_0 and u_1."""
    share = torch.where(opened < 0, high, low)
    if rank == 0:
        share += floor_quotient(opened & _WITHOUT_SIGN, divisor)
        share -= offset(divisor) // divisor
    return share


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
        """This party's share of the quotient by a divisor of at least 2, from its share."""
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
