"""Division of a shared number by a public one, with the dealer's help.

CrypTen lets two parties divide their own shares by a public integer. That fails for a value x with probability |x| /
2^64, and then by 2^64 / d instead of a rounding error. Here one value is opened instead (Escudero et al., ePrint
2020/338, section 5.1, for any divisor d and not only powers of two), and the error is at most one last bit. With B = d
floor(2^62 / d), x + B is not negative for every x >= -B.

1. The dealer deals a mask r, uniform over the words, and for both values h of a bit u_h = -floor(r_h / d), where r_0 is
   r as a signed word and r_1 is r with its highest bit flipped.
2. The parties open c = x + B + r. The mask hides x.
3. y = floor((c mod 2^63) / d) + u_h - B / d, where h is the highest bit of c.

Let r' and c' be r and c without their highest bits. x + B < 2^63, so c' = x + B + r' - 2^63 w, and the carry w is the
exclusive or of both highest bits. Hence r_h = r' - 2^63 w, and x + B = c' - r_h as integers. One quotient is rounded
down, the other up, so y is floor(x / d) or floor(x / d) + 1: the greater one with a probability equal to the truncated
part of the last bit, up to d / 2^62, so that y has the mean x / d.

Valid for -B <= x < 2^62, in particular for |x| <= 2^62 - d; outside, the result is wrong by a multiple of 2^63 / d. The
result depends on r: x is hidden given a randomly rounded quotient, not given the exact one (see ePrint 2024/1127).
"""

from __future__ import annotations

from typing import Final

import torch

from tacit.parties.correlated.material import LARGEST_DIVISOR, Truncation, floor_quotient
from tacit.parties.inference.operations import MODEL, Party, Program
from tacit.parties.inference.ring import WORD_BITS

_WITHOUT_SIGN: Final = (1 << 63) - 1


def truncated(party: Party, share: torch.Tensor, divisor: int) -> Program[torch.Tensor]:
    """This party's share of the quotient by a divisor of at least 2, from its share modulo 2^64."""
    mask, low, high = party.take(Truncation(tuple(share.shape), divisor))
    first, offset = party.rank == MODEL, LARGEST_DIVISOR // divisor * divisor
    masked = share + mask
    (opened,) = yield from party.open("truncation", (masked + offset if first else masked, WORD_BITS))
    found = torch.where(opened < 0, high, low)
    if first:
        found += floor_quotient(opened & _WITHOUT_SIGN, divisor)
        found -= offset // divisor
    return found
