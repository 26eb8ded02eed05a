"""Division of shares by a public integer, with the help of the dealer: never wrong by more than one last bit.

CrypTen lets two parties divide their own shares. That fails for a value x with probability |x| / 2^64, and then by
2^64 / d, not by a rounding. Here one value is opened instead (Escudero et al., ePrint 2020/338, section 5.1, for any
divisor d and not only powers of two). With B = d floor(2^62 / d), x + B is not negative for every x >= -B.

1. The dealer's material is a mask r, uniform over the words, and for both values h of a bit
   u_h = -floor(r_h / d), where r_0 is r as a signed word and r_1 is r with its highest bit turned over.
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

from typing import Final

import torch

from tacit.parties.correlated.material import LARGEST_DIVISOR, floor_quotient

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
